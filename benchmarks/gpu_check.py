"""Calibration on a GPU against the CPU, on models that it makes itself; without a GPU the CPU half runs.

    python benchmarks/gpu_check.py [--device auto|cpu|cuda] [--gigabytes 1.7] [--hidden 2048] [--folder DIR]

Prints a table: statistics and masks of the device against those of the CPU in float32 (largest difference relative to a
vector's largest entry; Jaccard index of the masks at proportion 0.05), bfloat16 masks against float32 ones, streaming
against the model in memory and under a cap on the device's memory that the model does not fit, and the time of
calibration and selection over bare forward passes, beside the paper's sums in the shape of the weights.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from stream_memory import Shape, make

from mathneuro_export.calibration.corpus import Corpus, load_corpus
from mathneuro_export.calibration.hooks import Recorder, recording
from mathneuro_export.calibration.parking import Parking
from mathneuro_export.calibration.result import Calibration
from mathneuro_export.calibration.runner import calibrate, prepare_works, run_batch
from mathneuro_export.calibration.stream import calibrate_streamed
from mathneuro_export.checkpoint.header import map_tensor
from mathneuro_export.checkpoint.source import Source, open_source
from mathneuro_export.masks.select import select
from mathneuro_export.models.loading import embedding_rows, load_model, load_tokenizer, resolve_device
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.streaming import stream_model
from mathneuro_export.models.targets import Plan, plan_targets

PROPORTION = 0.05
CORPORA = ("math", "general")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gigabytes", type=float, default=1.7)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    hidden = options.hidden
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make(folder, options.gigabytes, options.samples, options.length, Shape(hidden, hidden * 11 // 4 // 8 * 8, 8, 2))
        table = dict(Check(folder, device, options.length).rows())
    if options.json:
        print(json.dumps({"device": device, **table}))
        return
    what = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    print(f"{what}, torch {torch.__version__}")
    for row, value in table.items():
        print(f"{row:<64}{value:>16.6g}" if isinstance(value, float) else f"{row:<64}{value!s:>16}")


class Check:
    """One checkpoint on one device."""

    def __init__(self, folder: Path, device: str, length: int) -> None:
        self.source: Source = open_source(folder / "model")
        self.plan: Plan = plan_targets(self.source)
        self.tokenizer: Any = load_tokenizer(self.source)
        self.corpora: list[Corpus] = [load_corpus(name, str(folder / f"{name}.jsonl"), None, 42) for name in CORPORA]
        self.folder, self.device, self.length = folder, device, length

    def rows(self) -> Iterator[tuple[str, Any]]:
        """The table's rows, in order."""
        cpu = self.in_memory("cpu", "float32")
        own = cpu if self.device == "cpu" else self.in_memory(self.device, "float32")
        yield "float32 statistics, device against CPU: largest difference", self.difference(cpu, own)
        masks = self.masks(cpu)
        yield "float32 masks, device against CPU: Jaccard", jaccard(masks, self.masks(own))
        half = self.in_memory(self.device, "bfloat16")
        yield "bfloat16 masks against float32: Jaccard", jaccard(masks, self.masks(half))
        yield "streamed against in memory: largest difference", self.difference(own, self.streamed("float32"))
        if self.device.startswith("cuda"):
            yield "in memory under the cap", self.capped(lambda: self.in_memory(self.device, "float32"))
            yield "streamed under the cap", self.capped(lambda: self.streamed("float32"))
        yield from self.speed()

    def settings(self) -> dict[str, Any]:
        return {"max_length": self.length, "batch_size": 4}

    def in_memory(self, device: str, dtype: str) -> Calibration:
        model = load_model(self.source, device, dtype)
        return calibrate(model, self.plan, self.corpora, self.tokenizer, **self.settings())

    def streamed(self, dtype: str) -> Calibration:
        model = stream_model(self.source, self.device, dtype)
        parking = Parking(0, self.folder / "work")
        return calibrate_streamed(model, self.plan, self.corpora, self.tokenizer, **self.settings(), parking=parking)

    def difference(self, one: Calibration, two: Calibration) -> float:
        """The largest over all vectors, relative to the vector's largest entry."""
        found = 0.0
        for corpus in CORPORA:
            for target in self.plan.linear:
                a, b = (each.statistics.vector(corpus, target.name) for each in (one, two))
                found = max(found, float(np.abs(a - b).max() / a.max()))
        return found

    def masks(self, calibration: Calibration) -> dict[str, set[int]]:
        """The masked flat indices of the first layers' targets, selected from the weights on disk."""
        found = {}
        for target in self.plan.linear[:14]:
            file, info = self.source.tensors[target.name]
            vectors = [calibration.statistics.vector(corpus, target.name) for corpus in CORPORA]
            weight = map_tensor(self.source.shards[file], info)
            mask = select(weight, target.dtype, vectors, target.input_axis, PROPORTION).mask
            rows = np.repeat(np.arange(mask.rows), np.diff(mask.crow))
            found[target.name] = set((rows * mask.cols + mask.col).tolist())
        return found

    def capped(self, work: Callable[[], object]) -> str:
        """Whether `work` finishes where three quarters of the weights in float32 fit on the device."""
        weights = sum(info.numel for _, info in self.source.tensors.values()) * 4
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, 0.75 * weights / total), self.device)
        try:
            work()
        except Exception as error:
            return type(error).__name__
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
            torch.cuda.empty_cache()
        return "finishes"

    def speed(self) -> Iterator[tuple[str, Any]]:
        """Seconds of bare forward passes, and what calibration, selection and the paper's sums take beside them."""
        model = load_model(self.source, self.device, "float32" if self.device == "cpu" else "bfloat16")
        works = prepare_works(
            self.plan, self.corpora, self.tokenizer, embedding_rows(model), self.length, 4, None, False
        )

        def bare() -> None:
            with quiet(), recording(Recorder(1), {}, model.get_output_embeddings()):
                for work in works:
                    for batch in work.batches:
                        run_batch(model, work, batch)

        def observed() -> None:
            calibrate(model, self.plan, self.corpora, self.tokenizer, **self.settings())

        def paper() -> None:
            sums: dict[str, torch.Tensor] = {}

            def add(name: str) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
                def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
                    for x in inputs[0]:
                        score = module.weight.abs() * x.float().norm(dim=0).to(module.weight.dtype)
                        sums[name] = sums[name] + score if name in sums else score

                return hook

            handles = [
                model.get_submodule(target.module).register_forward_pre_hook(add(target.name))
                for target in self.plan.linear
                if target != self.plan.lm_head
            ]
            try:
                bare()
            finally:
                for handle in handles:
                    handle.remove()

        bare()
        seconds = {name: self.time(work) for name, work in (("bare", bare), ("own", observed), ("paper", paper))}
        yield "seconds of bare forward passes", seconds["bare"]
        yield "calibration over bare forward passes", seconds["own"] / seconds["bare"]
        yield "the paper's sums over bare forward passes", seconds["paper"] / seconds["bare"]
        result = calibrate(model, self.plan, self.corpora, self.tokenizer, **self.settings())
        yield "seconds of selection in 14 targets, on the CPU", self.time(lambda: self.masks(result))

    def time(self, work: Callable[[], object]) -> float:
        """The less of two runs."""
        times = []
        for _ in range(2):
            began = time.perf_counter()
            work()
            if self.device.startswith("cuda"):
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - began)
        return min(times)


def jaccard(one: dict[str, set[int]], two: dict[str, set[int]]) -> float:
    """Of all masks together."""
    both = sum(len(one[name] & two[name]) for name in one)
    either = sum(len(one[name] | two[name]) for name in one)
    return both / either if either else 1.0


if __name__ == "__main__":
    main()
