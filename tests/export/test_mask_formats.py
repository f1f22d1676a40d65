"""`export-mask`: each format read back by the library it is for."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.diff_input import open_any
from mathneuro_export.export.mask_formats import FORMATS, export_mask

from .runs import make_run, random_masks

SHAPES: dict[str, tuple[int, ...]] = {
    "model.layers.0.q.weight": (8, 6),
    "model.layers.0.experts": (3, 4, 5),
    'odd "name"/\\x': (1, 70000),
    "empty": (2, 2),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", masks())


def masks() -> dict[str, np.ndarray]:
    return {**random_masks(SHAPES, 3), "empty": np.zeros((2, 2), np.bool_)}


def test_npz_holds_the_arrays(run: Path, tmp_path: Path) -> None:
    result = export_mask(run, tmp_path / "x.npz", "npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as found:
        assert len(found.files) == 3 * len(SHAPES)
        for name, dense in masks().items():
            mask = open_any(run).mask(name)
            assert np.array_equal(found[f"{name}.crow_indices"], mask.crow)
            assert np.array_equal(found[f"{name}.col_indices"], mask.col)
            assert found[f"{name}.col_indices"].dtype == mask.col.dtype
            assert tuple(found[f"{name}.shape"]) == dense.shape
    assert result.masked == sum(int(dense.sum()) for dense in masks().values())


def test_torch_is_loaded_without_pickled_code(run: Path, tmp_path: Path) -> None:
    export_mask(run, tmp_path / "x.pt", "torch")
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert set(found) == set(SHAPES)
    for name, dense in masks().items():
        assert found[name].layout == torch.sparse_csr
        assert np.array_equal(found[name].to_dense().numpy().reshape(dense.shape), dense)


def test_bools_are_dense_tensors(run: Path, tmp_path: Path) -> None:
    export_mask(run, tmp_path / "x.safetensors", "bool-safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert set(found) == set(SHAPES)
    for name, dense in masks().items():
        assert found[name].dtype == np.bool_
        assert np.array_equal(found[name], dense)


def test_trainable_json_holds_flat_indices(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mathneuro_export.export.mask_formats as module

    monkeypatch.setattr(module, "_CHUNK", 7)
    export_mask(run, tmp_path / "x.json", "trainable-json")
    found = json.loads((tmp_path / "x.json").read_bytes())
    assert found["manifest"] == open_any(run).manifest.digest
    assert set(found["tensors"]) == set(SHAPES)
    for name, dense in masks().items():
        assert found["tensors"][name] == {"shape": list(dense.shape), "indices": np.flatnonzero(dense).tolist()}


@pytest.mark.parametrize("form", FORMATS)
def test_files_are_replaced_only_when_told(run: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "x.npz"
    export_mask(run, file, form)
    first = file.read_bytes()
    with pytest.raises(UsageError, match="--overwrite"):
        export_mask(run, file, form)
    export_mask(run, file, form, overwrite=True)
    assert file.read_bytes() == first
    with pytest.raises(UsageError, match="own file"):
        export_mask(run, run / "masks.safetensors", form, overwrite=True)


@pytest.mark.parametrize("form", FORMATS)
def test_damaged_masks_leave_no_file(run: Path, tmp_path: Path, form: str) -> None:
    path = run / "masks.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Error) as caught:
        export_mask(run, tmp_path / "x", form)
    assert caught.value.exit_code == 1
    assert sorted(item.name for item in tmp_path.iterdir()) == ["run"]


def test_wrong_use_is_refused(run: Path, tmp_path: Path) -> None:
    for file, form in (("x", "pickle"), ("no/x", "npz"), ("run", "npz")):
        with pytest.raises(UsageError):
            export_mask(run, tmp_path / file, form)
    (run / "masks.safetensors").unlink()
    with pytest.raises(Error, match="is missing"):
        export_mask(run, tmp_path / "x", "npz")
