"""`mathneuro-export apply`."""

from typing import Any

import click

from mathneuro_export.cli.making import make, making


@click.command("apply")
@click.argument("run")
@click.argument("model")
@making("apply", "OUT")
def command(run: str, model: str, **values: Any) -> None:
    """Put the masks of RUN on MODEL, its source or another version of it, and write the checkpoint OUT.

    No forward pass is made; --factor must be given.
    """
    make("apply", model, run=run, **values)
