"""One matrix, seen in blocks of magnitude bits, and thresholds on its scores as thresholds on those bits.

A score is the float32 product |W| * a_j (MathNeuro, arXiv 2410.16930, section 3). For a fixed input feature j it never
falls as |W| grows, and the bits of a float without its sign, read as an integer, grow with |W|. So "the score is at
least v" is the same as "the magnitude bits are at least b_j" for one b_j per feature: whole blocks are compared as
integers, and no score is computed but where its value is wanted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mathneuro_export.checkpoint.dtypes import EDITABLE, RAW, widen
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float32]

BLOCK = 1 << 18
"""Elements of a block; a block never spans parts of two rows."""
INFINITY = 0x7F800000
"""Bits of the float32 infinity; bits beyond it are no score."""

_INFINITIES = {"F32": INFINITY, "BF16": 0x7F80, "F16": 0x7C00}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A 2-D weight: `bits` is its raw form as uint16 or uint32 [rows, cols]; statistics run along `input_axis`."""

    bits: Array
    dtype: str
    input_axis: int
    name: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.bits.shape[0], self.bits.shape[1]

    @property
    def infinity(self) -> int:
        """Magnitude bits of the infinity: finite weights lie below."""
        return _INFINITIES[self.dtype]

    def along(self, row: Array, col: Array) -> Array:
        """The input features of elements at these rows and columns."""
        return col if self.input_axis == 1 else row


@dataclass(frozen=True, slots=True)
class Block:
    """Magnitude bits of consecutive elements, [r, c]; `start` is the flat index of the first, at (row, col)."""

    start: int
    row: int
    col: int
    magnitudes: Array

    def of(self, matrix: Matrix, features: Array) -> Array:
        """What of an array [in] belongs to this block, in a shape that broadcasts to [r, c]."""
        rows, cols = self.magnitudes.shape
        if matrix.input_axis == 1:
            return features[self.col : self.col + cols]
        return features[self.row : self.row + rows, None]


def matrix_of(weight: Array, dtype: str, input_axis: int, name: str) -> Matrix:
    """View a raw 2-D weight (BF16 as uint16, F16 as float16, F32 as float32; a read-only memory map will do).

    Raises:
        ValueError: a dtype, shape or axis that no target has.
    """
    if dtype not in EDITABLE or weight.dtype != RAW[dtype] or weight.ndim != 2 or input_axis not in (0, 1):
        found = f"{dtype} as {weight.dtype} {list(weight.shape)}, axis {input_axis}"
        raise ValueError(f"{name}: {found} is no matrix of floats in its raw dtype")
    return Matrix(weight.view(np.dtype(f"u{weight.dtype.itemsize}")), dtype, input_axis, name)


def check_vector(matrix: Matrix, vector: Vector, corpus: str) -> Vector:
    """The statistic of one corpus, float32 [in], with any -0 made 0.

    Raises:
        ValueError: another shape or dtype.
        Error: an entry is not finite, or negative.
    """
    size = matrix.shape[matrix.input_axis]
    if vector.dtype != np.float32 or vector.shape != (size,):
        raise ValueError(f"{matrix.name}: statistic is {vector.dtype} {list(vector.shape)}, expected float32 [{size}]")
    good = np.isfinite(vector) & (vector >= 0)
    if not good.all():
        at = int(np.argmin(good))
        raise Error(
            f"{quote(matrix.name)}: the statistic of {corpus} holds {vector[at]} at feature {at}, expected a finite"
            " number of at least 0; calibrate again, in float32 if the model overflows"
        )
    positive: Vector = vector + np.float32(0)
    return positive


def blocks(matrix: Matrix) -> Iterator[Block]:
    """The blocks in flat order. Each one's magnitudes are overwritten by the next."""
    rows, cols = matrix.shape
    height, width = max(1, BLOCK // max(1, cols)), min(cols, BLOCK)
    buffer = np.empty(min(rows, height) * width, dtype=matrix.bits.dtype)
    mask = buffer.dtype.type((1 << (8 * buffer.itemsize - 1)) - 1)
    for row in range(0, rows, height):
        for col in range(0, cols, width or 1):
            raw = matrix.bits[row : row + height, col : col + width]
            out = buffer[: raw.size].reshape(raw.shape)
            np.bitwise_and(raw, mask, out=out)
            yield Block(row * cols + col, row, col, out)


def check_finite(matrix: Matrix, block: Block) -> None:
    """Refuse a block with a NaN or an infinity.

    Raises:
        Error: naming the tensor and the element's row and column.
    """
    if int(block.magnitudes.max()) < matrix.infinity:
        return
    row, col = divmod(int(np.argmax(block.magnitudes >= matrix.infinity)), block.magnitudes.shape[1])
    kind = "infinite" if int(block.magnitudes[row, col]) == matrix.infinity else "NaN"
    raise Error(
        f"{quote(matrix.name)}: the weight at [{block.row + row}, {block.col + col}] is {kind}, expected finite"
        " weights; get the file again or leave the tensor out with --exclude"
    )


def scores(matrix: Matrix, magnitudes: Array, statistic: Vector) -> Vector:
    """Scores, float32, of elements given by their magnitude bits and the statistic of each one's feature."""
    raw = np.ascontiguousarray(magnitudes, dtype=matrix.bits.dtype).view(RAW[matrix.dtype])
    values: Vector = widen(raw, matrix.dtype)
    with np.errstate(all="ignore"):
        values *= statistic
    return values


def least_magnitudes(matrix: Matrix, vector: Vector, bits: int) -> Array:
    """For each feature the least magnitude bits whose score is at least the float32 with these `bits` (from 1).

    Same dtype as `matrix.bits`, [in]; `matrix.infinity`, which no finite weight reaches, where there are none.
    """
    below = np.zeros(vector.size, dtype=np.int64)
    reached = np.full(vector.size, matrix.infinity, dtype=np.int64)
    for _ in range(matrix.infinity.bit_length()):
        middle = (below + reached) >> 1
        enough = scores(matrix, middle, vector).view(np.uint32) >= bits
        np.copyto(reached, middle, where=enough)
        np.copyto(below, middle, where=~enough)
    return reached.astype(matrix.bits.dtype)
