"""The top of a matrix for a statistic: its k largest scores, exactly, in memory for a few blocks.

A sample brackets the threshold; one pass counts the scores above the bracket and keeps the few inside it, among which
the threshold is found. Where the bracket missed, or holds too many (heavy ties), it is found by bisection over the bits
of a float32, one counting pass a step. Both give what a stable sort by falling score gives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error
from mathneuro_export.masks.matrix import (
    INFINITY,
    Array,
    Block,
    Matrix,
    Vector,
    blocks,
    check_finite,
    least_magnitudes,
    scores,
)

SMALL = 1 << 16
"""Matrices up to so many elements are not sampled: all their scores are kept."""
KEPT = 1 << 20
"""Scores inside a bracket that may be kept; 1/64 of the matrix if that is more."""
_DEVIATIONS = 5.0


@dataclass(frozen=True, slots=True)
class Top:
    """The top of a matrix: the `size` largest scores above 0; of equal ones those with the lower flat index.

    `bits` are those of the smallest score in it, and `last` is the flat index of the last element with that score that
    belongs to it. Of an empty top `bits` is beyond the infinity and `last` is -1.
    """

    bits: int
    last: int
    size: int

    @property
    def threshold(self) -> float | None:
        """The smallest score in the top, a float32 as a Python float; None where the top is empty."""
        return float(np.uint32(self.bits).view(np.float32)) if self.size else None


EMPTY = Top(INFINITY + 1, -1, 0)


@dataclass(slots=True)
class _Tally:
    """What one pass found: scores above the bracket, scores inside it, and these by flat index and magnitude."""

    low: int
    high: int
    above: int = 0
    inside: int = 0
    flat: list[Array] = field(default_factory=list)
    magnitudes: list[Array] = field(default_factory=list)
    kept: bool = True


def find_tops(matrix: Matrix, vectors: Sequence[Vector], k: int) -> list[Top]:
    """The top of each statistic (float32 [in], finite, at least 0), at most k elements each, in one pass as a rule.

    Raises:
        Error: a weight is NaN or infinite, or k scores overflow float32.
    """
    tallies = [_Tally(*bracket) for bracket in _brackets(matrix, vectors, k)]
    _tally(matrix, vectors, tallies)
    tops = [_finish(matrix, vector, k, tally) for vector, tally in zip(vectors, tallies, strict=True)]
    if any(top.bits == INFINITY for top in tops):
        raise Error(f"{quote(matrix.name)}: the {k} largest scores overflow float32; leave it out with --exclude")
    return tops


def _brackets(matrix: Matrix, vectors: Sequence[Vector], k: int) -> list[tuple[int, int]]:
    """Bits (low, high) for each statistic that the threshold lies between with near certainty.

    The sample takes one element at random from each of its equal strata of the flat index, so that it reads forward.
    """
    numel, cols = matrix.bits.size, matrix.shape[1]
    if k == 0:
        return [(INFINITY, INFINITY)] * len(vectors)
    if numel <= SMALL:
        return [(1, INFINITY)] * len(vectors)
    size = min(max(numel >> 8, SMALL >> 1), 1 << 20)
    generator = np.random.Generator(np.random.PCG64(numel))
    flat = ((np.arange(size) + generator.random(size)) * (numel / size)).astype(np.int64)
    row, col = np.divmod(np.minimum(flat, numel - 1), cols)
    feature = matrix.along(row, col)
    magnitudes = matrix.bits[row, col] & ((1 << (8 * matrix.bits.itemsize - 1)) - 1)
    share = k / numel
    margin = _DEVIATIONS * math.sqrt(size * share * (1 - share)) + 2
    least, most = size - 1 - math.ceil(size * share + margin), size - 1 - math.floor(size * share - margin)
    found = []
    for vector in vectors:
        sample = scores(matrix, magnitudes, vector[feature]).view(np.uint32)
        sample.partition([max(0, least), min(size - 1, most)])
        low = max(1, int(sample[least])) if least >= 0 else 1
        high = max(low, int(sample[most])) if most < size else INFINITY
        found.append((low, high))
    return found


def _tally(matrix: Matrix, vectors: Sequence[Vector], tallies: Sequence[_Tally]) -> None:
    limit = max(KEPT, matrix.bits.size >> 6)
    edges = [
        (least_magnitudes(matrix, vector, tally.low), least_magnitudes(matrix, vector, tally.high + 1))
        for vector, tally in zip(vectors, tallies, strict=True)
    ]
    for block in blocks(matrix):
        check_finite(matrix, block)
        for (low, beyond), tally in zip(edges, tallies, strict=True):
            inside = block.magnitudes >= block.of(matrix, low)
            above = block.magnitudes >= block.of(matrix, beyond)
            tally.above += int(np.count_nonzero(above))
            inside ^= above
            _keep(tally, block, inside, limit)


def _keep(tally: _Tally, block: Block, inside: Array, limit: int) -> None:
    if not tally.kept:
        tally.inside += int(np.count_nonzero(inside))
        return
    at = np.flatnonzero(inside)
    tally.inside += at.size
    if tally.inside > limit:
        tally.kept = False
        tally.flat.clear()
        tally.magnitudes.clear()
        return
    tally.magnitudes.append(block.magnitudes.reshape(-1)[at])
    at += block.start
    tally.flat.append(at)


def _finish(matrix: Matrix, vector: Vector, k: int, tally: _Tally) -> Top:
    if tally.low == 1:
        k = min(k, tally.above + tally.inside)
    if k == 0:
        return EMPTY
    need = k - tally.above
    if need < 1:
        return _bisect(matrix, vector, k, tally.high + 1, INFINITY)
    if need > tally.inside:
        return _bisect(matrix, vector, k, 1, tally.low - 1)
    if not tally.kept:
        return _bisect(matrix, vector, k, tally.low, tally.high)
    flat = np.concatenate(tally.flat)
    feature = matrix.along(*np.divmod(flat, matrix.shape[1]))
    values = scores(matrix, np.concatenate(tally.magnitudes), vector[feature]).view(np.uint32)
    bits = int(np.partition(values, values.size - need)[values.size - need])
    larger = int(np.count_nonzero(values > bits))
    return Top(bits, int(flat[values == bits][need - larger - 1]), k)


def _bisect(matrix: Matrix, vector: Vector, k: int, low: int, high: int) -> Top:
    """The top whose threshold is known to lie in low..high; with low = 1 there may be fewer than k scores above 0."""
    if low == 1:
        k = min(k, _count(matrix, vector, low))
    if k == 0:
        return EMPTY
    while low < high:
        middle = (low + high + 1) // 2
        if _count(matrix, vector, middle) >= k:
            low = middle
        else:
            high = middle - 1
    return Top(low, _nth_equal(matrix, vector, low, k - _count(matrix, vector, low + 1)), k)


def _count(matrix: Matrix, vector: Vector, bits: int) -> int:
    """How many scores are at least the float32 with these bits."""
    least = least_magnitudes(matrix, vector, bits)
    return sum(int(np.count_nonzero(block.magnitudes >= block.of(matrix, least))) for block in blocks(matrix))


def _nth_equal(matrix: Matrix, vector: Vector, bits: int, n: int) -> int:
    """The flat index of the n-th (from 1) element whose score has these bits."""
    least, beyond = least_magnitudes(matrix, vector, bits), least_magnitudes(matrix, vector, bits + 1)
    for block in blocks(matrix):
        equal = block.magnitudes >= block.of(matrix, least)
        equal ^= block.magnitudes >= block.of(matrix, beyond)
        count = int(np.count_nonzero(equal))
        if count >= n:
            return block.start + int(np.flatnonzero(equal)[n - 1])
        n -= count
    raise AssertionError("fewer equal scores than counted")
