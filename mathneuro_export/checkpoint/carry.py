"""Which files beside the shards go to OUT, which do not, and where symbolic links may lead."""

import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath

from ..errors import Error
from .durable import is_temporary
from .regular import open_regular, quote, reason

OWN_FOLDER = "mathneuro"
"""The folder in an OUT that holds manifest, statistics and masks."""
_SUFFIXES = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data")
_FOLDERS = {"original", ".git", ".cache"}
README = "README.md"
README_LIMIT = 10_000_000
"""Bytes of the longest README.md that is read: it is held in memory to build the model card."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Names relative to the source, POSIX, sorted; a folder that is left out whole ends in a slash."""

    carried: tuple[str, ...]
    left_out: tuple[str, ...]
    stray: tuple[str, ...]


def sort_files(folder: Path, weights: frozenset[str], ignored: str | None = None) -> Carried:
    """Sort the files of a checkpoint; folders that are left out are not looked into.

    Args:
        folder: the source, resolved.
        weights: the shards and the index, which are in none of the lists.
        ignored: an index that does not hold, left out.

    Raises:
        Error: a special file, a link out of the folder, a linked folder, a name that a manifest cannot hold, or a
            README.md that is too long.
    """
    carried: list[str] = []
    left_out: list[str] = [ignored] if ignored else []
    stray: list[str] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        for entry in _entries(folder, prefix):
            name = prefix + entry.name
            _check_name(folder, name)
            if not _left_out(name):
                _check_plain(folder.name, name)
            if name in weights or name == ignored:
                continue
            if _left_out(name):
                left_out.append(name + "/" * entry.is_dir(follow_symlinks=False))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(name + "/")
            elif not prefix and name.lower().endswith(".safetensors"):
                stray.append(name)
            else:
                check_file(folder, name)
                carried.append(name)
    return Carried(tuple(sorted(carried)), tuple(sorted(left_out + stray)), tuple(sorted(stray)))


def sort_names(names: Iterable[str], weights: frozenset[str], ignored: str | None = None) -> Carried:
    """`sort_files` for a listing: POSIX names of files that need not be at hand.

    Raises:
        Error: a name that a manifest cannot hold.
    """
    carried: set[str] = set()
    left_out: set[str] = {ignored} if ignored else set()
    stray: set[str] = set()
    for name in names:
        if name in weights or name == ignored:
            continue
        whole = next((f"{folder}/" for folder in _folders(name) if _left_out(folder)), None)
        if whole is not None or _left_out(name):
            left_out.add(whole or name)
        elif "/" not in name and name.lower().endswith(".safetensors"):
            stray.add(name)
        else:
            _check_plain("the listing", name)
            carried.add(name)
    return Carried(tuple(sorted(carried)), tuple(sorted(left_out | stray)), tuple(sorted(stray)))


def _folders(name: str) -> list[str]:
    """The folders a name is in, the outermost first."""
    return [str(parent) for parent in reversed(PurePosixPath(name).parents)][1:]


def _entries(folder: Path, prefix: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder / prefix) as entries:
            return list(entries)
    except OSError as error:
        where = f"{folder.name}/{prefix}".rstrip("/")
        raise Error(f"{where}: cannot be listed ({reason(error)}); check its permissions") from None


def _check_name(folder: Path, name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise Error(f"{folder.name}: the file name {quote(name)} is not UTF-8; rename or remove the file") from None


def _check_plain(where: str, name: str) -> None:
    """Refuse a name that is no plain path below a folder everywhere, or holds control characters."""
    path = PurePosixPath(name)
    odd = "\\" in name or any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    if odd or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise Error(
            f"{where}: the file name {quote(name)} holds a backslash or control character, or is no plain path;"
            " rename or remove the file"
        )


def _left_out(name: str) -> bool:
    """Whether a relative name is left out by itself or by a folder it is in; stray shards apart."""
    parts = PurePosixPath(name.lower()).parts
    return (
        parts[0] == OWN_FOLDER
        or not _FOLDERS.isdisjoint(parts)
        or parts[-1].endswith(_SUFFIXES)
        or is_temporary(parts[-1])
    )


def check_file(folder: Path, name: str) -> Path:
    """Check that a name in the source is a regular file, or a link to one that may be read.

    A link may lead to a file of the folder that is itself carried, or from a snapshot of the Hub's cache
    (`snapshots/REVISION`) into its blobs (see `is_blob_of`).

    Args:
        folder: the source, resolved.

    Raises:
        Error: a missing or special file, a folder, a link elsewhere, or a README.md that is too long.
    """
    path = folder / name
    where = f"{folder.name}/{name}" if name.isprintable() else quote(name)
    try:
        target = path.resolve(strict=True)
        status = target.stat()
        mode = status.st_mode
    except (OSError, RuntimeError) as error:
        kind = "is a broken link" if path.is_symlink() else f"cannot be read ({reason(error)})"
        raise Error(f"{where}: {kind}, expected a file; download it again or remove it") from None
    if not stat.S_ISREG(mode):
        kind = "a linked folder" if stat.S_ISDIR(mode) else "a special file"
        raise Error(f"{where}: is {kind}, expected a regular file; replace it by the file itself or remove it")
    if target != path and not _may_link(folder, target):
        raise Error(f"{where}: is a link that leads out of the files carried; replace it by the file itself")
    if name == README and status.st_size > README_LIMIT:
        raise Error(
            f"{where}: is {status.st_size} bytes long, expected at most {README_LIMIT}; shorten or remove it, it is"
            " copied into the model card"
        )
    return path


def open_file(folder: Path, name: str) -> FileIO:
    """Open what `check_file` allows; the file that is open is the one that was checked, whatever was swapped meanwhile.

    Raises:
        Error: see `check_file`, or the file was replaced while it was opened.
    """
    file = open_regular(check_file(folder, name))
    try:
        if not os.path.samestat(os.fstat(file.fileno()), check_file(folder, name).stat()):
            raise Error(f"{folder.name}/{name}: was replaced while it was opened; run the command again")
    except BaseException:
        file.close()
        raise
    return file


def _may_link(folder: Path, target: Path) -> bool:
    if target.is_relative_to(folder):
        return not _left_out(target.relative_to(folder).as_posix())
    return is_blob_of(folder, target)


def is_blob_of(folder: Path, target: Path) -> bool:
    """Whether a resolved path is where links of a snapshot in the Hub's cache may lead.

    That is the repository's own `blobs`, or the store that all repositories of a cache share (huggingface_hub 2):
    `CACHE/blobs/XX/HASH`.
    """
    repository = folder.parent.parent
    if folder.parent.name != "snapshots":
        return False
    if target.parent == repository / "blobs":
        return True
    shared = target.parent.parent == repository.parent / "blobs" and repository.name.startswith("models--")
    return shared and re.fullmatch(r"[0-9a-f]{64}", target.name) is not None and target.parent.name == target.name[:2]
