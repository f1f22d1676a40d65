"""Rewriting a synthetic bfloat16 shard against `cp` and fsync.

    python benchmarks/rewrite_speed.py --folder /path/to/a/disk --megabytes 1000

Prints the median times of alternating runs and their ratios to the copy: a shard that nothing edits, and one where 1 %
of all elements, at random, are multiplied. Both include the sha256 of the source and of what was written.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.checkpoint.dtypes import narrow, widen
from mathneuro_export.checkpoint.header import TensorInfo, read_header
from mathneuro_export.checkpoint.rewrite import Editor, rewrite_shard
from mathneuro_export.checkpoint.write import Entry, write_safetensors

ROWS, COLS = 4096, 4096


def make_shard(path: Path, megabytes: int) -> None:
    """Write matrices of 4096 x 4096 random bfloat16 values, about so many megabytes."""
    rng = np.random.default_rng(0)
    matrix = narrow(rng.standard_normal((ROWS, COLS), np.float32), "BF16")
    count = max(1, round(megabytes * 1e6 / matrix.nbytes))
    write_safetensors(path, [Entry(f"layer.{i}", "BF16", (ROWS, COLS), lambda: [matrix]) for i in range(count)])


def copy(source: Path, target: Path) -> None:
    """The floor: a plain copy made durable."""
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def sparse_editor(positions: list[np.ndarray[Any, Any]]) -> Callable[[TensorInfo], Editor]:
    """Multiply the columns positions[row] of each row by 1.1."""
    lengths = np.array([len(row) for row in positions])
    starts = np.concatenate(([0], np.cumsum(lengths)))
    columns = np.concatenate(positions)

    def edit(rows: np.ndarray[Any, Any], first: int) -> None:
        last = first + len(rows)
        row = np.repeat(np.arange(len(rows)), lengths[first:last])
        col = columns[starts[first] : starts[last]]
        rows[row, col] = narrow(widen(rows[row, col], "BF16") * np.float32(1.1), "BF16")

    return lambda info: edit


def main() -> None:
    """Parse the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; the system's temporary folder")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    positions = [np.sort(rng.choice(COLS, COLS // 100, replace=False)) for _ in range(ROWS)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, target = Path(folder, "source.safetensors"), Path(folder, "target.safetensors")
        make_shard(source, options.megabytes)
        header = read_header(source)
        sparse = sparse_editor(positions)
        tasks: dict[str, Callable[[], object]] = {
            "cp + fsync": lambda: copy(source, target),
            "unedited": lambda: rewrite_shard(header, target, lambda info: None),
            "1 % edited": lambda: rewrite_shard(header, target, sparse),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
        for _ in range(options.runs):
            for name, task in tasks.items():
                target.unlink(missing_ok=True)
                os.sync()
                wall, cpu = time.perf_counter(), time.process_time()
                task()
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        floor = statistics.median(wall for wall, _ in times["cp + fsync"])
        for name, runs in times.items():
            wall = statistics.median(wall for wall, _ in runs)
            cpu = statistics.median(cpu for _, cpu in runs)
            print(f"{name:12} wall {wall:6.2f} s  cpu {cpu:6.2f} s  {wall / floor:5.2f} x cp")


if __name__ == "__main__":
    main()
