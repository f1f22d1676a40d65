"""The files of a RUN or OUT against the manifest's list: names, kinds, sizes and hashes."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from mathneuro_export.checkpoint.carry import is_blob_of
from mathneuro_export.errors import Error

from .manifest import FileEntry
from .verify_report import Problem, Progress, printable

CHUNK = 8 << 20
_FREE_FOLDERS = (".git", ".cache")
_FREE_FILES = (".gitattributes",)


def scan(folder: Path) -> tuple[list[str], list[Problem]]:
    """The POSIX names of the regular files below a folder, sorted, and a problem for whatever else is there.

    `.git/` and `.cache/` at the top are not entered. A link is a file only where it leads from a snapshot of the
    Hub's cache into that cache's blobs.
    """
    root = folder.resolve()
    files: list[str] = []
    problems: list[Problem] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(root / prefix) as listing:
                entries = list(listing)
        except OSError as error:
            problems.append(Problem(printable(prefix), None, f"cannot be listed ({error.strerror})"))
            continue
        for entry in entries:
            name = prefix + entry.name
            if not prefix and entry.name in _FREE_FOLDERS:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(name + "/")
            elif entry.is_file(follow_symlinks=False) or (entry.is_symlink() and _is_blob(root, root / name)):
                files.append(name)
            else:
                kind = "a link" if entry.is_symlink() else "a special file"
                problems.append(Problem(printable(name), None, f"is {kind}, expected a regular file"))
    return sorted(files), problems


def _is_blob(root: Path, link: Path) -> bool:
    try:
        target = link.resolve(strict=True)
        return is_blob_of(root, target) and stat.S_ISREG(target.stat().st_mode)
    except (OSError, RuntimeError):
        return False


def check_listed(folder: Path, listed: Mapping[str, FileEntry], found: list[str], own: str) -> Iterator[Problem]:
    """Missing and unlisted files; `own` is the manifest's name, `folder` serves for links and special files."""
    there = set(found)
    for name in listed:
        if name not in there:
            state = "is no regular file" if os.path.lexists(folder / name) else "is missing"
            yield Problem(printable(name), None, f"{state}, the manifest lists it")
    for name in found:
        if name not in listed and name != own and name not in _FREE_FILES:
            yield Problem(printable(name), None, "is not listed in the manifest")


def check_hashes(
    folder: Path, listed: Mapping[str, FileEntry], stage: str = "hash", progress: Progress | None = None
) -> Iterator[Problem]:
    """Size and sha256 of each listed file that is there; links are followed, special files never opened."""
    total = sum(entry.size for entry in listed.values())
    done = 0
    for name, entry in listed.items():
        try:
            size, sha256 = digest(folder / name)
        except (Error, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            yield Problem(printable(name), None, f"cannot be read ({reason})")
        else:
            if size != entry.size:
                yield Problem(printable(name), None, f"has {size} bytes, the manifest says {entry.size}")
            elif sha256 != entry.sha256:
                yield Problem(printable(name), None, f"has sha256 {sha256}, the manifest says {entry.sha256}")
        done += entry.size
        if progress:
            progress(stage, done, total)


def digest(path: Path) -> tuple[int, str]:
    """Size in bytes and sha256 (hex) of a regular file, read 8 MiB at a time.

    Raises:
        Error: no regular file.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise Error("no regular file")
    sha256, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            size += count
    return size, sha256.hexdigest()
