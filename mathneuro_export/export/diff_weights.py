"""How far the values of two models differ inside the masks and outside them, a chunk of rows at a time."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mathneuro_export.checkpoint.dtypes import widen
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error
from mathneuro_export.masks.mask import Mask

CHUNK = 1 << 20
"""Elements compared at a time."""
PARTS = ("in_a", "in_b", "outside")


@dataclass(frozen=True, slots=True)
class Change:
    """Sums over a set of weights: their number, how many differ, and the squares of A's value and of B's minus A's."""

    weights: int = 0
    changed: int = 0
    square: float = 0.0
    square_change: float = 0.0

    @property
    def relative_change(self) -> float | None:
        """The length of the difference over the length of A's values; None for 0/0 and where A is all zeros."""
        return math.sqrt(self.square_change / self.square) if self.square else None

    def as_json(self) -> dict[str, int | float | None]:
        """`weights`, `changed` (whose values are not equal) and `relative_change`."""
        return {"weights": self.weights, "changed": self.changed, "relative_change": self.relative_change}


@dataclass(frozen=True, slots=True)
class Changes:
    """The change inside A's mask, inside B's, and outside both."""

    in_a: Change
    in_b: Change
    outside: Change

    @property
    def ratio(self) -> float | None:
        """The relative change inside A's mask over that outside both masks."""
        inside, outside = self.in_a.relative_change, self.outside.relative_change
        return inside / outside if inside is not None and outside else None

    def as_json(self) -> dict[str, Any]:
        """The three sets, and `ratio_a_to_outside`."""
        return {**{part: getattr(self, part).as_json() for part in PARTS}, "ratio_a_to_outside": self.ratio}


def change_of(name: str, a: tuple[NDArray[Any], str], b: tuple[NDArray[Any], str], masks: tuple[Mask, Mask]) -> Changes:
    """Compare one tensor of two models.

    Args:
        name: of the tensor, for messages.
        a: raw [rows, cols] and its dtype.
        b: the same of the other model; its dtype may differ.
        masks: of these shapes.

    Raises:
        Error: a value is NaN or infinite.
    """
    found: dict[str, list[Change]] = {part: [] for part in PARTS}
    rows, cols = masks[0].shape
    step = max(1, CHUNK // max(1, cols))
    for row in range(0, rows, step):
        end = min(rows, row + step)
        value = widen(a[0][row:end], a[1]).astype(np.float64)
        change = widen(b[0][row:end], b[1]).astype(np.float64)
        if not (np.isfinite(value).all() and np.isfinite(change).all()):
            raise Error(f"{quote(name)}: holds NaN or an infinity in rows {row} to {end - 1}; repair the checkpoint")
        change -= value
        held = [_held(mask, row, end) for mask in masks]
        sets = (held[0], held[1], ~(held[0] | held[1]))
        for part, chosen in zip(PARTS, sets, strict=True):
            found[part].append(_change(value[chosen], change[chosen]))
    return Changes(**{part: _sum(changes) for part, changes in found.items()})


def total_changes(changes: Iterable[Changes]) -> Changes:
    """The change over several tensors."""
    every = list(changes)
    return Changes(**{part: _sum(getattr(one, part) for one in every) for part in PARTS})


def _change(value: NDArray[np.float64], change: NDArray[np.float64]) -> Change:
    return Change(value.size, int(np.count_nonzero(change)), float(np.dot(value, value)), float(np.dot(change, change)))


def _sum(changes: Iterable[Change] | Iterator[Change]) -> Change:
    every = list(changes)
    return Change(
        sum(one.weights for one in every),
        sum(one.changed for one in every),
        math.fsum(one.square for one in every),
        math.fsum(one.square_change for one in every),
    )


def _held(mask: Mask, first: int, last: int) -> NDArray[np.bool_]:
    """Which weights of rows `first` to `last` - 1 are masked, bool [rows, cols]."""
    held = np.zeros((last - first, mask.cols), dtype=np.bool_)
    bounds = mask.crow[first : last + 1]
    held[np.repeat(np.arange(last - first), np.diff(bounds)), mask.col[bounds[0] : bounds[-1]]] = True
    return held
