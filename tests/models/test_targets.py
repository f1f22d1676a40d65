"""The plan from config and headers alone, for each architecture."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import ARCHITECTURES, tiny_checkpoint

from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.errors import Error
from mathneuro_export.models.targets import plan_targets

DENSE = {"llama": 21, "qwen2": 21, "qwen3": 21, "gemma2": 21, "gemma3_text": 21, "phi": 18, "phi3": 12, "gpt2": 12}
DENSE["gpt_neox"] = 12


def plan(folder):
    return plan_targets(open_source(folder))


def edit(folder, change, config=None):
    """Rewrite the tensors of a lone file with `change`, and entries of its config."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **(config or {})}))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("llama") / "model")


class TestArchitectures:
    @pytest.mark.parametrize("arch", ARCHITECTURES)
    def test_every_matrix_is_a_target_or_named(self, arch, tmp_path):
        source = open_source(tiny_checkpoint(tmp_path / "model", arch, shards=2))
        found = plan_targets(source)
        matrices = sorted(name for name, (_, info) in source.tensors.items() if len(info.shape) >= 2)
        named = [name for names in found.skipped.values() for name in names]
        assert sorted([*named, *(target.name for target in found.linear)]) == matrices
        for target in found.linear:
            file, info = source.tensors[target.name]
            assert (target.file, target.shape, target.dtype) == (file, info.shape, info.dtype)
            assert target.inputs == target.shape[0 if arch == "gpt2" else 1]

    @pytest.mark.parametrize(("arch", "count"), DENSE.items())
    def test_dense_models(self, arch, count, tmp_path):
        found = plan(tiny_checkpoint(tmp_path / "model", arch))
        assert len(found.linear) == count + (found.lm_head is not None)
        assert set(found.skipped) <= {"embedding"}
        assert not found.notes

    def test_gpt2_and_gpt_neox(self, tmp_path):
        found = plan(tiny_checkpoint(tmp_path / "a", "gpt2"))
        assert {target.input_axis for target in found.linear} == {0}
        assert found.skipped["embedding"] == ("transformer.wpe.weight", "transformer.wte.weight")
        assert found.lm_head is None
        found = plan(tiny_checkpoint(tmp_path / "b", "gpt_neox"))
        assert (found.lm_head.name, found.lm_head.module) == ("embed_out.weight", "lm_head")

    @pytest.mark.parametrize(
        ("arch", "tensors", "experts"), [("mixtral", 36, 4), ("qwen3_moe", 72, 8), ("gpt_oss", 6, 4)]
    )
    def test_experts(self, arch, tensors, experts, tmp_path):
        found = plan(tiny_checkpoint(tmp_path / "model", arch))
        grouped = [target for target in found.linear if target.group]
        assert len(grouped) == tensors
        assert len(found.linear) - tensors - (found.lm_head is not None) == 12
        assert len(found.skipped["router"]) == 3
        assert not found.notes
        assert found.has_experts
        for target in grouped:
            assert target.group.startswith(f"{target.module}.")
            if arch == "gpt_oss":
                assert (target.experts, target.expert, target.input_axis) == (experts, None, 0)
            else:
                assert (target.experts, target.input_axis) == (None, 1)
                assert f".experts.{target.expert}." in target.name
                assert target.group.endswith("down_proj") == any(part in target.name for part in ("w2", "down_proj"))

    def test_mamba(self, tmp_path):
        found = plan(tiny_checkpoint(tmp_path / "model", "mamba"))
        assert {name.split(".")[4] for name in found.skipped["convolution"]} == {"conv1d"}
        assert {name.split(".")[4] for name in found.skipped["not a linear map"]} == {"A_log"}

    def test_a_multimodal_wrapper_with_its_published_names(self, tmp_path):
        from tiny import COMMON, save
        from transformers import Gemma3Config, Gemma3ForConditionalGeneration

        vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
        text = {**COMMON, "head_dim": 8, "sliding_window": 8, "model_type": "gemma3_text"}
        torch.manual_seed(0)
        config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
        save(Gemma3ForConditionalGeneration(config), tmp_path, 10**9)

        def published(name):
            if name.startswith("model.language_model."):
                return "language_model.model." + name.removeprefix("model.language_model.")
            return name.removeprefix("model.")

        edit(tmp_path, lambda tensors: {published(name): tensor for name, tensor in tensors.items()})
        found = plan(tmp_path)
        assert len(found.linear) == 21
        assert found.linear[0].name == "language_model.model.layers.0.self_attn.q_proj.weight"
        assert found.linear[0].module == "model.language_model.layers.0.self_attn.q_proj"
        assert all(name.startswith(("vision_tower.", "multi_modal")) for name in found.skipped["no text input"])
        assert len([name for name in found.skipped["no text input"] if "encoder.layers" in name]) == 12


class TestNamesOnDisk:
    def test_the_layout_does_not_matter(self, llama, tmp_path):
        names = [target.name for target in plan(llama).linear]
        assert [t.name for t in plan(tiny_checkpoint(tmp_path / "three", shards=3)).linear] == names
        bare = edit(
            tiny_checkpoint(tmp_path / "bare"),
            lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()},
        )
        found = plan(bare)
        assert [target.name for target in found.linear] == [name.removeprefix("model.") for name in names]
        assert found.linear[0].module == "model.layers.0.self_attn.q_proj"

    def test_tensors_that_the_class_does_not_load(self, tmp_path):
        def add(tensors):
            return {**tensors, "mtp.fc.weight": torch.ones(3, 3), "mtp.norm.weight": torch.ones(3)}

        found = plan(edit(tiny_checkpoint(tmp_path), add))
        assert found.skipped["not loaded by the model class"] == ("mtp.fc.weight",)
        assert len(found.linear) == 22

    def test_dtypes(self, tmp_path):
        def change(tensors):
            tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].double()
            tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].half()
            tensors["model.layers.2.mlp.up_proj.weight"] = tensors["model.layers.2.mlp.up_proj.weight"].float()
            tensors["extra"] = torch.zeros(2, 2, dtype=torch.int8)
            return tensors

        found = plan(edit(tiny_checkpoint(tmp_path), change))
        assert found.skipped["dtype F64"] == ("model.layers.0.mlp.up_proj.weight",)
        assert {target.dtype for target in found.linear} == {"BF16", "F16", "F32"}
        assert all("extra" not in names for names in found.skipped.values())


class TestOutputLayer:
    def test_of_its_own(self, llama):
        found = plan(llama)
        assert found.lm_head.name == "lm_head.weight"
        assert found.linear[-1] == found.lm_head
        assert len(found.linear) == 22

    def test_tied(self, tmp_path):
        folder = tiny_checkpoint(tmp_path / "model", tie_word_embeddings=True)
        found = plan(folder)
        assert found.lm_head is None
        assert found.skipped == {"embedding": ("model.embed_tokens.weight",)}

    def test_tied_and_stored_under_its_own_name(self, tmp_path):
        folder = tiny_checkpoint(tmp_path / "model", tie_word_embeddings=True)

        def both(tensors):
            return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}

        found = plan(edit(folder, both))
        assert found.skipped["tied lm_head"] == ("lm_head.weight",)
        found = plan(edit(folder, lambda tensors: {k: v for k, v in tensors.items() if "embed" not in k}))
        assert found.skipped == {"tied lm_head": ("lm_head.weight",)}
        assert found.lm_head is None


class TestBadModels:
    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"architectures": ["ForeignForCausalLM"]}, "architecture 'ForeignForCausalLM' is no model class"),
            ({"architectures": ["AutoConfig"]}, "architecture 'AutoConfig' is no model class"),
            ({"architectures": ["LlamaModel"]}, "LlamaModel is not a causal language model"),
            ({"architectures": ["LlamaForSequenceClassification"]}, "is not a causal language model"),
            ({"model_type": "unheard-of"}, r"^config\.json: transformers cannot read it"),
            ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but the checkpoint has only"),
            ({"num_attention_heads": "many"}, r"^config\.json: "),
            ({"hidden_size": 40}, r"has shape \[\d+.*, but config\.json makes it \["),
        ],
    )
    def test_one_line_that_names_the_config(self, config, message, tmp_path):
        folder = edit(tiny_checkpoint(tmp_path), lambda tensors: tensors, config)
        with pytest.raises(Error, match=message) as caught:
            plan(folder)
        assert caught.value.exit_code == 1
        assert "\n" not in str(caught.value)

    def test_two_tensors_for_one_parameter(self, tmp_path):
        def twice(tensors):
            return {**tensors, "norm.weight": tensors["model.norm.weight"].clone()}

        with pytest.raises(Error, match=r"is the parameter model\.norm\.weight, as .* is too"):
            plan(edit(tiny_checkpoint(tmp_path), twice))

    def test_no_linear_map(self, tmp_path):
        def only(tensors):
            return {name: tensor.double() for name, tensor in tensors.items()}

        with pytest.raises(Error, match="no weight of a linear map"):
            plan(edit(tiny_checkpoint(tmp_path), only))
