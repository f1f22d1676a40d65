"""From the recorders of a calibration to its statistics and the manifest's `calibration` section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mathneuro_export.calibration.batches import Batch, Encoded, batch_plan
from mathneuro_export.calibration.corpus import Corpus
from mathneuro_export.calibration.hooks import Recorder
from mathneuro_export.calibration.statistics import Statistics
from mathneuro_export.errors import Error
from mathneuro_export.models.targets import Note, Plan, Target

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What calibration found.

    `statistics`: vectors by corpus, with the map from target to stored name. `corpora`: corpus -> its entry in the
    manifest's `calibration`. `observed`: names on disk of the maps whose input was seen, in the order of the model.
    """

    statistics: Statistics
    corpora: dict[str, dict[str, Any]]
    observed: tuple[str, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A corpus, its token ids, its batches and how many blocks its samples fall into."""

    corpus: Corpus
    encoded: Encoded
    batches: list[Batch]
    blocks: int


def collect(
    plan: Plan,
    works: Sequence[Work],
    recorders: Sequence[Recorder],
    *,
    max_length: int,
    chat_template: bool,
    notes: Sequence[Note] = (),
) -> Calibration:
    """The result of a calibration, `recorders` being those of `works`, which share their `leaders`.

    Errors: `Error` for a statistic that is not finite, naming map and corpus.
    """
    arrays = [_to_numpy(recorder, work.corpus) for work, recorder in zip(works, recorders, strict=True)]
    shapes = {name: array.shape[1:] for found in arrays for name, array in found.items()}
    leaders = recorders[0].leaders
    observed = [t for t in plan.linear if (t.group in shapes if t.group else t.name in leaders)]
    shared = _shared(observed, leaders)
    stored: dict[str, dict[str, Array]] = {}
    corpora: dict[str, dict[str, Any]] = {}
    for work, recorder, found in zip(works, recorders, arrays, strict=True):
        corpus = work.corpus.name
        stored[corpus], tokens = {}, {}
        for target in observed:
            name = shared[target.name]
            if name in stored[corpus]:
                continue
            source = target.group or name
            array = found[source] if source in found else np.zeros((work.blocks, *shapes[source]), np.float32)
            stored[corpus][name] = array if target.expert is None else array[:, target.expert]
            if target.group:
                counts = recorder.tokens[source].tolist() if source in found else [0] * shapes[source][0]
                tokens[name] = counts if target.expert is None else [counts[target.expert]]
        corpora[corpus] = _entry(work, max_length, chat_template)
        if tokens:
            corpora[corpus]["expert_tokens"] = tokens
    all_notes = [*notes, *(note for work in works for note in (*work.corpus.notes, *work.encoded.notes))]
    return Calibration(Statistics(stored, shared), corpora, tuple(t.name for t in observed), tuple(all_notes))


def _shared(observed: Sequence[Target], leaders: Mapping[str, str]) -> dict[str, str]:
    """Target -> the name its vector is stored under; matrices of one expert with one input share one."""
    shared: dict[str, str] = {}
    first: dict[tuple[str, int | None], str] = {}
    for target in observed:
        if target.group:
            shared[target.name] = first.setdefault((target.group, target.expert), target.name)
        else:
            shared[target.name] = leaders[target.name]
    return shared


def _to_numpy(recorder: Recorder, corpus: Corpus) -> dict[str, Array]:
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


def _entry(work: Work, max_length: int, chat_template: bool) -> dict[str, Any]:
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
