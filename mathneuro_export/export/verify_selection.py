"""Statistics and masks read back, and the selection made again by code of its own: a full partition of the scores."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mathneuro_export.checkpoint.header import Header, TensorInfo
from mathneuro_export.checkpoint.strictjson import parse_json
from mathneuro_export.errors import Error

from .manifest import Manifest, TensorEntry
from .verify_manifest import matrices, named_pairs, starved, values
from .verify_numbers import Csr, csr_from_flat, raw_rows, read_array, read_csr, widen
from .verify_report import Problem, guarded

Rows = Callable[[], Iterator[tuple[int, NDArray[Any]]]]
"""Reads one matrix from the start: (row, raw elements [n, cols]) in order."""


def by_name(header: Header) -> dict[str, TensorInfo]:
    """The tensors of a file by name."""
    return {info.name: info for info in header.tensors}


def check_masks(manifest: Manifest, header: Header, file: str) -> Iterator[Problem]:
    """The mask file: one valid mask per target, with the digest and the counts of the manifest."""
    tensors = by_name(header)
    wanted = named_pairs(list(manifest.tensors), [".crow_indices", ".col_indices"])
    for extra in sorted(tensors.keys() - wanted):
        yield Problem(file, extra, "belongs to no target of the manifest")
    for name, entry in manifest.tensors.items():
        yield from guarded(_check_mask(entry, header, tensors, file, name), file, name)


def _check_mask(
    entry: TensorEntry, header: Header, tensors: dict[str, TensorInfo], file: str, name: str
) -> Iterator[Problem]:
    if not {f"{name}.crow_indices", f"{name}.col_indices"} <= tensors.keys():
        yield Problem(file, name, "has no mask")
        return
    experts, rows, cols = matrices(entry)
    mask = read_csr(header, tensors, name, experts * rows, cols)
    if mask.digest != entry.mask:
        yield Problem(file, name, f"its mask has digest {mask.digest}, the manifest says {entry.mask}")
    said = values(entry.count.masked, entry)
    counts = [mask.count(i * rows, (i + 1) * rows) for i in range(experts)]
    if counts != said:
        yield Problem(file, name, f"its mask holds {sum(counts)} elements, the manifest says {entry.count.masked}")


def check_statistics(manifest: Manifest, header: Header, file: str) -> Iterator[Problem]:
    """The statistics file: a vector for each target and corpus, of the right shape, and none that nothing names."""
    tensors = by_name(header)
    observed = _observed(header)
    stored = {statistic for statistic, _ in observed.values()}
    wanted = {f"{corpus}/{name}" for corpus in manifest.calibration for name in stored}
    for extra in sorted(tensors.keys() - wanted):
        yield Problem(file, extra, "is a statistic that no corpus and target name")
    for missing in sorted(wanted - tensors.keys()):
        yield Problem(file, missing, "is missing from the statistics")
    for name, entry in manifest.tensors.items():
        if observed.get(name) != (entry.statistic, entry.input_axis):
            found = observed.get(name)
            yield Problem(
                file, name, f"uses {found}, the manifest says statistic {entry.statistic}, axis {entry.input_axis}"
            )
            continue
        for corpus, used in manifest.calibration.items():
            info = tensors.get(f"{corpus}/{entry.statistic}")
            if info is not None:
                yield from guarded(_check_vector(header, info, entry, used.blocks, file, name), file, name)


def _observed(header: Header) -> dict[str, tuple[str, Any]]:
    text = (header.metadata or {}).get("tensors")
    document = parse_json(text.encode(), "the metadata's tensors") if text is not None else None
    if not isinstance(document, dict):
        raise Error("the metadata has no map of tensors")
    observed: dict[str, tuple[str, Any]] = {}
    for name, value in document.items():
        if not isinstance(value, dict) or not isinstance(value.get("statistic"), str):
            raise Error(f"the metadata's entry of {name!r:.120} names no statistic")
        observed[name] = (value["statistic"], value.get("input_axis"))
    return observed


def observed_names(header: Header) -> set[str]:
    """Names on disk of every tensor whose input was recorded.

    Raises:
        Error: the metadata does not hold them.
    """
    return set(_observed(header))


def _check_vector(
    header: Header, info: TensorInfo, entry: TensorEntry, blocks: int, file: str, name: str
) -> Iterator[Problem]:
    experts, *matrix = matrices(entry)
    shape = (blocks, matrix[entry.input_axis]) if len(entry.shape) == 2 else (blocks, experts, matrix[entry.input_axis])
    if info.dtype != "F32" or info.shape != shape:
        yield Problem(file, name, f"{info.name} is {info.dtype} {list(info.shape)}, expected F32 {list(shape)}")
        return
    stored = read_array(header, info)
    if not np.all(np.isfinite(stored)) or np.any(stored < 0):
        yield Problem(file, name, f"{info.name} holds NaN, an infinity or a negative number")


@dataclass(frozen=True, slots=True)
class Proof:
    """One matrix selected again: per corpus the top's size and threshold, and the masked flat positions, ascending.

    `masked` is None for a random control, of which only the size `size` is known.
    """

    top: dict[str, int]
    threshold: dict[str, float | None]
    masked: NDArray[np.int64] | None
    size: int


def select_again(
    rows: Rows, dtype: str, numel: int, vectors: Mapping[str, NDArray[np.float32]], k: int, control: str | None
) -> Proof:
    """Select one matrix from its weights and the statistic of each corpus (broadcast against [n, cols]).

    Raises:
        Error: a score is NaN or infinite.
    """
    tops: dict[str, NDArray[np.int64]] = {}
    threshold: dict[str, float | None] = {}
    scores = np.empty(numel, np.float32)
    for corpus, vector in vectors.items():
        threshold[corpus], tops[corpus] = _top(rows, dtype, vector, k, scores)
    general = np.zeros(numel, np.bool_)
    for corpus, top in tops.items():
        if corpus != "math":
            general[top] = True
    specific = tops["math"][~general[tops["math"]]]
    masked: NDArray[np.int64] | None = specific
    if control == "wanda":
        masked = tops["math"]
    elif control == "wanda-matched":
        masked = _top(rows, dtype, vectors["math"], specific.size, scores)[1]
    elif control == "mirror":
        general[tops["math"]] = False
        masked = np.flatnonzero(general)
    elif control == "random":
        masked = None
    size = specific.size if masked is None else masked.size
    return Proof({corpus: int(top.size) for corpus, top in tops.items()}, threshold, masked, int(size))


def _score_rows(rows: Rows, dtype: str, vector: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for first, raw in rows():
        factor = vector if vector.shape[0] == 1 else vector[first : first + raw.shape[0]]
        with np.errstate(all="ignore"):
            yield first * raw.shape[1], (np.abs(widen(raw, dtype)) * factor).reshape(-1)


def _top(
    rows: Rows, dtype: str, vector: NDArray[np.float32], k: int, scores: NDArray[np.float32]
) -> tuple[float | None, NDArray[np.int64]]:
    for start, part in _score_rows(rows, dtype, vector):
        scores[start : start + part.size] = part
    if not np.all(np.isfinite(scores)):
        raise Error("a score is NaN or infinite")
    size = min(k, int(np.count_nonzero(scores)))
    if size == 0:
        return None, np.empty(0, np.int64)
    scores.partition(scores.size - size)
    threshold = scores[scores.size - size]
    above: list[NDArray[np.int64]] = []
    equal: list[NDArray[np.int64]] = []
    room = size
    for start, part in _score_rows(rows, dtype, vector):
        above.append(np.flatnonzero(part > threshold) + start)
        equal.append(np.flatnonzero(part == threshold)[:room] + start)
        room -= equal[-1].size
    larger = np.concatenate(above)
    ties = np.concatenate(equal)[: size - larger.size]
    return float(threshold), np.sort(np.concatenate([larger, ties]))


def prove_target(
    manifest: Manifest, name: str, base: tuple[Header, TensorInfo], statistics: Header, stored: Csr | None, file: str
) -> Iterator[Problem]:
    """One target's tops, thresholds and mask against a selection made again from the base and the statistics."""
    entry, tensors = manifest.tensors[name], by_name(statistics)
    experts, rows, cols = matrices(entry)
    sums = {corpus: _vector(statistics, tensors[f"{corpus}/{entry.statistic}"]) for corpus in manifest.calibration}
    parts: list[NDArray[np.int64]] = []
    alone = starved(manifest, entry)
    for expert in range(experts):
        if alone[expert]:
            nothing = Proof(dict.fromkeys(sums, 0), dict.fromkeys(sums, None), np.empty(0, np.int64), 0)
            yield from (Problem(file, name, message) for message in _differences(nothing, entry, expert))
            continue
        proof = select_again(
            lambda expert=expert: _matrix(*base, rows, cols, expert),  # type: ignore[misc]
            entry.dtype,
            rows * cols,
            {corpus: _broadcast(total, expert, entry) for corpus, total in sums.items()},
            entry.k,
            manifest.selection.control,
        )
        yield from (Problem(file, name, message) for message in _differences(proof, entry, expert))
        if proof.masked is not None:
            parts.append(proof.masked + expert * rows * cols)
    if manifest.selection.control == "random":
        return
    flat = np.concatenate([np.empty(0, np.int64), *parts])
    again = csr_from_flat(flat, experts * rows, cols)
    if again.digest != entry.mask:
        note = f"; {_distance(again, stored)} elements differ from the stored one" if stored is not None else ""
        yield Problem(file, name, f"the mask selected again has digest {again.digest}, not {entry.mask}{note}")


def _differences(proof: Proof, entry: TensorEntry, expert: int) -> Iterator[str]:
    where = f" of expert {expert}" if len(entry.shape) == 3 else ""
    for corpus, top in proof.top.items():
        said = values(entry.count.top[corpus], entry)[expert]
        if top != said:
            yield f"top of {corpus}{where} has {top} when selected again, the manifest says {said}"
        threshold = values(entry.threshold[corpus], entry)[expert]
        if proof.threshold[corpus] != threshold:
            yield f"threshold of {corpus}{where} is {proof.threshold[corpus]!r}, the manifest says {threshold!r}"
    masked = values(entry.count.masked, entry)[expert]
    if proof.size != masked:
        yield f"{proof.size} masked{where} when selected again, the manifest says {masked}"


def _distance(a: Csr, b: Csr) -> int:
    rows = len(a.crow) - 1
    return int(np.setxor1d(a.flat(0, rows), b.flat(0, rows), assume_unique=True).size)


def _matrix(header: Header, info: TensorInfo, rows: int, cols: int, expert: int) -> Iterator[tuple[int, NDArray[Any]]]:
    for row, raw in raw_rows(header, info, cols, expert * rows, (expert + 1) * rows):
        yield row - expert * rows, raw


def _vector(header: Header, info: TensorInfo) -> NDArray[np.float32]:
    stored = read_array(header, info)
    total = np.zeros(stored.shape[1:], np.float64)
    for block in stored:
        total += block
    return total.astype(np.float32)


def _broadcast(total: NDArray[np.float32], expert: int, entry: TensorEntry) -> NDArray[np.float32]:
    vector = total if len(entry.shape) == 2 else total[expert]
    return vector[None, :] if entry.input_axis == 1 else vector[:, None]
