"""Every architecture from the plan to the edited checkpoint, each as a tiny random model."""

import importlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import oracle_with_tokens
from safetensors.torch import load_file
from tiny import ARCHITECTURES, COMMON, sentences, tiny_checkpoint, write_jsonl
from transformers.pytorch_utils import Conv1D

import mathneuro_export
from mathneuro_export.calibration.batches import encode
from mathneuro_export.calibration.corpus import load_corpus
from mathneuro_export.calibration.parking import Parking
from mathneuro_export.calibration.runner import calibrate
from mathneuro_export.calibration.stream import calibrate_streamed
from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.errors import Error
from mathneuro_export.export.manifest import read_document, seal
from mathneuro_export.masks.maskfile import MaskFile
from mathneuro_export.models.loading import load_model, load_tokenizer
from mathneuro_export.models.streaming import stream_model
from mathneuro_export.models.targets import plan_targets

EXPERTS = {"mixtral": 4, "qwen3_moe": 8, "gpt_oss": 4, "olmoe": 8, "deepseek_v3": 8, "qwen3_next": 8}
LENGTH = 40
CORPORA = ("math", "general")


@dataclass
class Case:
    arch: str
    folder: Path
    source: Any
    plan: Any
    model: Any
    tokenizer: Any
    math: Path
    general: Path
    out: Path | None = None

    def corpora(self):
        return [
            load_corpus(name, str(path), None, 42) for name, path in (("math", self.math), ("general", self.general))
        ]

    def scaled(self, **options):
        out = self.folder.parent / f"out-{len(list(self.folder.parent.iterdir()))}"
        common = {"math": self.math, "general": self.general, "max_length": LENGTH, "proportion": 0.1, "factor": 3}
        return mathneuro_export.scale(self.folder, out, **{**common, "min_expert_tokens": 8, **options})


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request, tmp_path_factory):
    return make_case(request.param, tmp_path_factory.mktemp(request.param))


def make_case(arch, folder):
    torch.set_num_threads(1)
    model = tiny_checkpoint(folder / "model", arch, shards=2)
    math = write_jsonl(folder / "math.jsonl", [{"text": text} for text in sentences(11)])
    general = write_jsonl(folder / "general.jsonl", [{"text": text} for text in sentences(9, 5)])
    source = open_source(model)
    loaded = load_model(source, "cpu", "float32")
    return Case(arch, model, source, plan_targets(source), loaded, load_tokenizer(source), math, general)


def test_every_linear_weight_is_a_target_or_named(case):
    linear = {target.module for target in case.plan.linear}
    named = {name: reason for reason, names in case.plan.skipped.items() for name in names}
    matrices = {name for name, (_, info) in case.source.tensors.items() if len(info.shape) >= 2}
    targets = {target.name for target in case.plan.linear}
    assert targets | set(named) == matrices
    assert not targets & set(named)
    head = case.model.get_output_embeddings()
    left = [
        path
        for path, module in case.model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and path not in linear and module is not head
    ]
    reasons = {named[name] for name in named if any(path.split(".")[-1] in name for path in left)}
    assert reasons <= {"router", "no text input", "embedding"}
    assert not left or reasons
    assert not case.plan.notes
    for target in case.plan.linear:
        assert not any(
            word in target.name for word in ("router", "mlp.gate.", "shared_expert_gate", "vision", "projector")
        )
    grouped = [target for target in case.plan.linear if target.group]
    assert {case.model.get_parameter(target.group).shape[0] for target in grouped} == (
        {EXPERTS[case.arch]} if case.arch in EXPERTS else set()
    )


@pytest.mark.parametrize("batch_size", [1, 4])
def test_statistics_equal_the_oracle(case, batch_size):
    math, general = case.corpora()
    result = calibrate(case.model, case.plan, [math, general], case.tokenizer, max_length=LENGTH, batch_size=batch_size)
    lost = {target.name for target in case.plan.linear} - set(result.observed)
    assert all("dt_proj" in name for name in lost)
    assert bool(lost) == (case.arch == "mamba")
    assert result.corpora["math"]["blocks"] == (2 if case.arch in EXPERTS else 10)
    for corpus in (math, general):
        samples = encode(corpus, case.tokenizer, LENGTH, False, 256).ids
        assert len({len(ids) for ids in samples}) > 3
        alone = oracle_with_tokens(case.model, samples)
        tokens = result.corpora[corpus.name].get("expert_tokens", {})
        for target in case.plan.linear:
            if target.name in lost:
                continue
            name = target.group or f"{target.module}.weight"
            parts = [norms[name] for norms, _ in alone if name in norms]
            expected = sum(parts) if parts else torch.zeros(case.model.get_parameter(name).shape[0], target.inputs)
            count = sum(counts[name] for _, counts in alone if name in counts) if target.group else None
            if target.expert is not None:
                expected, count = expected[target.expert], count[target.expert].reshape(1)
            found = result.statistics.vector(corpus.name, target.name)
            largest = max(float(expected.max()), 1e-30)
            assert np.abs(found - expected.numpy()).max() <= 1e-5 * largest, (target.name, corpus.name)
            if target.group:
                assert tokens[result.statistics.stored_name(target.name)] == count.tolist()
        assert len(tokens) == len({result.statistics.stored_name(t.name) for t in case.plan.linear if t.group})


def test_streamed_statistics_are_the_same_bits(case, tmp_path):
    before = threading.active_count()
    in_memory = calibrate(case.model, case.plan, case.corpora(), case.tokenizer, max_length=LENGTH, batch_size=4)
    for parking in (None, Parking(budget=0, folder=tmp_path / "work")):
        streamed = stream_model(case.source, "cpu", "float32")
        result = calibrate_streamed(
            streamed, case.plan, case.corpora(), case.tokenizer, max_length=LENGTH, batch_size=4, parking=parking
        )
        assert not any((tmp_path / "work").glob("*"))
        assert result.corpora == in_memory.corpora
        assert result.observed == in_memory.observed
        assert result.statistics.shared == in_memory.statistics.shared
        for corpus, vectors in in_memory.statistics.stored.items():
            assert list(result.statistics.stored[corpus]) == list(vectors)
            for name, blocks in vectors.items():
                assert np.array_equal(result.statistics.stored[corpus][name], blocks), (corpus, name)
        for layer in streamed.layers:
            assert all(parameter.is_meta for parameter in layer.parameters())
        assert threading.active_count() <= before


def test_scale_then_verify_and_the_same_logits_as_by_hand(case):
    result = case.scaled()
    report = mathneuro_export.verify(result.output, case.folder)
    assert report.ok, report.problems
    before, after = tensors(case.folder), tensors(result.output)
    assert {n: (t.shape, t.dtype) for n, t in before.items()} == {n: (t.shape, t.dtype) for n, t in after.items()}
    edited = load_model(open_source(result.output), "cpu", "bfloat16")
    by_hand = load_model(case.source, "cpu", "bfloat16")
    changed = edit_by_hand(by_hand, case.plan, MaskFile(result.output / "mathneuro" / "masks.safetensors"), 3.0)
    assert changed == result.masked > 0
    ids = torch.tensor([[1, 30, 31, 32, 40, 8, 77]])
    with torch.no_grad():
        logits = [model.float()(input_ids=ids, use_cache=False).logits for model in (edited, by_hand, case.model)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def edit_by_hand(model, plan, masks, factor):
    """Multiply the masked weights of a loaded model; how many there were."""
    count = 0
    for target in plan.linear:
        if target.name not in masks.names:
            continue
        mask = masks.read(target.name, target.shape)
        dense = np.zeros((mask.rows, mask.cols), bool)
        dense[np.repeat(np.arange(mask.rows), np.diff(mask.crow)), mask.col.astype(np.int64)] = True
        count += int(dense.sum())
        held = torch.from_numpy(dense)
        weight = model.get_parameter(target.group or f"{target.module}.weight").data
        if target.expert is not None:
            weight = weight[target.expert]
            if target.group.endswith("gate_up_proj"):
                half = weight.shape[0] // 2
                weight = weight[:half] if any(n in target.name for n in ("gate_proj", ".w1.")) else weight[half:]
        weight = weight.view(held.shape)
        weight[held] = (weight[held].float() * factor).to(weight.dtype)
    return count


class TestExperts:
    @pytest.fixture(scope="class", params=["qwen3_moe", "gpt_oss"])
    def moe(self, request, tmp_path_factory):
        return make_case(request.param, tmp_path_factory.mktemp(request.param))

    def test_experts_that_saw_few_tokens_are_left_alone(self, moe):
        everything = moe.scaled(min_expert_tokens=0)
        tokens = [read_document(everything.manifest)["calibration"][corpus]["expert_tokens"] for corpus in CORPORA]
        fewest = {
            name: [min(pair) for pair in zip(counts, tokens[1][name], strict=True)]
            for name, counts in tokens[0].items()
        }
        least = int(np.median(np.concatenate(list(fewest.values()))))
        result = moe.scaled(min_expert_tokens=least)
        document = read_document(result.manifest)
        starved = []
        for name, entry in document["tensors"].items():
            fused = len(entry["shape"]) == 3
            masked = entry["count"]["masked"] if fused else [entry["count"]["masked"]]
            for expert, count in enumerate(fewest.get(entry["statistic"], [])):
                if count < least:
                    starved.append(f"{name}[{expert}]" if fused else name)
                assert (masked[expert] > 0) == (count >= least)
        assert not [w for w in everything.warnings if w["code"] == "starved-experts"]
        (warning,) = [w for w in result.warnings if w["code"] == "starved-experts"]
        assert warning["tensors"] == sorted(starved)
        assert 0 < warning["count"] == len(starved)
        assert 0 < result.masked < everything.masked
        assert mathneuro_export.verify(result.output, moe.folder).ok
        default = read_document(moe.scaled(min_expert_tokens=None).manifest)["tensors"]
        assert not any(np.any(e["count"]["masked"]) for e in default.values() if e["statistic"] in fewest)
        assert any(e["count"]["masked"] for e in default.values() if e["statistic"] not in fewest)

        again = moe.scaled(
            min_expert_tokens=least, from_run=everything.output, math=None, general=None, max_length=None
        )
        names = [r.output / "mathneuro" / "masks.safetensors" for r in (result, again, everything)]
        assert names[0].read_bytes() == names[1].read_bytes() != names[2].read_bytes()
        assert mathneuro_export.verify(again.output, moe.folder).ok

    def test_verify_proves_it_from_the_tokens(self, moe):
        result = moe.scaled(min_expert_tokens=0)
        document = read_document(result.manifest)
        document["selection"]["min_expert_tokens"] = 10**6
        result.manifest.write_bytes(seal(document))
        report = mathneuro_export.verify(result.output)
        assert any("fewer than 1000000 tokens" in problem.message for problem in report.problems)

    def test_controls(self, moe):
        for control in ("random", "wanda", "wanda-matched", "mirror"):
            result = moe.scaled(control=control)
            assert mathneuro_export.verify(result.output, moe.folder).ok, control

    def test_strict_says_nothing_of_experts(self, moe):
        assert moe.scaled(strict=True).masked


def test_a_weight_used_without_its_module(tmp_path):
    mamba = make_case("mamba", tmp_path)
    result = mamba.scaled()
    document = read_document(result.manifest)
    assert len(document["skipped"]["not observed"]) == 3
    assert [w["count"] for w in document["warnings"] if w["code"] == "not-observed"] == [3]
    with pytest.raises(Error, match=r"dt_proj\.weight") as caught:
        mamba.scaled(strict=True)
    assert caught.value.exit_code == 1


def test_experts_that_cannot_be_observed(tmp_path, monkeypatch):
    settings = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1}
    monkeypatch.setitem(ARCHITECTURES, "llama4_text", {**COMMON, **settings, "intermediate_size_mlp": 48})
    llama4 = make_case("llama4_text", tmp_path)
    result = llama4.scaled()
    document = read_document(result.manifest)
    assert len(document["skipped"]["experts that cannot be observed"]) == 6
    assert [w["count"] for w in document["warnings"] if w["code"] == "experts-skipped"] == [6]
    assert mathneuro_export.verify(result.output, llama4.folder).ok
    with pytest.raises(Error, match=r"^--strict: 6 tensors are left") as caught:
        llama4.scaled(strict=True)
    assert caught.value.exit_code == 1


def test_fused_and_separate_experts_give_the_same_statistics(tmp_path):
    """A mixture whose experts lie in 3-D tensors on disk, under the names of the model's own parameters."""
    from safetensors.torch import save_file

    separate = make_case("qwen3_moe", tmp_path / "a")
    fused = make_case("qwen3_moe", tmp_path / "b")
    own = fused.model.to(torch.bfloat16).state_dict()
    for path in fused.folder.glob("model*"):
        path.unlink()
    save_file({name: tensor.contiguous() for name, tensor in own.items()}, fused.folder / "model.safetensors")
    source = open_source(fused.folder)
    plan = plan_targets(source)
    assert {target.experts for target in plan.linear if target.group} == {8}
    one = calibrate(separate.model, separate.plan, separate.corpora(), separate.tokenizer)
    model = load_model(source, "cpu", "float32")
    two = calibrate(model, plan, fused.corpora(), fused.tokenizer)
    by_group = {target.group: target.name for target in plan.linear if target.group}
    for target in separate.plan.linear:
        other = by_group.get(target.group, target.name)
        blocks = two.statistics.blocks("math", other)
        found = blocks if target.expert is None else blocks[:, target.expert]
        assert np.array_equal(one.statistics.blocks("math", target.name), found)


def test_tensors_that_the_class_does_not_load(tmp_path):
    """The multi-token-prediction layers of Qwen3-Next and DeepSeek-V3 are carried and listed."""
    from safetensors.torch import save_file

    for arch, name in (("qwen3_next", "mtp.fc.weight"), ("deepseek_v3", "model.layers.3.eh_proj.weight")):
        case = make_case(arch, tmp_path / arch)
        for path in case.folder.glob("model*.safetensors*"):
            if path.suffix == ".json":
                path.unlink()
        whole = tensors(case.folder)
        for path in case.folder.glob("*.safetensors"):
            path.unlink()
        save_file({**whole, name: torch.ones(4, 4, dtype=torch.bfloat16)}, case.folder / "model.safetensors")
        result = case.scaled()
        assert read_document(result.manifest)["skipped"]["not loaded by the model class"] == [name]
        assert torch.equal(tensors(result.output)[name], torch.ones(4, 4, dtype=torch.bfloat16))
        assert mathneuro_export.verify(result.output, case.folder).ok


def test_what_else_reads_a_run_of_experts(tmp_path):
    """`apply`, `diff`, `combine`, `export-mask` and `inspect` on tensors that hold several experts."""
    case = make_case("gpt_oss", tmp_path / "case")
    one, two = case.scaled().output, case.scaled(proportion=0.2).output

    def call(name, *arguments):
        command = importlib.import_module(f"mathneuro_export.cli.{name}").command
        command.main([str(argument) for argument in arguments], standalone_mode=False)

    call("apply", one, case.folder, "-o", tmp_path / "applied", "--factor", 0.5)
    assert mathneuro_export.verify(tmp_path / "applied", case.folder).ok
    call("diff", one, two)
    call("combine", one, two, "--op", "and", "-o", tmp_path / "both")
    assert mathneuro_export.verify(tmp_path / "both").ok
    call("export_mask", one, "-o", tmp_path / "mask.npz", "--format", "npz")
    for folder in (one, tmp_path / "both", case.folder):
        call("inspect", folder)
    call("verify", one, "--base", case.folder)


def test_the_noise_of_experts_that_see_few_tokens(tmp_path):
    """Math and general text from one distribution: the share of top(math) called math-specific falls with tokens."""
    case = make_case("qwen3_moe", tmp_path)
    texts = sentences(400)
    write_jsonl(case.math, [{"text": text} for text in texts[::2]])
    write_jsonl(case.general, [{"text": text} for text in texts[1::2]])
    shares = {}
    for samples in (4, 20, 200):
        result = case.scaled(num_samples=samples, min_expert_tokens=0, batch_size=16)
        document = read_document(result.manifest)
        entries = [e for e in document["tensors"].values() if e["statistic"] in tokens_of(document)]
        counts = [tokens_of(document)[e["statistic"]][0] for e in entries]
        share = np.mean([e["count"]["masked"] / max(1, e["count"]["top"]["math"]) for e in entries])
        shares[samples] = share
        print(f"{np.mean(counts):8.0f} tokens per expert: {share:.3f} of top(math) are called math-specific")
    assert shares[4] > shares[20] > shares[200]
    by_default = read_document(case.scaled(num_samples=20, min_expert_tokens=None).manifest)
    for entry in by_default["tensors"].values():
        tokens = tokens_of(by_default).get(entry["statistic"], [10**9])
        assert entry["count"]["masked"] == 0 or min(tokens) >= 256


def tokens_of(document):
    """Statistic -> the fewer tokens of the two corpora, for each expert."""
    math, general = (document["calibration"][corpus]["expert_tokens"] for corpus in CORPORA)
    return {name: [min(pair) for pair in zip(math[name], general[name], strict=True)] for name in math}
