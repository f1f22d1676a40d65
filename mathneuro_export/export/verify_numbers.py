"""Masks and rounding as `verify` reads them: code of its own, shared with neither the selection nor the edit."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mathneuro_export.checkpoint.header import Header, TensorInfo
from mathneuro_export.errors import Error

BYTES = 8 << 20
_UNSIGNED: "dict[str, np.dtype[Any]]" = {"BF16": np.dtype("<u2"), "F16": np.dtype("<u2"), "F32": np.dtype("<u4")}
_STORED: "dict[str, np.dtype[Any]]" = {
    "I64": np.dtype("<i8"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
}


@dataclass(frozen=True, slots=True)
class Csr:
    """A mask: `crow` int64 [rows + 1], `col` uint16 or uint32 [nnz]; columns ascend within a row."""

    crow: NDArray[Any]
    col: NDArray[Any]
    cols: int

    @property
    def digest(self) -> str:
        """sha256 (hex) of crow's, then col's little-endian bytes."""
        sha256 = hashlib.sha256(np.ascontiguousarray(self.crow, "<i8").tobytes())
        sha256.update(np.ascontiguousarray(self.col, self.col.dtype.newbyteorder("<")).data)
        return sha256.hexdigest()

    def flat(self, first: int, last: int) -> NDArray[np.int64]:
        """Flat positions (row-major, ascending) of the mask in rows first to last - 1, counted from row `first`."""
        counts = np.diff(self.crow[first : last + 1])
        rows = np.repeat(np.arange(last - first, dtype=np.int64), counts)
        return rows * self.cols + self.col[self.crow[first] : self.crow[last]].astype(np.int64)

    def count(self, first: int, last: int) -> int:
        """Masked elements in rows first to last - 1."""
        return int(self.crow[last] - self.crow[first])


def csr_from_flat(flat: NDArray[np.int64], rows: int, cols: int) -> Csr:
    """The mask of ascending flat positions in a matrix [rows, cols]."""
    crow = np.searchsorted(flat, np.arange(rows + 1, dtype=np.int64) * cols).astype(np.int64)
    return Csr(crow, (flat % max(cols, 1)).astype(_column_dtype(cols)), cols)


def _column_dtype(cols: int) -> "np.dtype[Any]":
    return np.dtype("<u2") if cols <= 65536 else np.dtype("<u4")


def read_array(header: Header, info: TensorInfo) -> NDArray[Any]:
    """A whole tensor of the masks or the statistics.

    Raises:
        Error: a dtype that neither holds, or the file ends early.
    """
    dtype = _STORED.get(info.dtype)
    if dtype is None:
        raise Error(f"{info.name}: dtype {info.dtype}, expected one of {', '.join(_STORED)}")
    with header.path.open("rb") as file:
        file.seek(info.start)
        return _take(file, dtype, info.numel).reshape(info.shape)


def read_csr(header: Header, tensors: dict[str, TensorInfo], name: str, rows: int, cols: int) -> Csr:
    """The stored mask of one target, fully checked.

    Raises:
        Error: dtypes, lengths, or positions that are not those of a mask [rows, cols].
    """
    infos = tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"]
    wanted = "U16" if cols <= 65536 else "U32"
    if infos[0].dtype != "I64" or infos[0].shape != (rows + 1,):
        raise Error(f"crow_indices is {infos[0].dtype} {list(infos[0].shape)}, expected I64 [{rows + 1}]")
    if infos[1].dtype != wanted or len(infos[1].shape) != 1:
        raise Error(f"col_indices is {infos[1].dtype} {list(infos[1].shape)}, expected {wanted} in one dimension")
    crow, col = read_array(header, infos[0]), read_array(header, infos[1])
    if crow[0] != 0 or crow[-1] != col.size or np.any(crow[1:] < crow[:-1]):
        raise Error(f"crow_indices do not ascend from 0 to {col.size}")
    if col.size and int(col.max()) >= cols:
        raise Error(f"col_indices reach {int(col.max())}, expected below {cols}")
    falls = np.flatnonzero(col[1:] <= col[:-1]) + 1
    if np.setdiff1d(falls, crow).size:
        raise Error("col_indices do not ascend within each row")
    return Csr(crow, col, cols)


def _take(file: BufferedReader, dtype: "np.dtype[Any]", count: int) -> NDArray[Any]:
    values = np.fromfile(file, dtype, count)
    if values.size != count:
        raise Error("ends early; it changed while being read")
    return values


def raw_rows(header: Header, info: TensorInfo, cols: int, first: int, last: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows first to last - 1 of a float tensor seen as [rows, cols]: (row, unsigned integers [n, cols]), in chunks."""
    dtype = _UNSIGNED[info.dtype]
    step = max(1, BYTES // max(1, cols * dtype.itemsize))
    with header.path.open("rb") as file:
        file.seek(info.start + first * cols * dtype.itemsize)
        for row in range(first, last, step):
            rows = min(step, last - row)
            yield row, _take(file, dtype, rows * cols).reshape(rows, cols)


def widen(raw: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """The exact float32 values of raw elements (unsigned integers as stored)."""
    single: NDArray[np.float32]
    if dtype == "F32":
        single = raw.view("<f4")
        return single
    if dtype == "F16":
        return np.asarray(raw.view("<f2"), np.float32)
    single = (raw.astype(np.uint32) * np.uint32(65536)).view(np.float32)
    return single


def narrow(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Raw elements (unsigned integers) of float32 values, to nearest, ties to even."""
    raw: NDArray[Any]
    if dtype == "F32":
        raw = values.view("<u4")
        return raw
    if dtype == "F16":
        with np.errstate(all="ignore"):
            return np.asarray(values, "<f2").view("<u2")
    below, rest = np.divmod(values.view(np.uint32), np.uint32(65536))
    up = (rest > 32768) | ((rest == 32768) & (below % 2 == 1))
    raw = np.where(np.isnan(values), np.uint32(0x7FC0), below + up).astype("<u2")
    return raw


def is_nan(raw: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    """Which raw elements are NaN."""
    return np.isnan(widen(raw, dtype))


def edited(raw: NDArray[Any], dtype: str, factor: float) -> NDArray[Any]:
    """The formula: raw elements times the factor, in float32, rounded to the dtype."""
    with np.errstate(all="ignore"):
        return narrow(widen(raw, dtype) * np.float32(factor), dtype)
