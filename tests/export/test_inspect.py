import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from mathneuro_export.errors import Error
from mathneuro_export.export.inspect import inspect, inspect_text, kind_of, layer_of

from .handmade import SHARDS, TARGETS, make_output, make_run, make_source, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    source = make_source(folder / "source")
    return {"source": source, "run": make_run(folder / "run", source), "out": make_output(folder / "out", source)}


def test_checkpoint(folders):
    info = inspect(folders["source"])
    assert json.loads(json.dumps(info)) == info
    assert {key: info[key] for key in ("kind", "id", "architecture", "model_type", "layers", "experts")} == {
        "kind": "checkpoint",
        "id": "source",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "layers": 2,
        "experts": None,
    }
    assert info["dtypes"]["F16"] == {"tensors": 1, "parameters": 60, "bytes": 120}
    assert info["parameters"] == 658
    assert info["tensor_count"] == len(info["tensors"]) == 9
    assert info["tensors"]["lm_head.weight"] == {"shape": [16, 8], "dtype": "BF16", "file": SHARDS[1]}
    assert info["lm_head"] == "lm_head.weight"
    assert info["tie_word_embeddings"] is False
    assert info["quantization"] is None
    assert info["largest"]["name"] == "model.layers.1.attn.weight"
    assert "LICENSE" in info["carried"]
    assert info["left_out"] == ["pytorch_model.bin"]
    assert list(info["shards"]) == list(SHARDS)
    assert info["problems"] == []


def test_run_and_output(folders):
    run, out = inspect(folders["run"]), inspect(folders["out"])
    assert (run["kind"], out["kind"]) == ("run", "output")
    assert run["edit"] is None
    assert run["totals"]["changed"] is None
    assert out["edit"] == {"operation": "scale", "factor": 1.1, "factor_source": "option"}
    for info in (run, out):
        assert json.loads(json.dumps(info)) == info
        assert info["digest_ok"]
        assert info["problems"] == info["missing"] == []
        assert info["totals"]["targets"] == len(TARGETS)
        assert info["totals"]["weights"] == 388
        assert list(info["layers"]) == ["0", "1"]
        assert set(info["kinds"]) == {"attn", "mlp", "experts"}
        for groups in (info["layers"], info["kinds"]):
            assert sum(entry["masked"] for entry in groups.values()) == info["totals"]["masked"]
        assert info["skipped"] == {"embedding": 1, "lm_head (use --lm-head)": 1}
        assert info["calibration"]["math"]["samples"] == 7


def test_text(folders):
    for folder in folders.values():
        text = inspect_text(inspect(folder))
        assert text.isascii()
        assert not any(line != line.rstrip() for line in text.splitlines())
    assert "LlamaForCausalLM" in inspect_text(inspect(folders["source"]))
    assert "scale, factor 1.1 (option)" in inspect_text(inspect(folders["out"]))


def test_damaged_manifest(folders, tmp_path):
    data = (folders["run"] / "manifest.json").read_bytes()
    write(tmp_path / "manifest.json", data.decode().replace('"tokens": 100', '"tokens": 101'))
    info = inspect(tmp_path)
    assert not info["digest_ok"]
    assert info["missing"] == ["masks.safetensors", "statistics.safetensors"]
    assert "DOES NOT FIT" in inspect_text(info)
    write(tmp_path / "manifest.json", "{")
    info = inspect(tmp_path)
    assert info["problems"]
    assert "problem: manifest.json" in inspect_text(info).replace(f"{tmp_path.name}/", "")


def checkpoint(folder: Path, config: dict) -> Path:
    import numpy as np

    folder.mkdir()
    tensors = {"model.layers.10.mlp.experts.3.up_proj.qweight": np.zeros((4, 4), np.int32)}
    save_file(tensors, folder / "model.safetensors")
    write(folder / "config.json", json.dumps(config))
    return folder


def test_refused_checkpoints_are_told_of(tmp_path):
    quantised = {
        "architectures": ["MixtralForCausalLM"],
        "quantization_config": {"quant_method": "gptq"},
        "text_config": {"num_hidden_layers": 3, "num_local_experts": 8, "tie_word_embeddings": True},
    }
    info = inspect(checkpoint(tmp_path / "q", quantised))
    assert info["quantization"] == "gptq"
    assert (info["layers"], info["experts"], info["tie_word_embeddings"]) == (3, 8, True)
    assert info["tensor_count"] == 1
    assert "gptq" in info["problems"][0]
    assert info["carried"] is info["left_out"] is None
    assert "gptq" in inspect_text(info)


def test_damaged_checkpoints(tmp_path, folders):
    folder = checkpoint(tmp_path / "c", {})
    write(folder / "config.json", "{")
    write(folder / "other.safetensors", "x")
    info = inspect(folder)
    assert info["tensor_count"] == 1
    assert len(info["problems"]) == 2
    (folder / "config.json").unlink()
    assert "no such file" in " ".join(inspect(folder)["problems"])
    inspect_text(info)


def test_nothing_there(tmp_path):
    with pytest.raises(Error, match="no such folder"):
        inspect(tmp_path / "x")
    with pytest.raises(Error, match="holds no manifest"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.layers.11.self_attn.q_proj.weight", "11", "q_proj"),
        ("transformer.h.0.attn.c_attn.weight", "0", "c_attn"),
        ("model.layers.2.mlp.experts.7.w1.weight", "2", "w1"),
        ("model.layers.2.mlp.experts.gate_up_proj", "2", "gate_up_proj"),
        ("lm_head.weight", None, "lm_head"),
        ("weight", None, "weight"),
    ],
)
def test_names(name, layer, kind):
    assert (layer_of(name), kind_of(name)) == (layer, kind)
