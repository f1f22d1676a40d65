"""`scale --from RUN` on a synthetic two-shard checkpoint, hashes included, against a copy and against load, topk, save.

    python benchmarks/scale_speed.py [--gigabytes 1] [--runs 5] [--folder DIR]

Prints, for the RUN's own proportion (stored masks) and for another (selected again), median wall seconds of alternating
runs, the ratios to `cp` + fsync and to load_file + topk + save_file, and the peak of anonymous memory above the start.
One thread; each run is a process of its own and is timed inside it, after its imports.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export import api
from mathneuro_export.calibration.statistics import Statistics, write_statistics
from mathneuro_export.checkpoint.durable import Digest
from mathneuro_export.checkpoint.rewrite import digest_file
from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.export.finish import entry, tool
from mathneuro_export.export.manifest import Selection, seal

OWN, OTHER, FACTOR = 0.05, 0.02, 1.1
SHAPES = {"q_proj": (4096, 4096), "up_proj": (14336, 4096), "down_proj": (4096, 14336)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(JOBS[arguments.one], arguments.folder)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        make_run(Path(folder), arguments.gigabytes)
        seconds: dict[str, list[float]] = {name: [] for name in JOBS}
        memory: dict[str, float] = {}
        for _ in range(arguments.runs):
            for name in JOBS:
                result = one(name, folder)
                seconds[name].append(result["seconds"])
                memory[name] = max(memory.get(name, 0), result["peak"])
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for name, median in medians.items():
            print(
                f"{name:<8} {median:7.2f} s   {median / medians['copy']:6.2f} x copy   "
                f"{medians['naive'] / median:6.2f} x faster than naive   +{memory[name] / 2**20:.0f} MiB"
            )


def one(name: str, folder: str) -> dict[str, float]:
    """One job in a fresh process with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", name, "--folder", folder]
    result: dict[str, float] = json.loads(
        subprocess.run(command, check=True, capture_output=True, env=environment).stdout
    )
    return result


def measure(job: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """Seconds of a job, and its peak anonymous memory above the start, sampled every 5 ms by a thread."""
    import threading

    peak, done = 0, threading.Event()
    start = anonymous()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous() - start)

    sampler = threading.Thread(target=sample)
    sampler.start()
    began = time.perf_counter()
    job(folder)
    seconds = time.perf_counter() - began
    done.set()
    sampler.join()
    return {"seconds": seconds, "peak": peak}


def anonymous() -> int:
    """Resident anonymous bytes of this process."""
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def copy(folder: Path) -> None:
    """`cp` and fsync of the checkpoint."""
    out = fresh(folder / "copy")
    for path in sorted((folder / "model").iterdir()):
        shutil.copyfile(path, out / path.name)
        with (out / path.name).open("rb") as file:
            os.fsync(file.fileno())


def scale_own(folder: Path) -> None:
    """The stored masks."""
    scale(folder, OWN)


def scale_other(folder: Path) -> None:
    """Masks selected again."""
    scale(folder, OTHER)


def scale(folder: Path, proportion: float) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    api.scale(folder / "model", out, from_run=folder / "run", proportion=proportion, factor=FACTOR)


def naive(folder: Path) -> None:
    """load_file, topk, save_file, as the paper's procedure on a loaded state dict."""
    import torch
    from safetensors.numpy import load_file as load_numpy
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    out = fresh(folder / "naive")
    vectors = load_numpy(folder / "run" / "statistics.safetensors")
    for path in sorted((folder / "model").glob("*.safetensors")):
        tensors = load_file(path)
        for name, weight in tensors.items():
            if f"math/{name}" not in vectors:
                continue
            k, tops = int(OWN * weight.numel()), []
            for corpus in ("math", "general"):
                score = weight.abs().float() * torch.from_numpy(vectors[f"{corpus}/{name}"].sum(0))
                top = torch.zeros(weight.numel(), dtype=torch.bool)
                top[torch.topk(score.flatten(), k, sorted=False).indices] = True
                tops.append(top.view_as(weight))
            tensors[name] = torch.where(tops[0] & ~tops[1], weight.float() * FACTOR, weight.float()).to(weight.dtype)
        save_file(tensors, out / path.name, {"format": "pt"})
        with (out / path.name).open("rb") as file:
            os.fsync(file.fileno())


JOBS: dict[str, Callable[[Path], None]] = {"copy": copy, "own": scale_own, "other": scale_other, "naive": naive}


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def make_run(folder: Path, gigabytes: float) -> None:
    """A bf16 checkpoint in two shards below `model`, and a RUN of it below `run`, made from random statistics."""
    model = folder / "model"
    model.mkdir()
    generator = np.random.default_rng(0)
    layer = sum(rows * cols * 2 for rows, cols in SHAPES.values())
    layers = max(2, round(gigabytes * 1e9 / layer))
    weight_map: dict[str, str] = {}
    vectors: dict[str, dict[str, np.ndarray]] = {"math": {}, "general": {}}
    for shard, numbers in (
        ("model-00001-of-00002.safetensors", range(layers // 2)),
        ("model-00002-of-00002.safetensors", range(layers // 2, layers)),
    ):
        entries = []
        for number in numbers:
            for kind, shape in SHAPES.items():
                name = f"model.layers.{number}.{kind}.weight"
                weight_map[name] = shard
                values = generator.standard_normal(shape, dtype=np.float32).view(np.uint32) >> 16
                entries.append(Entry(name, "BF16", shape, partial(_uint16, values)))
                for corpus in vectors:
                    vectors[corpus][name] = generator.gamma(2.0, 1.0, (2, shape[1])).astype(np.float32)
        write_safetensors(model / shard, entries, {"format": "pt"})
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    seed = folder / "seed"
    seed.mkdir()
    names = dict.fromkeys(vectors["math"], 1)
    written = write_statistics(
        seed / "statistics.safetensors", Statistics(vectors, {name: name for name in names}), names, None
    )
    (seed / "manifest.json").write_bytes(seal(_seed_manifest(model, written, list(names))))
    api.identify(model, folder / "run", from_run=seed, proportion=OWN)


def _uint16(values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [values.astype(np.uint16)]


def _seed_manifest(model: Path, written: Digest, names: list[str]) -> dict[str, Any]:
    """The manifest of a RUN that holds statistics and no mask."""
    corpus = {
        **{"spec": "synthetic", "digest": "0" * 64, "samples": 2, "sample_digests": [], "blocks": 2, "tokens": 2},
        **{"truncated": 0, "seed": 0, "max_length": 1},
    }
    return {
        "schema": 1,
        "tool": tool(),
        "created": "",
        "environment": {},
        "source": {
            "id": "synthetic",
            "architecture": "LlamaForCausalLM",
            "files": {path.name: entry(digest_file(path)) for path in sorted(model.iterdir())},
        },
        "calibration": {"math": corpus, "general": corpus},
        "selection": Selection(proportion=0.5, seed=0).model_dump(),
        "tensors": {},
        "skipped": {"seed": names},
        "output": {"statistics.safetensors": entry(written)},
    }


if __name__ == "__main__":
    main()
