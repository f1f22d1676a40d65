"""Selection by a stable float64 sort of all float32 scores: the independent reference of the tests."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def absolute(raw: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return ((raw & 0x7FFF).astype(np.uint32) * 65536).view(np.float32)
    return np.abs(raw.astype(np.float32))


def scores(raw: Array, dtype: str, vector: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        product = absolute(raw, dtype) * (vector[None, :] if axis == 1 else vector[:, None])
    assert product.dtype == np.float32
    return product.reshape(-1).astype(np.float64)


def top(score: Array, k: int) -> Array:
    """Flat indices of the k largest scores above 0; of equal ones the lower index first."""
    order = np.argsort(-score, kind="stable")[:k]
    return order[score[order] > 0]


def expected(
    raw: Array, dtype: str, vectors: list[Array], axis: int, proportion: float, control: str | None = None
) -> tuple[Array, list[float | None], list[int]]:
    """The masked flat indices, ascending, the thresholds and the sizes of the tops."""
    k = int(proportion * raw.size)
    all_scores = [scores(raw, dtype, vector, axis) for vector in vectors]
    tops = [top(score, k) for score in all_scores]
    math, general = np.zeros(raw.size, bool), np.zeros(raw.size, bool)
    math[tops[0]] = True
    for t in tops[1:]:
        general[t] = True
    if control == "wanda-matched":
        chosen = np.zeros(raw.size, bool)
        chosen[top(all_scores[0], int((math & ~general).sum()))] = True
    else:
        chosen = {None: math & ~general, "wanda": math, "mirror": general & ~math}[control]
    thresholds = [float(score[t].min()) if t.size else None for score, t in zip(all_scores, tops, strict=True)]
    return np.flatnonzero(chosen), thresholds, [t.size for t in tops]
