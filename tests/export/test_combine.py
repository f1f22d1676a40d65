"""`combine`: the masks against dense arrays, the manifest, and that `verify` and the other readers take the RUN."""

import json
from pathlib import Path

import numpy as np
import pytest

from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.combine import combine
from mathneuro_export.export.diff import diff
from mathneuro_export.export.diff_input import open_any
from mathneuro_export.export.run import open_run
from mathneuro_export.export.verify import verify

from . import handmade
from .runs import make_run, mask_of, random_masks

SHAPES: dict[str, tuple[int, ...]] = {"model.layers.0.q.weight": (8, 6), "model.layers.0.experts": (3, 4, 5)}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / name, random_masks(SHAPES, seed, 0.5)) for seed, name in enumerate("abc")]


@pytest.mark.parametrize("op", ["and", "or", "minus", "majority"])
def test_masks_are_those_of_dense_arrays(runs: list[Path], tmp_path: Path, op: str) -> None:
    result = combine(runs, tmp_path / "out", op)
    made = open_any(tmp_path / "out")
    a, b, c = (random_masks(SHAPES, seed, 0.5) for seed in range(3))
    for name in SHAPES:
        wanted = {
            "and": a[name] & b[name] & c[name],
            "or": a[name] | b[name] | c[name],
            "minus": a[name] & ~b[name] & ~c[name],
            "majority": a[name].astype(int) + b[name] + c[name] >= 2,
        }[op]
        assert made.mask(name) == mask_of(wanted)
        masked = made.tensors[name].count.masked
        assert masked == ([int(part.sum()) for part in wanted] if wanted.ndim == 3 else int(wanted.sum()))
    assert result.masked == sum(made.mask(name).nnz for name in SHAPES)


def test_manifest_names_its_parents_and_claims_no_top(runs: list[Path], tmp_path: Path) -> None:
    combine(runs, tmp_path / "out", "or")
    run = open_run(tmp_path / "out")
    assert run.manifest.selection.parents == [open_any(parent).manifest.digest for parent in runs]
    for entry in run.manifest.tensors.values():
        assert (entry.k, entry.threshold, entry.count.top) == (0, {}, {})
    (warning,) = run.manifest.warnings
    assert warning["code"] == "combined"
    assert warning["op"] == "or"
    assert (tmp_path / "out" / "statistics.safetensors").read_bytes() == (
        runs[0] / "statistics.safetensors"
    ).read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "masks.safetensors",
        "statistics.safetensors",
    ]


def test_verify_takes_it_with_and_without_the_base(tmp_path: Path) -> None:
    source = handmade.make_source(tmp_path / "base")
    a = handmade.make_run(tmp_path / "a", source)
    b = handmade.make_run(tmp_path / "b", source, control="wanda")
    combine([a, b], tmp_path / "out", "minus")
    for base in (None, source):
        report = verify(tmp_path / "out", base)
        assert report.problems == ()
        assert any("another run" in note for note in report.notes)
    empty = next(w for w in open_run(tmp_path / "out").manifest.warnings if w["code"] == "empty-mask")
    assert empty["count"] == len(handmade.TARGETS)
    combine([b, a], tmp_path / "rest", "minus")
    found = diff([tmp_path / "rest", a]).as_json()
    assert found["overall"]["intersection"] == 0
    assert "parents" in {warning["code"] for warning in found["warnings"]}


def test_combined_runs_combine_again(runs: list[Path], tmp_path: Path) -> None:
    combine(runs[:2], tmp_path / "ab", "or")
    combine([tmp_path / "ab", runs[2]], tmp_path / "abc", "or")
    combine(runs, tmp_path / "all", "or")
    for name in SHAPES:
        assert open_any(tmp_path / "abc").mask(name) == open_any(tmp_path / "all").mask(name)


def test_same_inputs_give_the_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        combine(runs, tmp_path / name, "majority")
    documents = [json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("one", "two")]
    for document in documents:
        for key in ("created", "environment", "digest"):
            document.pop(key)
    assert documents[0] == documents[1]


def test_other_names_or_shapes_are_refused_and_nothing_is_left(runs: list[Path], tmp_path: Path) -> None:
    names = make_run(tmp_path / "names", random_masks({"model.layers.1.q.weight": (8, 6)}))
    shapes = make_run(tmp_path / "shapes", random_masks({**SHAPES, "model.layers.0.q.weight": (6, 8)}))
    for other, said in ((names, "a target of only one"), (shapes, "is [6, 8], but [8, 6]")):
        with pytest.raises(Error) as caught:
            combine([runs[0], other], tmp_path / "out", "and")
        assert caught.value.exit_code == 1
        assert said in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_damage_met_on_the_way_leaves_nothing(runs: list[Path], tmp_path: Path) -> None:
    masks = runs[1] / "masks.safetensors"
    data = bytearray(masks.read_bytes())
    data[-1] ^= 1
    masks.write_bytes(data)
    with pytest.raises(Error, match=r"masks\.safetensors|digest"):
        combine(runs, tmp_path / "out", "and")
    assert not (tmp_path / "out").exists()


def test_other_statistics_than_the_manifests_are_refused(runs: list[Path], tmp_path: Path) -> None:
    path = runs[0] / "statistics.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + np.float32(2).tobytes())
    with pytest.raises(Error, match=r"statistics\.safetensors differs from its manifest"):
        combine(runs, tmp_path / "out", "and")
    path.unlink()
    with pytest.raises(Error, match=r"statistics\.safetensors is missing"):
        combine(runs, tmp_path / "out", "and")


def test_wrong_use_is_refused(runs: list[Path], tmp_path: Path) -> None:
    for inputs, output, op in (
        (runs[:1], tmp_path / "x", "and"),
        (runs, tmp_path / "x", "xor"),
        (runs, runs[1], "and"),
    ):
        with pytest.raises(UsageError):
            combine(inputs, output, op)
    combine(runs, tmp_path / "out", "and")
    with pytest.raises(UsageError, match="--overwrite"):
        combine(runs, tmp_path / "out", "or")
    combine(runs, tmp_path / "out", "or", overwrite=True)
    assert open_run(tmp_path / "out").manifest.warnings[0]["op"] == "or"


def test_a_killed_command_is_resumed(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mathneuro_export.export.combine as module

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_masks", killed)
        with pytest.raises(KeyboardInterrupt):
            combine(runs, tmp_path / "out", "and")
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(UsageError, match="differ"):
        combine(runs, tmp_path / "out", "or")
    combine(runs, tmp_path / "out", "and")
    assert not (tmp_path / "out" / ".cache").exists()
    assert verify(tmp_path / "out").ok
