"""Selection: from a weight and its statistics to the mask of the math-specific weights, or of a control.

The method (MathNeuro, arXiv 2410.16930, section 3): a score is the float32 product of |W|, widened exactly, and the
statistic of its input feature; the top of a corpus are the k = int(proportion * numel) largest scores of the matrix;
math-specific is what is in the top of math and in no general corpus's. Equal scores: the lower flat index first. A
score of 0 is in no top.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mathneuro_export.masks.draw import draw_flat
from mathneuro_export.masks.mask import Mask, column_dtype
from mathneuro_export.masks.matrix import (
    Array,
    Block,
    Matrix,
    Vector,
    blocks,
    check_vector,
    least_magnitudes,
    matrix_of,
)
from mathneuro_export.masks.top import Top, find_tops

CONTROLS = ("random", "wanda", "wanda-matched", "mirror")


@dataclass(frozen=True, slots=True)
class Selection:
    """What was selected in one matrix; `thresholds` and `top` are those of math, then of each general corpus."""

    mask: Mask
    k: int
    thresholds: tuple[float | None, ...]
    """The smallest score in each top, None where it is empty."""
    top: tuple[int, ...]
    """How many elements each top has: k, or fewer where fewer scores are above 0."""


def select(
    weight: npt.NDArray[Any],
    dtype: str,
    vectors: Sequence[npt.NDArray[np.float32]],
    input_axis: int,
    proportion: float,
    control: str | None = None,
    seed: int = 0,
    name: str = "weight",
    expert: int | None = None,
) -> Selection:
    """Select in one matrix, exactly as a stable sort of all scores would, a block at a time.

    Args:
        weight: raw [rows, cols] (BF16 as uint16, F16 as float16, F32 as float32); a read-only memory map will do.
        dtype: "BF16", "F16" or "F32".
        vectors: float32 [in] of math, then of each general corpus.
        input_axis: the axis they run along: 1 for [out, in], 0 for [in, out].
        proportion: from 0 to 1; checked by the caller.
        control: None for math-specific, or one of `CONTROLS`.
        seed: of the control `random`, together with `name` and `expert`.
        name: the tensor's, for messages.
        expert: index of the slice where `weight` is one of a fused tensor.

    Raises:
        Error: a weight is NaN or infinite, a statistic is negative or not finite, or scores overflow float32.
        ValueError: arguments of other shapes or dtypes, or an unknown control.
    """
    if control is not None and control not in CONTROLS:
        raise ValueError(f"control {control!r} is not one of {', '.join(CONTROLS)}")
    matrix = matrix_of(weight, dtype, input_axis, name)
    vectors = [check_vector(matrix, vector, corpus) for vector, corpus in zip(vectors, _corpora(), strict=False)]
    k = int(proportion * weight.size)
    tops = find_tops(matrix, vectors, k)
    mask = _mask(matrix, vectors, tops, control, seed, expert)
    return Selection(mask, k, tuple(top.threshold for top in tops), tuple(top.size for top in tops))


def tops(
    weight: npt.NDArray[Any],
    dtype: str,
    vectors: Sequence[npt.NDArray[np.float32]],
    input_axis: int,
    proportion: float,
    name: str = "weight",
) -> list[Top]:
    """The top of each statistic (see `select`) without a mask: threshold, size and where equal scores are cut."""
    matrix = matrix_of(weight, dtype, input_axis, name)
    vectors = [check_vector(matrix, vector, corpus) for vector, corpus in zip(vectors, _corpora(), strict=False)]
    return find_tops(matrix, vectors, int(proportion * weight.size))


def _corpora() -> Iterator[str]:
    yield "math"
    yield "general"
    number = 2
    while True:
        yield f"general-{number}"
        number += 1


@dataclass(frozen=True, slots=True)
class _Edge:
    """A top as magnitude bits per feature, [in]: at least `least` up to the flat index `last`, `beyond` after it."""

    least: Array
    beyond: Array
    last: int

    def holds(self, matrix: Matrix, block: Block) -> Array:
        """Which elements of the block are in the top, bool [r, c]."""
        if block.start > self.last:
            return block.magnitudes >= block.of(matrix, self.beyond)
        held: Array = block.magnitudes >= block.of(matrix, self.least)
        rest = self.last + 1 - block.start
        if rest < held.size:
            after = block.magnitudes >= block.of(matrix, self.beyond)
            held.reshape(-1)[rest:] = after.reshape(-1)[rest:]
        return held


def _edge(matrix: Matrix, vector: Vector, top: Top) -> _Edge:
    return _Edge(least_magnitudes(matrix, vector, top.bits), least_magnitudes(matrix, vector, top.bits + 1), top.last)


def _mask(
    matrix: Matrix,
    vectors: Sequence[Vector],
    tops: Sequence[Top],
    control: str | None,
    seed: int,
    expert: int | None,
) -> Mask:
    edges = [_edge(matrix, vector, top) if top.size else None for vector, top in zip(vectors, tops, strict=True)]
    math, general = edges[:1], edges[1:]
    if control is None:
        return _collect(matrix, math, general)
    if control == "wanda":
        return _collect(matrix, math, [])
    if control == "mirror":
        return _collect(matrix, general, math)
    count = sum(int(np.count_nonzero(held)) for _, held in _held(matrix, math, general))
    if control == "random":
        return Mask.from_flat(matrix.shape, draw_flat(matrix.bits.size, count, seed, matrix.name, expert))
    (matched,) = find_tops(matrix, vectors[:1], count)
    return _collect(matrix, [_edge(matrix, vectors[0], matched)] if matched.size else [], [])


def _held(
    matrix: Matrix, wanted: Sequence[_Edge | None], unwanted: Sequence[_Edge | None]
) -> Iterator[tuple[Block, Array]]:
    """Each block with what is in any of the wanted tops and in none of the unwanted; None stands for an empty top."""
    within, outside = [edge for edge in wanted if edge], [edge for edge in unwanted if edge]
    if not within:
        return
    for block in blocks(matrix):
        held = within[0].holds(matrix, block)
        for edge in within[1:]:
            held |= edge.holds(matrix, block)
        for edge in outside:
            np.greater(held, edge.holds(matrix, block), out=held)
        yield block, held


def _collect(matrix: Matrix, wanted: Sequence[_Edge | None], unwanted: Sequence[_Edge | None]) -> Mask:
    rows, cols = matrix.shape
    dtype = column_dtype(cols)
    crow = np.zeros(rows + 1, dtype=np.int64)
    columns = [np.empty(0, dtype=dtype)]
    for block, held in _held(matrix, wanted, unwanted):
        height, width = held.shape
        flat = np.flatnonzero(held)
        starts = np.arange(height + 1) * width
        counts = np.diff(np.searchsorted(flat, starts))
        crow[block.row + 1 : block.row + 1 + height] += counts
        flat -= np.repeat(starts[:-1] - block.col, counts)
        columns.append(flat.astype(dtype))
    np.cumsum(crow, out=crow)
    return Mask(rows, cols, crow, np.concatenate(columns))
