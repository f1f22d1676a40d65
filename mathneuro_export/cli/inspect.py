"""`mathneuro-export inspect`."""

from pathlib import Path

import click

from mathneuro_export.cli.common import habits, print_json
from mathneuro_export.talk import Talk


@click.command("inspect")
@click.argument("folder", metavar="MODEL|RUN|OUT")
@habits
def command(folder: str, as_json: bool, talk: Talk) -> None:
    """Tell what a checkpoint, RUN or OUT holds, from headers, index, config and manifest alone."""
    from mathneuro_export.export.inspect import inspect, inspect_text

    info = inspect(Path(folder))
    print_json(info) if as_json else click.echo(inspect_text(info))
