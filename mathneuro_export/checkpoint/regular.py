"""Opening of regular files only, and names as they stand in messages."""

import stat
from io import FileIO
from pathlib import Path

from ..errors import Error

_QUOTE_LIMIT = 120


def label(path: Path) -> str:
    """The file's name with its folder's: what a message calls it, never the path of the machine."""
    parent = path.parent.name
    text = f"{parent}/{path.name}" if parent else path.name
    return text if text.isprintable() else repr(text)


def quote(value: object) -> str:
    """One bounded, printable line for a value out of a file that is not to be trusted."""
    text = repr(value)
    return text if len(text) <= _QUOTE_LIMIT else text[: _QUOTE_LIMIT - 3] + "..."


def reason(error: Exception) -> str:
    """What went wrong in the words of the system, without paths."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def is_plain(path: Path) -> bool:
    """Whether a path is a regular file itself, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: Path) -> FileIO:
    """Open for unbuffered reading; symbolic links are followed.

    Raises:
        Error: missing, not readable, or a directory, FIFO, socket or device (which is never opened, so nothing hangs).
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a special file"
            raise Error(f"{label(path)}: is {kind}, expected a regular file; put the file itself there")
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise Error(f"{label(path)}: no such file; copy or download it again") from None
    except (OSError, ValueError) as error:
        raise Error(f"{label(path)}: cannot be opened ({reason(error)}); check its permissions") from None


def read_into(file: FileIO, view: memoryview, path: Path) -> None:
    """Fill the whole view from the file's position.

    Raises:
        Error: the file ends too early or cannot be read.
    """
    done = 0
    try:
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise Error(f"{label(path)}: ended {len(view) - done} bytes too early; it changed while being read")
            done += count
    except OSError as error:
        raise Error(f"{label(path)}: cannot be read ({reason(error)}); check the disk") from None
