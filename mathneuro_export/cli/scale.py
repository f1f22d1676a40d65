"""`mathneuro-export scale`."""

from typing import Any

import click

from mathneuro_export.cli.making import make, making


@click.command("scale")
@click.argument("model")
@making("scale", "OUT")
def command(model: str, **values: Any) -> None:
    """Multiply the math-specific weights of MODEL by a factor and write the checkpoint OUT."""
    make("scale", model, **values)
