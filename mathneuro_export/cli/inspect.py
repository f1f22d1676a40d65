"""`mathneuro-export inspect`."""

import click

from mathneuro_export.cli.common import habits, hub_options, options_of, print_json
from mathneuro_export.talk import Talk


@click.command("inspect")
@click.argument("folder", metavar="MODEL|RUN|OUT")
@options_of("model")
@hub_options
@habits
def command(folder: str, revision: str | None, as_json: bool, talk: Talk) -> None:
    """Tell what a checkpoint, RUN or OUT holds, from headers, index, config and manifest alone."""
    from mathneuro_export.checkpoint.hub import local_plan
    from mathneuro_export.export.inspect import inspect, inspect_text

    found = local_plan(folder, revision=revision, talk=talk)
    info = inspect(found.folder, found.listing)
    print_json(info) if as_json else click.echo(inspect_text(info))
