"""What the command refuses: exit code, one line that says what, where and what next, and nothing left behind."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.files import read_plain, shard
from tests.conftest import snapshot
from tests.tiny import tiny_checkpoint, tiny_tokenizer, write_jsonl

SHARD = "model-00001-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def refused(cli, texts, tmp_path):
    """Checks that a command is refused with this code and these words in its line, and leaves its folder as it was."""

    def check(code, *words, command=("scale",), model=None, options=None, output=None):
        out = output or tmp_path / "out"
        before = snapshot(out) if out.is_dir() else None
        arguments = [model] if model else []
        arguments += texts if options is None else options
        outcome = cli(*command, *arguments, "-o", out)
        assert outcome.code == code, outcome.err
        assert outcome.out == ""
        assert outcome.last.startswith("Error: ")
        assert outcome.err.count("Error: ") == 1
        assert "Traceback" not in outcome.err
        for word in words:
            assert word in outcome.last
        assert (snapshot(out) if before is not None and out.is_dir() else None) == before
        if before is None:
            assert not out.is_dir()
        return outcome

    return check


def edit_json(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def edit_header(path, change):
    """Rewrite a safetensors header in its own length or longer; the data stay."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


# The model


def test_model_missing(refused, tmp_path):
    refused(1, "no-model", "no such directory", "name a folder", model=tmp_path / "no-model")
    refused(1, "some/name", "no such directory", model="some/name")


def test_no_config(refused, model):
    (model / "config.json").unlink()
    refused(1, "model: has no config.json", "download it again", model=model)


def test_only_bin_weights(refused, model):
    for path in model.glob("*.safetensors*"):
        path.unlink()
    (model / "pytorch_model.bin").write_bytes(b"PK")
    refused(1, "pytorch_model.bin", "safetensors", "save_pretrained", model=model)


def test_lfs_pointer_instead_of_a_shard(refused, model):
    (model / SHARD).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")
    refused(1, SHARD, "git-lfs pointer", "git lfs pull", model=model)


@pytest.mark.parametrize("cut", [4, 100, -1])
def test_truncated_shard(refused, model, cut):
    data = (model / SHARD).read_bytes()
    (model / SHARD).write_bytes(data[:cut])
    refused(1, SHARD, "download", model=model)


def test_header_length_beyond_the_file(refused, model):
    data = (model / SHARD).read_bytes()
    (model / SHARD).write_bytes(struct.pack("<Q", 1 << 40) + data[8:])
    refused(1, SHARD, str(1 << 40), "download", model=model)


def overlap(header):
    first, second = [name for name in header if name != "__metadata__"][:2]
    end = header[first]["data_offsets"][1]
    size = header[second]["data_offsets"][1] - header[second]["data_offsets"][0]
    header[second]["data_offsets"] = [end - 2, end - 2 + size]


def out_of_range(header):
    name = [name for name in header if name != "__metadata__"][-1]
    start, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [start + (1 << 40), end + (1 << 40)]


@pytest.mark.parametrize("change", [overlap, out_of_range])
def test_offsets(refused, model, change):
    edit_header(model / SHARD, change)
    refused(1, SHARD, "tensor", "download", model=model)


def test_tensor_in_the_index_only_and_in_the_shard_only(refused, model):
    name = "model.layers.9.mlp.up_proj.weight"
    edit_json(model / INDEX, lambda index: index["weight_map"].update({name: SHARD}))
    refused(1, name, SHARD, "download", model=model)
    edit_json(model / INDEX, lambda index: index["weight_map"].pop(name))
    lost = list(read_plain(model / SHARD))[-1]
    assert len(read_plain(model / SHARD)) > 1
    edit_json(model / INDEX, lambda index: index["weight_map"].pop(lost))
    refused(1, lost, "not in the index", "download", model=model)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/model.safetensors", "a/../../x.safetensors"])
def test_shard_path_outside(refused, model, place):
    shutil.copy(model / SHARD, model.parent / "outside.safetensors")

    def change(index):
        index["weight_map"] = {name: place if file == SHARD else file for name, file in index["weight_map"].items()}

    edit_json(model / INDEX, change)
    refused(1, INDEX, place, model=model)


@pytest.mark.parametrize("file", ["config.json", INDEX])
def test_duplicate_keys(refused, model, file):
    text = (model / file).read_text()
    key = next(iter(json.loads(text)))
    (model / file).write_text(text.replace("{", f'{{"{key}": 1, ', 1))
    refused(1, file, key, "twice", model=model)


def test_duplicate_keys_in_a_header(refused, model):
    data = (model / SHARD).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length]
    name = next(key for key in json.loads(text) if key != "__metadata__").encode()
    text = text.replace(b"{", b'{"' + name + b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},', 1)
    (model / SHARD).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    refused(1, SHARD, name.decode(), model=model)


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "fp8"])
def test_quantised(refused, model, method):
    edit_json(model / "config.json", lambda config: config.update(quantization_config={"quant_method": method}))
    refused(1, "config.json", method, "dequantize()", model=model)


def test_encoder_decoder(refused, model):
    edit_json(model / "config.json", lambda c: c.update(architectures=["T5Model"], is_encoder_decoder=True))
    refused(1, "config.json", "T5Model", "encoder-decoder", "decoder-only", model=model)


def test_tokenizer_missing(refused, model, tmp_path, cli, texts, checkpoint):
    for path in model.glob("tokenizer*"):
        path.unlink()
    refused(1, "model", "tokenizer.json", "copy", model=model)
    assert cli("prune", checkpoint("llama"), "-o", tmp_path / "out", *texts).code == 0
    refused(1, "tokenizer.json", model=model, options=[*texts, "--overwrite"])


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer(refused, model, file):
    (model / file).write_text('{"a": ')
    refused(1, "model", model=model)


def test_a_config_of_another_model(refused, model):
    edit_json(model / "config.json", lambda config: config.update(hidden_size=64))
    refused(1, "has shape", "config.json", model=model)
    edit_json(model / "config.json", lambda config: config.update(architectures=["NoSuchForCausalLM"]))
    refused(1, "NoSuchForCausalLM", model=model)


def test_token_beyond_the_embedding(refused, tmp_path, texts):
    small = tiny_checkpoint(tmp_path / "small", vocab_size=60)
    refused(1, "math (math.jsonl), sample", "60 rows", "use the tokenizer of this model", model=small)


def test_larger_tokenizer_is_a_warning(cli, model, texts, tmp_path):
    tiny_tokenizer(200).save_pretrained(model)
    outcome = cli("scale", model, "-o", tmp_path / "out", *texts, "--json")
    assert outcome.code == 0, outcome.err
    warning = next(w for w in json.loads(outcome.out)["warnings"] if w["code"] == "tokenizer-larger")
    assert (warning["entries"], warning["rows"]) == (303, 256)
    assert warning["message"] in outcome.err


def spoil(folder, name, value):
    """Put the 16 bits of a value into a weight of a tensor; returns the shard's name."""
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        if name in header:
            start = 8 + length + header[name]["data_offsets"][0]
            data[start + 14 : start + 16] = value.to_bytes(2, "little")
            path.write_bytes(data)
            return path.name
    raise AssertionError(name)


@pytest.mark.parametrize("value", [0x7FC0, 0x7F80], ids=["nan", "infinite"])
def test_nan_in_weights(refused, model, identified, value):
    """Met by the calibration, which names the first map whose input it spoilt, and with a RUN by the shard's hash."""
    file = spoil(model, "model.layers.0.self_attn.q_proj.weight", value)
    refused(1, "model.layers.0.self_attn.o_proj.weight", "not finite", "NaN or infinity", model=model)
    refused(1, file, "not the source", "apply", model=model, options=["--from", identified("llama")])


def test_nan_that_no_statistic_shows(refused, checkpoint, tmp_path):
    """In the last map before a tied head: met by the selection, which names the weight."""
    source = Path(shutil.copytree(checkpoint("qwen3"), tmp_path / "tied"))
    spoil(source, "model.layers.2.mlp.down_proj.weight", 0x7FC0)
    refused(1, "model.layers.2.mlp.down_proj.weight", "[0, 7]", "NaN", model=source)


def test_nan_in_a_masked_weight_under_apply(refused, model, identified):
    run = identified("llama")
    stored = read_plain(run / "masks.safetensors")
    for file in sorted(model.glob("*.safetensors")):
        tensors = read_plain(file)
        for name, (dtype, shape, data) in tensors.items():
            columns = np.frombuffer(stored.get(f"{name}.col_indices", ("", [], b""))[2], np.uint16)
            if len(columns):
                row = int(np.argmax(np.frombuffer(stored[f"{name}.crow_indices"][2], np.int64)[1:] > 0))
                values = np.frombuffer(data, np.uint16).reshape(shape).copy()
                values[row, columns[0]] = 0x7FC0
                tensors[name] = (dtype, shape, values.tobytes())
                file.write_bytes(shard(tensors, {"format": "pt"}))
                refused(1, name, "nan", "finite", command=("apply", run), model=model, options=["--factor", 2])
                return
    raise AssertionError("no mask found")


# The texts


def test_corpus_missing(refused, model, tmp_path):
    refused(1, "--math", "none.jsonl", "no such file", model=model, options=["--math", tmp_path / "none.jsonl"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.jsonl", b"", ["empty.jsonl", "no sample"]),
        ("blank.txt", b"\n\n", ["blank.txt", "no sample"]),
        ("latin.jsonl", b'{"text": "caf\xe9"}\n', ["latin.jsonl", "UTF-8"]),
        ("latin.txt", b"fine\ncaf\xe9\n", ["latin.txt", "UTF-8"]),
        ("columns.jsonl", b'{"a": "x", "b": "y"}\n', ["columns.jsonl", "a, b", ":COLUMN"]),
        ("broken.jsonl", b'{"text": "x"\n', ["broken.jsonl", "line 1"]),
    ],
)
def test_bad_corpus(refused, model, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    refused(1, *words, model=model, options=["--math", path])


def test_wrong_column(refused, model, corpora):
    for choice, word in (("answer", "answer"), ("{question} {text}", "question")):
        refused(1, "math.jsonl", word, "text", model=model, options=["--math", f"{corpora[0]}:{choice}"])


def test_a_corpus_without_a_token(refused, model, tmp_path, texts):
    edit_json(model / "tokenizer.json", lambda document: document.update(post_processor=None))
    path = write_jsonl(tmp_path / "nothing.jsonl", [{"text": ""}, {"text": ""}])
    refused(1, "nothing.jsonl", "token", model=model, options=["--math", path, *texts[2:]])


# The options


@pytest.mark.parametrize("value", ["0", "1", "-0.1", "1.5", "nan", "inf", "text"])
def test_proportion(refused, model, texts, value):
    refused(2, "--proportion", value, model=model, options=[*texts, "--proportion", value])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e39", "text"])
def test_factor(refused, model, texts, value):
    refused(2, "--factor", "", model=model, options=[*texts, "--factor", value])


@pytest.mark.parametrize("value", ["1", "1.001"])
def test_factor_that_changes_nothing(refused, model, texts, value, checkpoint):
    refused(2, "--factor", value, "BF16", "further from 1", model=model, options=[*texts, "--factor", value])
    if value == "1":
        refused(2, "--factor", "F32", model=checkpoint("float32"), options=[*texts, "--factor", value])


def test_factor_that_happens_to_change_nothing(refused, tmp_path, texts):
    """Every masked weight is a power of two, which bfloat16 does not move under 1.002."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tiny_checkpoint(tmp_path / "powers")
    state = load_file(folder / "model.safetensors")
    for tensor in state.values():
        if tensor.dim() == 2:
            tensor.copy_(torch.sign(tensor) * 2 ** torch.floor(torch.log2(tensor.float().abs())).to(tensor.dtype))
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    refused(1, "--factor 1.003", "masked", "further from 1", model=folder, options=[*texts, "--factor", "1.003"])


def test_factor_that_overflows_float16(refused, checkpoint, identified, texts):
    for options in ([*texts], ["--from", identified("float16")]):
        options = [*options, "--factor", "1e6"]
        refused(1, "model.layers.", "1e+06", "F16", "smaller", model=checkpoint("float16"), options=options)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--num-samples", "0", "at least 1"),
        ("--num-samples", "many", "integer"),
        ("--max-length", "0", "at least 1"),
        ("--batch-size", "0", "auto"),
        ("--batch-size", "x", "auto"),
        ("--blocks", "0", "auto"),
        ("--seed", "-1", "at least 0"),
        ("--control", "other", "wanda"),
        ("--device", "tpu", "cuda"),
        ("--dtype", "int8", "bfloat16"),
        ("--layers", "7-9", "2"),
        ("--layers", "x", "4-20"),
        ("--include", "*nothing*", "inspect"),
        ("--exclude", "*nothing*", "inspect"),
        ("--exclude", "*", "widen"),
        ("--math", "builtin:other", "builtin:"),
        ("--math", "text.docx", ".jsonl"),
    ],
)
def test_other_values(refused, model, texts, option, value, word):
    refused(2, option if value != "*" else "--exclude", word, model=model, options=[*texts, option, value])


def test_options_that_do_not_go_together(refused, checkpoint, identified, model, texts, tmp_path):
    run = identified("llama")
    for option in (["--num-samples", "5"], ["--math", texts[1]], ["--seed", "3"], ["--dtype", "float32"]):
        refused(2, option[0], "--from", model=checkpoint("llama"), options=["--from", run, *option])
    refused(2, "--factor", "missing", "1.1", command=("apply", run), model=model, options=[])
    refused(2, "--lm-head", "tied", model=checkpoint("qwen3"), options=[*texts, "--lm-head"])
    refused(2, "--factr", "--factor", model=model, options=[*texts, "--factr", "2"])
    refused(2, "--factor", command=("prune",), model=model, options=[*texts, "--factor", "2"])


def test_no_output_and_no_command(cli, model):
    for arguments, word in ((("scale", model), "--output"), (("scal", model), "scal"), (("scale",), "MODEL")):
        outcome = cli(*arguments)
        assert outcome.code == 2
        assert outcome.last.startswith("Error: ")
        assert word in outcome.last
        assert len(outcome.err.splitlines()) == 1


# The disk and OUT


@pytest.fixture
def tmpfs(tmp_path):
    """A small file system of its own, by size and further mount options."""
    mounted = []

    def mount(size, options=""):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "none", folder], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_disk_too_small(refused, checkpoint, identified, texts, tmpfs):
    disk = tmpfs("100k")
    for options in (texts, ["--from", identified("llama")]):
        refused(4, "out", "bytes of disk", "are free", model=checkpoint("llama"), options=options, output=disk / "out")
        assert list(disk.iterdir()) == []


def test_not_enough_memory(refused, checkpoint, texts, monkeypatch):
    import mathneuro_export.models.memory

    monkeypatch.setattr(mathneuro_export.models.memory, "available_memory", lambda: 1000)
    refused(4, "llama", "bytes of memory", "1000 are available", "--batch-size", model=checkpoint("llama"))


def test_out_is_not_writable(refused, model, tmpfs, tmp_path):
    disk = tmpfs("10m")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    refused(2, "out", "not writable", model=model, output=disk / "out")
    refused(2, "not writable", model=model, output=disk)
    (tmp_path / "file").write_text("x")
    refused(2, "is a file", model=model, output=tmp_path / "file")
    refused(2, "parent is a file", model=model, output=tmp_path / "file" / "out")
    refused(2, "parent does not exist", model=model, output=tmp_path / "none" / "out")


def test_out_in_or_above_the_source_or_the_run(refused, model, tmp_path, cli, texts):
    refused(2, "is the source itself", model=model, output=model)
    refused(2, "lies inside the source", model=model, output=model / "out")
    refused(2, "holds the source", model=model, output=tmp_path)
    (tmp_path / "link").symlink_to(model)
    refused(2, "is the source itself", model=model, output=tmp_path / "link")
    run = tmp_path / "run"
    assert cli("identify", model, "-o", run, *texts).code == 0
    for out, words in ((run, "is the RUN that is read itself"), (run / "out", "lies inside the RUN")):
        for command in (("scale",), ("identify",)):
            refused(2, words, model=model, command=command, options=["--from", run, "--overwrite"], output=out)
        refused(2, words, model=model, command=("apply", run), options=["--factor", 2, "--overwrite"], output=out)


def test_a_folder_of_someone_elses_files(refused, checkpoint, identified, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    options = ["--from", identified("llama")]
    for name, content in (("thesis.txt", b"x"), ("config.json", b"{}"), ("manifest.json", b'{"name": "an app"}')):
        (out / name).write_bytes(content)
        for further in ([], ["--overwrite"], ["--no-resume"], ["--no-resume", "--overwrite"]):
            for command in ("scale", "identify"):
                line = refused(
                    2, "mine", model=checkpoint("llama"), command=(command,), options=[*options, *further], output=out
                ).last
                assert "another -o" in line
        (out / name).unlink()


# RUNs and OUTs


def test_masks_of_another_models_shapes(refused, checkpoint, identified):
    for other in ("other-shapes", "gpt2"):
        line = refused(
            1, "masks", command=("apply", identified("llama")), model=checkpoint(other), options=["--factor", 2]
        ).last
        assert "[48, 32] in" not in line


def test_from_the_run_of_another_model(refused, checkpoint, identified):
    for other in ("other-version", "other-shapes"):
        refused(1, "not the source", "apply", model=checkpoint(other), options=["--from", identified("llama")])


@pytest.fixture(scope="module")
def folders(checkpoint, identified, tmp_path_factory):
    """A RUN and an OUT made from it."""
    from mathneuro_export import scale

    out = tmp_path_factory.mktemp("outs") / "out"
    scale(checkpoint("llama"), out, from_run=identified("llama"), factor=2)
    return {"run": identified("llama"), "out": out}


@pytest.mark.parametrize("kind", ["run", "out"])
def test_a_manifest_edited_by_hand(kind, folders, refused, cli, checkpoint, tmp_path):
    run = Path(shutil.copytree(folders[kind], tmp_path / "edited"))
    path = run / "manifest.json" if kind == "run" else run / "mathneuro" / "manifest.json"
    edit_json(path, lambda document: document["selection"].update(proportion=0.2))
    for command, options in ((("scale",), ["--from", run]), (("apply", run), ["--factor", 2])):
        refused(1, "manifest.json", "digest", "anew", command=command, model=checkpoint("llama"), options=options)
    outcome = cli("verify", run)
    assert outcome.code == 3
    assert "manifest.json" in outcome.out
    assert outcome.last.startswith("Error: ")
    edit_json(path, lambda document: document.pop("tensors"))
    refused(1, "manifest.json", "tensors", model=checkpoint("llama"), options=["--from", run])
    assert cli("verify", run).code == 3


@pytest.mark.parametrize("kind", ["run", "out"])
def test_one_flipped_bit_anywhere(kind, folders, cli, tmp_path):
    folder = Path(shutil.copytree(folders[kind], tmp_path / "folder"))
    assert cli("verify", folder).code == 0
    for name, data in snapshot(folder).items():
        for position in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            (folder / name).write_bytes(flipped)
            outcome = cli("verify", folder, "--json")
            assert outcome.code == 3, (name, position)
            assert not json.loads(outcome.out)["ok"]
            assert any(problem["file"] == name for problem in json.loads(outcome.out)["problems"])
        (folder / name).write_bytes(data)
    assert cli("verify", folder).code == 0


@pytest.mark.parametrize("name", ["statistics.safetensors", "masks.safetensors"])
def test_a_damaged_run_is_not_used(name, folders, refused, checkpoint, tmp_path):
    run = Path(shutil.copytree(folders["run"], tmp_path / "damaged"))
    data = bytearray((run / name).read_bytes())
    data[-1] ^= 1
    (run / name).write_bytes(data)
    options = ["--from", run]
    refused(1, name.partition(".")[0], model=checkpoint("llama"), options=options)
    (run / name).write_bytes(data[: len(data) // 2])
    refused(1, name.partition(".")[0], model=checkpoint("llama"), options=options)


def test_no_run(refused, checkpoint, tmp_path, model):
    for run in (tmp_path / "none", model):
        refused(1, run.name, "manifest.json", "identify", model=checkpoint("llama"), options=["--from", run])
        refused(1, run.name, command=("apply", run), model=checkpoint("llama"), options=["--factor", 2])


# Done with a counted warning


def warnings_of(cli, *arguments):
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["warnings"] == json.loads(Path(found["manifest"]).read_text())["warnings"]
    for warning in found["warnings"]:
        assert f"warning: {warning['message']}" in outcome.err
    return {warning["code"]: warning for warning in reversed(found["warnings"])}


def test_a_sample_of_ten_megabytes(cli, checkpoint, texts, tmp_path):
    path = write_jsonl(tmp_path / "long.jsonl", [{"text": "3 + 4 = 7, so " * 750_000}, {"text": "1 + 1 = 2"}])
    assert path.stat().st_size > 10_000_000
    options = ["--math", path, *texts[2:], "--max-length", 64]
    warning = warnings_of(cli, "scale", checkpoint("llama"), "-o", tmp_path / "out", *options)["truncated"]
    assert (warning["corpus"], warning["count"], warning["samples"], warning["max_length"]) == ("math", 1, 2, 64)


def test_fewer_samples_than_asked(cli, checkpoint, texts, tmp_path):
    options = [*texts, "--num-samples", 30]
    warning = warnings_of(cli, "scale", checkpoint("llama"), "-o", tmp_path / "out", *options)["fewer-samples"]
    assert (warning["corpus"], warning["asked"], warning["available"]) == ("math", 30, 24)


def test_a_factor_that_rounds_away_in_part(cli, checkpoint, identified, tmp_path):
    options = ["--from", identified("llama"), "--factor", 1.003, "--proportion", 0.4]
    warning = warnings_of(cli, "scale", checkpoint("llama"), "-o", tmp_path / "out", *options)["unchanged"]
    assert 0 < warning["count"] < warning["masked"]


def test_an_empty_mask(cli, checkpoint, identified, tmp_path):
    options = ["--from", identified("llama"), "--proportion", 0.001]
    warning = warnings_of(cli, "prune", checkpoint("llama"), "-o", tmp_path / "out", *options)["empty-mask"]
    assert warning["count"] == len(warning["tensors"]) > 0


def test_unedited_weights_beside_the_shards(cli, model, texts, tmp_path):
    shutil.copy(model / SHARD, model / "consolidated.safetensors")
    found = warnings_of(cli, "scale", model, "-o", tmp_path / "out", *texts)
    assert found["stray-weights"]["file"] == "consolidated.safetensors"
    assert not (tmp_path / "out" / "consolidated.safetensors").exists()


def test_all_masks_empty(refused, checkpoint, texts):
    same = ["--math", texts[1], "--general", texts[1]]
    refused(1, "--factor", "no weight would change", model=checkpoint("llama"), options=same)
