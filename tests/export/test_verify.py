import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mathneuro_export.errors import Error
from mathneuro_export.export.verify import Problem, Report, verify
from mathneuro_export.export.verify_numbers import narrow, widen

from .handmade import (
    SHARDS,
    TARGETS,
    UNUSED_HEAD,
    make_output,
    make_run,
    make_source,
    mask_digest,
    put_bytes,
    reseal,
    seal_by_hand,
    span,
    write,
)

CONTROLS = (None, "random", "wanda", "wanda-matched", "mirror")
ATTN, CONV1D, EXPERTS = "model.layers.0.attn.weight", "model.layers.1.attn.weight", "model.layers.1.experts.weight"
MANIFEST = "mathneuro/manifest.json"
MASKS = "mathneuro/masks.safetensors"
STATISTICS = "mathneuro/statistics.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("verify") / "source")


@pytest.fixture(scope="module")
def made(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return {"run": make_run(folder / "run", source), "output": make_output(folder / "out", source)}


@pytest.fixture
def out(made, tmp_path):
    return Path(shutil.copytree(made["output"], tmp_path / "out"))


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made["run"], tmp_path / "run"))


def messages(report: Report) -> str:
    return "\n".join(f"{p.file}: {p.tensor}: {p.message}" for p in report.problems)


def refuse(folder: Path, base: Path | None, *words: str) -> Report:
    report = verify(folder, base)
    assert not report.ok
    assert all("\n" not in problem.message for problem in report.problems)
    json.dumps(report.as_json())
    for word in words:
        assert word in messages(report)
    return report


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str] | None]:
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    return load_file(path), metadata


def change_file(path: Path, change, metadata_change=None) -> None:
    tensors, metadata = load(path)
    change(tensors)
    if metadata_change:
        metadata = metadata_change(metadata)
    save_file(tensors, path, metadata=metadata)


class TestIntact:
    @pytest.mark.parametrize("control", CONTROLS)
    @pytest.mark.parametrize("proportion", [0.001, 0.3, 0.9])
    def test_every_control(self, source, tmp_path, control, proportion):
        for make in (make_run, make_output):
            folder = make(tmp_path / make.__name__, source, control=control, proportion=proportion)
            report = verify(folder, source)
            assert report.ok, messages(report)
            assert verify(folder).ok

    @pytest.mark.parametrize("factor", [0.0, -1.0, 1.003, 1.1, 3e4])
    def test_every_factor(self, source, tmp_path, factor):
        report = verify(make_output(tmp_path / "out", source, factor=factor), source)
        assert report.ok, messages(report)

    def test_counts_and_form(self, made, source):
        report = verify(made["output"], source)
        with safe_open(source / SHARDS[0], "pt") as a, safe_open(source / SHARDS[1], "pt") as b:
            elements = sum(f.get_tensor(n).numel() for f in (a, b) for n in f.keys())  # noqa: SIM118
        files = sum(path.is_file() for path in made["output"].rglob("*"))
        assert report.as_json() == {
            "ok": True,
            "files": files,
            "elements_checked": elements,
            "problems": [],
            "notes": [],
        }

    def test_without_base_a_note(self, made):
        report = verify(made["output"])
        assert report.elements_checked == 0
        assert "only integrity" in report.notes[0]

    def test_run_without_masks(self, run, source):
        (run / "masks.safetensors").unlink()
        reseal(run, lambda document: document["output"].pop("masks.safetensors"))
        report = verify(run, source)
        assert report.ok, messages(report)
        assert "holds no masks" in report.notes[0]
        reseal(run, lambda document: document["tensors"][ATTN].update(mask="0" * 64))
        refuse(run, source, "selected again")

    def test_run_whose_listed_masks_are_gone(self, run):
        (run / "masks.safetensors").unlink()
        refuse(run, None, "masks.safetensors", "is missing")

    def test_parents_are_not_selected_again(self, out, source):
        def moved(tensors):
            tensors[f"{ATTN}.col_indices"] = tensors[f"{ATTN}.col_indices"].copy()

        change_file(out / MASKS, moved)
        reseal(out, lambda document: document["selection"].update(parents=["ab" * 32], proportion=0.7))
        report = verify(out, source)
        assert report.ok, messages(report)
        assert "another run" in report.notes[0]

    def test_parents_without_statistics(self, out, source):
        (out / STATISTICS).unlink()
        reseal(out, lambda d: (d["selection"].update(parents=["ab" * 32]), d["output"].pop(STATISTICS)))
        assert verify(out, source).ok

    def test_random_says_what_was_proved(self, source, tmp_path):
        report = verify(make_run(tmp_path / "run", source, control="random"), source)
        assert "random control" in report.notes[0]

    def test_free_files(self, out):
        write(out / ".git" / "HEAD", "x")
        write(out / ".cache" / "huggingface" / "x", "x")
        (out / ".gitattributes").unlink()
        reseal(out, lambda d: [d["output"].pop(".gitattributes"), d["source"]["files"].pop(".gitattributes")])
        write(out / ".gitattributes", "other")
        assert verify(out).ok

    def test_progress(self, made, source):
        seen = []
        verify(made["output"], source, progress=lambda *step: seen.append(step))
        assert [stage for stage, *_ in dict.fromkeys((s[0],) for s in seen)] == ["hash", "base", "compare", "select"]
        assert all(0 <= done <= total for _, done, total in seen)

    def test_imports_neither_torch_nor_transformers(self, made, source):
        code = (
            "import sys; from pathlib import Path; from mathneuro_export.export.verify import verify;"
            "from mathneuro_export.export.inspect import inspect;"
            "assert verify(Path(sys.argv[1]), Path(sys.argv[2])).ok; inspect(Path(sys.argv[1]));"
            "assert not {'torch', 'transformers', 'mathneuro_export.masks.select'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code, made["output"], source], check=True)


class TestDamage:
    """Damage that the hashes find, without a base."""

    @pytest.mark.parametrize("kind", ["run", "output"])
    def test_flipped_bits(self, made, tmp_path, kind):
        folder = Path(shutil.copytree(made[kind], tmp_path / "x"))
        rng = random.Random(kind)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            data = path.read_bytes()
            for _ in range(18 if len(files) > 3 else 50):
                bit = rng.randrange(len(data) * 8)
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << bit % 8
                path.write_bytes(flipped)
                assert not verify(folder).ok, (path.name, bit)
            path.write_bytes(data)
        assert verify(folder).ok

    @pytest.mark.parametrize("kind", ["run", "output"])
    def test_every_bit_of_parts_of_the_manifest(self, made, tmp_path, kind):
        folder = Path(shutil.copytree(made[kind], tmp_path / "x"))
        path = folder / ("manifest.json" if kind == "run" else MANIFEST)
        data = path.read_bytes()
        places = [data.index(word) + i for word in (b'"tiny": 1e-05', b'"digest": "', b'"k": ') for i in range(14)]
        for place in places:
            for bit in range(8):
                flipped = bytearray(data)
                flipped[place] ^= 1 << bit
                path.write_bytes(flipped)
                assert not verify(folder).ok, (place, bit)

    @pytest.mark.parametrize("kind", ["run", "output"])
    def test_truncated_and_missing(self, made, tmp_path, kind):
        folder = Path(shutil.copytree(made[kind], tmp_path / "x"))
        for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
            data = path.read_bytes()
            for size in {0, 1, 9, len(data) // 2, len(data) - 1} & set(range(len(data))):
                path.write_bytes(data[:size])
                refuse(folder, None, path.name)
            path.write_bytes(data + b"\n")
            refuse(folder, None, path.name)
            path.unlink()
            if path.name == "manifest.json":
                with pytest.raises(Error, match="holds neither"):
                    verify(folder)
            else:
                refuse(folder, None, path.name, "is missing")
            path.write_bytes(data)

    @pytest.mark.parametrize(
        "name", ["x.safetensors", "mathneuro/x", "assets/x", ".gitignore", "a/.git/x", "a/.cache/x"]
    )
    def test_unlisted(self, out, name):
        write(out / name, "x")
        refuse(out, None, name, "is not listed")

    def test_name_that_is_not_utf8(self, out):
        Path(os.fsdecode(os.fsencode(out) + b"/\xff\n")).write_bytes(b"")
        refuse(out, None, "is not listed")

    def test_links(self, out, tmp_path):
        outside = tmp_path / "LICENSE"
        shutil.move(out / "LICENSE", outside)
        (out / "LICENSE").symlink_to(outside)
        refuse(out, None, "LICENSE: None: is a link")
        (out / "LICENSE").unlink()
        shutil.move(outside, out / "LICENSE")
        (out / "assets").rename(tmp_path / "assets")
        (out / "assets").symlink_to(tmp_path / "assets")
        refuse(out, None, "assets: None: is a link", "assets/note.txt")

    def test_hub_cache(self, out, tmp_path):
        blobs = tmp_path / "models--a--b" / "blobs"
        snapshot = tmp_path / "models--a--b" / "snapshots" / "abc"
        blobs.mkdir(parents=True)
        for i, path in enumerate([path for path in sorted(out.rglob("*")) if path.is_file()]):
            link = snapshot / path.relative_to(out)
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, blobs / str(i))
            link.symlink_to(os.path.relpath(blobs / str(i), link.parent))
        assert verify(snapshot).ok
        (snapshot / "LICENSE").unlink()
        (snapshot / "LICENSE").symlink_to(tmp_path / "LICENSE")
        refuse(snapshot, None, "LICENSE: None: is a link")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
    def test_special_files(self, out, run):
        (out / "LICENSE").unlink()
        os.mkfifo(out / "LICENSE")
        refuse(out, None, "LICENSE: None: is a special file")
        (run / "manifest.json").unlink()
        os.mkfifo(run / "manifest.json")
        refuse(run, None, "nothing could be checked")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[]",
            b"{}",
            b'{"schema": 1, "schema": 1}',
            b'{"schema": 1}',
            b'{"schema": 2}',
            b'{"schema": true}',
            b"\xff{}",
            b"[" * 100_000,
            b'{"schema": 1, "digest": NaN}',
            b'{"schema": 1, "digest": "\\ud800"}',
            b"9" * 10_000,
        ],
    )
    def test_manifests_that_are_none(self, out, run, data):
        (out / MANIFEST).write_bytes(data)
        (run / "manifest.json").write_bytes(data)
        for folder in (out, run):
            assert verify(folder).files == 1
            refuse(folder, None, "manifest.json")

    @pytest.mark.parametrize("value", [None, 7, -1, 10**400, "x", [], {}, [[]], 1.5, True])
    def test_values_of_other_kinds(self, made, out, value):
        document = json.loads((out / MANIFEST).read_bytes())
        entry = document["tensors"][ATTN]
        free = ("schema", "created", "environment", "left_out", "digest")
        holders = [(document, key) for key in document if key not in free]
        holders += [(entry, key) for key in entry] + [(entry["count"], key) for key in entry["count"]]
        holders += [(document["selection"], "proportion"), (document["source"], "files")]
        for holder, key in holders:
            kept = holder[key]
            if kept == value or (isinstance(value, (list, dict)) and not value and not kept):
                continue
            holder[key] = value
            seal_by_hand(out / MANIFEST, document)
            holder[key] = kept
            assert not verify(out).ok, (key, value)

    def test_neither(self, tmp_path):
        with pytest.raises(Error, match="holds neither"):
            verify(tmp_path)
        with pytest.raises(Error, match="no such folder"):
            verify(tmp_path / "x")

    def test_base_is_no_folder(self, out, tmp_path):
        with pytest.raises(Error, match="expected the base"):
            verify(out, tmp_path / "x")

    def test_changed_card(self, out):
        write(out / "README.md", "# Edjted\n")
        assert refuse(out, None).problems[0].file == "README.md"


def set_tensor(entry: str, **values):
    return lambda document: document["tensors"][entry].update(values)


def set_count(entry: str, **values):
    return lambda document: document["tensors"][entry]["count"].update(values)


class TestManifestAgainstItself:
    """Changes with hashes and digest recomputed that are found without a base."""

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            (set_tensor(ATTN, k=22), "k is 22"),
            (set_tensor(ATTN, mask="0" * 64), "digest"),
            (set_tensor(ATTN, statistic=CONV1D), "manifest says statistic"),
            (set_tensor(ATTN, input_axis=0), "axis 0"),
            (set_tensor(ATTN, shape=[8, 9]), "expected"),
            (set_tensor(ATTN, shape=[2**62, 2**62]), "expected"),
            (set_tensor(ATTN, shape=[72]), "two or three"),
            (set_tensor(ATTN, dtype="F16"), "manifest says F16"),
            (set_tensor(ATTN, file=SHARDS[1]), "manifest says"),
            (set_count(ATTN, masked=1), "manifest says 1"),
            (set_count(ATTN, masked=100, changed=100), "of 72 elements"),
            (set_count(ATTN, changed=70), "70 changed"),
            (set_count(ATTN, changed=None), "changed is None"),
            (set_count(ATTN, top={"math": 80, "general": 1, "general-2": 1}), "more than k"),
            (set_count(ATTN, top={"math": 21}), "different corpora"),
            (set_tensor(ATTN, threshold={"math": None, "general": 0.1, "general-2": 0.1}), "threshold of math is None"),
            (set_count(EXPERTS, masked=3), "does not fit"),
            (lambda d: d.pop("edit"), "has no edit"),
            (lambda d: d["edit"].update(operation="prune"), "prune with factor 1.1"),
            (lambda d: d["edit"].update(factor=1e39), "factor 1e+39"),
            (lambda d: d["selection"].update(proportion=0.31), "k is"),
            (lambda d: d["calibration"].pop("general-2"), "general-2"),
            (lambda d: d["calibration"]["math"].update(blocks=2), "expected F32 [2, 8]"),
            (lambda d: d["calibration"]["math"].update(samples=8), "do not fit"),
            (lambda d: d["tensors"].pop(ATTN), "belongs to no target"),
            (lambda d: d["output"].pop("LICENSE"), "not in the output"),
            (lambda d: d["source"]["files"].pop("LICENSE"), "not in its source"),
            (lambda d: d["source"]["files"]["LICENSE"].update(sha256="0" * 64), "differs from the source"),
            (lambda d: d["skipped"].pop(UNUSED_HEAD), "neither target nor in skipped"),
            (lambda d: d["skipped"][UNUSED_HEAD].append("lm_head.weight"), "more than once"),
            (lambda d: d["skipped"][UNUSED_HEAD].append(ATTN), "more than once"),
            (lambda d: d["skipped"][UNUSED_HEAD].append("unknown"), "is no float tensor"),
            (lambda d: d["skipped"][UNUSED_HEAD].append("model.positions"), "is no float tensor"),
        ],
    )
    def test_output(self, out, change, word):
        reseal(out, change)
        refuse(out, None, word)

    def test_edit_in_a_run(self, run):
        edit = {"operation": "scale", "factor": 1.1, "factor_source": "option"}
        reseal(run, lambda document: document.update(edit=edit))
        refuse(run, None, "has an edit")

    def test_reformatted(self, out):
        document = json.loads((out / MANIFEST).read_bytes())
        (out / MANIFEST).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        refuse(out, None, "form in which it was written")

    def test_file_beside_a_run(self, run):
        write(run / "x", "x")
        reseal(run, lambda document: document["output"].update(x={"size": 1, "sha256": "0" * 64}))
        refuse(run, None, "which a RUN does not have")

    @pytest.mark.parametrize(
        "name", ["config.json", "README.md", MASKS, STATISTICS, *SHARDS, "model.safetensors.index.json"]
    )
    def test_output_without(self, out, name):
        (out / name).unlink()
        reseal(out, lambda d: (d["output"].pop(name), d["source"]["files"].pop(name, None)))
        refuse(out, None, name)

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.pop(f"{ATTN}.col_indices"),
            lambda t: t.update({"other.crow_indices": np.zeros(3, np.int64)}),
            lambda t: t.update({f"{ATTN}.crow_indices": t[f"{ATTN}.crow_indices"].astype(np.int32)}),
            lambda t: t.update({f"{ATTN}.crow_indices": t[f"{ATTN}.crow_indices"][:-1]}),
            lambda t: t.update({f"{ATTN}.crow_indices": t[f"{ATTN}.crow_indices"][::-1].copy()}),
            lambda t: t.update({f"{ATTN}.crow_indices": t[f"{ATTN}.crow_indices"] - 2**40}),
            lambda t: t.update({f"{ATTN}.col_indices": t[f"{ATTN}.col_indices"].astype(np.uint32)}),
            lambda t: t.update({f"{ATTN}.col_indices": t[f"{ATTN}.col_indices"] + np.uint16(60000)}),
            lambda t: t.update({f"{ATTN}.col_indices": np.zeros_like(t[f"{ATTN}.col_indices"])}),
            lambda t: t.update({f"{ATTN}.col_indices": t[f"{ATTN}.col_indices"][:-1]}),
            lambda t: t.update({f"{ATTN}.col_indices": t[f"{ATTN}.col_indices"][:0]}),
            lambda t: t.update({f"{ATTN}.col_indices": t[f"{ATTN}.col_indices"][None]}),
        ],
    )
    def test_masks(self, out, source, change):
        change_file(out / MASKS, change)
        reseal(out)
        refuse(out, None, MASKS)
        refuse(out, source, MASKS)

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.pop(f"math/{ATTN}"),
            lambda t: t.update({"math/other": t[f"math/{ATTN}"]}),
            lambda t: t.update({f"general-3/{ATTN}": t[f"math/{ATTN}"]}),
            lambda t: t.update({f"math/{ATTN}": t[f"math/{ATTN}"].astype(np.float64)}),
            lambda t: t.update({f"math/{ATTN}": t[f"math/{ATTN}"][0]}),
            lambda t: t.update({f"math/{ATTN}": t[f"math/{ATTN}"][:, 1:].copy()}),
            lambda t: t.update({f"math/{ATTN}": -t[f"math/{ATTN}"]}),
            lambda t: t.update({f"math/{ATTN}": t[f"math/{ATTN}"] * np.float32(np.nan)}),
        ],
    )
    def test_statistics(self, out, source, change):
        change_file(out / STATISTICS, change)
        reseal(out)
        refuse(out, None, STATISTICS)
        refuse(out, source, STATISTICS)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', '{"a": {"statistic": 1}}', "{", '{"a":{},"a":{}}'])
    def test_names_in_the_statistics(self, out, source, text):
        change_file(out / STATISTICS, lambda t: None, lambda m: {"tensors": text})
        reseal(out)
        refuse(out, None, STATISTICS)
        refuse(out, source, STATISTICS)


class TestAgainstTheBase:
    """Changes with every hash and digest recomputed, which only the base shows."""

    def deceive(self, out: Path, source: Path, *words: str) -> Report:
        reseal(out)
        hidden = verify(out)
        assert hidden.ok, messages(hidden)
        return refuse(out, source, *words)

    @pytest.mark.parametrize("name", [*TARGETS, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
    @pytest.mark.parametrize("place", [0, -1])
    def test_one_more_bit(self, out, source, name, place):
        path = next(out / shard for shard in SHARDS if f'"{name}"'.encode() in (out / shard).read_bytes())
        start, end = span(path, name)
        at = start if place == 0 else end - 1
        put_bytes(path, at, bytes([path.read_bytes()[at] ^ 1]))

        def hide(document):
            if path.name not in {entry["file"] for entry in document["tensors"].values()}:
                document["source"]["files"][path.name] = None

        reseal(out, hide)
        report = self.deceive(out, source, path.name)
        assert {problem.tensor for problem in report.problems} == {name}

    def test_a_masked_element_not_edited(self, out, source):
        tensors, _ = load(out / MASKS)
        crow, col = tensors[f"{ATTN}.crow_indices"], tensors[f"{ATTN}.col_indices"]
        row = int(np.flatnonzero(np.diff(crow))[0])
        offset = 2 * (row * 8 + int(col[0]))
        at = span(source / SHARDS[0], ATTN)[0] + offset
        put_bytes(out / SHARDS[0], at, (source / SHARDS[0]).read_bytes()[at : at + 2])
        self.deceive(out, source, "1 masked elements are not the formula's", f"[{row}, {int(col[0])}]")

    def test_another_factor(self, out, source):
        reseal(out, lambda document: document["edit"].update(factor=1.2))
        self.deceive(out, source, "masked elements are not the formula's")

    @pytest.mark.parametrize("name", list(TARGETS))
    def test_a_mask_with_one_element_moved(self, out, source, name):
        def move(tensors):
            crow, col = tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"].copy()
            cols = TARGETS[name][0][-1]
            for row in np.flatnonzero((np.diff(crow) > 0) & (np.diff(crow) < cols)):
                part = col[crow[row] : crow[row + 1]]
                free = sorted(set(range(cols)) - set(part.tolist()))
                part[:] = sorted([*part[1:].tolist(), free[0]])
                break
            tensors[f"{name}.col_indices"] = col

        change_file(out / MASKS, move)
        tensors, _ = load(out / MASKS)
        digest = mask_digest(tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"])
        reseal(out, set_tensor(name, mask=digest))
        report = self.deceive(out, source, "selected again", "2 elements differ")
        assert {problem.tensor for problem in report.problems} == {name}

    @pytest.mark.parametrize("name", list(TARGETS))
    @pytest.mark.parametrize("way", [0.0, np.inf])
    def test_a_threshold_off_by_one_ulp(self, out, source, name, way):
        def nudge(document):
            threshold = document["tensors"][name]["threshold"]
            value = threshold["general"]
            holder, key = (value, 0) if isinstance(value, list) else (threshold, "general")
            holder[key] = float(np.nextafter(holder[key], way))

        reseal(out, nudge)
        report = self.deceive(out, source, "threshold of general")
        assert len(report.problems) == 1

    def test_counts_off_by_one(self, out, source):
        def lower(document):
            document["tensors"][ATTN]["count"]["changed"] -= 1
            document["tensors"][ATTN]["count"]["top"]["general"] -= 1

        reseal(out, lower)
        report = self.deceive(out, source, "top of general has", "the edit changes")
        assert len(report.problems) == 2

    def test_statistics_changed(self, out, source):
        def louder(tensors):
            tensors[f"math/{ATTN}"] = tensors[f"math/{ATTN}"] * np.linspace(1, 5, 8, dtype=np.float32)

        change_file(out / STATISTICS, louder)
        self.deceive(out, source, "selected again", "threshold of math")

    def test_random_of_another_size(self, source, tmp_path):
        out = make_output(tmp_path / "out", source, control="random")

        def control(document):
            document["selection"]["control"] = None

        reseal(out, control)
        self.deceive(out, source, "selected again")

    def test_header_with_other_metadata(self, out, source):
        path = out / SHARDS[1]
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"format":"pt"', b'"format":"pp"', 1))
        self.deceive(out, source, "its header differs")

    def test_header_of_another_length(self, out, source):
        path = out / SHARDS[1]
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        path.write_bytes((size + 8).to_bytes(8, "little") + data[8 : 8 + size] + b" " * 8 + data[8 + size :])
        reseal(out)
        refuse(out, source, "its header differs")

    @pytest.mark.parametrize("name", ["LICENSE", "config.json", "tokenizer.json", "assets/note.txt", ".gitattributes"])
    def test_a_carried_file_changed(self, out, source, name):
        write(out / name, (out / name).read_text() + " ")

        def hide(document):
            document["output"][name] = None

        reseal(out, hide)
        reseal(out, lambda document: document["source"]["files"].update({name: document["output"][name]}))
        self.deceive(out, source, f"{name}: None: in the base")

    def test_a_carried_file_dropped(self, out, source):
        (out / "LICENSE").unlink()
        reseal(out, lambda d: (d["output"].pop("LICENSE"), d["source"]["files"].pop("LICENSE")))
        self.deceive(out, source, "LICENSE: None: is in the base")

    def test_a_target_dropped(self, out, source):
        def drop(document):
            document["tensors"].pop(CONV1D)
            document["skipped"]["layer"] = [CONV1D]

        def unnamed(metadata):
            named = json.loads(metadata["tensors"])
            return {**metadata, "tensors": json.dumps({name: named[name] for name in named if name != CONV1D})}

        reseal(out, drop)
        change_file(out / MASKS, lambda t: [t.pop(f"{CONV1D}.{part}") for part in ("crow_indices", "col_indices")])
        change_file(out / STATISTICS, lambda t: [t.pop(name) for name in list(t) if name.endswith(CONV1D)], unnamed)
        self.deceive(out, source, "it is no target")

    def test_a_statistic_of_no_tensor(self, out, source):
        def add(metadata):
            named = json.loads(metadata["tensors"])
            ghost = {"statistic": ATTN, "input_axis": 1}
            return {**metadata, "tensors": json.dumps({**named, "ghost": ghost})}

        change_file(out / STATISTICS, lambda t: None, add)
        reseal(out, lambda document: document["skipped"].update(excluded=["ghost"]))
        refuse(out, None, "ghost: is in skipped", "selection makes it a target")
        reseal(out, lambda document: document["skipped"].pop("excluded"))
        refuse(out, source, "ghost: is neither a target nor skipped")

    def test_another_base(self, out, run, tmp_path):
        other = make_source(tmp_path / "other", seed=9)
        for folder in (out, run):
            report = refuse(folder, other, "is this the base it was made of?")
            assert {problem.file for problem in report.problems} == set(SHARDS)

    def test_base_without_a_shard(self, made, source, tmp_path):
        base = Path(shutil.copytree(source, tmp_path / "base"))
        (base / SHARDS[0]).unlink()
        refuse(made["output"], base, SHARDS[0], "in the base")

    def test_run(self, run, source):
        def lower(document):
            document["tensors"][ATTN]["threshold"]["math"] *= 1.5

        reseal(run, lower)
        assert verify(run).ok
        refuse(run, source, "threshold of math")


class TestNumbers:
    def test_every_bf16_and_f16_widens_as_torch_says(self):
        raw = np.arange(1 << 16, dtype=np.uint16)
        for dtype, kind in (("BF16", torch.bfloat16), ("F16", torch.float16)):
            expected = torch.from_numpy(raw.view(np.int16).copy()).view(kind).float().numpy()
            np.testing.assert_array_equal(widen(raw, dtype), expected)

    def test_narrow_rounds_as_torch_does(self):
        bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
        bits[:65536] = np.arange(65536, dtype=np.uint32) << 16 | 0x8000
        values = bits.view(np.float32)
        for dtype, kind in (("BF16", torch.bfloat16), ("F16", torch.float16)):
            expected = torch.from_numpy(values.copy()).to(kind).view(torch.int16).numpy().view(np.uint16)
            known = ~np.isnan(values)
            np.testing.assert_array_equal(narrow(values, dtype)[known], expected[known])
            assert np.isnan(widen(narrow(values, dtype), dtype)[~known]).all()


def test_problem_and_report_are_frozen():
    with pytest.raises(AttributeError):
        Problem("a", None, "b").file = "c"
