"""Masks put aside one at a time, while their number and sizes are not yet known.

A spool is an append-only file; where each mask lies in it is told by the record that `add` returns, which the caller
keeps (it is JSON). Bytes without a record, left by a killed process, do no harm.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np

from mathneuro_export.checkpoint.durable import fsync_folder
from mathneuro_export.checkpoint.regular import label, open_regular, read_into, reason
from mathneuro_export.errors import Error, ResourceError
from mathneuro_export.masks.mask import Mask, column_dtype

_FULL = "the disk is full; free space and run the command again"


class Record(TypedDict):
    """Where a mask lies: `offset` in bytes, the sizes of the mask, and its digest."""

    name: str
    offset: int
    rows: int
    cols: int
    nnz: int
    digest: str


class MaskSpool:
    """A spool in a folder that exists; several parts (one a shard, say) may lie side by side."""

    def __init__(self, folder: Path, part: str = "masks") -> None:
        self.path = Path(folder) / f"{part}.spool"

    def add(self, name: str, mask: Mask) -> Record:
        """Append a mask, durably.

        Raises:
            ResourceError: the disk is full.
            Error: the file cannot be written.
        """
        data = [array.astype(array.dtype.newbyteorder("<"), copy=False) for array in (mask.crow, mask.col)]
        new = not self.path.exists()
        try:
            with self._append() as file:
                offset = file.seek(0, os.SEEK_END)
                for array in data:
                    file.write(np.ascontiguousarray(array).view(np.uint8).data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                fsync_folder(self.path.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ResourceError(f"{label(self.path)}: {_FULL}") from None
            raise Error(f"{label(self.path)}: cannot be written ({reason(error)}); check its folder") from None
        return Record(name=name, offset=offset, rows=mask.rows, cols=mask.cols, nnz=mask.nnz, digest=mask.digest)

    def _append(self) -> BinaryIO:
        """The file, open at its end: a regular one of its own, neither a link nor a second name of another file."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        fd = os.open(self.path, flags, 0o666)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise Error(f"{label(self.path)}: is not a file of this tool's alone; remove it")
            return os.fdopen(fd, "ab")
        except BaseException:
            os.close(fd)
            raise

    def read(self, record: Record | dict[str, Any]) -> Mask:
        """The mask of a record, validated.

        Raises:
            Error: the file is missing or shorter, or what lies there is not the mask recorded.
        """
        rows, cols, nnz = record["rows"], record["cols"], record["nnz"]
        dtype = column_dtype(cols)
        self._require(record["offset"] + 8 * (rows + 1) + dtype.itemsize * nnz)
        crow, col = np.empty(rows + 1, dtype=np.int64), np.empty(nnz, dtype=dtype)
        with open_regular(self.path) as file:
            file.seek(record["offset"])
            for array in (crow, col):
                read_into(file, array.view(np.uint8).data, self.path)
        mask = Mask(rows, cols, crow, col)
        if mask.digest != record["digest"]:
            raise Error(f"{label(self.path)}: the mask of {record['name']!r} is damaged; run again with --no-resume")
        return mask

    def _require(self, end: int) -> None:
        """Refuse a record that reaches beyond the file, before memory is taken for it."""
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
        if end > size:
            raise Error(f"{label(self.path)}: holds {size} bytes, expected {end}; run again with --no-resume")

    def remove(self) -> None:
        """Delete the file, if it is there."""
        self.path.unlink(missing_ok=True)
