"""`mathneuro-export prune`."""

from typing import Any

import click

from mathneuro_export.cli.making import make, making


@click.command("prune")
@click.argument("model")
@making("prune", "OUT")
def command(model: str, **values: Any) -> None:
    """Set the math-specific weights of MODEL to zero and write the checkpoint OUT."""
    make("prune", model, **values)
