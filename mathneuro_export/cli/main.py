"""The command `mathneuro-export`: one subcommand a module, loaded only when it is asked for."""

import importlib
import os
import sys
from typing import Any

import click

import mathneuro_export
from mathneuro_export.cli.failures import describe, open_streams
from mathneuro_export.talk import without_tokens

COMMANDS = {
    "identify": "Calibrate and select: statistics, masks and manifest, no checkpoint.",
    "scale": "Multiply the math-specific weights and write the checkpoint.",
    "prune": "Set the math-specific weights to zero and write the checkpoint.",
    "apply": "Apply stored masks to this or another version; no forward pass.",
    "diff": "Compare masks: overall, per layer, per kind of module, per tensor.",
    "combine": "Masks by and, or, minus, majority.",
    "export-mask": "Masks in other tools' formats.",
    "inspect": "Tell what a checkpoint, RUN or OUT holds, from headers and manifest.",
    "verify": "Prove what was changed.",
    "push": "Take OUT or RUN to the Hub.",
    "demo": "The bundled model: identify, scale, prune, controls, verify, measures.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"mathneuro_export.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(mathneuro_export.__version__, prog_name="mathneuro-export")
def cli() -> None:
    """Find the math-specific weights of a causal language model, scale or prune them, and prove what changed.

    Results go to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 verification failed,
    4 not enough memory or disk, 130 interrupted.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code; an error is one line, the last on stderr."""
    open_streams()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = cli.main(arguments, prog_name="mathneuro-export", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt, click.Abort) as error:
        code, line = describe(error)
        if _wants_traceback(arguments):
            import traceback

            print(without_tokens(traceback.format_exc()), end="", file=sys.stderr)
        print(line, file=sys.stderr, flush=True)
    sys.exit(code if isinstance(code, int) else 0)


def _wants_traceback(arguments: list[Any]) -> bool:
    return "-vv" in arguments or sum(argument in ("-v", "--verbose") for argument in arguments) > 1
