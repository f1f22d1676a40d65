"""One mask out of several of the same shape, by a rule on how many of them hold a weight."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mathneuro_export.masks.blocks import Block, Positions, blocks
from mathneuro_export.masks.mask import Mask, column_dtype

OPERATIONS = ("and", "or", "minus", "majority")


def merge(masks: Sequence[Mask], operation: str) -> Mask:
    """The weights in all masks (`and`), in any (`or`), in the first alone (`minus`), in more than half (`majority`).

    Beside the masks and the result some 30 MB are taken.

    Raises:
        ValueError: masks of other shapes, none at all, or an unknown operation.
    """
    if not masks or operation not in OPERATIONS:
        raise ValueError(f"{operation!r} of {len(masks)} masks: expected one of {', '.join(OPERATIONS)}")
    rows, cols = masks[0].shape
    dtype = column_dtype(cols)
    crow = np.zeros(rows + 1, dtype=np.int64)
    columns = [np.empty(0, dtype=dtype)]
    for block in blocks(masks):
        kept = _kept(block, operation)
        starts = np.arange(block.rows + 1, dtype=np.intp) * block.cols
        counts = np.diff(np.searchsorted(kept, starts))
        crow[block.row + 1 : block.row + 1 + block.rows] += counts
        kept -= np.repeat(starts[:-1] - block.col, counts)
        columns.append(kept.astype(dtype))
    np.cumsum(crow, out=crow)
    return Mask(rows, cols, crow, np.concatenate(columns))


def _kept(block: Block, operation: str) -> Positions:
    held: npt.NDArray[Any] = np.zeros(block.size, dtype=np.uint16)
    for positions in block.positions:
        held[positions] += 1
    if operation == "minus":
        first = block.positions[0]
        alone: Positions = first[held[first] == 1]
        return alone
    count = len(block.positions)
    least = {"and": count, "or": 1, "majority": count // 2 + 1}[operation]
    return np.flatnonzero(held >= least)
