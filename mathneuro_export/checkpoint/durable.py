"""Files that are there whole or not at all: temporary file, fsync, rename, fsync of the folder."""

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ..errors import Error, ResourceError
from .regular import label, open_regular, read_into, reason

CHUNK = 8 << 20
"""Bytes read or written at a time."""
_PREFIX, _SUFFIX = ".mathneuro-", ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and sha256 (hexadecimal) of a file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Temporary:
    """An open temporary file that takes its final name when its context ends well."""

    fd: int
    path: Path


@contextmanager
def temporary(path: Path, size: int | None = None, mode: int | None = None) -> Iterator[Temporary]:
    """Write a file under a temporary name beside `path`; at the end it is made durable and renamed to `path`.

    Whatever ends the block early (KeyboardInterrupt too) removes the temporary file and leaves `path` as it was.

    Args:
        path: final name, in a folder that exists.
        size: bytes to allocate first, so that a full disk is met before any work.
        mode: permission bits of the file; the process's default where None.

    Raises:
        ResourceError: the disk is full.
        Error: the folder is missing or cannot be written.
    """
    work = path.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")
    try:
        fd = os.open(work, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if size:
                _allocate(fd, size)
            yield Temporary(fd, work)
            if mode is not None:
                work.chmod(mode & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)
        work.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        _unlink(work)
        raise _write_error(path, error) from error
    except BaseException:
        _unlink(work)
        raise


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return error.errno in _FULL


def _write_error(path: Path, error: OSError) -> Error:
    if is_full(error):
        return ResourceError(f"{label(path)}: the disk is full ({reason(error)}); free space and run the command again")
    return Error(f"{label(path)}: cannot be written ({reason(error)}); check its folder")


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all bytes at the file's position."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the platform can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durably; one that exists is fine."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
        fsync_folder(path.parent)
    except OSError as error:
        raise _write_error(path, error) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file durably; an existing one is replaced at once or not at all.

    Raises:
        ResourceError: the disk is full.
        Error: the folder cannot be written.
    """
    with temporary(path) as work:
        write_all(work.fd, data)


def copy_file(src: Path, dst: Path, opened: FileIO | None = None) -> Digest:
    """Copy a file durably with its permission bits, making missing folders of `dst`; the digest is of what was copied.

    Args:
        opened: `src`, open at its start where the caller has checked it; it is closed.

    Raises:
        ResourceError: the disk is full.
        Error: `src` cannot be read or is no regular file, or `dst` cannot be written.
    """
    digest = hashlib.sha256()
    with opened or open_regular(src) as file:
        make_folder(dst.parent)
        status = os.fstat(file.fileno())
        buffer = memoryview(bytearray(min(CHUNK, status.st_size)))
        with temporary(dst, status.st_size, status.st_mode) as work:
            for start in range(0, status.st_size, CHUNK):
                part = buffer[: min(CHUNK, status.st_size - start)]
                read_into(file, part, src)
                digest.update(part)
                write_all(work.fd, part)
    return Digest(status.st_size, digest.hexdigest())


def is_temporary(name: str) -> bool:
    """Whether a file name is one that `temporary` gives."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a folder and the folders below it."""
    for base, _, names in os.walk(folder):
        for name in filter(is_temporary, names):
            _unlink(Path(base, name))


def free_space(path: Path) -> int:
    """Bytes that may still be written where `path` is or would be."""
    path = path.resolve()
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError as error:
        raise Error(f"{label(path)}: the free space cannot be told ({reason(error)}); check the disk") from None


def require_space(path: Path, nbytes: int) -> None:
    """Refuse work that the disk has no room for.

    Raises:
        ResourceError: fewer than `nbytes` bytes are free where `path` is or would be.
    """
    free = free_space(path)
    if free < nbytes:
        raise ResourceError(
            f"{label(path)}: needs {nbytes} bytes of disk, {free} are free; free {nbytes - free} bytes or choose"
            " another disk"
        )
