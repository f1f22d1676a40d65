"""Calibration of a model in memory: every corpus through it, the statistic of every target and the output layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mathneuro_export.calibration.batches import Batch, Encoded, batch_plan, encode, make_batches
from mathneuro_export.calibration.corpus import Corpus
from mathneuro_export.calibration.hooks import Recorder, Rows, recording, run
from mathneuro_export.calibration.statistics import Statistics
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.loading import embedding_rows, tokenizer_note
from mathneuro_export.models.names import one_line
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.targets import Note, Plan

AUTO_BLOCKS = 10

Progress = Callable[[int], None]
"""Called after each batch with the samples in it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What calibration found.

    `statistics`: vectors by corpus, with the map from target to stored name. `corpora`: corpus -> its entry in the
    manifest's `calibration`. `observed`: names on disk of the maps whose input was seen, in the order they ran.
    """

    statistics: Statistics
    corpora: dict[str, dict[str, Any]]
    observed: tuple[str, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    corpus: Corpus
    encoded: Encoded
    batches: list[Batch]
    blocks: int


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
    """Run `corpora` through `model` (any device, weights as loaded) and record the plan's `observed` maps.

    `batch_size` and `blocks` None are auto; a corpus has at most as many blocks as samples. The model is left as it
    was, without a hook. Targets that were not observed are not in the statistics: see `without_unobserved`.

    Errors: those of `encode` and `make_batches`, all before the first forward pass; `Error` for an activation that is
    not finite, naming map and corpus, and for whatever the model itself raises; `UsageError` for blocks below 1.
    """
    rows = embedding_rows(model)
    works = [_prepare(corpus, tokenizer, max_length, batch_size, blocks, chat_template, rows) for corpus in corpora]
    modules = {target.name: model.get_submodule(target.module) for target in plan.observed}
    stored: dict[str, dict[str, np.ndarray[Any, np.dtype[np.float32]]]] = {}
    leaders: dict[str, str] = {}
    for work in works:
        recorder = Recorder(work.blocks, leaders=leaders)
        with quiet(), recording(recorder, modules, model.get_output_embeddings()):
            _run_batches(model, recorder, work, progress)
        stored[work.corpus.name] = _to_numpy(recorder, work.corpus)
    larger = tokenizer_note(tokenizer, rows)
    notes = [*([larger] if larger else [])]
    for work in works:
        notes += [*work.corpus.notes, *work.encoded.notes]
    return Calibration(
        Statistics(_complete(stored), dict(leaders)),
        {work.corpus.name: _entry(work, max_length, chat_template) for work in works},
        tuple(leaders),
        tuple(notes),
    )


def block_of(sample: int, samples: int, blocks: int) -> int:
    """The block of a sample, both from 0: `sample * blocks // samples`."""
    return sample * blocks // samples


def block_count(option: int | None, samples: int) -> int:
    """Blocks of a corpus: the option (None is auto, 10), at most one a sample. Errors: `UsageError` below 1."""
    if option is not None and option < 1:
        raise UsageError(f"--blocks {option}: expected auto or at least 1")
    return min(AUTO_BLOCKS if option is None else option, samples)


def _prepare(
    corpus: Corpus,
    tokenizer: Any,
    max_length: int,
    batch_size: int | None,
    blocks: int | None,
    chat_template: bool,
    rows: int,
) -> _Work:
    encoded = encode(corpus, tokenizer, max_length, chat_template, rows)
    return _Work(corpus, encoded, make_batches(encoded.ids, batch_size), block_count(blocks, len(corpus.texts)))


def _run_batches(model: Any, recorder: Recorder, work: _Work, progress: Progress | None) -> None:
    name, samples = work.corpus.name, len(work.corpus.texts)
    for batch in work.batches:
        recorder.begin(Rows([block_of(i, samples, work.blocks) for i in batch.samples], batch.lengths, batch.padded))
        ids, mask = _tensors(batch, work.encoded, model.device)
        try:
            run(model, ids, mask)
        except Error:
            raise
        except Exception as error:  # anything: the model's own program
            raise Error(f"{name}: the model failed on {len(batch.samples)} samples: {one_line(error)}") from error
        finally:
            recorder.end()
        if progress:
            progress(len(batch.samples))


def _tensors(batch: Batch, encoded: Encoded, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids int64 [B, T], padded on the right with 0, and the attention mask int64 [B, T], None where there is no pad."""
    ids = torch.zeros(len(batch.samples), batch.padded, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, (sample, length) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
        ids[row, :length] = torch.tensor(encoded.ids[sample], dtype=torch.int64)
        mask[row, :length] = 1
    return ids.to(device), None if batch.lengths[0] == batch.padded else mask.to(device)


def _to_numpy(recorder: Recorder, corpus: Corpus) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    arrays = {}
    for name, sums in recorder.sums.items():
        with np.errstate(over="ignore"):
            array = sums.cpu().numpy().astype(np.float32)
        if not np.isfinite(array).all():
            raise Error(
                f"{name}: its input is not finite on the corpus {corpus.name} ({corpus.spec}); the weights hold NaN or "
                "infinity, or the dtype overflows: try --dtype float32"
            )
        arrays[name] = array
    return arrays


def _complete(
    stored: dict[str, dict[str, np.ndarray[Any, np.dtype[np.float32]]]],
) -> dict[str, dict[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    """Every corpus with every vector, in one order; a map that one corpus never reached has zeros there."""
    shapes = {name: array.shape[1] for arrays in stored.values() for name, array in arrays.items()}
    complete = {}
    for corpus, arrays in stored.items():
        blocks = max(array.shape[0] for array in arrays.values()) if arrays else 1
        complete[corpus] = {
            name: arrays[name] if name in arrays else np.zeros((blocks, inputs), np.float32)
            for name, inputs in shapes.items()
        }
    return complete


def _entry(work: _Work, max_length: int, chat_template: bool) -> dict[str, Any]:
    corpus = work.corpus
    return {
        "spec": corpus.spec,
        "digest": corpus.digest,
        "samples": len(corpus.texts),
        "sample_digests": list(corpus.sample_digests),
        "blocks": work.blocks,
        "tokens": work.encoded.tokens,
        "truncated": work.encoded.truncated,
        "template": corpus.template,
        "chat_template": chat_template,
        "seed": corpus.seed,
        "max_length": max_length,
        "special_tokens": work.encoded.special_tokens,
        "batches": batch_plan(work.batches),
    }
