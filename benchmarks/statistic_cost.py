"""What the statistic costs: calibration against the same batches through the same layers without hooks.

    OMP_NUM_THREADS=1 python benchmarks/statistic_cost.py MODEL --data FILE.jsonl[:TEMPLATE]

Both stop before the output layer. One thread, alternating runs, medians of CPU and wall seconds; prints the ratios.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from mathneuro_export.calibration.batches import encode, make_batches
from mathneuro_export.calibration.corpus import load_corpus
from mathneuro_export.calibration.hooks import Recorder, Rows, recording, run
from mathneuro_export.checkpoint.source import open_source
from mathneuro_export.models.loading import compute_dtype, embedding_rows, load_model, load_tokenizer
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.targets import plan_targets

LIMIT = 1.15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--data", required=True, help="corpus, as of --math")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=None, help="samples a batch (default: auto)")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    source = open_source(arguments.model)
    dtype = compute_dtype(arguments.dtype, source, "cpu")
    model = load_model(source, "cpu", dtype)
    corpus = load_corpus("math", arguments.data, arguments.samples, 42)
    encoded = encode(corpus, load_tokenizer(source), arguments.max_length, False, embedding_rows(model))
    batches = make_batches(encoded.ids, arguments.batch_size)
    modules = {target.name: model.get_submodule(target.module) for target in plan_targets(source).linear}
    inputs = []
    for batch in batches:
        ids = torch.zeros(len(batch.samples), batch.padded, dtype=torch.int64)
        for row, sample in enumerate(batch.samples):
            ids[row, : batch.lengths[row]] = torch.tensor(encoded.ids[sample])
        mask = (torch.arange(batch.padded) < torch.tensor(batch.lengths)[:, None]).long()
        inputs.append((ids, None if batch.lengths[0] == batch.padded else mask, batch))

    def bare() -> None:
        with recording(Recorder(1), {}, model.get_output_embeddings()):
            for ids, mask, _ in inputs:
                run(model, ids, mask)

    def observed() -> None:
        recorder = Recorder(1)
        with recording(recorder, modules, model.get_output_embeddings()):
            for ids, mask, batch in inputs:
                recorder.begin(Rows([0] * len(batch.lengths), batch.lengths, batch.padded))
                run(model, ids, mask)
                recorder.end()

    print(f"{source.id}, {dtype}, {len(corpus.texts)} samples, {encoded.tokens} tokens, {len(batches)} batches")
    with quiet():
        bare()
        observed()
        times = [(measure(bare), measure(observed)) for _ in range(arguments.repeats)]
    for name, which in (("CPU", 0), ("wall", 1)):
        plain, full = (statistics.median(pair[side][which] for pair in times) for side in (0, 1))
        print(
            f"{name}: {plain:.2f} s without, {full:.2f} s with the statistic, ratio {full / plain:.3f} (limit {LIMIT})"
        )


def measure(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


if __name__ == "__main__":
    main()
