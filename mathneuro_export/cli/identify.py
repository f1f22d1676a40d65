"""`mathneuro-export identify`."""

from typing import Any

import click

from mathneuro_export.cli.making import make, making


@click.command("identify")
@click.argument("model")
@making("identify", "RUN")
def command(model: str, **values: Any) -> None:
    """Find the math-specific weights of MODEL: write a RUN of statistics, masks and a manifest."""
    make("identify", model, **values)
