"""Where an OUT or RUN may stand."""

import os
import stat
from pathlib import Path

from ..errors import Error, UsageError
from .regular import quote, reason


def check_output(out: Path, source_folder: Path | None, what: str = "the source") -> None:
    """Check that a folder can be written and neither is, nor lies inside, nor holds the source.

    Links, `..`, and names that a file system takes for equal are seen through.

    Args:
        out: a folder, or one to be made in a parent that exists.
        source_folder: the source's folder, None where there is none to protect.
        what: what messages call it.

    Raises:
        UsageError: the folder may not be used; the message says why.
    """
    where = f"OUT {quote(str(out))}"
    try:
        resolved = out.resolve()
        if out.is_symlink() and not resolved.exists():
            raise UsageError(f"{where}: is a broken link, expected a folder or a new name; choose another name")
        if source_folder is not None:
            _refuse_source(where, resolved, source_folder.resolve(), what)
        _check_writable(where, resolved)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{where}: cannot be used ({reason(error)}); choose another folder") from None


def require_folders(folder: Path, name: str) -> bool:
    """Whether a folder is there below another; each folder on the way to it must be one itself, and no link.

    Args:
        name: POSIX, relative to `folder`.

    Raises:
        UsageError: a link or file stands in the way.
    """
    path = folder
    for part in name.split("/"):
        path /= part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UsageError(
                f"OUT {quote(str(folder))}: cannot be used ({reason(error)}); choose another folder"
            ) from None
        if not stat.S_ISDIR(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "no folder"
            found = quote(path.relative_to(folder).as_posix())
            raise UsageError(f"OUT {quote(str(folder))}: {found} in it is {kind}, expected a folder; remove it")
    return True


def _refuse_source(where: str, out: Path, source: Path, what: str) -> None:
    if _same(out, source):
        raise UsageError(f"{where}: is {what} itself; choose another folder")
    if any(_same(parent, source) for parent in out.parents):
        raise UsageError(f"{where}: lies inside {what}; choose a folder outside it")
    if any(_same(out, parent) for parent in source.parents):
        raise UsageError(f"{where}: holds {what}; choose a folder of its own")


def _same(a: Path, b: Path) -> bool:
    return a == b or (a.exists() and b.exists() and a.samefile(b))


def _check_writable(where: str, out: Path) -> None:
    if out.exists():
        if not out.is_dir():
            raise UsageError(f"{where}: is a file, expected a folder; choose another name")
        folder, what = out, "it"
    else:
        if not out.parent.exists():
            raise UsageError(f"{where}: its parent does not exist; make the parent folder first")
        if not out.parent.is_dir():
            raise UsageError(f"{where}: its parent is a file, expected a folder; choose another name")
        folder, what = out.parent, "its parent"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{where}: {what} is not writable; change its permissions or choose another folder")


def files_below(folder: Path) -> list[str]:
    """POSIX names, relative and sorted, of everything below a folder that is no folder; links are not followed.

    Raises:
        Error: a folder cannot be listed.
    """
    names: list[str] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                        pending.append(f"{prefix}{entry.name}/")
                    else:
                        names.append(prefix + entry.name)
        except OSError as error:
            where = f"{folder.name}/{prefix}".rstrip("/")
            raise Error(f"{where}: cannot be listed ({reason(error)}); check its permissions") from None
    return sorted(names)
