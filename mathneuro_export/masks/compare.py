"""How far two masks agree, and how far two masks of these sizes would by chance."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mathneuro_export.masks.blocks import BLOCK, blocks
from mathneuro_export.masks.mask import Mask

Number = TypeVar("Number", int, float)

FIELDS = (
    "size_a",
    "size_b",
    "intersection",
    "only_a",
    "only_b",
    "jaccard",
    "overlap",
    "containment_a",
    "containment_b",
    "chance_jaccard",
    "ratio_to_chance",
)
"""The numbers of a comparison, in the order of `Comparison.as_json`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sizes of two masks and of what they share, in one matrix or summed over several; 0/0 is None.

    Attributes:
        size_a: weights in the first mask.
        size_b: weights in the second.
        intersection: weights in both.
        expected: the mean intersection of two independent uniformly drawn masks with as many weights in each tensor,
            the sum over the tensors of size_a * size_b / numel.
    """

    size_a: int
    size_b: int
    intersection: int
    expected: float

    @property
    def only_a(self) -> int:
        """Weights in the first mask alone."""
        return self.size_a - self.intersection

    @property
    def only_b(self) -> int:
        """Weights in the second mask alone."""
        return self.size_b - self.intersection

    @property
    def jaccard(self) -> float | None:
        """What both share of their union."""
        return _ratio(self.intersection, self.size_a + self.size_b - self.intersection)

    @property
    def overlap(self) -> float | None:
        """The overlap coefficient: what both share of the smaller."""
        return _ratio(self.intersection, min(self.size_a, self.size_b))

    @property
    def containment_a(self) -> float | None:
        """The share of the first that is in the second."""
        return _ratio(self.intersection, self.size_a)

    @property
    def containment_b(self) -> float | None:
        """The share of the second that is in the first."""
        return _ratio(self.intersection, self.size_b)

    @property
    def chance_jaccard(self) -> float | None:
        """The Jaccard index at the expected intersection."""
        return _ratio(self.expected, self.size_a + self.size_b - self.expected)

    @property
    def ratio_to_chance(self) -> float | None:
        """How many times the chance level the Jaccard index is."""
        jaccard, chance = self.jaccard, self.chance_jaccard
        return None if jaccard is None or chance is None else _ratio(jaccard, chance)

    def as_json(self) -> dict[str, int | float | None]:
        """The numbers named in `FIELDS`."""
        return {name: getattr(self, name) for name in FIELDS}


def _ratio(part: Number, whole: Number) -> float | None:
    return part / whole if whole else None


def compare(a: Mask, b: Mask, first: int = 0, last: int | None = None) -> Comparison:
    """Compare rows `first` to `last` - 1 of two masks of the same shape; beside them some 30 MB are taken.

    Raises:
        ValueError: other shapes.
    """
    last = a.rows if last is None else last
    seen = np.zeros(min(BLOCK, max(1, a.rows * a.cols)), dtype=np.bool_)
    shared = 0
    for block in blocks((a, b), first, last):
        small, large = sorted(block.positions, key=len)
        if small.size:
            seen[small] = True
            shared += int(np.count_nonzero(seen[large]))
            seen[small] = False
    size_a, size_b = (int(mask.crow[last] - mask.crow[first]) for mask in (a, b))
    numel = (last - first) * a.cols
    return Comparison(size_a, size_b, shared, size_a * size_b / numel if numel else 0.0)


def total(comparisons: Iterable[Comparison]) -> Comparison:
    """The comparison of several tensors as one; the same in whatever order they come."""
    every = list(comparisons)
    return Comparison(
        sum(one.size_a for one in every),
        sum(one.size_b for one in every),
        sum(one.intersection for one in every),
        math.fsum(one.expected for one in every),
    )
