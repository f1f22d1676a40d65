"""`diff` against dense arrays: numbers, pairing, warnings, noise ceiling, values, files."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.diff import diff
from mathneuro_export.export.diff_pairs import pair_names
from mathneuro_export.export.diff_rows import csv_text
from mathneuro_export.export.diff_text import diff_text
from mathneuro_export.masks.compare import FIELDS

from . import handmade
from .runs import make_run, random_masks

SHAPES: dict[str, tuple[int, ...]] = {
    "model.layers.0.self_attn.q_proj.weight": (8, 16),
    "model.layers.0.mlp.down_proj.weight": (16, 8),
    "model.layers.1.self_attn.q_proj.weight": (8, 16),
    "model.layers.1.mlp.experts.gate_up_proj": (3, 4, 10),
    "model.layers.2.mlp.experts.0.up_proj.weight": (4, 6),
    "model.layers.2.mlp.experts.1.up_proj.weight": (4, 6),
    "lm_head.weight": (20, 8),
}
KEYS = ["warnings", "overall", "layers", "kinds", "tensors", "only_in_a", "only_in_b"]


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def comparison(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float | None]:
    size_a, size_b = (sum(int(pair[i].sum()) for pair in pairs) for i in (0, 1))
    both = sum(int((a & b).sum()) for a, b in pairs)
    e = sum(int(a.sum()) * int(b.sum()) / a.size for a, b in pairs)
    jaccard, chance = ratio(both, size_a + size_b - both), ratio(e, size_a + size_b - e)
    shares = [jaccard, ratio(both, min(size_a, size_b)), ratio(both, size_a), ratio(both, size_b), chance]
    shares.append(ratio(jaccard or 0, chance or 0))
    return dict(zip(FIELDS, [size_a, size_b, both, size_a - both, size_b - both, *shares], strict=True))


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(FIELDS)
    for field, value in wanted.items():
        assert found[field] == (value if value is None else pytest.approx(value, rel=1e-12)), field


def two(tmp_path: Path, **changes: Any) -> tuple[Path, Path, dict[str, Any], dict[str, Any]]:
    a, b = random_masks(SHAPES, 1, 0.3), random_masks(SHAPES, 2, 0.15)
    return make_run(tmp_path / "a", a), make_run(tmp_path / "b", b, **changes), a, b


def test_numbers_by_tensor_layer_kind_and_overall(tmp_path: Path) -> None:
    run_a, run_b, a, b = two(tmp_path)
    found = diff([run_a, run_b]).as_json()
    assert list(found)[: len(KEYS)] == KEYS
    assert found["warnings"] == []
    assert found["only_in_a"] == []
    assert found["only_in_b"] == []
    groups = {
        "layers": {str(i): [n for n in SHAPES if f"layers.{i}." in n] for i in range(3)},
        "kinds": {
            "down_proj": ["model.layers.0.mlp.down_proj.weight"],
            "experts": [n for n in SHAPES if "experts" in n],
            "lm_head": ["lm_head.weight"],
            "q_proj": [n for n in SHAPES if "q_proj" in n],
        },
        "tensors": {n: [n] for n in SHAPES},
    }
    assert_same(found["overall"], comparison([(a[n], b[n]) for n in SHAPES]))
    for group, wanted in groups.items():
        assert list(found[group]) == list(wanted)
        for key, names in wanted.items():
            assert_same(found[group][key], comparison([(a[n], b[n]) for n in names]))
    fused = "model.layers.1.mlp.experts.gate_up_proj"
    assert list(found["experts"]) == [f"{fused}[{e}]" for e in range(3)]
    for e in range(3):
        assert_same(found["experts"][f"{fused}[{e}]"], comparison([(a[fused][e], b[fused][e])]))
    assert_same(found["cells"]["2"]["experts"], found["layers"]["2"])
    json.dumps(found, allow_nan=False)


def test_undefined_numbers_are_null(tmp_path: Path) -> None:
    empty, some = {"layers.0.w": np.zeros((2, 3), np.bool_)}, {"layers.0.w": np.eye(2, 3, dtype=np.bool_)}
    runs = [make_run(tmp_path / "none", empty), make_run(tmp_path / "none2", empty), make_run(tmp_path / "some", some)]
    nothing = diff(runs[:2]).as_json()["overall"]
    assert all(nothing[field] is None for field in FIELDS[5:])
    assert nothing["size_a"] == 0
    half = diff([runs[0], runs[2]]).as_json()["overall"]
    assert half["jaccard"] == 0
    assert half["containment_a"] is None
    assert half["ratio_to_chance"] is None
    assert "-" in diff_text(diff(runs[:2]))


def test_three_inputs_give_pairs_and_a_matrix(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, random_masks(SHAPES, seed)) for seed, name in enumerate("abc")]
    report = diff(runs)
    found = report.as_json()
    assert [(p["a"], p["b"]) for p in found["pairs"]] == [
        (str(runs[i]), str(runs[j])) for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    for (i, j), pair in zip(((0, 1), (0, 2), (1, 2)), found["pairs"], strict=True):
        alone = diff([runs[i], runs[j]]).as_json()
        assert {key: pair[key] for key in alone} == alone
        assert found["matrix"]["jaccard"][i][j] == found["matrix"]["jaccard"][j][i] == alone["overall"]["jaccard"]
    assert "times chance" in diff_text(report)


def test_manifest_and_out_serve_as_inputs(tmp_path: Path) -> None:
    run_a, run_b, _, _ = two(tmp_path)
    wanted = diff([run_a, run_b]).as_json()
    shutil.copytree(run_b, tmp_path / "out" / "mathneuro")
    assert diff([run_a / "manifest.json", tmp_path / "out"]).as_json() == wanted


def renamed(masks: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new + name.removeprefix(old) if name.startswith(old) else name: mask for name, mask in masks.items()}


def test_names_under_another_prefix_are_paired_and_said_so(tmp_path: Path) -> None:
    a, b = random_masks(SHAPES, 1), random_masks(SHAPES, 2)
    plain = diff([make_run(tmp_path / "a", a), make_run(tmp_path / "b", b)]).as_json()
    for folder, old, new in (("c", "", "language_model."), ("d", "model.", "model.language_model.")):
        other = make_run(tmp_path / folder, renamed(b, old, new))
        found = diff([tmp_path / "a", other]).as_json()
        assert found["tensors"] == plain["tensors"]
        assert found["layers"] == plain["layers"]
        count = len(SHAPES) if not old else len(SHAPES) - 1
        assert found["prefix"] == {"a": old, "b": new, "tensors": count}
        assert [w["code"] for w in found["warnings"]] == ["prefix"]
        assert "another prefix" in diff_text(diff([tmp_path / "a", other]))


def test_prefixes_never_swallow_layer_numbers() -> None:
    pairs = pair_names(["m.layers.0.q.weight", "x.weight"], ["m.layers.1.q.weight", "y.weight"])
    assert pairs.paired == ()
    assert pairs.prefix is None
    assert pairs.only_a == ("m.layers.0.q.weight", "x.weight")
    taken = pair_names(["a.layers.0.q", "b.layers.0.q"], ["a.layers.0.q", "c.layers.0.q"])
    assert taken.paired == (("a.layers.0.q", "a.layers.0.q"), ("b.layers.0.q", "c.layers.0.q"))


def test_one_sided_tensors_and_other_shapes_are_listed(tmp_path: Path) -> None:
    a = random_masks({"layers.0.q": (4, 4), "layers.0.k": (4, 4), "layers.0.v": (4, 4)}, 1)
    b = random_masks({"layers.0.q": (4, 4), "layers.0.k": (4, 5), "layers.0.o": (4, 4)}, 2)
    report = diff([make_run(tmp_path / "a", a), make_run(tmp_path / "b", b)])
    found = report.as_json()
    assert list(found["tensors"]) == ["layers.0.q"]
    assert found["only_in_a"] == ["layers.0.k", "layers.0.v"]
    assert found["only_in_b"] == ["layers.0.k", "layers.0.o"]
    assert found["other_shape"] == [{"a": "layers.0.k", "b": "layers.0.k", "shape_a": (4, 4), "shape_b": (4, 5)}]
    severities = {warning["code"]: warning["severity"] for warning in found["warnings"]}
    assert severities == {"shapes": "high", "only-in-a": "medium", "only-in-b": "medium"}
    assert not found["comparable"]
    assert "layers.0.v" in diff_text(report)


WARNINGS = [
    ("source__architecture", "GemmaForCausalLM", "architecture", "high"),
    ("source__tokenizer", "ab" * 32, "tokenizer", "high"),
    ("source__digits", "triples", "digits", "high"),
    ("selection__proportion", 0.3, "proportion", "high"),
    ("selection__control", "wanda", "control", "high"),
    ("selection__include", ["*.q"], "include", "medium"),
    ("selection__parents", ["ab" * 32], "parents", "medium"),
    ("calibration__math__digest", "ab" * 32, "corpus", "medium"),
    ("calibration__math__samples", 5, "samples", "medium"),
    ("calibration__general__seed", 7, "seed", "low"),
    ("calibration__general__max_length", 7, "max-length", "low"),
    ("tool__version", "9", "tool", "low"),
]


@pytest.mark.parametrize(("key", "value", "code", "severity"), WARNINGS)
def test_differences_of_making_are_warned_of(tmp_path: Path, key: str, value: Any, code: str, severity: str) -> None:
    masks = random_masks({"layers.0.q": (4, 4)})
    make_run(tmp_path / "a", masks, source__digits="single")
    make_run(tmp_path / "b", masks, **{"source__digits": "single", key: value})
    found = diff([tmp_path / "a", tmp_path / "b"]).as_json()
    assert [(warning["code"], warning["severity"]) for warning in found["warnings"]] == [(code, severity)]
    assert found["comparable"] is (severity != "high")
    with pytest.raises(Error, match="--strict") as caught:
        diff([tmp_path / "a", tmp_path / "b"], strict=True)
    assert caught.value.exit_code == 1


def test_what_is_not_known_is_no_difference(tmp_path: Path) -> None:
    masks = random_masks({"layers.0.q": (4, 4)})
    make_run(tmp_path / "a", masks, source__digits="single")
    make_run(tmp_path / "b", masks, source__tokenizer=None)
    assert diff([tmp_path / "a", tmp_path / "b"], strict=True).pairs[0].comparable


@pytest.fixture
def real(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """Two sources and a RUN of each, with statistics in blocks."""
    sources = [handmade.make_source(tmp_path / name, seed) for seed, name in enumerate(("base1", "base2"))]
    runs = [handmade.make_run(tmp_path / name, source) for name, source in zip(("run1", "run2"), sources, strict=True)]
    return sources[0], sources[1], runs[0], runs[1]


def dense(name: str, flat: set[int]) -> np.ndarray:
    array = np.zeros(int(np.prod(handmade.TARGETS[name][0])), np.bool_)
    array[sorted(flat)] = True
    return array


def test_noise_ceiling_is_the_split_half_of_an_independent_selection(real: tuple[Path, ...]) -> None:
    base1, base2, run1, run2 = real
    found = diff([run1, run2], base_a=base1, base_b=base2).as_json()
    statistics = handmade.make_statistics()
    middle = handmade.BLOCKS // 2
    for side, base in (("a", base1), ("b", base2)):
        halves = [
            handmade.select_all(base, {name: array[part] for name, array in statistics.items()}, 0.3, None)[1]
            for part in (slice(None, middle), slice(middle, None))
        ]
        ceiling = found["ceiling"][side]
        for name in handmade.TARGETS:
            whole = handmade.select_all(base, statistics, 0.3, None)[1][name]
            size = int(np.prod(handmade.TARGETS[name][0][-2:]))
            used = {j // size for j in whole} if "experts" in name else {0}
            kept = [{i for i in half[name] if i // size in used} for half in halves]
            assert_same(ceiling["tensors"][name], comparison([(dense(name, kept[0]), dense(name, kept[1]))]))
    assert diff([run1, run2]).as_json()["ceiling"] == {"a": None, "b": None}
    text = diff_text(diff([run1, run2], base_a=base1))
    assert "halves A" in text
    assert "halves B" not in text


def test_no_ceiling_of_a_random_control_or_one_block(tmp_path: Path) -> None:
    source = handmade.make_source(tmp_path / "base")
    run = handmade.make_run(tmp_path / "random", source, control="random")
    found = diff([run, run], base_a=source).as_json()
    assert found["ceiling"]["a"] is None
    assert [warning["code"] for warning in found["warnings"]] == ["no-ceiling"]


def test_masks_are_selected_again_where_a_run_holds_none(real: tuple[Path, ...]) -> None:
    base1, base2, run1, run2 = real
    wanted = diff([run1, run2]).as_json()
    (run1 / "masks.safetensors").unlink()
    with pytest.raises(Error, match=r"masks\.safetensors is missing"):
        diff([run1, run2], base_b=base2)
    found = diff([run1, run2], base_a=base1).as_json()
    assert {key: found[key] for key in KEYS[1:]} == {key: wanted[key] for key in KEYS[1:]}


def test_weights_inside_and_outside_the_masks(real: tuple[Path, ...]) -> None:
    base1, base2, run1, run2 = real
    found = diff([run1, run2], base_a=base1, base_b=base2, weights=True).as_json()["weights"]
    statistics = handmade.make_statistics()
    masks = [handmade.select_all(base, statistics, 0.3, None)[1] for base in (base1, base2)]
    tensors = [handmade.read_tensors(base) for base in (base1, base2)]
    sums = {part: np.zeros(3) for part in ("in_a", "in_b", "outside")}
    for name in handmade.TARGETS:
        a, b = (tensor[name][1].to(torch.float64).numpy().reshape(-1) for tensor in tensors)
        in_a, in_b = dense(name, masks[0][name]), dense(name, masks[1][name])
        for part, held in (("in_a", in_a), ("in_b", in_b), ("outside", ~(in_a | in_b))):
            sums[part] += [held.sum(), ((b - a)[held] ** 2).sum(), (a[held] ** 2).sum()]
    for part, (count, change, size) in sums.items():
        assert found["overall"][part]["weights"] == count
        assert found["overall"][part]["relative_change"] == pytest.approx(np.sqrt(change / size), rel=1e-9)
    text = diff_text(diff([run1, run2], base_a=base1, base_b=base2, weights=True))
    assert "outside both" in text


def test_a_base_that_is_not_the_source_is_refused(real: tuple[Path, ...]) -> None:
    base1, base2, run1, run2 = real
    with pytest.raises(Error, match=r"--base-a base2: model-00001-of-00002\.safetensors is not the one"):
        diff([run1, run2], base_a=base2, base_b=base1)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    source = handmade.make_source(tmp_path / "base")
    run = handmade.make_run(tmp_path / "run", source, control="random")
    name, shard = "model.layers.0.attn.weight", handmade.SHARDS[0]
    handmade.put_bytes(source / shard, handmade.span(source / shard, name)[0], b"\x80\x7f")
    handmade.reseal(run, lambda d: d["source"]["files"].update({shard: handmade.entry_of(source / shard)}))
    with pytest.raises(Error, match=r"layers\.0\.attn\.weight.*NaN or an infinity"):
        diff([run, run], base_a=source, base_b=source, weights=True)


def test_csv_holds_every_number(tmp_path: Path) -> None:
    run_a, run_b, _, _ = two(tmp_path)
    report = diff([run_a, run_b])
    found = report.as_json()
    lines = list(csv.DictReader(io.StringIO(csv_text(report))))
    assert [line["level"] for line in lines].count("tensor") == len(SHAPES)
    groups = {"kind": "kinds", "layer": "layers", "tensor": "tensors", "expert": "experts"}
    for line in lines:
        wanted = found["overall"] if line["level"] == "overall" else found[groups[line["level"]]][line["name"]]
        assert {field: float(line[field]) for field in FIELDS} == wanted


def test_wrong_use_is_refused_before_any_work(tmp_path: Path) -> None:
    run_a, run_b, _, _ = two(tmp_path)
    for call in (
        lambda: diff([run_a]),
        lambda: diff([run_a, run_b], weights=True, base_a=run_a),
        lambda: diff([run_a, run_b, run_a], base_a=run_a),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    run_a, run_b, _, _ = two(tmp_path)
    code = (
        "import sys\n"
        "from mathneuro_export.cli.diff import command\n"
        "from mathneuro_export.cli import combine, export_mask\n"
        f"command.main([{str(run_a)!r}, {str(run_b)!r}, '--json', '--html', {str(tmp_path / 'p.html')!r}],"
        " standalone_mode=False)\n"
        f"combine.command.main([{str(run_a)!r}, {str(run_b)!r}, '--op', 'or', '-o', {str(tmp_path / 'c')!r}, '-q'],"
        " standalone_mode=False)\n"
        "for name in ('npz', 'bool-safetensors', 'trainable-json'):\n"
        f"    export_mask.command.main([{str(tmp_path / 'c')!r}, '--format', name, '-o',"
        f" {str(tmp_path)!r} + '/' + name], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules), 'imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["comparable"] is True


def test_command_line(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from mathneuro_export.cli.main import cli

    run_a, run_b, _, _ = two(tmp_path)
    done = CliRunner().invoke(cli, ["diff", str(run_a), str(run_b), "--csv", str(tmp_path / "x.csv"), "-q"])
    assert done.exit_code == 0
    assert "Jaccard" in done.stdout
    assert "comparable: yes" in done.stdout
    assert (tmp_path / "x.csv").read_text().startswith("a,b,level,name,size_a")
    for option, file in (
        ("--csv", "masks.safetensors"),
        ("--html", "x.txt"),
        ("--plot", "x.pdf"),
        ("--csv", "no/x.csv"),
    ):
        done = CliRunner().invoke(cli, ["diff", str(run_a), str(run_b), option, str(tmp_path / file)])
        assert isinstance(done.exception, UsageError), file


def test_the_command_ends_with_exit_1_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from mathneuro_export.cli import main

    run_a, run_b, _, _ = two(tmp_path)
    (run_b / "masks.safetensors").unlink()
    monkeypatch.setitem(main.COMMANDS, "diff", "Compare masks.")
    with pytest.raises(SystemExit) as caught:
        main.main(["diff", str(run_a), str(run_b), "--json"])
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("Error: ")
    assert len(printed.err.splitlines()) == 1


def test_without_matplotlib_a_plot_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mathneuro_export.export.diff_files import check_files

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Error, match=r"pip install 'mathneuro-export\[plot\]'"):
        check_files({"plot": tmp_path / "x.png"})


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plots_are_drawn_even_of_odd_names(tmp_path: Path, count: int, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    from mathneuro_export.export.diff_plot import write_plot

    shapes = {"layers.0.$x^{_": (4, 4), "layers.1.b\n<&": (4, 4)}
    report = diff([make_run(tmp_path / f"r$_{seed}", random_masks(shapes, seed)) for seed in range(count)])
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for file in files:
        write_plot(report, file)
    data = [file.read_bytes() for file in files]
    assert data[0] == data[1]
    assert data[0][:4] == (b"\x89PNG" if suffix == ".png" else b"<?xm")
