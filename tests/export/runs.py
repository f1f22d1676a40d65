"""RUNs written through the mask file and the manifest of the product, of any masks: the inputs of diff and combine.

    run = make_run(tmp_path / "a", {"model.layers.0.mlp.up_proj.weight": dense})

A mask is given as a dense bool array in the target's shape, two or three dimensions.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.export.manifest import digest_of, seal
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.maskfile import write_masks

Dense = np.ndarray[Any, np.dtype[np.bool_]]
SHARD = "model.safetensors"


def mask_of(dense: Dense) -> Mask:
    """The mask of a dense bool array."""
    return Mask.from_flat(dense.shape, np.flatnonzero(dense))


def random_masks(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, share: float = 0.2) -> dict[str, Dense]:
    """Independent masks in which each weight is held with the same probability."""
    rng = np.random.default_rng(seed)
    return {name: rng.random(shape) < share for name, shape in shapes.items()}


def make_run(folder: Path, masks: Mapping[str, Dense], **changes: Any) -> Path:
    """A RUN with these masks and a statistic of ones; `changes` are keys of the manifest, nested as `section__key`."""
    folder.mkdir(parents=True)
    made = {name: mask_of(dense) for name, dense in masks.items()}
    write_masks(
        folder / "masks.safetensors",
        [(name, mask.rows, mask.cols, mask.nnz, lambda mask=mask: mask) for name, mask in made.items()],
    )
    corpora = ("math", "general")
    entries = [
        Entry(f"{corpus}/{name}", "F32", array.shape, lambda array=array: [array])
        for corpus in corpora
        for name, array in ((name, _ones(dense)) for name, dense in masks.items())
    ]
    axes = {name: {"statistic": name, "input_axis": 1} for name in masks}
    write_safetensors(folder / "statistics.safetensors", entries, {"tensors": json.dumps(axes)})
    document = {
        "schema": 1,
        "tool": {"name": "mathneuro-export", "version": "0.1.0"},
        "created": "2026-01-01T00:00:00+00:00",
        "environment": {},
        "source": {
            "id": "org/model",
            "architecture": "LlamaForCausalLM",
            "tokenizer": "cd" * 32,
            "files": {SHARD: {"size": 1, "sha256": "ef" * 32}},
        },
        "calibration": {corpus: _used(corpus) for corpus in corpora},
        "selection": {"proportion": 0.25, "control": None, "seed": 42, "parents": []},
        "tensors": {name: _entry(name, dense, made[name]) for name, dense in masks.items()},
        "skipped": {},
        "output": {name: _file(folder / name) for name in ("masks.safetensors", "statistics.safetensors")},
        "left_out": [],
        "warnings": [],
    }
    for key, value in changes.items():
        place, (*sections, last) = document, key.split("__")
        for section in sections:
            place = place[section]
        place[last] = value
    (folder / "manifest.json").write_bytes(seal(document))
    return folder


def change_manifest(folder: Path, **values: Any) -> None:
    """Put other values into a manifest, with a digest that fits, and unchecked."""
    path = folder / "manifest.json"
    document = {**json.loads(path.read_bytes()), **values}
    document["digest"] = digest_of(document)
    path.write_text(json.dumps(document))


def _ones(dense: Dense) -> np.ndarray[Any, Any]:
    extents = (2, dense.shape[0], dense.shape[2]) if dense.ndim == 3 else (2, dense.shape[1])
    return np.ones(extents, np.float32)


def _used(corpus: str) -> dict[str, Any]:
    return {
        "spec": f"{corpus}.jsonl",
        "digest": hashlib.sha256(corpus.encode()).hexdigest(),
        "samples": 4,
        "sample_digests": ["0123456789abcdef"] * 4,
        "blocks": 2,
        "tokens": 100,
        "truncated": 0,
        "seed": 42,
        "max_length": 64,
    }


def _entry(name: str, dense: Dense, mask: Mask) -> dict[str, Any]:
    fused = dense.ndim == 3
    k = int(0.25 * dense[0].size) if fused else int(0.25 * dense.size)
    sizes = [int(part.sum()) for part in dense] if fused else int(dense.sum())

    def each(value: Any) -> Any:
        return [value] * len(dense) if fused else value

    return {
        "shape": list(dense.shape),
        "dtype": "F32",
        "file": SHARD,
        "statistic": name,
        "k": k,
        "threshold": {corpus: each(1.0) for corpus in ("math", "general")},
        "count": {"top": {corpus: each(k) for corpus in ("math", "general")}, "masked": sizes},
        "mask": mask.digest,
    }


def _file(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
