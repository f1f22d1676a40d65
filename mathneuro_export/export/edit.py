"""The edit of one tensor: W' = round_to_dtype(float32(W) * float32(factor)) where the mask is set."""

from dataclasses import dataclass

import numpy as np

from mathneuro_export.checkpoint.dtypes import RAW, narrow, widen
from mathneuro_export.checkpoint.rewrite import Editor
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.masks.mask import Mask


@dataclass(slots=True)
class Tally:
    """What an editor did: `changed` counts, for each matrix of a tensor, the elements whose bytes differ afterwards."""

    changed: list[int]


def make_editor(name: str, mask: Mask, dtype: str, factor: float, tally: Tally) -> Editor:
    """An editor of raw rows [r, cols] that multiplies the masked elements and counts what changed.

    Raises (from the editor):
        Error: a masked weight is not finite, or would not be in `dtype`.
    """
    multiplier = np.float32(factor)
    height = max(1, mask.rows // len(tally.changed))

    def edit(rows: np.ndarray, first: int) -> None:
        bounds = mask.crow[first : first + len(rows) + 1]
        columns = mask.col[bounds[0] : bounds[-1]].astype(np.int64)
        flat = np.repeat(np.arange(len(rows), dtype=np.int64) * mask.cols, np.diff(bounds)) + columns
        elements = rows.reshape(-1)
        before = elements[flat]
        values = widen(before, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            after = narrow(values * multiplier, dtype)
        finite = np.isfinite(widen(after, dtype))
        if not finite.all():
            value = float(values[np.argmin(finite)])
            if not np.isfinite(value):
                raise Error(f"{name}: holds {value}, expected finite weights; repair or download the checkpoint again")
            raise Error(
                f"{name}: --factor {factor:g} makes {value:g} overflow {dtype}; nothing is kept; choose a smaller one"
            )
        bits = np.dtype(f"u{elements.itemsize}")
        differing = flat[before.view(bits) != after.view(bits)]
        for matrix, count in enumerate(np.bincount((first + differing // mask.cols) // height)):
            tally.changed[matrix] += int(count)
        elements[flat] = after

    return edit


def check_factor(factor: float, dtypes: set[str]) -> None:
    """Refuse a factor under which no weight of these dtypes can change.

    Every 16-bit pattern is tried, so the answer is exact; in float32 only a factor of 1 changes nothing at all.

    Raises:
        UsageError: nothing would change.
    """
    if any(_can_change(factor, dtype) for dtype in dtypes):
        return
    names = ", ".join(sorted(dtypes))
    raise UsageError(
        f"--factor {factor!r}: rounds back to the same weight for every {names} value; choose one further from 1"
    )


def _can_change(factor: float, dtype: str) -> bool:
    multiplier = np.float32(factor)
    if dtype == "F32":
        return bool(multiplier != 1)
    raw = np.arange(1 << 16, dtype=np.uint16).view(RAW[dtype])
    values = widen(raw, dtype)
    raw = raw[np.isfinite(values) & (values != 0)]
    with np.errstate(over="ignore", invalid="ignore"):
        after = narrow(widen(raw, dtype) * multiplier, dtype)
    return bool((after.view(np.uint16) != raw.view(np.uint16)).any())
