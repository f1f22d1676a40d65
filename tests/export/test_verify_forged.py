"""Outputs whose forger recomputed every hash and the digest, and edited masks, statistics and weights to fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mathneuro_export.cli.verify import command
from mathneuro_export.export.verify import verify

from . import handmade
from .handmade import (
    CORPORA,
    HEAD,
    SHARDS,
    TARGETS,
    UNUSED_HEAD,
    edit_by_hand,
    make_output,
    make_run,
    make_source,
    mask_digest,
    put_bytes,
    raw_bytes,
    read_tensors,
    reseal,
    span,
    summed,
    top_of,
    write,
)

LAYER0 = "model.layers.0.attn.weight"
LAYER1 = "model.layers.1.attn.weight"
EMBEDDING = "model.embed_tokens.weight"
MASKS, STATISTICS = "masks.safetensors", "statistics.safetensors"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = make_source(tmp_path_factory.mktemp("forged") / "source")
    for name in ("chat_template.jinja", "generation_config.json"):
        write(folder / name, "{}")
    return folder


@pytest.fixture(scope="module")
def made(source, tmp_path_factory):
    return make_output(tmp_path_factory.mktemp("made") / "out", source)


@pytest.fixture
def out(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "out"))


def refuse(folder: Path, base: Path | None, *words: str) -> None:
    report = verify(folder, base)
    assert not report.ok
    found = "\n".join(f"{p.file}: {p.tensor}: {p.message}" for p in report.problems)
    for word in words:
        assert word in found, found


def change(path: Path, edit: Callable[[dict[str, np.ndarray], dict[str, str]], object]) -> None:
    """Change the tensors and the metadata of a file in place."""
    with safe_open(path, "np") as file:
        metadata = dict(file.metadata() or {})
    tensors = load_file(path)
    edit(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


def observe(metadata: dict[str, str], name: str, entry: Document | None) -> None:
    """Name or drop a tensor in the metadata of the statistics."""
    named = {**json.loads(metadata["tensors"]), name: entry}
    metadata["tensors"] = json.dumps({key: value for key, value in named.items() if value is not None})


def drop_target(own: Path, name: str) -> None:
    """Take a target out of the mask file, as an honest run of another selection would have."""
    change(own / MASKS, lambda t, _: [t.pop(f"{name}.{part}") for part in ("crow_indices", "col_indices")])


def restore(out: Path, source: Path, document: Document, name: str) -> None:
    """Put a target's weights back as they are in the base, and forget the target."""
    file = document["tensors"].pop(name)["file"]
    start, end = span(source / file, name)
    put_bytes(out / file, start, (source / file).read_bytes()[start:end])
    drop_target(out / "mathneuro", name)


def forge_target(out: Path, source: Path, name: str) -> Callable[[Document], None]:
    """Edit one more tensor as if it were a target: weights, mask, statistics, and what changes the manifest."""
    file, weight = read_tensors(source)[name]
    stored = load_file(out / "mathneuro" / STATISTICS)
    like = name if f"math/{name}" in stored else HEAD
    vectors = {corpus: stored[f"{corpus}/{like}"] for corpus in CORPORA}

    def store(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
        tensors.update({f"{c}/{name}": v for c, v in vectors.items()})
        observe(metadata, name, {"statistic": name, "input_axis": 1})

    k = int(0.3 * weight.numel())
    scores = {c: handmade.scores_of(weight.float().numpy(), summed(v), 1) for c, v in vectors.items()}
    tops = {c: top_of(s, k) for c, s in scores.items()}
    masked = set(tops["math"][0]) - set(tops["general"][0]) - set(tops["general-2"][0])
    assert masked
    edited, changed = edit_by_hand(weight, masked, 1.1)
    put_bytes(out / file, span(out / file, name)[0], raw_bytes(edited))
    crow, col = handmade.csr(list(weight.shape), masked)
    change(out / "mathneuro" / STATISTICS, store)
    parts = {f"{name}.crow_indices": crow, f"{name}.col_indices": col}
    change(out / "mathneuro" / MASKS, lambda tensors, _: tensors.update(parts))

    def tell(document: Document) -> None:
        document["tensors"][name] = {
            "shape": list(weight.shape),
            "dtype": "BF16",
            "file": file,
            "statistic": name,
            "input_axis": 1,
            "k": k,
            "threshold": {c: top[1] for c, top in tops.items()},
            "count": {
                "top": {c: len(top[0]) for c, top in tops.items()},
                "masked": len(masked),
                "changed": len(changed),
            },
            "mask": mask_digest(crow, col),
        }
        document["skipped"] = {reason: [n for n in names if n != name] for reason, names in document["skipped"].items()}

    return tell


class TestCarriedFiles:
    @pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE"])
    def test_deleted_and_listed_as_left_out(self, out, source, name):
        def forge(document):
            document["left_out"] = sorted([*document["left_out"], name])
            del document["output"][name], document["source"]["files"][name]

        (out / name).unlink()
        reseal(out, forge)
        refuse(out, source, f"{name}: None: is in the base")
        refuse(out, None, f"{name}: None: is in left_out")

    def test_a_folder_listed_as_left_out(self, out, source):
        def forge(document):
            document["left_out"] = ["assets/", *document["left_out"]]
            del document["output"]["assets/note.txt"], document["source"]["files"]["assets/note.txt"]

        shutil.rmtree(out / "assets")
        reseal(out, forge)
        refuse(out, source, "assets/note.txt: None: is in the base", "assets/: None: is in left_out")

    @pytest.mark.parametrize("name", [*SHARDS, "model.safetensors.index.json", "../x", "a\nb", "original/x"])
    def test_other_names_in_left_out(self, out, name):
        reseal(out, lambda document: document["left_out"].append(name))
        refuse(out, None, "is in left_out")

    def test_a_pickle_carried(self, out, source):
        def forge(document):
            document["left_out"].remove("pytorch_model.bin")
            document["output"]["pytorch_model.bin"] = None

        shutil.copy(source / "pytorch_model.bin", out)
        reseal(out, forge)
        reseal(out, lambda d: d["source"]["files"].update({n: d["output"][n] for n in ["pytorch_model.bin"]}))
        refuse(out, source, "is of a kind that is left out", "does not leave it out")

    def test_left_out_may_name_what_only_the_hub_holds(self, out, source):
        names = ["consolidated.safetensors", "original/", "pytorch_model.bin", "x.gguf"]
        reseal(out, lambda document: document.update(left_out=names))
        assert verify(out, source).ok

    def test_folders_of_git_and_caches_need_not_be_named(self, out, source, tmp_path):
        base = Path(shutil.copytree(source, tmp_path / "base"))
        write(base / ".git" / "HEAD", "x")
        write(base / ".cache" / "huggingface" / "x", "x")
        assert verify(out, base).ok
        write(base / "original" / "x", "x")
        refuse(out, base, "original/: None: is in the base")


class TestCorpora:
    @pytest.mark.parametrize("left", [("math",), ("math", "general-2")])
    @pytest.mark.parametrize("make", [make_run, make_output])
    def test_made_without_general(self, source, tmp_path, monkeypatch, left, make):
        monkeypatch.setattr(handmade, "CORPORA", left)
        folder = make(tmp_path / "made", source)
        for base in (None, source):
            refuse(folder, base, "expected math, general")
            assert len(verify(folder, base).problems) == 1

    def test_no_general_in_an_output(self, out):
        def forge(document):
            for corpus in ("general", "general-2"):
                del document["calibration"][corpus]

        reseal(out, forge)
        refuse(out, None, "its corpora are ['math'], expected math, general")

    @pytest.mark.parametrize("other", ["general-1", "general-3"])
    @pytest.mark.parametrize("parents", [[], ["ab" * 32]])
    def test_gaps(self, out, other, parents):
        def forge(document):
            document["calibration"][other] = document["calibration"].pop("general-2")
            document["selection"]["parents"] = parents

        reseal(out, forge)
        refuse(out, None, "expected math, general, general-2")

    @pytest.mark.parametrize("key", ["samples", "blocks", "tokens"])
    def test_empty(self, out, key):
        def forge(document):
            document["calibration"]["general"].update({key: 0})

        reseal(out, forge)
        refuse(out, None, "expected at least one of each")


class TestTargets:
    def test_the_forger_is_thorough(self, out, source):
        """What `forge_target` makes has no fault but the selection's."""
        tell = forge_target(out, source, HEAD)
        change(out / "mathneuro" / STATISTICS, lambda _, metadata: metadata.update(lm_head=HEAD))
        reseal(out, lambda document: (tell(document), document["selection"].update(lm_head=True)))
        report = verify(out, source)
        assert report.ok, report.problems

    def test_head_that_was_not_asked_for(self, out, source):
        reseal(out, forge_target(out, source, HEAD))
        for base in (None, source):
            refuse(out, base, f"{HEAD}: is a target, but by its name", f"selection makes it skipped ({UNUSED_HEAD})")

    def test_head_that_the_statistics_do_not_name(self, out, source):
        tell = forge_target(out, source, HEAD)
        change(out / "mathneuro" / STATISTICS, lambda _, metadata: metadata.pop("lm_head"))
        reseal(out, tell)
        refuse(out, None, f"{HEAD}: is a target, but by its name the output layer")
        reseal(out, lambda document: document["selection"].update(lm_head=True))
        refuse(out, None, "its selection cannot be: --lm-head")

    def test_a_layer_called_lm_head(self, out, source):
        def forge(document):
            restore(out, source, document, LAYER1)
            document["skipped"][UNUSED_HEAD] = [LAYER1]

        change(out / "mathneuro" / STATISTICS, lambda _, metadata: metadata.update(lm_head=LAYER1))
        reseal(out, forge)
        refuse(out, None, f"{LAYER1}: is named lm_head in the statistics")

    @pytest.mark.parametrize("parents", [[], ["ab" * 32]])
    def test_embedding(self, out, source, parents):
        tell = forge_target(out, source, EMBEDDING)
        reseal(out, lambda document: (tell(document), document["selection"].update(parents=parents)))
        for base in (None, source):
            refuse(out, base, f"{EMBEDDING}: is a target, but by its name an embedding")
        assert len(verify(out, source).problems) == 1

    @pytest.mark.parametrize(
        ("selection", "word"),
        [
            (
                {"layers": "0"},
                f"{LAYER1}: is a target, but the manifest's selection makes it skipped (outside --layers)",
            ),
            ({"layers": "7"}, "its selection cannot be: --layers 7"),
            ({"layers": "x"}, "its selection cannot be: --layers"),
            ({"include": ["*.mlp.*"]}, "makes it skipped (not included)"),
            ({"exclude": ["*.attn.*"]}, "makes it skipped (excluded)"),
            ({"exclude": ["*"]}, "its selection cannot be: no target is left"),
            ({"exclude": ["none\n\x1b[2J"]}, "its selection cannot be"),
            ({"lm_head": True}, f"{HEAD}: is skipped ({UNUSED_HEAD}), but the manifest's selection makes it a target"),
        ],
    )
    def test_selection_that_does_not_fit(self, out, source, selection, word):
        reseal(out, lambda document: document["selection"].update(selection))
        refuse(out, None, word)
        refuse(out, source, word)
        assert all(problem.message.isprintable() for problem in verify(out).problems)

    @pytest.mark.parametrize("reason", ["layer", "excluded", "not observed", "embedding", UNUSED_HEAD])
    def test_a_target_dropped_and_skipped(self, out, source, reason):
        def forge(document):
            restore(out, source, document, LAYER1)
            document["skipped"].setdefault(reason, []).append(LAYER1)

        reseal(out, forge)
        for base in (None, source):
            refuse(out, base, f"{LAYER1}: is skipped ({reason}), but the manifest's selection makes it a target")

    def test_named_nowhere_in_a_run(self, source, tmp_path):
        run = make_run(tmp_path / "run", source)
        reseal(run, lambda document: document["tensors"].pop(LAYER1))
        drop_target(run, LAYER1)
        reseal(run)
        refuse(run, None, f"{LAYER1}: is neither a target nor skipped")

    @pytest.mark.parametrize(
        ("selection", "reason"), [({"layers": "1"}, "outside --layers"), ({"exclude": ["*.0.attn*"]}, "excluded")]
    )
    def test_narrowed_honestly(self, out, source, selection, reason):
        gone = [name for name in TARGETS if (".0." if "layers" in selection else ".0.attn") in name]

        def narrow(document):
            for name in gone:
                restore(out, source, document, name)
            document["skipped"][reason] = gone
            document["selection"].update(selection)

        reseal(out, narrow)
        report = verify(out, source)
        assert report.ok, report.problems

    def test_a_narrowed_tensor_that_was_not_observed(self, out, source):
        """A run that calibrated narrowed it as well: the glob matches nothing else."""

        def unobserve(tensors, metadata):
            for corpus in CORPORA:
                del tensors[f"{corpus}/{LAYER1}"]
            observe(metadata, LAYER1, None)

        def forge(document):
            restore(out, source, document, LAYER1)
            document["skipped"]["excluded"] = [LAYER1]
            document["selection"]["exclude"] = [LAYER1]

        reseal(out, forge)
        change(out / "mathneuro" / STATISTICS, unobserve)
        reseal(out)
        report = verify(out, source)
        assert report.ok, report.problems

    def test_parents_are_not_narrowed_again(self, out, source):
        reseal(out, lambda document: document["selection"].update(layers="0", parents=["ab" * 32]))
        report = verify(out, source)
        assert report.ok, report.problems
        assert "another run" in report.notes[0]


@pytest.mark.parametrize("name", ["x\nok, 9 files checked", "\x1b[2J\x1b]0;title\x07", "\u202eabc", "\x9b2J"])
def test_one_line_a_problem_without_control_characters(out, source, name):
    def forge(document):
        document["skipped"]["router"] = [name]
        document["left_out"].append(name)
        document["output"][name] = {"size": 1, "sha256": "0" * 64}
        document["tensors"][LAYER0]["statistic"] = name
        document["calibration"]["math"]["samples"] = 3

    reseal(out, forge)
    for options in ([], ["--base", str(source)]):
        result = CliRunner().invoke(command, [str(out), *options])
        lines = result.stdout.split("\n")
        assert lines.pop() == ""
        assert all(line.isprintable() for line in lines)
        assert len(lines) == len(verify(out, source if options else None).problems) + 1
        assert "NOT ok" in lines[-1]
        assert result.exception.exit_code == 3
