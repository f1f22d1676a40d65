"""Rewrite one shard with the same header and offsets, where only the bytes of some elements change.

One pass over the file gives both digests. Memory is a few chunks whatever the tensor: a row that is longer is edited in
a map of the new file.
"""

import errno
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Error
from .dtypes import EDITABLE, RAW
from .durable import CHUNK, Digest, temporary, write_all
from .header import Header, TensorInfo
from .regular import label, open_regular, quote, read_into

Editor = Callable[[np.ndarray[Any, Any], int], None]
"""Called with raw rows [r, cols], writable, and the first one's number; edits in place.

The calls go through all rows in order. A 3-D tensor [E, r, c] is seen as [E*r, c], a 1-D one as [1, n]."""

_WAITING = 3
_NO_KERNEL_COPY = {errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}


def rewrite_shard(header: Header, target: Path, editor: Callable[[TensorInfo], Editor | None]) -> tuple[Digest, Digest]:
    """Write an edited copy of a shard, durably.

    Args:
        header: of the source shard, as `read_header` gave it.
        target: name of the new file, in a folder that exists.
        editor: gives the editor of a tensor, or None to leave its bytes alone.

    Returns:
        Digest of the source as it was read, and of what was written.

    Raises:
        ResourceError: the disk is full; met before anything is copied.
        Error: the source changed since its header was read, `target` cannot be written, or an editor was given for a
            dtype that is not editable. Nothing is left behind.
    """
    with open_regular(header.path) as source:
        status = os.fstat(source.fileno())
        if status.st_size != header.file_size:
            raise Error(f"{label(header.path)}: changed its size since its header was read; start again")
        with (
            temporary(target, header.file_size, status.st_mode) as work,
            _Copier(source, header.path, work.fd) as copier,
        ):
            copier.copy_header(header.raw)
            for info in header.tensors:
                edit = editor(info) if info.nbytes else None
                if edit is None:
                    copier.copy(info.nbytes)
                else:
                    _edit_tensor(copier, info, edit)
            return copier.digests()


def _edit_tensor(copier: "_Copier", info: TensorInfo, edit: Editor) -> None:
    if info.dtype not in EDITABLE:
        raise Error(
            f"{label(copier.path)}: tensor {quote(info.name)} is {info.dtype}, expected F32, F16 or BF16 to edit;"
            " leave it out with --exclude"
        )
    cols = info.shape[-1] if info.shape else 1
    rows = info.numel // cols
    row_bytes = info.nbytes // rows
    if row_bytes > CHUNK:
        for row in range(rows):
            copier.edit_long_row(row_bytes, info.dtype, edit, row)
        return
    step = CHUNK // row_bytes
    for row in range(0, rows, step):
        count = min(step, rows - row)
        copier.edit((count, cols), info.dtype, edit, row)


class _Copier:
    """Moves a file on from its start, range by range, and hashes both sides; they share one hash until an edit.

    A thread of its own hashes, in order, while the next range is read, edited and written. The ring of buffers is one
    longer than the hashes that may be waiting.
    """

    def __init__(self, source: FileIO, path: Path, fd: int) -> None:
        self.path = path
        self._source = source
        self._fd = fd
        self._position = 0
        self._kernel = hasattr(os, "copy_file_range")
        self._read = hashlib.sha256()
        self._written = self._read
        self._ring = cycle([memoryview(bytearray(CHUNK)) for _ in range(_WAITING + 1)])
        self._hasher = ThreadPoolExecutor(1, "sha256")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "_Copier":
        return self

    def __exit__(self, *error: object) -> None:
        self._hasher.shutdown()

    def digests(self) -> tuple[Digest, Digest]:
        self._drain(0)
        size = self._position
        return Digest(size, self._read.hexdigest()), Digest(size, self._written.hexdigest())

    def copy_header(self, raw: bytes) -> None:
        for start in range(0, len(raw), CHUNK):
            part = self._next(min(CHUNK, len(raw) - start))
            if part != raw[start : start + CHUNK]:
                raise Error(f"{label(self.path)}: its header changed since it was read; start again")
            self._later(self._hash_both, part)
            write_all(self._fd, part)

    def copy(self, nbytes: int) -> None:
        while nbytes:
            offset = self._position
            part = self._next(min(CHUNK, nbytes))
            self._later(self._hash_both, part)
            write_all(self._fd, part[self._copy_in_kernel(offset, len(part)) :])
            nbytes -= len(part)

    def edit(self, shape: tuple[int, int], dtype: str, edit: Editor, first_row: int) -> None:
        raw = RAW[dtype]
        part = self._next(shape[0] * shape[1] * raw.itemsize)
        self._later(self._hash_read, part)
        edited = next(self._ring)[: len(part)]
        edited[:] = part
        edit(np.frombuffer(edited, raw).reshape(shape), first_row)
        self._later(self._hash_written, edited)
        write_all(self._fd, edited)

    def edit_long_row(self, nbytes: int, dtype: str, edit: Editor, number: int) -> None:
        start = self._position
        for done in range(0, nbytes, CHUNK):
            part = self._next(min(CHUNK, nbytes - done))
            self._later(self._hash_read, part)
            write_all(self._fd, part)
        page = start - start % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._fd, start + nbytes - page, offset=page)
        raw = RAW[dtype]
        row = np.frombuffer(mapped, raw, nbytes // raw.itemsize, start - page).reshape(1, -1)
        edit(row, number)
        self._later(self._hash_written, row.view(np.uint8).reshape(-1).data)

    def _next(self, nbytes: int) -> memoryview:
        part = next(self._ring)[:nbytes]
        read_into(self._source, part, self.path)
        self._position += nbytes
        return part

    def _later(self, hash_part: Callable[[memoryview], None], part: memoryview) -> None:
        self._waiting.append(self._hasher.submit(hash_part, part))
        self._drain(_WAITING - 1)

    def _drain(self, left: int) -> None:
        while len(self._waiting) > left:
            self._waiting.popleft().result()

    def _hash_both(self, part: memoryview) -> None:
        self._read.update(part)
        if self._written is not self._read:
            self._written.update(part)

    def _hash_read(self, part: memoryview) -> None:
        if self._written is self._read:
            self._written = self._read.copy()
        self._read.update(part)

    def _hash_written(self, part: memoryview) -> None:
        self._written.update(part)

    def _copy_in_kernel(self, offset: int, nbytes: int) -> int:
        """Copy so many bytes inside the kernel, where file systems can share them; returns how many went."""
        done = 0
        while self._kernel and done < nbytes:
            try:
                count = os.copy_file_range(self._source.fileno(), self._fd, nbytes - done, offset + done)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                count = 0
            self._kernel = count > 0
            done += count
        return done


def digest_file(path: Path) -> Digest:
    """Digest of a regular file, read in chunks.

    Raises:
        Error: missing, no regular file, or not readable.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(min(CHUNK, size)))
        for start in range(0, size, CHUNK):
            part = buffer[: min(CHUNK, size - start)]
            read_into(file, part, path)
            digest.update(part)
    return Digest(size, digest.hexdigest())
