"""Calibration of a model in memory: every corpus through it, the statistic of every linear map."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from mathneuro_export.calibration.batches import Batch, Encoded, encode, make_batches
from mathneuro_export.calibration.corpus import Corpus
from mathneuro_export.calibration.experts import ExpertsObserver, recording_experts
from mathneuro_export.calibration.hooks import Observer, Recorder, Rows, recording, run
from mathneuro_export.calibration.result import Calibration, Work, collect
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.loading import embedding_rows, tokenizer_note
from mathneuro_export.models.names import one_line
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.targets import Plan

AUTO_BLOCKS = 10
EXPERTS_BLOCKS = 2

Progress = Callable[[int], None]
"""Called after each batch with the samples in it."""


class FullObserver(Observer, ExpertsObserver, Protocol):
    """Who is told of every input: of linear maps and of experts."""


def calibrate(
    model: Any,
    plan: Plan,
    corpora: Sequence[Corpus],
    tokenizer: Any,
    *,
    max_length: int = 1024,
    batch_size: int | None = None,
    blocks: int | None = None,
    chat_template: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Run `corpora` through `model` (any device, weights as loaded) and record the plan's linear maps.

    `batch_size` and `blocks` None are auto; a corpus has at most as many blocks as samples. The model is left as it
    was, without a hook. Targets that were not observed are not in the statistics.

    Errors: those of `encode` and `make_batches`, all before the first forward pass; `Error` for an activation that is
    not finite, naming map and corpus, and for whatever the model itself raises; `UsageError` for blocks below 1.
    """
    rows = embedding_rows(model)
    works = prepare_works(plan, corpora, tokenizer, rows, max_length, batch_size, blocks, chat_template)
    leaders: dict[str, str] = {}
    recorders = []
    for work in works:
        recorder = Recorder(work.blocks, leaders=leaders)
        with quiet(), observing(model, plan, recorder):
            for batch in work.batches:
                recorder.begin(rows_of(work, batch))
                try:
                    run_batch(model, work, batch)
                finally:
                    recorder.end()
                if progress:
                    progress(len(batch.samples))
        recorders.append(recorder)
    larger = tokenizer_note(tokenizer, rows)
    notes = [larger] if larger else []
    return collect(plan, works, recorders, max_length=max_length, chat_template=chat_template, notes=notes)


def prepare_works(
    plan: Plan,
    corpora: Sequence[Corpus],
    tokenizer: Any,
    rows: int,
    max_length: int,
    batch_size: int | None,
    blocks: int | None,
    chat_template: bool,
) -> list[Work]:
    """Tokens, batches and blocks of each corpus, for an embedding of `rows` rows. Errors: see `calibrate`."""
    works = []
    for corpus in corpora:
        encoded = encode(corpus, tokenizer, max_length, chat_template, rows)
        count = block_count(blocks, len(corpus.texts), plan.has_experts)
        works.append(Work(corpus, encoded, make_batches(encoded.ids, batch_size), count))
    return works


@contextmanager
def observing(model: Any, plan: Plan, observer: FullObserver) -> Iterator[None]:
    """Show the inputs of the plan's linear maps to `observer`; forward passes end before the output layer's product."""
    modules = {target.name: model.get_submodule(target.module) for target in plan.linear if not target.group}
    experts = {target.module: model.get_submodule(target.module) for target in plan.linear if target.group}
    with recording(observer, modules, model.get_output_embeddings()), recording_experts(model, observer, experts):
        yield


def block_of(sample: int, samples: int, blocks: int) -> int:
    """The block of a sample, both from 0: `sample * blocks // samples`."""
    return sample * blocks // samples


def block_count(option: int | None, samples: int, experts: bool = False) -> int:
    """Blocks of a corpus: the option (None is auto: 10, 2 with experts), at most one a sample.

    Errors: `UsageError` below 1.
    """
    if option is not None and option < 1:
        raise UsageError(f"--blocks {option}: expected auto or at least 1")
    auto = EXPERTS_BLOCKS if experts else AUTO_BLOCKS
    return min(auto if option is None else option, samples)


def rows_of(work: Work, batch: Batch) -> Rows:
    """What the recorder must know of a batch."""
    samples = len(work.corpus.texts)
    return Rows([block_of(i, samples, work.blocks) for i in batch.samples], batch.lengths, batch.padded)


def run_batch(model: Any, work: Work, batch: Batch, device: Any = None) -> None:
    """One batch through the model, up to the output layer. Errors: `Error` for whatever the model raises."""
    ids, mask = _tensors(batch, work.encoded, torch.device(device) if device else model.device)
    try:
        run(model, ids, mask)
    except Error:
        raise
    except Exception as error:  # anything: the model's own program
        name = work.corpus.name
        raise Error(f"{name}: the model failed on {len(batch.samples)} samples: {one_line(error)}") from error


def _tensors(batch: Batch, encoded: Encoded, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids int64 [B, T], padded on the right with 0, and the attention mask int64 [B, T], None where there is no pad."""
    ids = torch.zeros(len(batch.samples), batch.padded, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (sample, length) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
        ids[row, :length] = torch.tensor(encoded.ids[sample], dtype=torch.int64)
        mask[row, :length] = 1
    return ids.to(device), None if batch.lengths[0] == batch.padded else mask.to(device)
