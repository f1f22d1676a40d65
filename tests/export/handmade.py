"""A tiny source, a RUN and an OUT made by hand: plain loops, full sorts, own hashing, nothing of the product.

    source = make_source(tmp_path / "source")
    out = make_output(tmp_path / "out", source, factor=1.1)

`reseal` recomputes hashes and digest after a change, as someone would who wants to hide it.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file as save_torch

CORPORA = ("math", "general", "general-2")
BLOCKS = 3
SAMPLES = 7
TARGETS = {
    "model.layers.0.attn.weight": ([9, 8], "BF16", 1),
    "model.layers.0.mlp.weight": ([6, 10], "F16", 1),
    "model.layers.1.attn.weight": ([8, 12], "F32", 0),
    "model.layers.1.mlp.weight": ([8, 8], "BF16", 1),
    "model.layers.1.experts.weight": ([3, 4, 8], "BF16", 1),
}
SHARED = {"model.layers.1.mlp.weight": "model.layers.0.attn.weight"}
HEAD = "lm_head.weight"
UNUSED_HEAD = "lm_head (use --lm-head)"
OBSERVED = {"lm_head.weight": ([16, 8], "BF16", 1)}
TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
PREFIX = {"run": "", "output": "mathneuro/"}


def make_source(folder: Path, seed: int = 0) -> Path:
    """A checkpoint of two shards with an index and the files that usually stand beside them."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)

    def tensor(shape: list[int], dtype: str) -> torch.Tensor:
        values = torch.randn(shape, generator=generator) * 0.3
        values[values.abs() < 0.02] = 0.0
        return values.to(TORCH[dtype])

    names = {name: tensor(shape, dtype) for name, (shape, dtype, _) in {**TARGETS, **OBSERVED}.items()}
    names["model.embed_tokens.weight"] = tensor([16, 8], "BF16")
    names["model.norm.weight"] = tensor([8], "F32")
    names["model.positions"] = torch.arange(6).reshape(2, 3)
    first = {n: t for n, t in names.items() if ".layers.0." in n or "embed" in n}
    second = {n: t for n, t in names.items() if n not in first}
    for shard, part in zip(SHARDS, (first, second), strict=True):
        save_torch(part, folder / shard, metadata={"format": "pt"})
    weight_map = {n: shard for shard, part in zip(SHARDS, (first, second), strict=True) for n in part}
    write(folder / "model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2}
    write(folder / "config.json", json.dumps({**config, "tie_word_embeddings": False}))
    write(folder / "README.md", "---\nlicense: mit\nlanguage: [en, no]\n---\n# The base\n\nHello.\n")
    write(folder / "LICENSE", "MIT\n")
    write(folder / "tokenizer.json", "{}")
    write(folder / ".gitattributes", "*.safetensors filter=lfs\n")
    write(folder / "assets" / "note.txt", "note\n")
    write(folder / "pytorch_model.bin", "never carried")
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def entry_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def read_tensors(folder: Path) -> dict[str, tuple[str, torch.Tensor]]:
    tensors = {}
    for shard in SHARDS:
        with safe_open(folder / shard, "pt") as file:
            tensors.update({name: (shard, file.get_tensor(name)) for name in file.keys()})  # noqa: SIM118
    return tensors


def make_statistics(seed: int = 8) -> dict[str, np.ndarray]:
    """CORPUS/LEADER -> float32 [B, in] or [B, E, in], with ties and with zeros."""
    rng = np.random.default_rng(seed)
    stored = {}
    for corpus in CORPORA:
        for name, (shape, _, axis) in {**TARGETS, **OBSERVED}.items():
            if name not in SHARED:
                extents = [BLOCKS, *shape[:-2], shape[-2:][axis]]
                values = rng.integers(0, 40, extents).astype(np.float32) / np.float32(7)
                stored[f"{corpus}/{name}"] = values
    stored["math/model.layers.1.experts.weight"][:, 2] = 0
    return stored


def top_of(scores: list[float], k: int) -> tuple[list[int], float | None]:
    """The k best flat positions by a full sort, ties by position, zeros never; and the smallest score among them."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    chosen = [i for i in order if scores[i] > 0][:k]
    return chosen, (scores[chosen[-1]] if chosen else None)


def scores_of(weight: np.ndarray, vector: np.ndarray, axis: int) -> list[float]:
    rows, cols = weight.shape
    return [
        float(np.float32(abs(weight[i, j])) * np.float32(vector[j if axis == 1 else i]))
        for i in range(rows)
        for j in range(cols)
    ]


def summed(blocks: np.ndarray) -> np.ndarray:
    total = np.zeros(blocks.shape[1:], np.float64)
    for block in blocks:
        total = total + block.astype(np.float64)
    return total.astype(np.float32)


def choose(tops: dict[str, list[int]], math_scores: list[float], control: str | None, rng: random.Random) -> set[int]:
    general = {i for corpus, top in tops.items() if corpus != "math" for i in top}
    specific = set(tops["math"]) - general
    if control == "wanda":
        return set(tops["math"])
    if control == "wanda-matched":
        return set(top_of(math_scores, len(specific))[0])
    if control == "mirror":
        return general - set(tops["math"])
    if control == "random":
        return set(rng.sample(range(len(math_scores)), len(specific)))
    return specific


def csr(shape: list[int], flat: set[int]) -> tuple[np.ndarray, np.ndarray]:
    cols = shape[-1]
    rows = int(np.prod(shape[:-1]))
    by_row = [sorted(i % cols for i in flat if i // cols == row) for row in range(rows)]
    crow = np.array([0, *np.cumsum([len(row) for row in by_row])], np.int64)
    return crow, np.array([col for row in by_row for col in row], np.uint16)


def mask_digest(crow: np.ndarray, col: np.ndarray) -> str:
    return hashlib.sha256(crow.astype("<i8").tobytes() + col.astype("<u2").tobytes()).hexdigest()


def select_all(
    source: Path, statistics: dict[str, np.ndarray], proportion: float, control: str | None
) -> tuple[dict[str, dict[str, Any]], dict[str, set[int]]]:
    """Manifest entries (without `changed`) and masked flat positions of every target."""
    tensors, rng = read_tensors(source), random.Random(5)
    entries, masks = {}, {}
    for name, (shape, dtype, axis) in TARGETS.items():
        file, tensor = tensors[name]
        leader = SHARED.get(name, name)
        weights = tensor.float().numpy().reshape(-1, *shape[-2:])
        size = int(np.prod(shape[-2:]))
        k = int(proportion * size)
        top: dict[str, list[int]] = {corpus: [] for corpus in CORPORA}
        threshold: dict[str, list[float | None]] = {corpus: [] for corpus in CORPORA}
        masked: set[int] = set()
        sizes = []
        for expert, weight in enumerate(weights):
            tops, scores = {}, {}
            for corpus in CORPORA:
                blocks = statistics[f"{corpus}/{leader}"]
                vector = summed(blocks[:, expert] if len(shape) == 3 else blocks)
                scores[corpus] = scores_of(weight, vector, axis)
                tops[corpus], smallest = top_of(scores[corpus], k)
                top[corpus].append(len(tops[corpus]))
                threshold[corpus].append(smallest)
            chosen = choose(tops, scores["math"], control, rng)
            sizes.append(len(chosen))
            masked |= {expert * size + i for i in chosen}
        fused = len(shape) == 3
        entries[name] = {
            "shape": shape,
            "dtype": dtype,
            "file": file,
            "statistic": leader,
            "input_axis": axis,
            "k": k,
            "threshold": {c: v if fused else v[0] for c, v in threshold.items()},
            "count": {
                "top": {c: v if fused else v[0] for c, v in top.items()},
                "masked": sizes if fused else sizes[0],
            },
            "mask": mask_digest(*csr(shape, masked)),
        }
        masks[name] = masked
    return entries, masks


def write_masks(path: Path, masks: dict[str, set[int]]) -> None:
    arrays = {}
    for name, flat in masks.items():
        arrays[f"{name}.crow_indices"], arrays[f"{name}.col_indices"] = csr(TARGETS[name][0], flat)
    save_numpy(arrays, path)


def write_statistics(path: Path, statistics: dict[str, np.ndarray]) -> None:
    named = {
        name: {"statistic": SHARED.get(name, name), "input_axis": axis}
        for name, (_, _, axis) in {**TARGETS, **OBSERVED}.items()
    }
    save_numpy(statistics, path, metadata={"tensors": json.dumps(named), "lm_head": HEAD})


def manifest_of(source: Path, entries: dict[str, Any], proportion: float, control: str | None) -> dict[str, Any]:
    left_out = {"pytorch_model.bin"}
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and path.name not in left_out]
    calibration = {
        "spec": "text.jsonl",
        "digest": "ab" * 32,
        "samples": SAMPLES,
        "sample_digests": ["0123456789abcdef"] * SAMPLES,
        "blocks": BLOCKS,
        "tokens": 100,
        "truncated": 0,
        "template": None,
        "seed": 42,
        "max_length": 64,
    }
    return {
        "schema": 1,
        "tool": {"name": "mathneuro-export", "version": "0.1.0"},
        "created": "2026-01-01T00:00:00+00:00",
        "environment": {"python": "3.11", "tiny": 1e-05, "text": "h\u00e9llo"},
        "source": {
            "id": "source",
            "revision": None,
            "architecture": "LlamaForCausalLM",
            "tokenizer": "cd" * 32,
            "files": {path.relative_to(source).as_posix(): entry_of(path) for path in files},
            "parent": None,
        },
        "calibration": {corpus: dict(calibration) for corpus in CORPORA},
        "selection": {"proportion": proportion, "control": control, "seed": 42, "parents": []},
        "tensors": entries,
        "skipped": {"embedding": ["model.embed_tokens.weight"], UNUSED_HEAD: ["lm_head.weight"]},
        "output": {},
        "left_out": sorted(left_out),
        "warnings": [],
    }


def seal_by_hand(path: Path, document: dict[str, Any]) -> None:
    unsigned = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    document = {**unsigned, "digest": hashlib.sha256(text.encode()).hexdigest()}
    path.write_bytes((json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def reseal(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Change the manifest, then make its hashes of the files and its digest fit."""
    kind = "output" if (folder / "mathneuro").is_dir() else "run"
    path = folder / f"{PREFIX[kind]}manifest.json"
    document = json.loads(path.read_bytes())
    if change:
        change(document)
    for name in document["output"]:
        if (folder / name).is_file():
            document["output"][name] = entry_of(folder / name)
    seal_by_hand(path, document)


def make_run(folder: Path, source: Path, control: str | None = None, proportion: float = 0.3) -> Path:
    """A RUN of the source: manifest, masks and statistics."""
    folder.mkdir(parents=True)
    statistics = make_statistics()
    entries, masks = select_all(source, statistics, proportion, control)
    write_masks(folder / "masks.safetensors", masks)
    write_statistics(folder / "statistics.safetensors", statistics)
    document = manifest_of(source, entries, proportion, control)
    document["left_out"] = []
    document["output"] = dict.fromkeys(("masks.safetensors", "statistics.safetensors"))
    seal_by_hand(folder / "manifest.json", document)
    reseal(folder)
    return folder


def edit_by_hand(weight: torch.Tensor, flat: set[int], factor: float) -> tuple[torch.Tensor, list[int]]:
    """The edited copy, and the positions whose bits changed."""
    edited = weight.clone().reshape(-1)
    for i in flat:
        edited[i] = (edited[i].float() * torch.tensor(factor, dtype=torch.float32)).to(weight.dtype)
    edited = edited.reshape(weight.shape)
    size = weight.element_size()
    before, after = raw_bytes(weight), raw_bytes(edited)
    changed = [i for i in sorted(flat) if before[i * size : (i + 1) * size] != after[i * size : (i + 1) * size]]
    return edited, changed


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def span(path: Path, name: str) -> tuple[int, int]:
    """The byte range of a tensor in a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return 8 + size + start, 8 + size + end


def put_bytes(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def make_output(
    folder: Path, source: Path, factor: float = 1.1, control: str | None = None, proportion: float = 0.3
) -> Path:
    """An OUT of the source, with a README of its own."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.bin"))
    write(folder / "README.md", "# Edited\n")
    own = folder / "mathneuro"
    own.mkdir()
    statistics = make_statistics()
    entries, masks = select_all(source, statistics, proportion, control)
    tensors = read_tensors(source)
    for name, flat in masks.items():
        file, weight = tensors[name]
        edited, changed = edit_by_hand(weight, flat, factor)
        put_bytes(folder / file, span(folder / file, name)[0], raw_bytes(edited))
        size = int(np.prod(TARGETS[name][0][-2:]))
        per_expert = [sum(i // size == e for i in changed) for e in range(weight.numel() // size)]
        entries[name]["count"]["changed"] = per_expert if weight.dim() == 3 else per_expert[0]
    write_masks(own / "masks.safetensors", masks)
    write_statistics(own / "statistics.safetensors", statistics)
    document = manifest_of(source, entries, proportion, control)
    operation = "scale" if factor else "prune"
    document["edit"] = {"operation": operation, "factor": factor, "factor_source": "option"}
    files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    document["output"] = dict.fromkeys(files)
    seal_by_hand(own / "manifest.json", document)
    reseal(folder)
    return folder
