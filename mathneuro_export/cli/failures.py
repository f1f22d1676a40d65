"""From an exception to its exit code and its one line."""

import errno
import os
import re
import sys

import click

from mathneuro_export.errors import Error

TABLE: tuple[tuple[type[BaseException], int, str], ...] = (
    (click.Abort, 130, "interrupted; the same command goes on from where it was"),
    (KeyboardInterrupt, 130, "interrupted; the same command goes on from where it was"),
    (MemoryError, 4, "out of memory; close other programs, or try --dtype bfloat16 or a smaller --batch-size"),
    (RecursionError, 1, "an input is nested too deeply to be read"),
)


def open_streams() -> None:
    """Give a process that was started without standard streams (`2>&-`) the null device in their places.

    Otherwise a file of the output would get descriptor 2, and what a library says there would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def describe(error: BaseException) -> tuple[int, str]:
    """Exit code and the line that begins with `Error: `."""
    code, text = _describe(error)
    return code, "Error: " + re.sub(r"\s+", " ", text).strip()


def _describe(error: BaseException) -> tuple[int, str]:
    if isinstance(error, Error):
        return error.exit_code, str(error)
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message().rstrip(".") + _help_of(error)
    if isinstance(error, click.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__
    for kind, code, text in TABLE:
        if isinstance(error, kind):
            return code, text
    if type(error).__module__.partition(".")[0] in ("huggingface_hub", "httpx", "httpx2", "hf_xet"):
        from mathneuro_export.checkpoint.hub_client import explain

        told = explain(error, "the Hub")
        return told.exit_code, str(told)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "while writing"
        return 4, f"no space left on the disk ({where}); free some and run the command again"
    if type(error).__name__ == "OutOfMemoryError":
        return 4, "out of device memory; try --dtype bfloat16, a smaller --batch-size or --device cpu"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return 1, f"{error.strerror or error}{where}; check that file and the disk it is on, then run the command again"
    return 1, f"{type(error).__name__}: {error}; give -vv for the traceback, and please report it"


def _help_of(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"; see {context.command_path} --help" if context else ""
