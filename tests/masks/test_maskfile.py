"""The mask file and the spool: what is read is what was written, and damage is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from mathneuro_export.errors import Error
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.maskfile import MaskEntry, MaskFile, write_masks
from mathneuro_export.masks.spool import MaskSpool

from .test_mask import random_mask

MASKS = {
    "b.weight": random_mask(7, 11, 0.4),
    "a.weight": random_mask(3, 70_000, 0.001),
    "none.weight": Mask.empty(4, 5),
    "odd.weight": Mask.from_flat((2, 3), np.array([4])),
}


def entry(name: str, mask: Mask, load: Callable[[], Mask] | None = None) -> MaskEntry:
    return MaskEntry(name, mask.rows, mask.cols, mask.nnz, load or (lambda: mask))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_masks(tmp_path / "masks.safetensors", [entry(name, mask) for name, mask in MASKS.items()])
    return tmp_path / "masks.safetensors"


def test_round_trip(path: Path) -> None:
    file = MaskFile(path)
    assert file.names == tuple(MASKS)
    for name, mask in MASKS.items():
        assert file.read(name) == file.read(name, mask.shape) == mask
        assert file.read(name).col.dtype == mask.col.dtype
        assert file.digest(name) == mask.digest
    assert file.read("none.weight", (2, 2, 5)) == MASKS["none.weight"]


def test_the_safetensors_library_reads_it(path: Path) -> None:
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {name + half for name in MASKS for half in (".crow_indices", ".col_indices")}
        for name, mask in MASKS.items():
            crow, col = file.get_tensor(name + ".crow_indices"), file.get_tensor(name + ".col_indices")
            assert crow.dtype == torch.int64
            assert col.dtype == (torch.uint16 if mask.cols <= 65536 else torch.uint32)
            assert (crow.tolist(), col.tolist()) == (mask.crow.tolist(), mask.col.tolist())


def test_every_tensor_is_aligned(path: Path) -> None:
    for info in MaskFile(path)._header.tensors:
        assert info.start % {"I64": 8, "U32": 4, "U16": 2}[info.dtype] == 0


def test_same_masks_same_bytes(path: Path, tmp_path: Path) -> None:
    digest = write_masks(tmp_path / "again", [tuple(entry(name, mask)) for name, mask in MASKS.items()])
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert digest.size == path.stat().st_size


def test_no_masks(tmp_path: Path) -> None:
    write_masks(tmp_path / "m", [])
    assert MaskFile(tmp_path / "m").names == ()


def test_a_mask_that_is_not_what_its_entry_says(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not what its entry says"):
        write_masks(tmp_path / "m", [entry("a", MASKS["b.weight"], lambda: MASKS["odd.weight"])])
    assert list(tmp_path.iterdir()) == []


def foreign(path: Path, **arrays: Any) -> Path:
    save_file({name.replace("_c", ".c", 1): array for name, array in arrays.items()}, path)
    return path


CROW, COL = np.array([0, 1, 2]), np.array([2, 0], np.uint16)


def test_a_file_without_metadata_needs_the_shape(tmp_path: Path) -> None:
    file = MaskFile(foreign(tmp_path / "m", a_crow_indices=CROW, a_col_indices=COL))
    assert file.read("a", (2, 3)).flat().tolist() == [2, 3]
    with pytest.raises(Error, match="give the target's shape"):
        file.read("a")


@pytest.mark.parametrize("arrays", [
    {"a_crow_indices": CROW}, {"a_col_indices": COL}, {"a_crow_indices": CROW, "b_col_indices": COL},
    {"a_crow_indices": CROW, "a_col_indices": COL.astype(np.int64)},
    {"a_crow_indices": CROW.astype(np.int32), "a_col_indices": COL},
    {"a_crow_indices": CROW[None], "a_col_indices": COL}, {"weight": COL},
])  # fmt: skip
def test_tensors_that_are_no_masks_are_refused(arrays: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"m: '.*; restore") as error:
        MaskFile(foreign(tmp_path / "m", **arrays))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("crow", "col"), [
    ([0, 1, 3], [2, 0]), ([1, 1, 2], [2, 0]), ([0, 3, 2], [2, 0]), ([0, 1, 2], [3, 0]), ([0, 2, 2], [2, 0]),
    ([0, 2], [0, 1]), ([0, 2, 2], [1, 1]), ([0, 2**62, 2], [1, 1]), ([], []),
])  # fmt: skip
def test_damaged_masks_are_refused(crow: list[int], col: list[int], tmp_path: Path) -> None:
    arrays = {"a_crow_indices": np.array(crow, np.int64), "a_col_indices": np.array(col, np.uint16)}
    with pytest.raises(Error, match="'a'"):
        MaskFile(foreign(tmp_path / "m", **arrays)).read("a", (2, 3))


def test_another_shape_or_name_is_refused(path: Path) -> None:
    file = MaskFile(path)
    for shape in [(7, 12), (6, 11), (77,), (1, 7, 12)]:
        with pytest.raises(Error, match=r"'b\.weight' is the mask of a matrix \[7, 11\], expected"):
            file.read("b.weight", shape)
    for call in (file.read, file.digest):
        with pytest.raises(Error, match=r"'c\.weight' is not among its 4 masks"):
            call("c.weight")


@pytest.mark.parametrize(
    "columns", ["[]", '{"a":-1}', '{"a":1.5}', '{"a":true}', '{"a":8589934592}', "{", '{"a":1,"a":1}']
)
def test_bad_metadata_is_refused(columns: str, tmp_path: Path) -> None:
    save_file({"a.crow_indices": CROW, "a.col_indices": COL}, tmp_path / "m", metadata={"columns": columns})
    with pytest.raises(Error, match="columns"):
        MaskFile(tmp_path / "m")


def test_flipped_bytes_never_pass_unnoticed(path: Path, tmp_path: Path) -> None:
    """Any flipped bit of the tensors changes a digest."""
    good, bad = path.read_bytes(), tmp_path / "bad"
    begin = 8 + int.from_bytes(good[:8], "little")
    for at in range(begin, len(good), 7):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        bad.write_bytes(data)
        file = MaskFile(bad)
        assert any(file.digest(name) != mask.digest for name, mask in MASKS.items())


def test_spool_round_trip(tmp_path: Path) -> None:
    spool = MaskSpool(tmp_path, "model-00001-of-00002")
    records = [spool.add(name, mask) for name, mask in MASKS.items()]
    with spool.path.open("ab") as file:
        file.write(b"torn")
    again = MaskSpool(tmp_path, "model-00001-of-00002")
    records.append(again.add("late", MASKS["b.weight"]))
    for record, mask in zip(records, [*MASKS.values(), MASKS["b.weight"]], strict=True):
        assert again.read(record) == mask
    write_masks(
        tmp_path / "m", [(r["name"], r["rows"], r["cols"], r["nnz"], lambda r=r: again.read(r)) for r in records]
    )
    assert MaskFile(tmp_path / "m").names == (*MASKS, "late")
    again.remove()
    again.remove()
    assert not spool.path.exists()


def test_a_damaged_spool_is_refused(tmp_path: Path) -> None:
    spool = MaskSpool(tmp_path)
    record = spool.add("a", MASKS["b.weight"])
    data = bytearray(spool.path.read_bytes())
    data[-1] ^= 1
    spool.path.write_bytes(data)
    with pytest.raises(Error, match="'a' is damaged"):
        spool.read(record)
    spool.path.write_bytes(data[:-1])
    with pytest.raises(Error, match="run again with --no-resume"):
        spool.read(record)
    spool.remove()
    with pytest.raises(Error, match="no such file"):
        spool.read(record)
    with pytest.raises(Error, match="cannot be written"):
        MaskSpool(tmp_path / "missing").add("a", MASKS["b.weight"])
