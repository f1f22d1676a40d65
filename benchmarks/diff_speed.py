"""Two masks of 100 M set bits in all over 1.2 G positions compared: seconds and memory on one core.

    OMP_NUM_THREADS=1 python benchmarks/diff_speed.py [--bits 100] [--positions 1200]

It writes two RUNs of some 250 MB into a temporary folder, then compares them in a process of its own. The memory is the
peak of that process less what it holds once everything is imported, and less the two masks of the largest tensor.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.export.manifest import seal
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.maskfile import write_masks

SECONDS, MEGABYTES = 20.0, 300.0
HEAD = (128_256, 2048)
LAYER = {"q_proj": (2048, 2048), "gate_proj": (8192, 2048), "up_proj": (8192, 2048), "down_proj": (2048, 8192)}


def shapes(positions: int) -> dict[str, tuple[int, int]]:
    """A model of about so many weights: a head of 263 M, then layers of 54 M."""
    chosen = {"lm_head.weight": HEAD}
    layer = 0
    while sum(rows * cols for rows, cols in chosen.values()) < positions:
        chosen.update({f"model.layers.{layer}.mlp.{kind}.weight": shape for kind, shape in LAYER.items()})
        layer += 1
    return chosen


def draw(shape: tuple[int, int], share: float, seed: int) -> Mask:
    """A mask of about that share of the weights: gaps of geometric lengths."""
    rng = np.random.default_rng(seed)
    numel = shape[0] * shape[1]
    flat = np.cumsum(rng.geometric(share, int(numel * share * 1.01)), dtype=np.int64) - 1
    return Mask.from_flat(shape, flat[flat < numel])


def make_run(folder: Path, share: float, seed: int, positions: int) -> int:
    """Write a RUN; the number of its masked weights."""
    folder.mkdir()
    entries, tensors, bits = [], {}, 0
    for number, (name, shape) in enumerate(shapes(positions).items()):
        load = partial(draw, shape, share, 1000 * seed + number)
        mask = load()
        bits += mask.nnz
        entries.append((name, mask.rows, mask.cols, mask.nnz, load))
        tensors[name] = {
            "shape": list(shape),
            "dtype": "BF16",
            "file": "model.safetensors",
            "statistic": name,
            "k": int(0.05 * shape[0] * shape[1]),
            "threshold": {},
            "count": {"top": {}, "masked": mask.nnz},
            "mask": mask.digest,
        }
    digest = write_masks(folder / "masks.safetensors", entries)
    document = {
        "schema": 1,
        "tool": {"name": "mathneuro-export", "version": "benchmark"},
        "created": "",
        "environment": {},
        "source": {"id": "benchmark", "architecture": "LlamaForCausalLM", "files": {}},
        "calibration": {},
        "selection": {"proportion": 0.05, "seed": 0, "parents": [hashlib.sha256(b"").hexdigest()]},
        "tensors": tensors,
        "skipped": {},
        "output": {"masks.safetensors": {"size": digest.size, "sha256": digest.sha256}},
    }
    (folder / "manifest.json").write_bytes(seal(document))
    return bits


def status(key: str) -> int:
    """Memory of this process in KiB, as Linux tells it: `VmRSS` now, `VmHWM` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def measure(a: str, b: str) -> dict[str, Any]:
    """Compare in this process."""
    from mathneuro_export.export.diff import diff

    before = status("VmRSS")
    start, cpu = time.perf_counter(), time.process_time()
    overall = diff([a, b]).pairs[0].masks.overall
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "kib": status("VmHWM") - before,
        "bits": overall.size_a + overall.size_b,
        "ratio_to_chance": overall.ratio_to_chance,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bits", type=float, default=100, help="millions, in both masks together")
    parser.add_argument("--positions", type=float, default=1200, help="millions")
    parser.add_argument("--measure", nargs=2, metavar="RUN", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return
    positions = int(args.positions * 1e6)
    total = sum(rows * cols for rows, cols in shapes(positions).values())
    share = args.bits * 1e6 / 2 / total
    with tempfile.TemporaryDirectory() as folder:
        runs = [str(Path(folder, name)) for name in "ab"]
        for seed, run in enumerate(runs):
            make_run(Path(run), share, seed, positions)
        command = [sys.executable, __file__, "--measure", *runs]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    largest = 2 * (8 * (HEAD[0] + 1) + 2 * HEAD[0] * HEAD[1] * share)
    above = (found["kib"] * 1024 - largest) / 1e6
    print(
        f"{found['bits'] / 1e6:.1f} M set bits in both, {total / 1e6:.0f} M positions, {len(shapes(positions))} tensors"
    )
    print(f"time    {found['seconds']:7.2f} s   ({found['cpu_seconds']:.2f} s of one core), wanted {SECONDS:.0f}")
    print(f"memory  {above:7.1f} MB  above the largest tensor's masks ({largest / 1e6:.1f} MB), wanted {MEGABYTES:.0f}")
    print(f"independent masks: {found['ratio_to_chance']:.4f} times chance, expected about 1")
    met = found["seconds"] <= SECONDS and above <= MEGABYTES
    print("met" if met else "NOT MET")
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
