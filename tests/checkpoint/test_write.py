import hashlib

import numpy as np
import pytest
from safetensors import safe_open

from mathneuro_export.checkpoint.header import map_tensor, read_header
from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.errors import Error

from .files import names


def arrays():
    rng = np.random.default_rng(0)
    return {
        "crow": ("I64", np.arange(5, dtype=np.int64)),
        "scalar": ("F64", np.array(2.5)),
        "stat": ("F32", rng.standard_normal((2, 3, 4)).astype(np.float32)),
        "c": ("C64", np.ones((1, 2), np.complex64)),
        "col": ("U16", rng.integers(0, 9, 7).astype(np.uint16)),
        "empty": ("U32", np.empty((0, 3), np.uint32)),
        "\u00e9": ("BOOL", np.array([True, False])),
    }


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "\u00e9": "\u00fc"}])
def test_round_trip_through_safetensors(tmp_path, metadata):
    path = tmp_path / "m.safetensors"
    wanted = arrays()
    entries = [Entry(name, dtype, array.shape, lambda array=array: [array]) for name, (dtype, array) in wanted.items()]
    digest = write_safetensors(path, entries, metadata)
    content = path.read_bytes()
    assert (digest.size, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    with safe_open(path, "np") as file:
        assert (file.metadata() or None) == (metadata or None)
        assert set(file.keys()) == wanted.keys()
        for name, (_, array) in wanted.items():
            found = file.get_tensor(name)
            assert found.dtype == array.dtype
            assert found.shape == array.shape
            assert np.array_equal(found, array)
    header = read_header(path)
    assert len(header.raw) % 8 == 0
    assert [info.name for info in header.tensors if info.nbytes] == [name for name in wanted if name != "empty"]
    for info in header.tensors:
        assert not info.nbytes or info.start % wanted[info.name][1].itemsize == 0
        assert np.array_equal(map_tensor(header, info), wanted[info.name][1])


def test_parts_of_any_kind(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    data = values.tobytes()
    parts = [
        data[:3],
        bytearray(data[3:7]),
        memoryview(data)[7:16],
        b"",
        values[1],
        values[2:, :2],
        values[:, 1][:0],
        values[2, 2:],
    ]
    entry = Entry("a", "F32", (3, 4), lambda: iter(parts))
    write_safetensors(tmp_path / "m.safetensors", [entry])
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert np.array_equal(file.get_tensor("a"), values)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_wrong_number_of_bytes_leaves_nothing(tmp_path, size):
    with pytest.raises(ValueError, match="expected 16"):
        write_safetensors(tmp_path / "m.safetensors", [Entry("a", "F32", (4,), lambda: [bytes(size)])])
    assert names(tmp_path) == []


def test_names_stand_once(tmp_path):
    entry = Entry("a", "U8", (1,), lambda: [b"x"])
    with pytest.raises(ValueError, match="twice"):
        write_safetensors(tmp_path / "m.safetensors", [entry, entry])
    with pytest.raises(ValueError, match="reserved"):
        write_safetensors(tmp_path / "m.safetensors", [Entry("__metadata__", "U8", (0,), list)])
    assert names(tmp_path) == []


def test_missing_folder(tmp_path):
    with pytest.raises(Error, match="cannot be written"):
        write_safetensors(tmp_path / "none" / "m.safetensors", [])
