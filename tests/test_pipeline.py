"""The whole way from checkpoint and texts to the edited checkpoint, against independent readers and arithmetic."""

import getpass
import hashlib
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mathneuro_export
from mathneuro_export.errors import UsageError
from tests.checkpoint.files import read_plain
from tests.conftest import SAMPLES, snapshot
from tests.masks.oracle import expected, scores, top
from tests.tiny import sentences, write_jsonl

RAW = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def manifest(folder):
    name = "mathneuro/manifest.json" if (folder / "mathneuro").is_dir() else "manifest.json"
    return json.loads((folder / name).read_text())


def own(folder, name):
    return folder / "mathneuro" / name if (folder / "mathneuro").is_dir() else folder / name


def weights(folder):
    """Name -> (dtype, shape, bytes) of a checkpoint's tensors."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= read_plain(path)
    return found


def array(tensor):
    dtype, shape, data = tensor
    return np.frombuffer(data, RAW[dtype]).reshape(shape)


def vectors(folder, document, name):
    """The statistic of a target by corpus: the float32 of the float64 sum of the blocks in the file."""
    stored = read_plain(own(folder, "statistics.safetensors"))
    result = {}
    for corpus in document["calibration"]:
        dtype, shape, data = stored[f"{corpus}/{document['tensors'][name]['statistic']}"]
        assert dtype == "F32"
        total = np.zeros(shape[1])
        for block in np.frombuffer(data, np.float32).reshape(shape):
            total += block
        result[corpus] = total.astype(np.float32)
    return result


def masks(folder):
    """Target -> masked flat indices, from the compressed rows in the file."""
    stored = read_plain(own(folder, "masks.safetensors"))
    found = {}
    for name in [n.removesuffix(".crow_indices") for n in stored if n.endswith(".crow_indices")]:
        crow = np.frombuffer(stored[f"{name}.crow_indices"][2], np.int64)
        dtype, _, data = stored[f"{name}.col_indices"]
        found[name] = (crow, np.frombuffer(data, {"U16": np.uint16, "U32": np.uint32}[dtype]).astype(np.int64))
    return found


def flat(mask, columns):
    crow, col = mask
    return np.repeat(np.arange(len(crow) - 1) * columns, np.diff(crow)) + col


def edited(tensor, indices, factor):
    """The bytes of a tensor edited by hand, rounded by torch."""
    import torch

    dtype, _, data = tensor
    kind = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[dtype]
    values = torch.frombuffer(bytearray(data), dtype=kind)
    at = torch.from_numpy(indices)
    values[at] = (values[at].float() * torch.tensor(factor, dtype=torch.float32)).to(kind)
    return values.view(torch.uint8).numpy().tobytes()


def check_masks(folder, source):
    """Every mask, count, k and threshold of a folder against a full stable sort; returns target -> flat indices."""
    document, tensors, stored = manifest(folder), weights(source), masks(folder)
    selection = document["selection"]
    assert set(stored) == set(document["tensors"])
    found = {}
    for name, entry in document["tensors"].items():
        by_corpus = vectors(folder, document, name)
        arguments = (array(tensors[name]), entry["dtype"], list(by_corpus.values()), entry["input_axis"])
        found[name] = flat(stored[name], entry["shape"][1])
        if selection["control"] == "random":
            want, thresholds, tops = expected(*arguments, selection["proportion"])
            assert len(found[name]) == len(want)
        else:
            want, thresholds, tops = expected(*arguments, selection["proportion"], selection["control"])
            assert np.array_equal(found[name], want), name
        assert entry["k"] == int(selection["proportion"] * arguments[0].size)
        assert list(entry["threshold"].values()) == thresholds
        assert list(entry["count"]["top"].values()) == tops
        assert entry["count"]["masked"] == len(want)
        digest = hashlib.sha256(stored[name][0].tobytes() + stored[name][1].astype(np.uint16).tobytes())
        assert entry["mask"] == digest.hexdigest()
    return found


def check_written(folder, source, indices, factor):
    """Every byte of an OUT against the source with the masked elements edited by hand."""
    document, before = manifest(folder), weights(source)
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            written = path.read_bytes()
            header = 8 + int.from_bytes(written[:8], "little")
            assert (folder / path.name).read_bytes()[:header] == written[:header]
            assert (folder / path.name).stat().st_size == len(written)
        elif path.name != "README.md":
            assert (folder / path.name).read_bytes() == path.read_bytes()
    changed = 0
    for name, tensor in weights(folder).items():
        want = before[name][2]
        if name in indices:
            want = edited(before[name], indices[name], factor)
            item = np.dtype(RAW[tensor[0]]).itemsize
            differs = np.frombuffer(want, f"u{item}") != np.frombuffer(before[name][2], f"u{item}")
            assert document["tensors"][name]["count"]["changed"] == differs.sum()
            changed += int(differs.sum())
        assert tensor == (*before[name][:2], want), name
    assert changed > 0


def check_verified(cli, folder, source):
    outcome = cli("verify", folder, "--base", source, "--json")
    assert outcome.code == 0, outcome.out
    assert json.loads(outcome.out)["ok"]


def made(cli, *arguments):
    outcome = cli(*arguments)
    assert outcome.code == 0, outcome.err
    return Path(arguments[arguments.index("-o") + 1])


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "float32"])
def test_statistics_are_the_oracles(name, checkpoint, identified, corpora):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.oracle import oracle

    source, run = checkpoint(name), identified(name)
    document = manifest(run)
    stored = read_plain(run / "statistics.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32").eval()
    model.set_attn_implementation("eager")
    names = {entry["statistic"] for entry in document["tensors"].values()}
    if name not in ("gpt2", "qwen3"):
        names.add("lm_head.weight")
    for corpus, path in zip(("math", "general"), corpora, strict=True):
        lines = [json.loads(line)["text"] for line in path.read_text().splitlines()]
        order = sorted(range(len(lines)), key=lambda i: hashlib.sha256(f"42:{i}".encode()).digest())
        entry = document["calibration"][corpus]
        assert entry["sample_digests"] == [hashlib.sha256(lines[i].encode()).hexdigest()[:16] for i in order]
        ids = [tokenizer(lines[i])["input_ids"] for i in order]
        norms = oracle(model, ids)
        assert entry["tokens"] == sum(map(len, ids))
        for target in names:
            dtype, shape, data = stored[f"{corpus}/{target}"]
            found = np.frombuffer(data, np.float32).reshape(shape)
            want = np.zeros(shape)
            for i, sample in enumerate(norms):
                want[i * 10 // SAMPLES] += sample[target].numpy()
            assert dtype == "F32"
            assert shape[0] == 10
            assert np.abs(found - want).max() <= 1e-5 * want.max(), target
    for target, entry in document["tensors"].items():
        follows = [n for n in names if np.array_equal(norms[0][n].numpy(), norms[0][target].numpy())]
        assert entry["statistic"] in follows


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "float32", "float16"])
def test_scale_and_prune(name, cli, checkpoint, identified, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    source, run = checkpoint(name), identified(name)
    indices = check_masks(run, source)
    assert sum(map(len, indices.values())) > 40
    check_verified(cli, run, source)
    for verb, options, factor in (("scale", ["--factor", 1.5], 1.5), ("prune", [], 0.0)):
        out = made(cli, verb, source, "--from", run, "-o", tmp_path / verb, *options)
        assert all(np.array_equal(found, indices[target]) for target, found in check_masks(out, source).items())
        assert own(out, "statistics.safetensors").read_bytes() == (run / "statistics.safetensors").read_bytes()
        check_written(out, source, indices, factor)
        check_verified(cli, out, source)
        assert manifest(out)["edit"] == {"operation": verb, "factor": factor, "factor_source": "option"}
    by_hand = AutoModelForCausalLM.from_pretrained(source).eval()
    parameters = dict(by_hand.named_parameters())
    with torch.no_grad():
        for target, at in indices.items():
            parameters[target].view(-1)[torch.from_numpy(at)] = 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "prune").eval()
    ids = torch.arange(1, 60).reshape(1, -1)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, by_hand(ids).logits)
        assert not torch.equal(loaded(ids).logits, AutoModelForCausalLM.from_pretrained(source)(ids).logits)


def test_scale_alone_is_identify_and_scale_from(cli, checkpoint, identified, texts, tmp_path):
    source = checkpoint("llama")
    options = ["--proportion", 0.1, "--dtype", "float32"]
    alone = made(cli, "scale", source, "-o", tmp_path / "alone", *texts, *options)
    later = made(cli, "scale", source, "-o", tmp_path / "later", "--from", identified("llama"))
    assert {k: v for k, v in snapshot(alone).items() if not k.endswith(("manifest.json", "README.md"))} == {
        k: v for k, v in snapshot(later).items() if not k.endswith(("manifest.json", "README.md"))
    }
    assert manifest(alone)["tensors"] == manifest(later)["tensors"]
    assert manifest(alone)["edit"] == {"operation": "scale", "factor": 1.1, "factor_source": "default"}


@pytest.mark.parametrize(
    "options",
    [
        ["--proportion", 0.3],
        ["--control", "random"],
        ["--control", "random", "--seed", 3, "--proportion", 0.2],
        ["--control", "wanda"],
        ["--control", "wanda-matched"],
        ["--control", "mirror"],
        ["--include", "*q_proj*", "--include", "*mlp*", "--exclude", "*.0.*"],
        ["--layers", "1-2"],
        ["--lm-head", "--proportion", 0.25],
    ],
    ids=lambda options: "-".join(str(part).strip("-*") for part in options),
)
def test_other_selections_from_a_run(options, cli, checkpoint, identified, tmp_path):
    source, run = checkpoint("llama"), identified("llama")
    out = made(cli, "prune", source, "--from", run, "-o", tmp_path / "out", *options)
    indices = check_masks(out, source)
    check_written(out, source, indices, 0.0)
    check_verified(cli, out, source)
    document, whole = manifest(out), manifest(run)
    matrices = {name for name, (_, shape, _) in weights(source).items() if len(shape) >= 2}
    assert matrices == set(document["tensors"]).union(*map(set, document["skipped"].values()))
    assert document["selection"]["proportion"] == (options[-1] if "--proportion" in options else 0.1)
    if "--lm-head" in options:
        assert set(document["tensors"]) == {*whole["tensors"], "lm_head.weight"}
        assert len(indices["lm_head.weight"])
    elif "--layers" in options:
        assert {name.split(".")[2] for name in document["tensors"]} == {"1", "2"}
    elif "--include" in options:
        assert all(("q_proj" in n or "mlp" in n) and ".0." not in n for n in document["tensors"])
        assert len(document["tensors"]) == 8
    else:
        assert set(document["tensors"]) == set(whole["tensors"])


def test_random_control_depends_on_the_seed(cli, checkpoint, identified, tmp_path):
    found = []
    for number, seed in enumerate((3, 3, 4)):
        options = ["--from", identified("llama"), "--control", "random", "--seed", seed]
        found.append(masks(made(cli, "identify", checkpoint("llama"), "-o", tmp_path / str(number), *options)))
    same = [all(np.array_equal(a[n][1], b[n][1]) for n in a) for a, b in ((found[0], found[1]), (found[0], found[2]))]
    assert same == [True, False]


def test_identify_from_a_run(cli, checkpoint, identified, tmp_path):
    source, run = checkpoint("llama"), identified("llama")
    again = made(cli, "identify", source, "--from", run, "-o", tmp_path / "again")
    assert (again / "masks.safetensors").read_bytes() == (run / "masks.safetensors").read_bytes()
    wider = made(cli, "identify", source, "--from", run, "-o", tmp_path / "wider", "--proportion", 0.4)
    check_masks(wider, source)
    check_verified(cli, wider, source)
    out = made(cli, "scale", source, "--from", wider, "-o", tmp_path / "out")
    assert manifest(out)["selection"]["proportion"] == 0.4
    third = made(cli, "scale", source, "--from", out, "-o", tmp_path / "third", "--factor", 2)
    check_written(third, source, check_masks(third, source), 2)


def test_apply_on_the_source_and_on_another_version(cli, checkpoint, identified, tmp_path):
    source, run, other = checkpoint("llama"), identified("llama"), checkpoint("other-version")
    indices = check_masks(run, source)
    for base in (source, other):
        out = made(cli, "apply", run, base, "-o", tmp_path / base.name, "--factor", 0.5)
        check_written(out, base, indices, 0.5)
        check_verified(cli, out, base)
        document = manifest(out)
        assert document["selection"]["parents"] == [manifest(run)["digest"]]
        assert document["source"]["id"] == base.name
    zero = made(cli, "apply", tmp_path / source.name, other, "-o", tmp_path / "zero", "--factor", 0)
    check_written(zero, other, indices, 0.0)
    assert manifest(zero)["edit"] == {"operation": "prune", "factor": 0.0, "factor_source": "option"}


def test_a_run_without_masks(cli, checkpoint, identified, tmp_path):
    source, run = checkpoint("llama"), Path(shutil.copytree(identified("llama"), tmp_path / "run"))
    (run / "masks.safetensors").unlink()
    whole = made(cli, "apply", identified("llama"), source, "-o", tmp_path / "whole", "--factor", 0.5)
    for verb, arguments in (("apply", [run, source, "--factor", 0.5]), ("scale", [source, "--from", run])):
        out = made(cli, verb, *arguments, "-o", tmp_path / verb)
        assert own(out, "masks.safetensors").read_bytes() == own(whole, "masks.safetensors").read_bytes()
    refused = cli("apply", run, checkpoint("other-version"), "--factor", 0.5, "-o", tmp_path / "other")
    assert refused.code == 1
    assert refused.last.startswith("Error: ")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("one", "three"), [("one-file", "llama"), ("one-file-float32", "float32")])
def test_one_file_and_three_shards_give_the_same_bits(one, three, checkpoint, identified, corpora, tmp_path):
    assert len(list(checkpoint(three).glob("*.safetensors"))) == 3
    pairs = [(identified(one), identified(three))]
    dtype = "float32" if one.endswith("float32") else "bfloat16"
    options = {"math": corpora[0], "general": corpora[1], "dtype": dtype, "batch_size": 5}
    pairs.append(
        tuple(mathneuro_export.identify(checkpoint(name), tmp_path / name, **options).output for name in (one, three))
    )
    for a, b in pairs:
        for name in ("statistics.safetensors", "masks.safetensors"):
            assert (a / name).read_bytes() == (b / name).read_bytes()


def test_two_runs_give_the_same_manifest(checkpoint, identified, corpora, tmp_path):
    options = {"math": corpora[0], "general": corpora[1], "proportion": 0.1, "dtype": "float32"}
    again = mathneuro_export.identify(checkpoint("llama"), tmp_path / "elsewhere", **options).output
    first, second = manifest(identified("llama")), manifest(again)
    assert first.keys() == second.keys()
    for key in first.keys() - {"created", "environment", "digest"}:
        assert json.dumps(first[key]) == json.dumps(second[key]), key


def test_batch_sizes(checkpoint, corpora, tmp_path):
    source = checkpoint("float32")
    runs = {}
    for size in (1, 4, 16):
        options = {"math": corpora[0], "general": corpora[1], "batch_size": size, "proportion": 0.1}
        runs[size] = mathneuro_export.identify(source, tmp_path / str(size), **options).output
    tensors, first = weights(source), manifest(runs[1])
    assert [sum(n for n, _ in manifest(runs[size])["calibration"]["math"]["batches"]) for size in runs] == [SAMPLES] * 3
    differing = 0
    for size in (4, 16):
        document = manifest(runs[size])
        a_masks, b_masks = masks(runs[1]), masks(runs[size])
        for name, entry in document["tensors"].items():
            a, b = (vectors(runs[s], d, name) for s, d in ((1, first), (size, document)))
            for corpus in a:
                assert np.abs(a[corpus] - b[corpus]).max() <= 1e-5 * a[corpus].max()
            odd = np.setxor1d(*(flat(m[name], entry["shape"][1]) for m in (a_masks, b_masks)))
            differing += len(odd)
            close = np.zeros(len(odd), bool)
            for corpus, threshold in first["tensors"][name]["threshold"].items():
                score = scores(array(tensors[name]), "F32", a[corpus], entry["input_axis"])
                close |= np.abs(score[odd] - threshold) <= 2e-5 * threshold
                assert len(top(score, entry["k"])) == entry["k"]
            assert close.all(), name
    print(f"masks of batch sizes 4 and 16 against 1: {differing} weights differ, all at a threshold")


def test_nothing_of_the_machine_is_told(cli, checkpoint, corpora, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwx")
    source = Path(shutil.copytree(checkpoint("llama"), tmp_path / "secret-folder" / "model"))
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    math = Path(shutil.copy(corpora[0], tmp_path / "secret-folder" / "math.jsonl"))
    general = Path(shutil.copy(corpora[1], tmp_path / "secret-folder" / "general.jsonl"))
    out = tmp_path / "secret-output"
    assert cli("scale", source, "-o", out, "--math", math, "--general", f"{general}:text").code == 0
    told = b"\n".join(
        data for name, data in snapshot(out).items() if name not in snapshot(source) or name == "README.md"
    )
    words = ["secret-", "hf_abc", str(Path.home()), str(Path.cwd()), socket.gethostname(), f"/{getpass.getuser()}"]
    assert not [word for word in words if len(word) > 4 and word.encode() in told]


def test_the_python_functions(checkpoint, identified, corpora, tmp_path):
    source, run = checkpoint("llama"), identified("llama")
    plan = mathneuro_export.plan("scale", source, math=corpora[0], general=[corpora[1]], layers="0-1")
    assert sum(row["tensors"] for row in plan.targets.values()) == 14
    scaled = mathneuro_export.scale(source, tmp_path / "scaled", from_run=run, factor=2)
    pruned = mathneuro_export.prune(str(source), str(tmp_path / "pruned"), from_run=str(run), control="wanda")
    applied = mathneuro_export.apply(run, source, tmp_path / "applied", factor=2)
    assert scaled.targets == pruned.targets == applied.targets == 21
    assert scaled.masked == applied.masked < pruned.masked
    assert 0 < scaled.changed <= scaled.masked
    assert scaled.manifest == tmp_path / "scaled" / "mathneuro" / "manifest.json"
    for result in (scaled, pruned, applied):
        assert mathneuro_export.verify(result.output, source).ok
        assert mathneuro_export.inspect(result.output)["kind"] == "output"
    with pytest.raises(UsageError, match="did you mean proportion"):
        mathneuro_export.scale(source, tmp_path / "x", proportoin=0.1)
    with pytest.raises(AttributeError, match="nothing"):
        _ = mathneuro_export.nothing
    assert {"identify", "verify"} <= set(dir(mathneuro_export))


def test_importing_the_package_imports_nothing():
    code = "import sys, mathneuro_export; print(sorted(m for m in sys.modules if m in ('torch', 'numpy', 'click')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_several_general_corpora(cli, checkpoint, texts, tmp_path):
    third = write_jsonl(tmp_path / "third.jsonl", [{"text": text} for text in sentences(12, 9)])
    source = checkpoint("llama")
    options = ["--general", third, "--proportion", 0.2, "--dtype", "float32", "--blocks", 3, "--factor", 3]
    out = made(cli, "scale", source, "-o", tmp_path / "out", *texts, *options)
    document = manifest(out)
    assert {name: (entry["samples"], entry["blocks"]) for name, entry in document["calibration"].items()} == {
        "math": (SAMPLES, 3),
        "general": (SAMPLES, 3),
        "general-2": (12, 3),
    }
    check_written(out, source, check_masks(out, source), 3)
    check_verified(cli, out, source)
