"""`mathneuro-export combine`."""

import click

from mathneuro_export.cli.common import habits, hub_options, print_json
from mathneuro_export.masks.merge import OPERATIONS
from mathneuro_export.talk import Talk


@click.command("combine")
@click.argument("inputs", metavar="A B [C ...]", nargs=-1, required=True)
@click.option("-o", "--output", metavar="RUN", required=True, help="Folder to write.")
@click.option(
    "--op", type=click.Choice(OPERATIONS), required=True, help="How masks are combined; minus: A without the others."
)
@click.option("--resume/--no-resume", default=True, help="Go on with unfinished work of the same command.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier run wrote.")
@hub_options
@habits
def command(
    inputs: tuple[str, ...], output: str, op: str, resume: bool, overwrite: bool, as_json: bool, talk: Talk
) -> None:
    """Write a RUN with the masks of A, B, ... combined; `apply` puts it on a model."""
    from mathneuro_export.export.combine import combine

    result = combine(inputs, output, op, resume=resume, overwrite=overwrite, talk=talk)
    for warning in result.warnings:
        talk.say(f"warning: {warning['message']}")
    if as_json:
        print_json(result.as_json())
    else:
        click.echo(f"{result.output}: {result.targets} targets, {result.masked:,} weights masked")
