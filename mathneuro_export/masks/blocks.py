"""Masks of one shape seen block by block, so that sets of positions are merged in a table of fixed size."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mathneuro_export.masks.mask import Mask

BLOCK = 1 << 20
"""Positions of a block, at most."""

Positions = npt.NDArray[np.intp]


class Block(NamedTuple):
    """A rectangle of the matrix: whole rows, or a part of one row where rows are longer than a block."""

    row: int
    col: int
    rows: int
    cols: int
    positions: tuple[Positions, ...]
    """For each mask its positions in the block, row-major from 0, ascending."""

    @property
    def size(self) -> int:
        """Positions of the block."""
        return self.rows * self.cols


def blocks(masks: Sequence[Mask], first: int = 0, last: int | None = None) -> Iterator[Block]:
    """The blocks of rows `first` to `last` - 1 in order, those without a masked weight left out.

    Args:
        masks: of the same shape.

    Raises:
        ValueError: they are not.
    """
    rows, cols = masks[0].shape
    if any(mask.shape != (rows, cols) for mask in masks):
        raise ValueError(f"masks of the shapes {[mask.shape for mask in masks]} cannot be compared")
    last = rows if last is None else last
    if cols > BLOCK:
        for row in range(first, last):
            yield from _parts(masks, row, cols)
        return
    step = max(1, BLOCK // max(1, cols))
    for row in range(first, last, step):
        count = min(step, last - row)
        positions = tuple(_rows(mask, row, count) for mask in masks)
        if any(part.size for part in positions):
            yield Block(row, 0, count, cols, positions)


def _rows(mask: Mask, row: int, count: int) -> Positions:
    bounds = mask.crow[row : row + count + 1]
    found = np.repeat(np.arange(count, dtype=np.intp) * mask.cols, np.diff(bounds))
    found += mask.col[bounds[0] : bounds[-1]]
    return found


def _parts(masks: Sequence[Mask], row: int, cols: int) -> Iterator[Block]:
    columns: list[npt.NDArray[Any]] = [mask.row_columns(row) for mask in masks]
    held = np.unique(np.concatenate([np.unique(part // BLOCK) for part in columns])).astype(np.int64)
    starts = held * BLOCK
    bounds = [(np.searchsorted(part, starts), np.searchsorted(part, starts + BLOCK)) for part in columns]
    for i, start in enumerate(starts.tolist()):
        positions = tuple(
            part[low[i] : high[i]].astype(np.intp) - start for part, (low, high) in zip(columns, bounds, strict=True)
        )
        yield Block(row, start, 1, min(BLOCK, cols - start), positions)
