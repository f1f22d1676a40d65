"""Selection against a stable float64 sort of all scores."""

import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mathneuro_export.checkpoint.dtypes import RAW, narrow
from mathneuro_export.errors import Error
from mathneuro_export.masks import matrix, top
from mathneuro_export.masks.select import Selection, select, tops

from .oracle import expected

Array = np.ndarray[Any, Any]
CONTROLS = [None, "wanda", "wanda-matched", "mirror"]
LARGEST = {"F32": 0x7F7FFFFF, "F16": 0x7BFF, "BF16": 0x7F7F}


def check(raw: Array, dtype: str, vectors: list[Array], axis: int, proportion: float, control: str | None) -> Selection:
    raw.flags.writeable = False
    before = raw.tobytes(), [v.tobytes() for v in vectors]
    flat, thresholds, sizes = expected(raw, dtype, vectors, axis, proportion, control)
    found = select(raw, dtype, vectors, axis, proportion, control)
    found.mask.check()
    assert (raw.tobytes(), [v.tobytes() for v in vectors]) == before
    assert np.array_equal(found.mask.flat(), flat)
    assert found.mask.shape == raw.shape
    assert found.thresholds == tuple(thresholds)
    assert found.top == tuple(sizes)
    assert found.k == int(proportion * raw.size)
    return found


@st.composite
def weights(draw: st.DrawFn, dtype: str) -> Array:
    """Raw matrices: any finite bits, few distinct values, subnormals, zeros."""
    bits = RAW[dtype].itemsize * 8
    sign = 1 << (bits - 1)
    magnitude = st.integers(0, LARGEST[dtype])
    kind = draw(st.sampled_from(["any", "ties", "constant", "subnormal", "zero"]))
    if kind == "ties":
        magnitude = st.sampled_from(draw(st.lists(magnitude, min_size=1, max_size=3)))
    elif kind == "constant":
        magnitude = st.just(draw(magnitude))
    elif kind == "subnormal":
        magnitude = st.integers(0, {"F32": 1 << 23, "F16": 1 << 10, "BF16": 1 << 7}[dtype])
    elif kind == "zero":
        magnitude = st.sampled_from([0, 0, 0, LARGEST[dtype] // 2])
    elements = st.builds(lambda m, negative: m + sign * negative, magnitude, st.booleans())
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    raw = draw(hnp.arrays(np.dtype(f"u{bits // 8}"), shape, elements=elements, fill=st.nothing()))
    return raw.view(RAW[dtype])


def statistics(size: int) -> st.SearchStrategy[Array]:
    number = st.floats(0, 1, width=32) | st.sampled_from([0.0, -0.0, 1.0, 2.0**-140, 2.0**-60])
    vector = hnp.arrays(np.float32, size, elements=number, fill=st.nothing())
    return vector | st.sampled_from([0.0, 1.0, 0.5]).map(lambda v: np.full(size, v, np.float32))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, str, list[Array], int, float, str | None]:
    dtype = draw(st.sampled_from(["F32", "F16", "BF16"]))
    raw = draw(weights(dtype))
    axis = draw(st.integers(0, 1))
    vectors = draw(st.lists(statistics(raw.shape[axis]), min_size=1, max_size=4))
    proportion = draw(st.sampled_from([0.0, 0.05, 0.3, 0.5, 1.0]) | st.floats(0, 1))
    return raw, dtype, vectors, axis, proportion, draw(st.sampled_from(CONTROLS))


@pytest.fixture(params=["whole", "sampled", "no room", "missed high", "missed low"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Small blocks, and each way a threshold can be found: all kept, a bracket, and bisection."""
    brackets: dict[str, Any] = {"missed high": (1, 1), "missed low": (matrix.INFINITY, matrix.INFINITY)}
    kind = request.param
    with mock.patch.object(matrix, "BLOCK", 7):
        if kind == "sampled":
            with mock.patch.multiple(top, SMALL=8, _DEVIATIONS=0.5):
                yield kind
        elif kind == "no room":
            with mock.patch.multiple(top, SMALL=8, KEPT=0):
                yield kind
        elif kind in brackets:
            with mock.patch.object(top, "_brackets", lambda m, vectors, k: [brackets[kind]] * len(vectors)):
                yield kind
        else:
            yield kind


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_equals_a_stable_sort(path: str, case: tuple[Array, str, list[Array], int, float, str | None]) -> None:
    check(*case)


def random_raw(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> Array:
    return narrow(rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02), dtype)


@pytest.mark.parametrize(("dtype", "axis"), [("BF16", 1), ("F16", 0), ("F32", 1)])
def test_two_million_elements_with_a_real_bracket(dtype: str, axis: int) -> None:
    rng = np.random.default_rng(3)
    raw = random_raw((1024, 2048), dtype, rng)
    vectors = [rng.random(raw.shape[axis], dtype=np.float32) + np.float32(0.1) for _ in range(2)]
    with mock.patch.object(top, "_bisect", side_effect=AssertionError("the bracket missed")):
        for proportion, control in [(0.05, None), (0.5, "wanda-matched"), (1e-6, "mirror")]:
            check(raw, dtype, vectors, axis, proportion, control)


@pytest.mark.parametrize("kind", ["constant", "few values", "dead", "outliers", "one feature", "one row", "one column"])
def test_large_matrices_that_defy_a_bracket(kind: str) -> None:
    rng = np.random.default_rng(4)
    raw = random_raw((280, 300), "BF16", rng)
    general = rng.random(300, dtype=np.float32)
    vector = np.ones(300, np.float32)
    if kind == "constant":
        raw = np.full((280, 300), 0x3C00, np.uint16)
        general = np.ones(300, np.float32)
    elif kind == "few values":
        raw = (0x3C00 + rng.integers(0, 3, (280, 300))).astype(np.uint16)
    elif kind == "dead":
        vector = np.zeros(300, np.float32)
    elif kind == "outliers":
        vector = rng.random(300, dtype=np.float32) ** 40 * np.float32(1e6)
    elif kind == "one feature":
        vector = np.zeros(300, np.float32)
        vector[17] = 3
    elif kind == "one row":
        raw = raw.reshape(1, -1)
        vector, general = np.resize(vector, raw.size), np.resize(general, raw.size)
    elif kind == "one column":
        raw, vector, general = raw.reshape(-1, 1), vector[:1], general[:1]
    for proportion in (0.0, 0.0015, 0.05, 1.0):
        check(raw, "BF16", [vector, general], 1, proportion, None)
        with mock.patch.object(top, "KEPT", 0):
            check(raw, "BF16", [vector, general], 1, proportion, "mirror")


def test_rows_longer_than_a_block() -> None:
    rng = np.random.default_rng(5)
    raw = random_raw((3, 300_000), "F16", rng)
    check(raw, "F16", [rng.random(300_000, dtype=np.float32), np.ones(300_000, np.float32)], 1, 0.1, None)


def test_a_product_that_underflows_is_a_score_of_zero() -> None:
    raw = np.array([[1e-30, 1e-20, 1e-10]], np.float32)
    found = check(raw, "F32", [np.full(3, 1e-25, np.float32)], 1, 1.0, None)
    assert found.mask.flat().tolist() == [1, 2]
    assert 0 < (found.thresholds[0] or 0) < np.finfo(np.float32).tiny


def test_a_slice_of_a_fused_tensor_and_a_view_with_strides() -> None:
    rng = np.random.default_rng(6)
    fused = random_raw((5 * 64, 48), "BF16", rng).reshape(5, 64, 48)
    vectors = [rng.random(48, dtype=np.float32) for _ in range(2)]
    check(fused[3], "BF16", vectors, 1, 0.1, None)
    strided, vectors = fused[3, ::2, 1::3], [v[1::3] for v in vectors]
    assert select(strided, "BF16", vectors, 1, 0.2).mask == select(strided.copy(), "BF16", vectors, 1, 0.2).mask


@pytest.mark.parametrize(("dtype", "bad", "word"), [
    ("BF16", 0x7FC0, "NaN"), ("BF16", 0xFF80, "infinite"), ("F16", 0xFC00, "infinite"), ("F16", 0x7C01, "NaN"),
    ("F32", 0x7F800001, "NaN"), ("F32", 0x7F800000, "infinite"),
])  # fmt: skip
@pytest.mark.parametrize("proportion", [0.0, 0.1])
def test_weights_that_are_not_finite_are_refused(dtype: str, bad: int, word: str, proportion: float) -> None:
    raw = random_raw((400, 700), dtype, np.random.default_rng(7))
    raw.view(f"u{raw.itemsize}")[399, 698] = bad
    for vector in (np.ones(700, np.float32), np.zeros(700, np.float32)):
        with pytest.raises(Error, match=rf"a\.b.*\[399, 698\] is {word}") as error:
            select(raw, dtype, [vector], 1, proportion, name="a.b")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_statistic_that_is_no_sum_of_norms_is_refused(bad: float) -> None:
    raw = random_raw((4, 5), "F32", np.random.default_rng(8))
    vectors = [np.ones(5, np.float32) for _ in range(3)]
    vectors[2][3] = bad
    with pytest.raises(Error, match=r"'a\.b'.*general-2 holds .* at feature 3"):
        select(raw, "F32", vectors, 1, 0.1, name="a.b")


def test_scores_beyond_float32_are_refused_only_where_the_threshold_is() -> None:
    raw = np.full((2, 3), 1e38, np.float32)
    vector = np.array([100, 1, 1], np.float32)
    with pytest.raises(Error, match="overflow"):
        select(raw, "F32", [vector], 1, 0.2)
    check(raw, "F32", [vector], 1, 0.6, None)


def test_arguments_of_the_wrong_kind() -> None:
    raw = np.zeros((2, 3), np.uint16)
    vector = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="control"):
        select(raw, "BF16", [vector], 1, 0.1, "magnitude")
    with pytest.raises(ValueError, match="raw dtype"):
        select(raw, "F16", [vector], 1, 0.1)
    with pytest.raises(ValueError, match="expected float32"):
        select(raw, "BF16", [vector], 0, 0.1)
    with pytest.raises(ValueError, match="expected float32"):
        select(raw, "BF16", [vector.astype(np.float64)], 1, 0.1)


def test_tops_are_those_of_the_selection() -> None:
    rng = np.random.default_rng(9)
    raw = random_raw((30, 40), "F32", rng)
    vectors = [rng.random(40, dtype=np.float32) for _ in range(2)]
    found = tops(raw, "F32", vectors, 1, 0.1)
    selection = select(raw, "F32", vectors, 1, 0.1)
    assert tuple(t.threshold for t in found) == selection.thresholds
    assert tuple(t.size for t in found) == selection.top == (120, 120)


def test_memory_is_that_of_a_few_blocks() -> None:
    rng = np.random.default_rng(10)
    raw = rng.integers(0x3800, 0x3D00, (4096, 14336), np.uint16)
    vectors = [rng.random(14336, dtype=np.float32) for _ in range(2)]
    for control, allowed in ((None, 60_000_000), ("random", 120_000_000)):
        tracemalloc.start()
        try:
            found = select(raw, "BF16", vectors, 1, 0.05, control)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found.top == (found.k, found.k)
        assert found.mask.nnz > 0
        assert peak < allowed
