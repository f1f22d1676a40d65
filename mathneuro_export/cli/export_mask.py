"""`mathneuro-export export-mask`."""

import click

from mathneuro_export.cli.common import habits, hub_options, print_json
from mathneuro_export.talk import Talk

_FORMATS = ("npz", "torch", "bool-safetensors", "trainable-json")


@click.command("export-mask")
@click.argument("run")
@click.option("-o", "--output", "file", metavar="FILE", required=True, help="File to write.")
@click.option("--format", "form", type=click.Choice(_FORMATS), required=True, help="What other tools read.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it is there.")
@hub_options
@habits
def command(run: str, file: str, form: str, overwrite: bool, as_json: bool, talk: Talk) -> None:
    """Write the masks of RUN for tools that freeze, train or keep in 16 bits exactly these weights."""
    from mathneuro_export.export.mask_formats import export_mask

    result = export_mask(run, file, form, overwrite=overwrite)
    if as_json:
        print_json(result.as_json())
    else:
        click.echo(f"{result.file}: {result.tensors} tensors, {result.masked:,} weights masked, {result.bytes:,} bytes")
