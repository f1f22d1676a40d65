import hashlib
import json
import os
import shutil

import pytest

from mathneuro_export.checkpoint.source import Listing, open_source
from mathneuro_export.checkpoint.strictjson import canonical
from mathneuro_export.errors import Error

from .files import make_model, shard

TENSORS = {
    "a.weight": ("F32", (2, 2), bytes(16)),
    "b.weight": ("BF16", (2, 3), bytes(12)),
    "c.weight": ("F16", (3,), bytes(6)),
}
TWO = {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors", "c.weight": "model-1.safetensors"}
INDEX = "model.safetensors.index.json"


def refused(folder, words):
    with pytest.raises(Error, match=words) as caught:
        open_source(folder)
    message = str(caught.value)
    assert caught.value.exit_code == 1
    assert message.isprintable()
    assert len(message) < 600
    return message


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_lone_file(tmp_path):
    folder = make_model(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text("{}")
    source = open_source(str(folder) + "/")
    assert source.folder == folder.resolve()
    assert (source.id, source.revision, source.index, source.parent) == ("tiny", None, None, None)
    assert source.architecture == "LlamaForCausalLM"
    assert source.config == {"architectures": ["LlamaForCausalLM"]}
    assert list(source.shards) == ["model.safetensors"]
    assert source.tensors["b.weight"][0] == "model.safetensors"
    assert source.tensors["b.weight"][1].shape == (2, 3)
    assert source.carried == ("config.json", "tokenizer.json")
    assert source.left_out == source.stray == ()
    assert open_source(folder, revision="v2").revision == "v2"


def test_shards_with_an_index(tmp_path):
    source = open_source(make_model(tmp_path / "m", TENSORS, index=TWO))
    assert source.index == INDEX
    assert list(source.shards) == ["model-1.safetensors", "model-2.safetensors"]
    assert {name: shard for name, (shard, _) in source.tensors.items()} == TWO
    assert source.carried == ("config.json",)


def test_a_lone_file_goes_before_an_index_as_in_transformers(tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    make_model(folder)
    source = open_source(folder)
    assert list(source.shards) == ["model.safetensors"]
    assert source.index is None
    assert source.stray == ("model-1.safetensors", "model-2.safetensors")
    assert source.left_out == ("model-1.safetensors", "model-2.safetensors", INDEX)
    assert source.carried == ("config.json",)


def test_an_index_of_the_lone_file_holds(tmp_path):
    source = open_source(make_model(tmp_path / "m", TENSORS, index=dict.fromkeys(TENSORS, "model.safetensors")))
    assert source.index == INDEX
    assert source.left_out == ()


CONFIGS = {
    "list": ([], "expected a JSON object"),
    "no architectures": ({}, "architectures is None"),
    "empty architectures": ({"architectures": []}, r"architectures is \[\]"),
    "architectures of another type": ({"architectures": "LlamaForCausalLM"}, "architectures is 'Llama"),
    "encoder-decoder": (
        {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        "'T5ForConditionalGeneration' is an encoder-decoder model.*choose a decoder-only model",
    ),
    "encoder-decoder inside": (
        {"architectures": ["X"], "text_config": {"is_encoder_decoder": True}},
        "encoder-decoder",
    ),
    "gptq": ({"architectures": ["X"], "quantization_config": {"quant_method": "gptq"}}, "'gptq'.*dequantize"),
    "text config": (
        {"architectures": ["X"], "text_config": {"quantization_config": {"quant_method": "fp8"}}},
        "'fp8'.*unquantised base",
    ),
    "no method": ({"architectures": ["X"], "quantization_config": {"load_in_8bit": True}}, "unnamed method"),
    "compression": ({"architectures": ["X"], "compression_config": {"quant_method": "ct"}}, "'ct'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name, tmp_path):
    config, words = CONFIGS[name]
    folder = make_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder, words).startswith("m/config.json: ")


def test_null_quantisation_is_none(tmp_path):
    open_source(make_model(tmp_path / "m", config={"architectures": ["X"], "quantization_config": None}))


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json", "hf_quant_config.json"])
def test_quantisation_in_a_file_of_its_own(name, tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / name).write_text("{}")
    refused(folder, f"m/{name}: says that the weights are quantised")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F4"])
def test_quantised_weights_without_a_word_in_the_config(dtype, tmp_path):
    data = bytes(2 if dtype == "F4" else 4)
    refused(make_model(tmp_path / "m", {"w": (dtype, (2, 2), data)}), f"'w' is quantised to {dtype}")


def test_config_files(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "config.json").write_text('{"architectures": ["X"], "architectures": ["Y"]}')
    refused(folder, "m/config.json: is not valid JSON: the key 'architectures' stands twice")
    (folder / "config.json").unlink()
    refused(folder, "m: has no config.json")
    os.mkfifo(folder / "config.json")
    refused(folder, r"m/config\.json: is a special file")


def test_models_that_are_no_folder(tmp_path):
    folder = make_model(tmp_path / "m")
    assert "no such directory" in refused("org/none", "MODEL 'org/none': no such directory")
    refused(folder / "config.json", "is a file, expected the folder")
    refused("a\0b", "no such directory")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.gguf", "tf_model.h5"])
def test_other_formats_name_the_conversion(name, tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / name)
    message = refused(folder, f"m: its weights are in '{name}'")
    assert "from_pretrained('MODEL').save_pretrained('CONVERTED')" in message


def test_no_weights_and_weights_of_another_name(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    refused(folder, "has 'adapter_model.safetensors' but neither")
    (folder / "adapter_model.safetensors").unlink()
    refused(folder, "no model.safetensors and no model.safetensors.index.json; download")


BAD_SHARDS = [
    "../m/model-1.safetensors",
    "/etc/model.safetensors",
    "sub/model-1.safetensors",
    "sub\\model-1.safetensors",
    "C:model-1.safetensors",
    "..",
    "",
    ".safetensors",
    "config.json",
    "a\0.safetensors",
    "a\n.safetensors",
    7,
    None,
    ["model-1.safetensors"],
]


@pytest.mark.parametrize("name", BAD_SHARDS)
def test_shard_names_stay_in_the_folder(name, tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    write_index(folder, {**TWO, "b.weight": name})
    refused(folder, f"m/{INDEX}: tensor 'b.weight' is in .*expected the plain name")


def test_index_against_headers(tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    write_index(folder, {**TWO, "d.weight": "model-2.safetensors"})
    refused(folder, r"m: the index names tensor 'd\.weight' in 'model-2\.safetensors', which is not in it")
    write_index(folder, {**TWO, "b.weight": "model-1.safetensors"})
    refused(folder, r"missing|not in")
    write_index(folder, {**TWO, "c.weight": "model-2.safetensors"})
    refused(folder, r"'c\.weight' in 'model-2\.safetensors', which is in 'model-1\.safetensors'")
    write_index(folder, {name: shard for name, shard in TWO.items() if name != "c.weight"})
    refused(folder, r"m/model-1\.safetensors: tensor 'c\.weight' is not in the index")
    write_index(folder, {**TWO, "d.weight": "model-3.safetensors"})
    refused(folder, f"m: {INDEX} names 'model-3.safetensors', which is missing")
    shutil.copy(folder / "model-1.safetensors", folder / "model-2.safetensors")
    write_index(folder, TWO)
    refused(folder, r"m/model-2\.safetensors: tensor 'a\.weight' is in 'model-1\.safetensors' too")


@pytest.mark.parametrize("document", [[], {}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": None}])
def test_index_without_a_map(document, tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    (folder / INDEX).write_text(json.dumps(document))
    refused(folder, f"m/{INDEX}: weight_map is")


def test_index_with_duplicate_keys(tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    (folder / INDEX).write_text('{"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}}')
    refused(folder, f"m/{INDEX}: .*stands twice")


def test_a_pointer_and_a_truncated_shard(tmp_path):
    folder = make_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, "m/model.safetensors: truncated")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(folder, "git lfs pull")


CARRIED = [
    "README.md",
    ".gitattributes",
    ".gitignore",
    "generation_config.json",
    "modeling_x.py",
    "merges.txt",
    "tokenizer.model",
    "onnx/config.json",
    "onnx/model.safetensors",
    "a/b/c/deep.txt",
    "binary.bin.txt",
    "originals/x",
    "sub/mathneuro/x",
    "\u00e9 name.txt",
]
LEFT = [
    "pytorch_model.bin",
    "sub/PYTORCH.BIN",
    "a.pt",
    "a.pth",
    "a.gguf",
    "a.h5",
    "a.msgpack",
    "a.ot",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    ".mathneuro-12-ab.tmp",
]
LEFT_FOLDERS = ["original/", ".git/", ".cache/", "mathneuro/", "sub/.git/"]
STRAY = ["consolidated.safetensors", "Other.SafeTensors"]


def put(folder, name, data="x"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data)


def test_carried_left_out_and_stray(tmp_path):
    folder = make_model(tmp_path / "m")
    for name in CARRIED + LEFT + STRAY + [f"{name}deep/file" for name in LEFT_FOLDERS]:
        put(folder, name)
    (folder / "empty").mkdir()
    source = open_source(folder)
    assert source.carried == tuple(sorted([*CARRIED, "config.json"]))
    assert source.left_out == tuple(sorted(LEFT + LEFT_FOLDERS + STRAY))
    assert source.stray == tuple(sorted(STRAY))
    assert source.parent is None


def test_parent(tmp_path):
    folder = make_model(tmp_path / "m")
    manifest = {"schema": 1, "b": [1, 2.5], "\u00e9": None}
    digest = hashlib.sha256(canonical(manifest)).hexdigest()
    put(folder, "mathneuro/manifest.json", json.dumps({**manifest, "digest": digest}))
    source = open_source(folder)
    assert source.parent == digest
    assert source.left_out == ("mathneuro/",)
    put(folder, "mathneuro/manifest.json", json.dumps({**manifest, "digest": "0" * 64}))
    refused(folder, "mathneuro/manifest.json: its digest is '000")
    put(folder, "mathneuro/manifest.json", "[]")
    refused(folder, r"mathneuro/manifest\.json: is \[\], expected a manifest")


@pytest.mark.timeout(10)
def test_special_files(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "sub" / "fifo")
    refused(folder, "m/sub/fifo: is a special file")


def test_names_that_are_not_utf8(tmp_path):
    folder = make_model(tmp_path / "m")
    try:
        (folder / os.fsdecode(b"\xff")).write_text("x")
    except OSError:
        pytest.skip("the file system takes only UTF-8")
    refused(folder, "is not UTF-8")


def test_links_of_carried_files(tmp_path):
    folder = make_model(tmp_path / "m")
    put(tmp_path, "secret.txt")
    put(folder, ".git/config")
    put(folder, "sub/real.txt")
    link = folder / "notes.txt"
    link.symlink_to("sub/real.txt")
    assert "notes.txt" in open_source(folder).carried
    for target, words in {
        "../secret.txt": "leads out",
        str(tmp_path / "secret.txt"): "leads out",
        ".git/config": "leads out",
        "nowhere": "broken link",
        "notes.txt": "broken link",
        "sub": "a linked folder",
        ".": "a linked folder",
        "..": "a linked folder",
        "/dev/null": "special file",
    }.items():
        link.unlink()
        link.symlink_to(target)
        refused(folder, rf"m/notes\.txt: is .*{words}|m/notes\.txt: is {words}")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_links_of_weights_and_config(name, tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    refused(folder, f"m/{name}: is a link that leads out")
    (folder / "real").mkdir()
    (tmp_path / "elsewhere").rename(folder / "real" / "file")
    (folder / name).unlink()
    (folder / name).symlink_to("real/file")
    open_source(folder)


def hub_cache(tmp_path, repository="models--org--name--x"):
    """The layout of the Hub's cache: snapshots/REVISION/file -> ../../blobs/HASH."""
    base = tmp_path / repository
    flat = make_model(tmp_path / "flat", TENSORS, index=TWO)
    put(flat, "sub/deep.txt")
    snapshot = base / "snapshots" / "abc123"
    (base / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in flat.rglob("*") if path.is_file())):
        (base / "blobs" / f"{number:040}").write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(flat)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(base / "blobs" / f"{number:040}", link.parent))
    return snapshot


def test_hub_cache(tmp_path):
    snapshot = hub_cache(tmp_path)
    source = open_source(snapshot, revision="main")
    assert (source.id, source.revision) == ("org/name--x", "abc123")
    assert source.carried == ("config.json", "sub/deep.txt")
    (tmp_path / "short").symlink_to(snapshot)
    assert open_source(tmp_path / "short").id == "org/name--x"


def test_hub_cache_of_a_repository_without_an_owner(tmp_path):
    assert open_source(hub_cache(tmp_path, "models--gpt2")).id == "gpt2"


def test_hub_cache_with_a_store_for_all_repositories(tmp_path):
    """snapshots/REVISION/file -> ../../blobs/HASH -> CACHE/blobs/XX/HASH, as huggingface_hub 2 keeps xet files."""
    snapshot = hub_cache(tmp_path)
    name = "ab" * 32
    (tmp_path / "blobs/ab").mkdir(parents=True)
    blob = next(path.resolve() for path in sorted(snapshot.glob("*.safetensors")))
    blob.rename(tmp_path / "blobs/ab" / name)
    blob.symlink_to(f"../../blobs/ab/{name}")
    assert open_source(snapshot).id == "org/name--x"
    put(tmp_path, "blobs/ab/other")
    (snapshot / "x").symlink_to("../../../blobs/ab/other")
    refused(snapshot, "abc123/x: is a link that leads out")


def test_links_from_a_snapshot_elsewhere(tmp_path):
    snapshot = hub_cache(tmp_path)
    put(tmp_path / "models--org--name--x", "refs/main")
    (snapshot / "x").symlink_to("../../refs/main")
    refused(snapshot, "abc123/x: is a link that leads out")


def test_links_to_blobs_that_are_no_hub_cache(tmp_path):
    base = tmp_path / "a"
    folder = make_model(base / "other" / "m")
    put(base, "blobs/x")
    (folder / "x").symlink_to("../../blobs/x")
    refused(folder, "m/x: is a link that leads out")


def test_no_unreadable_header_is_passed_over(tmp_path):
    folder = make_model(tmp_path / "m", TENSORS, index=TWO)
    (folder / "model-2.safetensors").write_bytes(shard(TENSORS)[:-2])
    refused(folder, "m/model-2.safetensors: truncated")


def test_a_listing_tells_what_the_folder_does_not_hold(tmp_path):
    whole = make_model(tmp_path / "whole", TENSORS, index=TWO)
    for name in (
        "pytorch_model.bin",
        "original/x.pth",
        "extra.safetensors",
        "sub/deep.txt",
        "mathneuro/masks.safetensors",
    ):
        put(whole, name)
    (whole / "original" / "y.txt").write_text("y")
    known = open_source(whole)
    sizes = {path.relative_to(whole).as_posix(): path.stat().st_size for path in whole.rglob("*") if path.is_file()}
    part = tmp_path / "part"
    part.mkdir()
    for name in ("config.json", known.index):
        (part / name).write_bytes((whole / name).read_bytes())
    listing = Listing(sizes, known.shards, whole=False)
    source = open_source(part, listing=listing)
    for name in ("shards", "tensors", "carried", "left_out", "stray", "sizes", "index"):
        assert getattr(source, name) == getattr(known, name)
    assert source.size_of("sub/deep.txt") == sizes["sub/deep.txt"]
    assert source.size_of("pytorch_model.bin") is None
    with pytest.raises(Error, match="deep"):
        open_source(part, listing=Listing(sizes, known.shards))
