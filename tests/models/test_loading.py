"""Model and tokenizer from the folder alone."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint, tiny_tokenizer

from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.loading import (
    compute_dtype,
    embedding_rows,
    load_model,
    load_tokenizer,
    tokenizer_digest,
    tokenizer_note,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture
def copy(llama, tmp_path):
    return shutil.copytree(llama, tmp_path / "copy")


class TestModel:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_loaded_as_asked(self, dtype, llama):
        model = load_model(open_source(llama), "cpu", dtype)
        assert model.dtype == getattr(torch, dtype)
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())
        weight = load_file(llama / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
        assert torch.equal(model.model.layers[0].mlp.up_proj.weight, weight.to(getattr(torch, dtype)))
        assert embedding_rows(model) == 256

    def test_nothing_is_said(self, llama, capfd):
        import transformers

        verbosity = transformers.logging.get_verbosity()
        load_model(open_source(llama), "cpu", "float32")
        load_tokenizer(open_source(llama))
        assert capfd.readouterr() == ("", "")
        assert transformers.logging.get_verbosity() == verbosity

    def test_a_missing_tensor(self, copy):
        tensors = load_file(copy / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        with pytest.raises(Error, match=r"has no tensor for 'model\.layers\.1\.mlp\.up_proj\.weight' \(1 missing\)"):
            load_model(open_source(copy), "cpu", "float32")

    def test_another_shape(self, copy):
        tensors = load_file(copy / "model.safetensors")
        tensors["model.norm.weight"] = torch.ones(31)
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        with pytest.raises(Error, match="copy: ") as caught:
            load_model(open_source(copy), "cpu", "float32")
        assert "\n" not in str(caught.value)

    def test_tensors_it_does_not_know(self, copy):
        tensors = load_file(copy / "model.safetensors")
        save_file({**tensors, "mtp.fc.weight": torch.ones(3, 3)}, copy / "model.safetensors", {"format": "pt"})
        load_model(open_source(copy), "cpu", "float32")

    def test_an_adapter_and_remote_code(self, copy):
        with pytest.raises(UsageError, match="--trust-remote-code"):
            load_model(open_source(copy), "cpu", "float32", trust_remote_code=True)
        (copy / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
        with pytest.raises(Error, match=r"^adapter_config\.json: "):
            load_model(open_source(copy), "cpu", "float32")


class TestDtype:
    def test_auto(self, tmp_path):
        for stored in ("bfloat16", "float16", "float32"):
            source = open_source(tiny_checkpoint(tmp_path / stored, dtype=stored))
            assert compute_dtype("auto", source, "cpu") == "float32"
            assert compute_dtype("auto", source, "cuda:0") == stored
            assert compute_dtype("float16", source, "cpu") == "float16"
        with pytest.raises(UsageError, match="--dtype 'int8'"):
            compute_dtype("int8", source, "cpu")


class TestTokenizer:
    def test_missing_or_broken(self, copy):
        (copy / "tokenizer.json").write_text('{"version"')
        with pytest.raises(Error, match="copy: transformers cannot load the tokenizer"):
            load_tokenizer(open_source(copy))
        (copy / "tokenizer.json").unlink()
        with pytest.raises(Error, match=r"copy: the folder has no tokenizer .*; copy the tokenizer's files"):
            load_tokenizer(open_source(copy))
        with pytest.raises(UsageError, match="--trust-remote-code"):
            load_tokenizer(open_source(copy), trust_remote_code=True)

    def test_digest(self, llama, copy):
        first = tokenizer_digest(open_source(llama))
        assert len(first) == 64
        assert tokenizer_digest(open_source(copy)) == first
        (copy / "generation_config.json").write_text("{}")
        assert tokenizer_digest(open_source(copy)) == first
        (copy / "chat_template.jinja").write_text("other")
        assert tokenizer_digest(open_source(copy)) != first
        for path in copy.glob("*token*"):
            path.unlink()
        (copy / "chat_template.jinja").unlink()
        assert tokenizer_digest(open_source(copy)) is None

    def test_larger_than_the_embedding(self):
        tokenizer = tiny_tokenizer(extra=10)
        assert tokenizer_note(tokenizer, 113) is None
        note = tokenizer_note(tokenizer, 112)
        assert (note.code, note.details) == ("tokenizer-larger", {"entries": 113, "rows": 112})
