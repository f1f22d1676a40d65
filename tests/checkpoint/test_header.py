import os

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mathneuro_export.checkpoint.dtypes import ITEMBITS
from mathneuro_export.checkpoint.header import MAX_HEADER, map_tensor, read_header
from mathneuro_export.errors import Error

from .files import raw_file, read_plain, shard

ONE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def entry(**changes):
    return raw_file({"a": {**ONE, **changes}}, bytes(4))


def two(first, second, size):
    return raw_file({"a": {**ONE, "data_offsets": first}, "b": {**ONE, "data_offsets": second}}, bytes(size))


HOSTILE = {
    "empty": (b"", "has 0 bytes"),
    "short": (b"\x01\x00\x00", "has 3 bytes"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
    "header beyond the file": (raw_file(b"{}", length=1000), "truncated.*1008.*10 bytes"),
    "header beyond the limit": (raw_file(b"{}", length=MAX_HEADER + 1), str(MAX_HEADER)),
    "header of 2**64 - 1": (raw_file(b"{}", length=2**64 - 1), str(MAX_HEADER)),
    "html": (b"<!DOCTYPE html><html></html>", "no safetensors file"),
    "header length 0": (raw_file(b""), "begins with"),
    "leading space": (raw_file(b" {}"), "begins with"),
    "no object": (raw_file(b"[]"), "begins with"),
    "bad json": (raw_file(b'{"a": }'), "not valid JSON"),
    "invalid utf-8": (raw_file(b'{"\xff": 1}'), "not UTF-8"),
    "deep": (raw_file(b'{"a":' * 50_000), "deeper"),
    "deep lists": (raw_file(b'{"a":' + b"[" * 50_000), "deeper"),
    "duplicate tensor": (raw_file(b'{"a": 1, "a": 2}'), "twice"),
    "duplicate metadata": (raw_file(b'{"__metadata__": {}, "__metadata__": {}}'), "twice"),
    "metadata number": (raw_file({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata list": (raw_file({"__metadata__": []}), "__metadata__"),
    "entry no object": (raw_file({"a": 3}), "expected dtype"),
    "entry incomplete": (raw_file({"a": {"dtype": "U8", "shape": [0]}}), "expected dtype"),
    "unknown dtype": (entry(dtype="F12"), "unknown dtype 'F12'"),
    "dtype no text": (entry(dtype=["U8"]), "unknown dtype"),
    "negative extent": (entry(shape=[-4]), "shape"),
    "two negative extents": (entry(shape=[-2, -2]), "shape"),
    "boolean extent": (entry(shape=[4, True]), "shape"),
    "float extent": (entry(shape=[4.0]), "shape"),
    "text extent": (entry(shape=["4"]), "shape"),
    "shape no list": (entry(shape=4), "shape"),
    "huge extent": (entry(shape=[2**63]), "shape"),
    "huge product": (entry(shape=[2**62, 2**62]), "larger than any file"),
    "huge product times 0": (entry(shape=[2**62, 2**62, 0]), "larger than any file"),
    "product that wraps to 4": (entry(shape=[2**32 + 1, 2**32 - 1, 4]), "larger than any file"),
    "many dimensions": (entry(shape=[1] * 33), "shape"),
    "wrong size": (entry(shape=[5]), "need 5 bytes"),
    "wrong item size": (entry(dtype="F32"), "need 16 bytes"),
    "half a byte": (raw_file({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"0"), "12 bits"),
    "offsets reversed": (entry(data_offsets=[4, 0]), "hold -4 bytes"),
    "offsets negative": (entry(data_offsets=[-4, 0]), "data_offsets"),
    "offsets boolean": (entry(shape=[1], data_offsets=[False, True]), "data_offsets"),
    "offsets float": (entry(data_offsets=[0.0, 4.0]), "data_offsets"),
    "one offset": (entry(data_offsets=[4]), "data_offsets"),
    "beyond the file": (raw_file({"a": {**ONE, "shape": [9], "data_offsets": [0, 9]}}, bytes(4)), "truncated"),
    "starts late": (raw_file({"a": {**ONE, "data_offsets": [1, 5]}}, bytes(5)), "hole"),
    "overlap": (two([0, 4], [3, 7], 7), "overlaps"),
    "same range": (two([0, 4], [0, 4], 4), "overlaps"),
    "hole": (two([0, 4], [5, 9], 9), "hole"),
    "file goes on": (raw_file({"a": ONE}, bytes(5)), "goes on"),
    "truncated by one": (raw_file({"a": ONE}, bytes(3)), "truncated"),
    "newline in the name": (raw_file({"a\nError: b": {**ONE, "shape": [5]}}, bytes(4)), "need 5"),
    "long name": (raw_file({"a" * 10_000: {**ONE, "shape": [5]}}, bytes(4)), "need 5"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header(name, tmp_path):
    content, words = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Error, match=words) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path.name}/model.safetensors: ")
    assert str(tmp_path) not in message
    assert message.isprintable()
    assert len(message) < 700
    assert ";" in message


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["folder", "fifo", "missing"])
def test_no_regular_file(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(Error, match=r"model\.safetensors: (is a folder|is a special file|no such file)"):
        read_header(path)


def test_scalars_zero_sizes_padding_and_odd_order(tmp_path):
    header = (
        b'{"z":{"shape":[],"dtype":"F32","data_offsets":[3,7]},"empty":{"dtype":"BF16","shape":[0,5],'
        b'"data_offsets":[3,3]},"a":{"data_offsets":[0,3],"dtype":"U8","shape":[1,3],"more":null}}     '
    )
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw_file(header, b"abc" + np.float32(1.5).tobytes()))
    found = read_header(path)
    assert [info.name for info in found.tensors] == ["a", "empty", "z"]
    assert found.metadata is None
    assert found.raw == path.read_bytes()[: 8 + len(header)]
    assert found.file_size == path.stat().st_size
    a, empty, z = found.tensors
    assert (z.numel, z.nbytes, map_tensor(found, z)[()]) == (1, 4, 1.5)
    assert (empty.numel, empty.nbytes, map_tensor(found, empty).shape) == (0, 0, (0, 5))
    assert map_tensor(found, a).tobytes() == b"abc"
    assert a.start == len(found.raw)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_metadata_by_presence(metadata, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(shard({}, metadata))
    assert read_header(tmp_path / "m.safetensors").metadata == metadata


def test_map_is_read_only_and_refuses_a_changed_file(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(shard({"a": ("BF16", (2, 3), bytes(range(12))), "f4": ("F4", (2, 4), b"1234")}))
    header = read_header(path)
    a = map_tensor(header, header.tensors[0])
    assert a.dtype == np.uint16
    assert a.shape == (2, 3)
    assert a.tobytes() == bytes(range(12))
    with pytest.raises(ValueError, match="read-only"):
        a[0, 0] = 1
    assert map_tensor(header, header.tensors[1]).tobytes() == b"1234"
    del a
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Error, match="changed its size"):
        map_tensor(header, header.tensors[0])


DTYPES = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)),
        max_size=6,
    ),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_reads_what_safetensors_writes(tmp_path, tensors, metadata):
    rng = np.random.default_rng(0)
    arrays = {
        name: np.frombuffer(rng.bytes(int(np.prod(shape)) * 8), np.uint8)
        .astype(dtype)[: int(np.prod(shape))]
        .reshape(shape)
        for name, (dtype, shape) in tensors.items()
    }
    path = tmp_path / "m.safetensors"
    save_file(arrays, path, metadata or None)
    header = read_header(path)
    assert {info.name for info in header.tensors} == arrays.keys()
    plain = read_plain(path)
    for info in header.tensors:
        mapped = map_tensor(header, info)
        assert mapped.dtype == arrays[info.name].dtype
        assert mapped.shape == arrays[info.name].shape
        assert mapped.tobytes() == arrays[info.name].tobytes() == plain[info.name][2]


def test_reads_torchs_bfloat16_and_float8(tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch

    tensors = {
        "b": torch.arange(6).reshape(2, 3).to(torch.bfloat16),
        "e": torch.arange(6).reshape(2, 3).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "m.safetensors"
    save_torch(tensors, path)
    header = read_header(path)
    for info in header.tensors:
        expected = tensors[info.name].view(torch.uint8).numpy().tobytes()
        assert map_tensor(header, info).tobytes() == expected


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_accepts_nothing_that_safetensors_refuses(tmp_path, data):
    size = st.integers(-1, 9) | st.sampled_from([2**31, 2**63, 2**64, 1.0, True, None])
    document = data.draw(
        st.dictionaries(
            st.sampled_from(["a", "b", "c"]),
            st.fixed_dictionaries(
                {
                    "dtype": st.sampled_from([*ITEMBITS, "X"]),
                    "shape": st.lists(size, max_size=3),
                    "data_offsets": st.lists(st.integers(0, 9), min_size=2, max_size=2),
                }
            ),
            max_size=2,
        )
    )
    content = raw_file(document, bytes(data.draw(st.integers(0, 12))))
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    try:
        read_header(path)
    except Error:
        return
    safetensors.deserialize(content)
