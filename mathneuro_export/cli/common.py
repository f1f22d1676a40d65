"""What the commands share: Click options made from `Options`, talk, and the printing of results."""

import functools
import json
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from mathneuro_export.cli.failures import open_streams
from mathneuro_export.options import flag, option_fields
from mathneuro_export.talk import RedactTokens, Talk

Function = TypeVar("Function", bound=Callable[..., Any])
_TYPES: dict[type, Any] = {int: click.INT, float: click.FLOAT}


def options_of(*groups: str) -> Callable[[Function], Function]:
    """Click options for the fields of these groups; an option that is not given arrives as None."""

    def decorate(function: Function) -> Function:
        for item in reversed(option_fields(*groups)):
            function = _click_option(item)(function)
        return function

    return decorate


def _click_option(item: Any) -> Callable[[Function], Function]:
    extra = dict(item.metadata["click"])
    names = [extra.pop("flags", flag(item.name)), *extra.pop("aliases", ())]
    help_text = item.metadata["help"]
    if item.type is bool:
        return click.option(*names, item.name, default=None, is_flag=True, help=help_text, **extra)
    choices = extra.pop("choices", None)
    kind = click.Choice(choices) if choices else _TYPES.get(item.type, click.STRING)
    if item.default not in (None, ()):
        shown = ", ".join(item.default) if isinstance(item.default, tuple) else item.default
        help_text += f"  [default: {shown}]"
    if extra.get("multiple"):
        return click.option(*names, item.name, type=kind, help=help_text, callback=_empty_is_none, **extra)
    return click.option(*names, item.name, default=None, type=kind, help=help_text, **extra)


def _empty_is_none(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    return value or None


def hub_options(function: Function) -> Function:
    """`--cache-dir` and `--offline`, which hold for every name of the Hub that the command resolves."""

    @click.option("--cache-dir", metavar="DIR", help="The Hub's cache, if it is elsewhere.")
    @click.option("--offline", is_flag=True, help="Take names of the Hub from its cache; ask nothing.")
    @functools.wraps(function)
    def wrapped(*, cache_dir: str | None, offline: bool, **values: Any) -> Any:
        from mathneuro_export.checkpoint.hub_names import hub_defaults

        with hub_defaults(cache_dir, offline):
            return function(**values)

    return cast("Function", wrapped)


def habits(function: Function) -> Function:
    """`--json`, `-q`, `-v` and `--no-progress`; the command gets `as_json` and `talk`."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout and nothing else.")
    @click.option("-q", "--quiet", is_flag=True, help="No talk but errors.")
    @click.option("-v", "--verbose", count=True, help="More talk; twice: tracebacks too.")
    @click.option("--no-progress", is_flag=True, help="No progress bars.")
    @functools.wraps(function)
    def wrapped(*, as_json: bool, quiet: bool, verbose: int, no_progress: bool, **values: Any) -> Any:
        open_streams()
        logging.basicConfig(level=logging.DEBUG if verbose > 1 else logging.WARNING, stream=sys.stderr)
        for handler in logging.getLogger().handlers:
            handler.addFilter(RedactTokens())
        talk = Talk(sentences=not quiet, bars=not quiet and not no_progress and sys.stderr.isatty())
        return function(as_json=as_json, talk=talk, **values)

    return cast("Function", wrapped)


def print_json(value: Any) -> None:
    """One JSON document on stdout; what is not finite is null."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False))
