"""The controls against what they are defined by."""

from typing import Any

import numpy as np
import pytest

from mathneuro_export.checkpoint.dtypes import narrow
from mathneuro_export.masks.draw import draw_flat
from mathneuro_export.masks.select import Selection, select

RNG = np.random.default_rng(1)
RAW = narrow(RNG.standard_normal((120, 200), dtype=np.float32), "BF16")
VECTORS = [RNG.random(200, dtype=np.float32) for _ in range(3)]


def run(control: str | None, **other: Any) -> Selection:
    return select(RAW, "BF16", VECTORS, 1, 0.1, control, **other)


def flat(control: str | None, **other: Any) -> set[int]:
    return set(run(control, **other).mask.flat().tolist())


def test_counts_and_sets() -> None:
    specific, wanda, mirror, matched = flat(None), flat("wanda"), flat("mirror"), flat("wanda-matched")
    assert 0 < len(specific) < len(wanda) == 2400
    assert specific < wanda
    assert not mirror & wanda
    assert len(matched) == len(specific)
    assert matched < wanda
    assert len(flat("random")) == len(specific)
    assert len({run(control).thresholds for control in (None, "random", "wanda", "wanda-matched", "mirror")}) == 1


def test_random_depends_on_seed_name_and_expert_alone() -> None:
    first = flat("random", seed=1, name="a")
    assert first == flat("random", seed=1, name="a")
    others = [flat("random", seed=seed, name=name) for seed, name in ((2, "a"), (1, "b"))]
    others += [flat("random", seed=1, name="a", expert=expert) for expert in (0, 1)]
    assert len({frozenset(drawn) for drawn in [first, *others]}) == 5


def test_controls_of_an_empty_top_are_empty() -> None:
    vectors = [np.zeros(200, np.float32), VECTORS[1]]
    for control in (None, "random", "wanda", "wanda-matched"):
        found = select(RAW, "BF16", vectors, 1, 0.1, control)
        assert found.mask.nnz == 0
        assert found.thresholds[0] is None
        assert found.top == (0, 2400)
    assert select(RAW, "BF16", vectors, 1, 0.1, "mirror").mask.nnz == 2400


def test_one_corpus_alone() -> None:
    assert select(RAW, "BF16", VECTORS[:1], 1, 0.1).mask.nnz == 2400
    assert select(RAW, "BF16", VECTORS[:1], 1, 0.1, "mirror").mask.nnz == 0


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.51, 0.97, 1.0])
def test_draws_are_distinct_and_ascending(share: float) -> None:
    count = int(10_000 * share)
    drawn = draw_flat(10_000, count, 0, "a")
    assert drawn.size == count
    assert np.all(np.diff(drawn.astype(np.int64)) > 0)
    assert not count or (drawn[0] >= 0 and drawn[-1] < 10_000)


@pytest.mark.parametrize(("numel", "count"), [(20, 6), (20, 15)])
def test_draws_are_uniform(numel: int, count: int) -> None:
    """Single elements and pairs, over 4,000 draws: chi squared stays within 6 standard deviations of its mean."""
    draws = 4000
    hits = np.zeros((numel, numel))
    for seed in range(draws):
        drawn = draw_flat(numel, count, seed, "weight")
        hits[np.ix_(drawn, drawn)] += 1
    single, pairs = np.diag(hits), hits[np.triu_indices(numel, 1)]
    for observed, p in ((single, count / numel), (pairs, count * (count - 1) / (numel * (numel - 1)))):
        chi = float((((observed - draws * p) ** 2) / (draws * p * (1 - p))).sum())
        assert abs(chi - observed.size) < 6 * np.sqrt(2 * observed.size)


def test_large_index_spaces_take_no_memory_of_their_size() -> None:
    drawn = draw_flat(1 << 40, 1000, 0, "a")
    assert drawn.size == 1000
    assert drawn[-1] > 1 << 39
    with pytest.raises(ValueError, match="cannot draw"):
        draw_flat(5, 6, 0, "a")
