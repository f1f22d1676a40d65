"""The journal of unfinished work: JSON lines, each on the disk before the next; the first holds the fingerprint."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import Error, ResourceError, UsageError
from .durable import is_full, temporary, write_all
from .regular import label, open_regular, quote, reason
from .strictjson import canonical, parse_json

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

_VERSION = 1
_LIMIT = 64 << 20


class Journal:
    """What is done of a piece of work, by key. One process at a time has it open."""

    def __init__(self, path: Path, fd: int, entries: dict[str, Any]) -> None:
        self._path = path
        self._fd = fd
        self._entries = entries

    @classmethod
    def open(
        cls, path: Path, fingerprint: dict[str, Any], resume: bool, records: Mapping[str, Any] | None = None
    ) -> "Journal":
        """Open or begin a journal; one that is begun takes the place of an older one at once, with its first records.

        Args:
            path: its file, in a folder that exists.
            fingerprint: of the work (JSON values); its top-level keys are named where they differ.
            resume: go on with what is there; else begin anew.
            records: what a journal that is begun holds from the first, by key.

        Raises:
            UsageError: it is of other work, or another process has it open.
            ResourceError: the disk is full.
            Error: it is damaged elsewhere than at its end, or cannot be written.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise _cannot(path, "be opened", error) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Error(f"{label(path)}: is no regular file, expected a journal; remove it")
            _lock(fd, path)
            found, entries, end = _read(path) if resume else (None, {}, 0)
            if found is not None:
                _compare(path, found, fingerprint)
                os.ftruncate(fd, end)
                os.lseek(fd, end, os.SEEK_SET)
                return cls(path, fd, entries)
            begun = cls(path, _begin(path, fingerprint, records or {}), dict(records or {}))
        except OSError as error:
            _close_unbegun(fd, path)
            raise _cannot(path, "be written", error) from error
        except BaseException:
            _close_unbegun(fd, path)
            raise
        os.close(fd)
        return begun

    @property
    def entries(self) -> Mapping[str, Any]:
        """All that is recorded."""
        return self._entries

    def get(self, key: str) -> Any:
        """What was recorded under a key, None where nothing was."""
        return self._entries.get(key)

    def record(self, key: str, value: Any) -> None:
        """Record a JSON value under a key; when this returns it is on the disk. A later value replaces an earlier."""
        try:
            self._append({"key": key, "value": value})
        except OSError as error:
            raise _cannot(self._path, "be written", error) from error
        self._entries[key] = value

    def _append(self, document: dict[str, Any]) -> None:
        write_all(self._fd, _line(document))
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file, which stays; closing again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_fingerprint(path: Path) -> dict[str, Any] | None:
    """The fingerprint of a journal; None where it was killed before it had one.

    Raises:
        Error: the file is missing or no journal.
    """
    return _read(path)[0]


def read_journal(path: Path, salvage: bool = False) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Fingerprint and records of a journal, which another process may be writing to.

    Args:
        salvage: take what stands before the first damaged line instead of raising.

    Raises:
        Error: the file is missing, or is damaged and `salvage` is not set.
    """
    return _read(path, salvage)[:2]


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"


def _begin(path: Path, fingerprint: dict[str, Any], records: Mapping[str, Any]) -> int:
    """Put a new journal in place, whole or not at all; returns its file descriptor, locked and at the end."""
    with temporary(path) as work:
        _lock(work.fd, work.path)
        write_all(work.fd, _line({"journal": _VERSION, "fingerprint": fingerprint}))
        for key, value in records.items():
            write_all(work.fd, _line({"key": key, "value": value}))
        return os.dup(work.fd)


def _close_unbegun(fd: int, path: Path) -> None:
    """Close a journal that was opened in vain; a file that `open` itself created goes."""
    if stat.S_ISREG(os.fstat(fd).st_mode) and os.fstat(fd).st_size == 0:
        path.unlink(missing_ok=True)
    os.close(fd)


def _cannot(path: Path, what: str, error: OSError) -> Error:
    if is_full(error):
        return ResourceError(f"{label(path)}: the disk is full ({reason(error)}); free space and run the command again")
    return Error(f"{label(path)}: cannot {what} ({reason(error)}); check its folder")


def _lock(fd: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        replaced = not path.exists() or not os.path.samestat(os.fstat(fd), path.stat())
    except BlockingIOError:
        replaced = True
    except OSError:
        return
    if replaced:
        raise UsageError(f"{label(path)}: another process is at work in this folder; wait for it or stop it")


def _read(path: Path, salvage: bool = False) -> tuple[dict[str, Any] | None, dict[str, Any], int]:
    """Fingerprint, entries, and the number of bytes that are sound; `salvage` stops at the first damaged line."""
    if path.is_symlink():
        raise Error(f"{label(path)}: is a link, expected a journal; remove it")
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LIMIT:
            raise Error(f"{label(path)}: is longer than {_LIMIT} bytes, expected a journal; start with --overwrite")
        data = file.readall()
    lines = data.split(b"\n")
    torn = lines.pop()
    fingerprint: dict[str, Any] | None = None
    entries: dict[str, Any] = {}
    end = 0
    for number, line in enumerate(lines):
        last = number == len(lines) - 1 and not torn
        try:
            document = parse_json(line, f"{label(path)}: line {number + 1}")
            if number == 0:
                fingerprint = _fingerprint(document)
            else:
                entries[document["key"]] = document["value"]
        except (Error, KeyError, TypeError):
            if salvage or (last and number):
                break
            raise Error(
                f"{label(path)}: line {number + 1} is {quote(line[:80])}, expected a journal's; start with --overwrite"
            ) from None
        end += len(line) + 1
    return fingerprint, entries, end


def _fingerprint(document: Any) -> dict[str, Any]:
    if document["journal"] != _VERSION or not isinstance(document["fingerprint"], dict):
        raise TypeError
    found: dict[str, Any] = document["fingerprint"]
    return found


def _compare(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    missing = object()
    differ = []
    for key in sorted(found.keys() | wanted.keys()):
        a, b = found.get(key, missing), wanted.get(key, missing)
        if a is missing or b is missing or canonical(a) != canonical(b):
            differ.append(key)
    if differ:
        raise UsageError(
            f"{label(path)}: the unfinished work here is of another command ({', '.join(differ)} differ); repeat that"
            " command, or begin anew with --overwrite or --no-resume"
        )
