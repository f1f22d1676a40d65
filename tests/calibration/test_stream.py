"""Streamed calibration: order of reading, hidden states on disk, resume, and what is left behind."""

import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import sentences, tiny_checkpoint, write_jsonl

from mathneuro_export.calibration import parking as parking_module
from mathneuro_export.calibration.corpus import load_corpus
from mathneuro_export.calibration.parking import Parking
from mathneuro_export.calibration.resume import KEY, Checkpoints
from mathneuro_export.calibration.runner import calibrate
from mathneuro_export.calibration.stream import calibrate_streamed
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.errors import Error
from mathneuro_export.models.loading import load_model, load_tokenizer
from mathneuro_export.models.streaming import StreamedModel, stream_model
from mathneuro_export.models.targets import plan_targets

SETTINGS = {"max_length": 40, "batch_size": 4}


class StopHereError(Exception):
    pass


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "gpt2"])
def case(request, tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    source = open_source(
        tiny_checkpoint(folder / "model", request.param, shards=3, num_hidden_layers=4)
        if request.param != "gpt2"
        else tiny_checkpoint(folder / "model", "gpt2", n_layer=4)
    )
    corpora = []
    for name, seed in (("math", 0), ("general", 5)):
        path = write_jsonl(folder / f"{name}.jsonl", [{"text": text} for text in sentences(11, seed)])
        corpora.append(load_corpus(name, str(path), None, 42))
    plan, tokenizer = plan_targets(source), load_tokenizer(source)
    expected = calibrate(load_model(source, "cpu", "float32"), plan, corpora, tokenizer, **SETTINGS)
    return source, plan, corpora, tokenizer, expected


def streamed(case, **options):
    source, plan, corpora, tokenizer, _ = case
    return calibrate_streamed(stream_model(source, "cpu", "float32"), plan, corpora, tokenizer, **SETTINGS, **options)


def check_same(result, case):
    expected = case[-1]
    assert result.corpora == expected.corpora
    assert result.statistics.shared == expected.statistics.shared
    for corpus, vectors in expected.statistics.stored.items():
        for name, blocks in vectors.items():
            assert np.array_equal(result.statistics.stored[corpus][name], blocks), (corpus, name)


def test_each_layer_is_read_once_for_all_corpora(case, monkeypatch):
    steps = []
    for step in ("load", "free"):
        function = getattr(StreamedModel, step)
        monkeypatch.setattr(
            StreamedModel, step, lambda self, layer, f=function, s=step: steps.append((s, layer)) or f(self, layer)
        )
    counted = []
    check_same(streamed(case, progress=counted.append), case)
    assert steps[:8] == [(step, layer) for layer in range(4) for step in ("load", "free")]
    assert {step for step, _ in steps[8:]} == {"free"}
    assert sum(counted) == 22 * 4


def test_hidden_states_beyond_the_budget_lie_in_files(case, tmp_path, monkeypatch):
    written = []
    write = parking_module.write_tensor
    monkeypatch.setattr(
        parking_module, "write_tensor", lambda path, tensor: written.append(tensor.nbytes) or write(path, tensor)
    )
    check_same(streamed(case, parking=Parking(0, tmp_path / "all")), case)
    everything = sum(written)
    written.clear()
    check_same(streamed(case, parking=Parking(40_000, tmp_path / "some")), case)
    assert 0 < sum(written) < everything
    assert not list(tmp_path.rglob("hidden-*"))


def test_a_full_disk_is_said(case, tmp_path, monkeypatch):
    def full(path, tensor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda *arguments, **options: full(None, None))
    with pytest.raises(Error, match="full of hidden states") as caught:
        parking_module.write_tensor(tmp_path / "hidden-1-0", torch.zeros(3))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("budget", [0, None], ids=["on disk", "in memory"])
def test_stopped_in_each_layer_it_goes_on_from_the_last(case, budget, tmp_path, monkeypatch):
    monkeypatch.setattr("mathneuro_export.calibration.resume.SHARE", 0)
    load = StreamedModel.load
    for stop in range(5):
        folder = tmp_path / str(stop)
        folder.mkdir()
        loaded = []

        def counted(self, layer, stop=stop, loaded=loaded):
            if layer == stop and stop not in loaded:
                loaded.append(layer)
                raise StopHereError
            loaded.append(layer)
            load(self, layer)

        monkeypatch.setattr(StreamedModel, "load", counted)
        said = []
        for attempt in (1, 2):
            with Journal.open(folder / "journal", {"a": 1}, resume=True) as journal:
                options = {
                    "parking": Parking(budget, folder / "work"),
                    "checkpoints": Checkpoints(journal, folder / "work", said.append),
                }
                if attempt == 1 and stop < 4:
                    with pytest.raises(StopHereError):
                        streamed(case, **options)
                else:
                    check_same(streamed(case, **options), case)
                record = journal.get(KEY)
        assert threading.active_count() == 1
        assert record["layer"] == 3
        if stop < 4:
            assert loaded == [*range(stop + 1), *range(stop, 4)]
            assert said == ([f"go on with decoder layer {stop}"] if stop else [])
        names = {name for name, _ in record["hidden"].values()}
        assert {path.name for path in (folder / "work").glob("hidden-*")} == names


def test_a_damaged_file_of_an_earlier_process_starts_it_again(case, tmp_path, monkeypatch):
    monkeypatch.setattr("mathneuro_export.calibration.resume.SHARE", 0)
    with Journal.open(tmp_path / "journal", {"a": 1}, resume=True) as journal:
        streamed(case, checkpoints=Checkpoints(journal, tmp_path / "work"))
        name, checksum = next(iter(journal.get(KEY)["hidden"].values()))
        data = bytearray((tmp_path / "work" / name).read_bytes())
        assert zlib.crc32(data) == checksum
        data[5] ^= 1
        (tmp_path / "work" / name).write_bytes(data)
        said = []
        check_same(streamed(case, checkpoints=Checkpoints(journal, tmp_path / "work", said.append)), case)
        assert said == []


def test_layers_that_pass_on_more_are_recalibrated_from_the_start(tmp_path):
    source = open_source(tiny_checkpoint(tmp_path / "model", "gemma3n_text"))
    path = write_jsonl(tmp_path / "math.jsonl", [{"text": text} for text in sentences(5)])
    corpora = [load_corpus("math", str(path), None, 42)]
    said = []
    with Journal.open(tmp_path / "journal", {"a": 1}, resume=True) as journal:
        checkpoints = Checkpoints(journal, tmp_path / "work", said.append)
        calibrate_streamed(
            stream_model(source, "cpu", "float32"),
            plan_targets(source),
            corpora,
            load_tokenizer(source),
            parking=Parking(0, tmp_path / "work"),
            checkpoints=checkpoints,
        )
        assert journal.get(KEY) is None
    assert len(said) == 1
    assert "more than hidden states" in said[0]
    assert not list(tmp_path.rglob("hidden-*"))


def test_an_error_in_a_layer_ends_every_pass(case, monkeypatch):
    source, plan, corpora, tokenizer, _ = case
    model = stream_model(source, "cpu", "float32")
    last = model.layers[-1]

    def fail(*arguments, **options):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(last, "forward", fail)
    with pytest.raises(Error, match=r"^math: the model failed on \d samples: no memory at all$"):
        calibrate_streamed(model, plan, corpora, tokenizer, **SETTINGS)
    assert threading.active_count() == 1
    assert not any(module._forward_pre_hooks for module in model.model.modules())


def test_what_the_embedding_gave_is_not_kept(case, monkeypatch):
    """While all passes wait at the last layer, no embedding is held: the hidden states are there once."""
    import gc

    def held():
        gc.collect()
        floats = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.dim() == 3 and t.shape[-1] == 32]
        return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in floats if not t.is_meta}

    sizes, before = [], held()
    load = StreamedModel.load

    def counted(self, layer):
        load(self, layer)
        if layer == 3:
            sizes.append(sum(size for place, size in held().items() if place not in before))

    monkeypatch.setattr(StreamedModel, "load", counted)
    streamed(case)
    padded = sum(count * length for entry in case[-1].corpora.values() for count, length in entry["batches"])
    assert sizes[0] <= 1.5 * padded * 32 * 4
