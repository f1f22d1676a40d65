"""Selection against torch.topk on one bf16 matrix, one thread: ratios of medians, and the memory selection takes.

    OMP_NUM_THREADS=1 python benchmarks/select_speed.py [--rows 4096] [--cols 14336] [--runs 5]

Torch gets what it needs for two exact thresholds: the scores of math and of general, and torch.topk (unsorted) of each.
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from mathneuro_export.checkpoint.dtypes import narrow
from mathneuro_export.masks.select import select, tops

WANTED = 8.0


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=14336)
    parser.add_argument("--proportion", type=float, default=0.05)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)

    rng = np.random.default_rng(0)
    raw = np.empty((args.rows, args.cols), np.uint16)
    for i in range(args.rows):
        raw[i] = narrow(rng.standard_normal(args.cols, dtype=np.float32) * np.float32(0.02), "BF16")
    vectors = [rng.random(args.cols, dtype=np.float32) + np.float32(0.1) for _ in range(2)]
    weight = torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
    k = int(args.proportion * raw.size)

    def threshold(vector: npt.NDArray[np.float32]) -> float:
        scores = weight.abs().float().mul_(torch.from_numpy(vector)).view(-1)
        return torch.topk(scores, k, sorted=False).values.min().item()

    def topk() -> list[float]:
        return [threshold(vector) for vector in vectors]

    calls: dict[str, Callable[[], object]] = {
        "two torch.topk": topk,
        "thresholds": lambda: tops(raw, "BF16", vectors, 1, args.proportion),
        "select": lambda: select(raw, "BF16", vectors, 1, args.proportion),
        "select, random control": lambda: select(raw, "BF16", vectors, 1, args.proportion, "random"),
    }
    found = select(raw, "BF16", vectors, 1, args.proportion)
    if list(found.thresholds) != topk():
        raise SystemExit("the thresholds are not torch.topk's")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.runs):
        for name, call in calls.items():
            times[name].append(seconds(call))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{args.rows} x {args.cols} bf16, k = {k}, {found.mask.nnz} masked, median of {args.runs}, one thread")
    for name, value in median.items():
        print(f"{name:24s} {value:7.3f} s   ratio {median['two torch.topk'] / value:6.1f}")
    for name in list(calls)[1:]:
        tracemalloc.start()
        calls[name]()
        print(f"{name:24s} peak {tracemalloc.get_traced_memory()[1] / 2**20:6.1f} MiB")
        tracemalloc.stop()
    ratio = median["two torch.topk"] / median["thresholds"]
    print(f"thresholds: ratio {ratio:.1f}, wanted {WANTED:.0f}: {'met' if ratio >= WANTED else 'NOT MET'}")


if __name__ == "__main__":
    main()
