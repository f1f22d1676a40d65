"""Calibration against the oracle, and what it must leave alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import oracle
from tiny import sentences, tiny_checkpoint, tiny_tokenizer, write_jsonl

from mathneuro_export.calibration.batches import encode
from mathneuro_export.calibration.corpus import Corpus, load_corpus
from mathneuro_export.calibration.hooks import Recorder, Rows, recording
from mathneuro_export.calibration.runner import block_count, block_of, calibrate
from mathneuro_export.calibration.statistics import write_statistics
from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.loading import load_model, load_tokenizer
from mathneuro_export.models.targets import plan_targets

ARCHITECTURES = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("gemma2", {}),
    ("gpt2", {}),
    ("gpt_neox", {}),
    ("phi", {}),
    ("phi3", {}),
]


def make_corpus(folder: Path, name: str = "math", count: int = 17, seed: int = 0) -> Corpus:
    path = write_jsonl(folder / f"{name}.jsonl", [{"text": text} for text in sentences(count, seed)])
    return load_corpus(name, str(path), None, 42)


def opened(folder: Path, dtype: str = "float32"):
    source = open_source(folder)
    return load_model(source, "cpu", dtype), plan_targets(source), load_tokenizer(source)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model, plan, tokenizer = opened(tiny_checkpoint(folder / "model", "llama"))
    return model, plan, tokenizer, make_corpus(folder)


class TestAgainstTheOracle:
    @pytest.mark.parametrize(("arch", "config"), ARCHITECTURES, ids=lambda value: str(value))
    def test_every_vector_at_every_batch_size(self, arch, config, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model", arch, **config))
        corpus = make_corpus(tmp_path)
        samples = encode(corpus, tokenizer, 40, False, 256).ids
        assert len({len(ids) for ids in samples}) > 5
        alone = oracle(model, samples)
        expected = {target.name: sum(norms[f"{target.module}.weight"] for norms in alone) for target in plan.linear}
        tied = model.config.tie_word_embeddings
        assert (plan.lm_head is None) == tied
        assert len(expected) == len(alone[0]) - tied  # a tied output layer is seen there as the embedding
        for batch_size in (1, 4, 16, None):
            result = calibrate(model, plan, [corpus], tokenizer, max_length=40, batch_size=batch_size)
            for name, vector in expected.items():
                found = result.statistics.vector("math", name)
                difference = np.abs(found - vector.numpy()).max()
                assert difference <= 1e-5 * float(vector.max()), (name, batch_size, difference)

    def test_bfloat16_activations_are_summed_in_float32(self, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model"), "bfloat16")
        corpus = make_corpus(tmp_path)
        alone = oracle(model, encode(corpus, tokenizer, 40, False, 256).ids)
        result = calibrate(model, plan, [corpus], tokenizer, max_length=40, batch_size=1)
        for target in plan.linear:
            vector = sum(norms[f"{target.module}.weight"] for norms in alone).numpy()
            assert np.abs(result.statistics.vector("math", target.name) - vector).max() <= 1e-6 * vector.max()


class TestBlocks:
    def test_each_sample_is_in_its_block(self, llama, tmp_path):
        model, plan, tokenizer, corpus = llama
        blocks, count = 5, len(corpus.texts)
        whole = calibrate(model, plan, [corpus], tokenizer, blocks=blocks, batch_size=4).statistics
        alone = []
        for number, text in enumerate(corpus.texts):
            path = write_jsonl(tmp_path / f"{number}.jsonl", [{"text": text}])
            single = load_corpus("math", str(path), None, 0)
            alone.append(calibrate(model, plan, [single], tokenizer).statistics)
        assert [block_of(i, count, blocks) for i in range(count)] == [i * 5 // 17 for i in range(17)]
        for target in plan.linear:
            for block in range(blocks):
                members = [i for i in range(count) if i * blocks // count == block]
                expected = sum(alone[i].vector("math", target.name).astype(np.float64) for i in members)
                found = whole.blocks("math", target.name)[block]
                assert np.abs(found - expected).max() <= 1e-5 * expected.max()

    def test_their_sum_is_the_one_block_statistic(self, llama):
        model, plan, tokenizer, corpus = llama
        one = calibrate(model, plan, [corpus], tokenizer, blocks=1).statistics
        many = calibrate(model, plan, [corpus], tokenizer, blocks=7).statistics
        for target in plan.linear:
            vector = one.vector("math", target.name)
            assert many.blocks("math", target.name).shape[0] == 7
            np.testing.assert_allclose(many.vector("math", target.name), vector, rtol=1e-6)

    def test_counts(self):
        assert [block_count(None, n) for n in (1, 9, 10, 500)] == [1, 9, 10, 10]
        assert [block_count(4, n) for n in (3, 4)] == [3, 4]
        with pytest.raises(UsageError, match="--blocks 0"):
            block_count(0, 5)


class TestSameBits:
    def test_one_file_or_three(self, tmp_path):
        files = []
        for shards in (1, 3):
            folder = tiny_checkpoint(tmp_path / f"model{shards}", shards=shards)
            assert len(list(folder.glob("*.safetensors"))) == shards
            model, plan, tokenizer = opened(folder)
            result = calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)
            path = tmp_path / f"statistics{shards}.safetensors"
            axes = {target.name: target.input_axis for target in plan.linear}
            write_statistics(path, result.statistics, axes, "lm_head.weight")
            files.append(path.read_bytes())
        assert files[0] == files[1]

    def test_a_second_run_and_a_corpus_after_another(self, llama, tmp_path):
        model, plan, tokenizer, corpus = llama
        general = make_corpus(tmp_path, "general", 9, 5)
        both = calibrate(model, plan, [corpus, general], tokenizer)
        alone = calibrate(model, plan, [general], tokenizer)
        for target in plan.linear:
            blocks = alone.statistics.blocks("general", target.name)
            assert np.array_equal(both.statistics.blocks("general", target.name), blocks)
        assert list(both.statistics.stored) == list(both.corpora) == ["math", "general"]


class TestNothingIsTouched:
    @pytest.mark.parametrize("arch", ["llama", "gpt2", "gemma2"])
    def test_weights_activations_and_hooks(self, arch, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model", arch, dtype="float32"))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        ids = torch.tensor([[1, 30, 31, 32, 40], [1, 50, 51, 9, 12]])
        logits = model(input_ids=ids, use_cache=False).logits.clone()
        calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
        modules = {target.name: model.get_submodule(target.module) for target in plan.linear}
        recorder = Recorder(1)
        recorder.begin(Rows([0, 0], [5, 5], 5))
        with recording(recorder, modules, None):
            assert torch.equal(model(input_ids=ids, use_cache=False).logits, logits)
        assert recorder.sums
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, logits)

    def test_hooks_are_gone_after_an_error(self, llama, monkeypatch):
        model, plan, tokenizer, corpus = llama

        def fail(*args, **kwargs):
            raise RuntimeError("no memory\nat all")

        monkeypatch.setattr(model.model.norm, "forward", fail)
        with pytest.raises(Error, match=r"^math: the model failed on \d+ samples: no memory at all$"):
            calibrate(model, plan, [corpus], tokenizer)
        assert not any(m._forward_pre_hooks for m in model.modules())

    def test_the_output_layer_does_not_run(self, llama, monkeypatch):
        model, plan, tokenizer, corpus = llama
        monkeypatch.setattr(model.lm_head, "forward", lambda x: pytest.fail("ran"))
        result = calibrate(model, plan, [corpus], tokenizer)
        assert "lm_head.weight" in result.observed


class TestResult:
    def test_shared_inputs_are_stored_once(self, llama):
        model, plan, tokenizer, corpus = llama
        result = calibrate(model, plan, [corpus], tokenizer)
        layer = "model.layers.1"
        assert result.statistics.stored_name(f"{layer}.self_attn.v_proj.weight") == f"{layer}.self_attn.q_proj.weight"
        assert result.statistics.stored_name(f"{layer}.mlp.up_proj.weight") == f"{layer}.mlp.gate_proj.weight"
        assert result.statistics.stored_name("lm_head.weight") == "lm_head.weight"
        assert len(result.statistics.stored["math"]) == 4 * 3 + 1
        assert set(result.observed) == {target.name for target in plan.linear}

    def test_the_entry_for_the_manifest(self, llama):
        model, plan, tokenizer, corpus = llama
        result = calibrate(model, plan, [corpus], tokenizer, max_length=30, batch_size=6)
        entry = result.corpora["math"]
        json.dumps(entry)
        assert entry["samples"] == 17
        assert entry["blocks"] == 10
        assert entry["special_tokens"] == {"added_by": "tokenizer", "added": ["<bos>"]}
        assert [count for count, _ in entry["batches"]] == [6, 6, 5]
        assert entry["batches"][-1][1] == 30
        assert entry["truncated"] == sum(len(text) + 1 > 30 for text in corpus.texts) > 0
        assert entry["tokens"] == sum(min(len(text) + 1, 30) for text in corpus.texts)
        assert [note.code for note in result.notes] == ["truncated"]

    def test_progress_is_told(self, llama):
        model, plan, tokenizer, corpus = llama
        calls = []
        calibrate(model, plan, [corpus], tokenizer, batch_size=8, progress=calls.append)
        assert calls == [8, 8, 1]

    def test_a_weight_used_without_its_module(self, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model", "mamba"))
        result = calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)
        lost = {target.name for target in plan.linear} - set(result.observed)
        assert len(lost) == 3
        assert all(name.endswith("dt_proj.weight") for name in lost)


class TestBadInput:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_activations_that_are_not_finite(self, value, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model"))
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[0, 0] = value
        with pytest.raises(
            Error, match=r"layers\.1\.mlp\.down_proj\.weight: .* not finite on the corpus math .*float32"
        ):
            calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)

    def test_float16_that_overflows(self, tmp_path):
        model, plan, tokenizer = opened(tiny_checkpoint(tmp_path / "model"), "float16")
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(30000)
        with pytest.raises(Error, match="--dtype float32"):
            calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)

    def test_a_token_beyond_the_embedding(self, tmp_path):
        folder = tiny_checkpoint(tmp_path / "model")
        tiny_tokenizer(extra=200).save_pretrained(folder)
        model, plan, tokenizer = opened(folder)
        result = calibrate(model, plan, [make_corpus(tmp_path)], tokenizer)
        assert [note.code for note in result.notes] == ["tokenizer-larger"]
        path = write_jsonl(tmp_path / "odd.jsonl", [{"text": "plain"}, {"text": "a<extra199>"}])
        with pytest.raises(Error, match=r"math \(odd\.jsonl\), sample [01]: token id 302 \('<extra199>'\)"):
            calibrate(model, plan, [load_corpus("math", str(path), None, 0)], tokenizer)

    def test_options(self, llama):
        model, plan, tokenizer, corpus = llama
        for option in ("max_length", "batch_size", "blocks"):
            with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} 0"):
                calibrate(model, plan, [corpus], tokenizer, **{option: 0})
