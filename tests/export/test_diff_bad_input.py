"""`diff` on damaged, mixed-up or missing input: one line, exit code 1, never a number."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.errors import Error
from mathneuro_export.export.diff import diff

from .runs import change_manifest, make_run, random_masks


def put_mask(run: Path, crow: list[int], col: list[int], dtype: str = "U16") -> None:
    """Put one mask's raw indices into a RUN, with a manifest digest that fits them."""
    name = "layers.0.q"
    arrays = np.array(crow, "<i8"), np.array(col, "<u2" if dtype == "U16" else "<u4")
    write_safetensors(
        run / "masks.safetensors",
        [
            Entry(f"{name}.crow_indices", "I64", arrays[0].shape, lambda: [arrays[0]]),
            Entry(f"{name}.col_indices", dtype, arrays[1].shape, lambda: [arrays[1]]),
        ],
    )
    document = json.loads((run / "manifest.json").read_bytes())
    document["tensors"][name]["mask"] = hashlib.sha256(arrays[0].tobytes() + arrays[1].tobytes()).hexdigest()
    change_manifest(run, tensors=document["tensors"])


def spoil(kind: str, run: Path, tmp_path: Path) -> None:
    masks = run / "masks.safetensors"
    if kind == "column out of range":
        put_mask(run, [0, 1, 2, 2, 2], [0, 4])
    elif kind == "columns fall":
        put_mask(run, [0, 2, 2, 2, 2], [2, 1])
    elif kind == "columns repeat":
        put_mask(run, [0, 2, 2, 2, 2], [1, 1])
    elif kind == "rows fall":
        put_mask(run, [0, 2, 1, 2, 2], [0, 1])
    elif kind == "wrong length":
        put_mask(run, [0, 1, 2, 2, 3], [0, 1])
    elif kind == "wrong rows":
        put_mask(run, [0, 1, 2], [0, 1])
    elif kind == "wrong dtype":
        put_mask(run, [0, 1, 2, 2, 2], [0, 1], "U32")
    elif kind == "masks of another run":
        other = make_run(tmp_path / "other", random_masks({"layers.0.q": (4, 4)}, 77))
        shutil.copy(other / "masks.safetensors", masks)
    elif kind == "masks of other targets":
        other = make_run(tmp_path / "other", random_masks({"layers.1.q": (4, 4)}, 77))
        shutil.copy(other / "masks.safetensors", masks)
    elif kind == "no mask file":
        masks.unlink()
    elif kind == "truncated mask file":
        masks.write_bytes(masks.read_bytes()[:-3])
    elif kind == "mask file is a folder":
        masks.unlink()
        masks.mkdir()
    elif kind == "schema of the future":
        change_manifest(run, schema=2)
    elif kind == "digest of the manifest":
        text = (run / "manifest.json").read_text().replace('"samples": 4', '"samples": 5', 1)
        (run / "manifest.json").write_text(text)
    elif kind == "no JSON":
        (run / "manifest.json").write_text("{")
    elif kind == "another field":
        change_manifest(run, tensors={"layers.0.q": {"shape": "big"}})
    elif kind == "no target":
        change_manifest(run, tensors={})
    elif kind == "huge shape":
        document = json.loads((run / "manifest.json").read_bytes())
        document["tensors"]["layers.0.q"]["shape"] = [1 << 40, 1 << 40, 4]
        change_manifest(run, tensors=document["tensors"])
    elif kind == "no manifest":
        (run / "manifest.json").unlink()
    elif kind == "nothing there":
        shutil.rmtree(run)
    elif kind == "no tensor in common":
        shutil.rmtree(run)
        make_run(run, random_masks({"other.0.x": (4, 4)}))
    else:
        raise AssertionError(kind)


BAD = {
    "column out of range": "expected less than 4",
    "columns fall": "not strictly ascending",
    "columns repeat": "not strictly ascending",
    "rows fall": "crow_indices falls",
    "wrong length": "runs from 0 to 3, expected 0 to 2",
    "wrong rows": "expected [4, 4]",
    "wrong dtype": "expected uint16",
    "masks of another run": "another run's",
    "masks of other targets": "of different runs",
    "no mask file": "is missing",
    "truncated mask file": "truncated",
    "mask file is a folder": "regular file",
    "schema of the future": "schema 2 is not 1",
    "digest of the manifest": "differs from its own digest",
    "no JSON": "not valid JSON",
    "another field": "shape",
    "no target": "names no target",
    "huge shape": "",
    "no manifest": "holds neither",
    "nothing there": "no such file or folder",
    "no tensor in common": "no tensor in common",
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("first", [True, False])
def test_bad_input_is_one_line_and_exit_1(tmp_path: Path, kind: str, first: bool) -> None:
    good, bad = (make_run(tmp_path / n, random_masks({"layers.0.q": (4, 4)}, s)) for n, s in (("good", 1), ("bad", 2)))
    spoil(kind, bad, tmp_path)
    with pytest.raises(Error) as caught:
        diff([bad, good] if first else [good, bad])
    message = str(caught.value)
    assert caught.value.exit_code == 1
    assert "\n" not in message
    assert BAD[kind] in message
    assert ";" in message  # names the next step
