"""Comparison and merging of masks against dense NumPy, and the chance level against drawn masks."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathneuro_export.masks import blocks as blocks_module
from mathneuro_export.masks import compare as compare_module
from mathneuro_export.masks.compare import FIELDS, Comparison, compare, total
from mathneuro_export.masks.draw import draw_flat
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.merge import OPERATIONS, merge

Dense = np.ndarray[Any, np.dtype[np.bool_]]
SHAPES = [(1, 1), (1, 50), (7, 9), (40, 3), (3, 1), (0, 4), (4, 0)]
BLOCKS = [4, 16, 1 << 20]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Dense, Dense]:
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = st.sampled_from([0.0, 0.1, 0.5, 1.0])
    a, b = (rng.random(shape) < draw(shares) for _ in range(2))
    relation = draw(st.sampled_from(["independent", "equal", "disjoint", "inside"]))
    return a, {"independent": b, "equal": a, "disjoint": ~a & b, "inside": a & b}[relation]


def as_mask(dense: Dense) -> Mask:
    return Mask.from_flat(dense.shape, np.flatnonzero(dense))


def ratio(part: float, whole: float) -> float | None:
    return None if whole == 0 else part / whole


def expected(a: Dense, b: Dense) -> dict[str, float | None]:
    both, either = int((a & b).sum()), int((a | b).sum())
    size_a, size_b = int(a.sum()), int(b.sum())
    chance = size_a * size_b / a.size if a.size else 0.0
    jaccard, by_chance = ratio(both, either), ratio(chance, size_a + size_b - chance)
    return {
        "size_a": size_a,
        "size_b": size_b,
        "intersection": both,
        "only_a": int((a & ~b).sum()),
        "only_b": int((b & ~a).sum()),
        "jaccard": jaccard,
        "overlap": ratio(both, min(size_a, size_b)),
        "containment_a": ratio(both, size_a),
        "containment_b": ratio(both, size_b),
        "chance_jaccard": by_chance,
        "ratio_to_chance": ratio(jaccard, by_chance) if jaccard is not None and by_chance is not None else None,
    }


@settings(max_examples=300, deadline=None)
@given(pairs(), st.sampled_from(BLOCKS))
def test_comparison_is_that_of_dense_arrays(pair: tuple[Dense, Dense], block: int) -> None:
    a, b = pair
    with mock.patch.object(blocks_module, "BLOCK", block), mock.patch.object(compare_module, "BLOCK", block):
        found = compare(as_mask(a), as_mask(b))
    assert found.as_json() == expected(a, b)
    assert tuple(found.as_json()) == FIELDS


@settings(max_examples=100, deadline=None)
@given(pairs(), st.sampled_from(BLOCKS))
def test_experts_one_by_one_are_slices(pair: tuple[Dense, Dense], block: int) -> None:
    a, b = pair
    middle = a.shape[0] // 2
    with mock.patch.object(blocks_module, "BLOCK", block), mock.patch.object(compare_module, "BLOCK", block):
        for first, last in ((0, middle), (middle, a.shape[0])):
            found = compare(as_mask(a), as_mask(b), first, last)
            assert found.as_json() == expected(a[first:last], b[first:last])


@settings(max_examples=200, deadline=None)
@given(pairs(), st.integers(0, 2**32), st.sampled_from(BLOCKS))
def test_merging_is_that_of_dense_arrays(pair: tuple[Dense, Dense], seed: int, block: int) -> None:
    a, b = pair
    c = np.random.default_rng(seed).random(a.shape) < 0.3
    wanted = {
        "and": a & b & c,
        "or": a | b | c,
        "minus": a & ~b & ~c,
        "majority": (a.astype(int) + b + c) >= 2,
    }
    with mock.patch.object(blocks_module, "BLOCK", block):
        for operation in OPERATIONS:
            found = merge([as_mask(a), as_mask(b), as_mask(c)], operation)
            found.check()
            assert found == as_mask(wanted[operation])
        assert merge([as_mask(a), as_mask(b)], "majority") == as_mask(a & b)


@pytest.mark.parametrize("cols", [1 << 16, (1 << 16) + 1, 3_000_000])
def test_wide_rows_of_both_column_dtypes(cols: int) -> None:
    rng = np.random.default_rng(cols)
    a, b = (np.sort(rng.choice(3 * cols, 5000, replace=False)) for _ in range(2))
    b[:2500] = a[:2500]
    b = np.unique(b)
    found = compare(Mask.from_flat((3, cols), a), Mask.from_flat((3, cols), b))
    assert found.intersection == len(set(a.tolist()) & set(b.tolist()))
    assert found.expected == a.size * b.size / (3 * cols)
    merged = merge([Mask.from_flat((3, cols), a), Mask.from_flat((3, cols), b)], "or")
    assert merged.flat().tolist() == sorted(set(a.tolist()) | set(b.tolist()))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        compare(Mask.empty(2, 3), Mask.empty(3, 2))
    with pytest.raises(ValueError, match="expected one of"):
        merge([Mask.empty(2, 3)], "xor")


def test_chance_level_is_the_mean_of_drawn_masks_of_unequal_sizes() -> None:
    sizes = [(2000, 40, 900), (3000, 600, 150), (500, 100, 0), (1000, 1000, 10)]
    jaccards = []
    chance: set[float | None] = set()
    for trial in range(300):
        parts = []
        for number, (numel, size_a, size_b) in enumerate(sizes):
            a, b = (
                Mask.from_flat((1, numel), draw_flat(numel, size, trial, f"{side}{number}"))
                for side, size in (("a", size_a), ("b", size_b))
            )
            parts.append(compare(a, b))
        whole = total(parts)
        chance.add(whole.chance_jaccard)
        jaccards.append(whole.jaccard)
    (level,) = chance
    assert level is not None
    error = np.std(jaccards) / math.sqrt(len(jaccards))
    assert abs(np.mean(jaccards) - level) < 4 * error + 1e-4  # type: ignore[arg-type]


def test_total_does_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(3)
    parts = [Comparison(*rng.integers(1, 100, 3).tolist(), float(rng.random() * 10.0**p)) for p in range(-9, 9)]
    assert total(parts) == total(parts[::-1])
    assert total([]).as_json() == {**dict.fromkeys(FIELDS), **dict.fromkeys(FIELDS[:5], 0)}
