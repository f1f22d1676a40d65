"""A mask: which weights of one tensor are edited, as compressed sparse rows of its 2-D view in the layout on disk.

`crow` and `col` are what `torch.sparse_csr` calls crow_indices and col_indices: the columns of row i are
`col[crow[i]:crow[i + 1]]`, ascending.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mathneuro_export.errors import Error

MAX_COLS = 1 << 32


def rows_cols(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the 2-D view of a tensor: [E, r, c] counts as [E*r, c], [n] as [1, n]."""
    if not shape:
        return 1, 1
    return math.prod(shape[:-1]), shape[-1]


def column_dtype(cols: int) -> np.dtype[Any]:
    """uint16 for up to 65,536 columns, else uint32."""
    return np.dtype(np.uint16 if cols <= 1 << 16 else np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The masked weights of a [rows, cols] matrix; two masks are equal when their shapes and indices are."""

    rows: int
    cols: int
    crow: npt.NDArray[np.int64]
    """int64 [rows + 1]: where each row begins in `col`; the last entry is nnz."""
    col: npt.NDArray[Any]
    """uint16 (up to 65,536 columns) or uint32 [nnz], ascending within a row."""

    @classmethod
    def empty(cls, rows: int, cols: int) -> "Mask":
        """The mask of no weight."""
        return cls(rows, cols, np.zeros(rows + 1, dtype=np.int64), np.empty(0, dtype=column_dtype(cols)))

    @classmethod
    def from_flat(cls, shape: Sequence[int], flat: npt.NDArray[Any]) -> "Mask":
        """The mask of the weights at `flat`: integers [nnz], row-major in the layout on disk, strictly ascending.

        `shape` is the tensor's own, or its 2-D view.
        """
        rows, cols = rows_cols(shape)
        crow = np.searchsorted(flat, np.arange(rows + 1, dtype=np.int64) * cols).astype(np.int64, copy=False)
        starts = np.repeat(np.arange(rows, dtype=np.int64) * cols, np.diff(crow))
        return cls(rows, cols, crow, (flat - starts).astype(column_dtype(cols)))

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def nnz(self) -> int:
        """How many weights are masked."""
        return int(self.col.size)

    @property
    def digest(self) -> str:
        """sha256, in hex, of crow's and then col's little-endian bytes."""
        return digest_of(self.crow, self.col)

    def flat(self) -> npt.NDArray[np.int64]:
        """Flat indices of the masked weights, int64 [nnz], row-major, ascending."""
        starts = np.repeat(np.arange(self.rows, dtype=np.int64) * self.cols, np.diff(self.crow))
        starts += self.col
        return starts

    def row_columns(self, row: int) -> npt.NDArray[Any]:
        """Columns masked in one row, ascending: a view of `col`."""
        return self.col[self.crow[row] : self.crow[row + 1]]

    def check(self, what: str = "mask") -> None:
        """Refuse indices that are not those of a [rows, cols] matrix.

        Raises:
            Error: one line that names `what`, what was found and what was expected.
        """
        problem = _problem(self)
        if problem:
            raise Error(f"{what}: {problem}; the masks are damaged: restore the file or identify again")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        same_shape = self.shape == other.shape
        return same_shape and np.array_equal(self.crow, other.crow) and np.array_equal(self.col, other.col)

    __hash__ = None  # type: ignore[assignment]


def digest_of(crow: npt.NDArray[Any], col: npt.NDArray[Any]) -> str:
    """The digest of a mask from its two arrays, which may be memory maps: read in slices of 4 MiB."""
    sha = hashlib.sha256()
    for array in (crow, col):
        step = (4 << 20) // array.itemsize
        for i in range(0, array.size, step):
            part = array[i : i + step]
            sha.update(np.ascontiguousarray(part, dtype=part.dtype.newbyteorder("<")).view(np.uint8).data)
    return sha.hexdigest()


def join_masks(masks: Sequence[Mask]) -> Mask:
    """One mask [E*r, c] from the masks [r, c] of the experts in a fused tensor, in order."""
    cols = masks[0].cols
    if any(mask.cols != cols for mask in masks):
        raise ValueError("masks of unequal columns cannot be joined")
    offsets = np.cumsum([0, *(mask.nnz for mask in masks)], dtype=np.int64)
    starts = [mask.crow[:-1] + offset for mask, offset in zip(masks, offsets, strict=False)]
    crow = np.concatenate([*starts, offsets[-1:]])
    return Mask(sum(mask.rows for mask in masks), cols, crow, np.concatenate([mask.col for mask in masks]))


def _problem(mask: Mask) -> str | None:
    rows, cols, crow, col = mask.rows, mask.cols, mask.crow, mask.col
    if rows < 0 or not 0 <= cols <= MAX_COLS:
        return f"shape [{rows}, {cols}] is not that of a matrix with at most {MAX_COLS} columns"
    if crow.dtype != np.int64 or crow.shape != (rows + 1,):
        return f"crow_indices is {crow.dtype} {list(crow.shape)}, expected int64 [{rows + 1}]"
    if col.dtype != column_dtype(cols) or col.ndim != 1:
        return f"col_indices is {col.dtype} {list(col.shape)}, expected {column_dtype(cols)} in one dimension"
    if crow[0] != 0 or crow[-1] != col.size:
        return f"crow_indices runs from {crow[0]} to {crow[-1]}, expected 0 to {col.size}"
    if np.any(crow[1:] < crow[:-1]):
        row = int(np.argmax(crow[1:] < crow[:-1]))
        return f"crow_indices falls from {crow[row]} to {crow[row + 1]} at row {row}, expected an ascent"
    if col.size and int(col.max()) >= cols:
        return f"col_indices holds {col.max()}, expected less than {cols}"
    rising = col[1:] > col[:-1]
    between = crow[1:-1]
    rising[between[(between > 0) & (between < col.size)] - 1] = True
    if not rising.all():
        row = int(np.searchsorted(crow, np.argmin(rising), side="right")) - 1
        return f"col_indices of row {row} are not strictly ascending"
    return None
