"""`mathneuro-export demo`."""

from pathlib import Path

import click

from mathneuro_export.cli.common import habits, print_json
from mathneuro_export.talk import Talk


@click.command("demo")
@click.argument("folder", metavar="[DIR]", default="demo-output")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier demo wrote.")
@habits
def command(folder: str, overwrite: bool, as_json: bool, talk: Talk) -> None:
    """Do the main job on the bundled model and print what it did to math and to general language."""
    from mathneuro_export.demo.run import run_demo

    outcome = run_demo(Path(folder), overwrite=overwrite, talk=talk)
    if as_json:
        print_json(outcome.as_json())
        return
    click.echo(f"{'':<8}{'proportion':>11}{'factor':>8}{'math accuracy':>15}{'math loss':>11}{'general loss':>14}")
    for row in outcome.rows:
        proportion = "" if row.proportion is None else f"{row.proportion:g}"
        factor = "" if row.factor is None else f"{row.factor:g}"
        click.echo(
            f"{row.name:<8}{proportion:>11}{factor:>8}{row.math_accuracy:>15.3f}{row.math_loss:>11.3f}{row.general_loss:>14.3f}"
        )
    click.echo(f"verified: {'yes' if outcome.verified else 'no'}; checkpoints in {folder}")
