"""A manifest against itself: its form, its digest, and what must hold between its numbers."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mathneuro_export.checkpoint.header import TensorInfo
from mathneuro_export.errors import Error

from .manifest import Manifest, TensorEntry, digest_of
from .verify_report import Problem, printable

Kind = Literal["run", "output"]
MASKS, STATISTICS = "masks.safetensors", "statistics.safetensors"
CARD = "README.md"


def prefix_of(kind: Kind) -> str:
    """The folder of manifest, masks and statistics, relative to the RUN or OUT."""
    return "mathneuro/" if kind == "output" else ""


def check_form(path: Path, document: dict[str, Any], name: str) -> Iterator[Problem]:
    """The digest, and that the file is byte for byte the document as it is written."""
    if document.get("digest") != digest_of(document):
        yield Problem(name, None, f"its digest is {document.get('digest')!r}, its content has {digest_of(document)}")
    if path.read_bytes() != (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode():
        yield Problem(name, None, "is not in the form in which it was written; it was edited")


def matrices(entry: TensorEntry) -> tuple[int, int, int]:
    """(experts, rows, columns) of a target; experts is 1 for a matrix.

    Raises:
        Error: a shape of other than two or three dimensions.
    """
    if len(entry.shape) not in (2, 3):
        raise Error(f"shape {entry.shape}, expected two or three dimensions")
    experts, rows, cols = (1, *entry.shape) if len(entry.shape) == 2 else entry.shape
    return experts, rows, cols


def values(value: Any, entry: TensorEntry) -> list[Any]:
    """One number per matrix: a list of E in a 3-D tensor, else the number itself.

    Raises:
        Error: the form does not fit the shape.
    """
    if len(entry.shape) == 2 and not isinstance(value, list):
        return [value]
    if len(entry.shape) == 3 and isinstance(value, list) and len(value) == entry.shape[0]:
        return value
    raise Error(f"{value!r:.80} does not fit shape {entry.shape}")


def starved(manifest: Manifest, entry: TensorEntry) -> list[bool]:
    """For each matrix of a target: whether it is an expert's that fewer tokens reached than the selection asks for.

    Raises:
        Error: the numbers of tokens do not fit the target, or only some corpora have them.
    """
    found = [used.expert_tokens.get(entry.statistic) for used in manifest.calibration.values()]
    tokens = [each for each in found if each is not None]
    count = entry.shape[0] if len(entry.shape) == 3 else 1
    if manifest.selection.parents or not tokens:
        return [False] * count
    if len(tokens) != len(found) or any(len(each) != count for each in tokens):
        raise Error(f"expert_tokens of {entry.statistic}: expected {count} numbers for each corpus")
    return [min(each[i] for each in tokens) < manifest.selection.min_expert_tokens for i in range(count)]


def check_numbers(manifest: Manifest, kind: Kind, name: str) -> Iterator[Problem]:
    """What must hold between selection, edit and calibration, whatever the checkpoint."""
    edit = manifest.edit
    if kind == "output" and edit is None:
        yield Problem(name, None, "has no edit, expected one in a checkpoint")
    if kind == "run" and edit is not None:
        yield Problem(name, None, "has an edit, expected none in a RUN")
    if edit is not None:
        with np.errstate(over="ignore"):
            finite = bool(np.isfinite(np.float32(edit.factor)))
        if not finite or (edit.operation == "prune" and edit.factor != 0):
            yield Problem(name, None, f"operation {edit.operation} with factor {edit.factor}")
    corpora = manifest.calibration.keys()
    if corpora != {"math", "general", *(f"general-{i}" for i in range(2, len(corpora)))}:
        yield Problem(name, None, f"its corpora are {sorted(corpora)}, expected math, general, general-2 and so on")
    for corpus, used in manifest.calibration.items():
        for statistic, tokens in used.expert_tokens.items():
            if max(tokens, default=0) > used.tokens:
                yield Problem(name, None, f"corpus {corpus}: an expert of {statistic} saw more tokens than there are")
        if not (used.samples and used.blocks and used.tokens):
            found = f"{used.samples} samples, {used.blocks} blocks and {used.tokens} tokens"
            yield Problem(name, None, f"corpus {corpus}: {found}, expected at least one of each")
        if len(used.sample_digests) != used.samples or used.blocks > max(used.samples, 1):
            yield Problem(name, None, f"corpus {corpus}: {used.samples} samples, their digests and blocks do not fit")


def check_entry(manifest: Manifest, entry: TensorEntry, kind: Kind) -> Iterator[str]:
    """What is wrong with the numbers of one target, as sentences."""
    experts, rows, cols = matrices(entry)
    numel, selection, count = rows * cols, manifest.selection, entry.count
    tops = {corpus: values(top, entry) for corpus, top in count.top.items()}
    thresholds = {corpus: values(threshold, entry) for corpus, threshold in entry.threshold.items()}
    if tops.keys() != thresholds.keys():
        yield "top and threshold name different corpora"
        return
    if (count.changed is None) == (kind == "output"):
        yield f"changed is {count.changed}, which a {'checkpoint' if kind == 'output' else 'RUN'} does not have"
    masked = values(count.masked, entry)
    alone = starved(manifest, entry)
    changed = [0] * experts if count.changed is None else values(count.changed, entry)
    for i in range(experts):
        if not changed[i] <= masked[i] <= numel:
            yield f"{changed[i]} changed of {masked[i]} masked of {numel} elements"
        for corpus, top in tops.items():
            if top[i] > entry.k and not selection.parents:
                yield f"top of {corpus} has {top[i]}, more than k = {entry.k}"
            threshold = thresholds[corpus][i]
            if (threshold is None) != (top[i] == 0) or (threshold is not None and not 0 < threshold < math.inf):
                yield f"threshold of {corpus} is {threshold} with {top[i]} in its top"
        if alone[i] and (masked[i] or any(top[i] for top in tops.values())):
            least = selection.min_expert_tokens
            yield f"{masked[i]} masked in an expert that saw fewer than {least} tokens of a corpus"
        elif not selection.parents:
            yield from _bounds(selection.control, masked[i], {corpus: top[i] for corpus, top in tops.items()})
    if not selection.parents:
        if tops.keys() != manifest.calibration.keys():
            yield f"top names {sorted(tops)}, the corpora are {sorted(manifest.calibration)}"
        if entry.k != int(selection.proportion * numel):
            yield f"k is {entry.k}, expected {int(selection.proportion * numel)}"


def _bounds(control: str | None, masked: int, top: Mapping[str, int]) -> Iterator[str]:
    general = sum(number for corpus, number in top.items() if corpus != "math")
    limit = general if control == "mirror" else top.get("math", 0)
    if masked > limit or (control == "wanda" and masked != limit):
        yield f"{masked} masked, the tops allow {limit}"


def check_output(manifest: Manifest, kind: Kind) -> Iterator[Problem]:
    """The list of files: complete, and all but edited shards and the card as in the source."""
    output, source, prefix = manifest.output, manifest.source.files, prefix_of(kind)
    own = {prefix + MASKS, prefix + STATISTICS}
    for need in sorted(own):
        optional = kind == "run" and need == prefix + MASKS
        if need not in output and not (optional or (need == prefix + STATISTICS and manifest.selection.parents)):
            yield Problem(need, None, "is not in the manifest's output")
    if kind == "run":
        for name in sorted(output.keys() - own):
            yield Problem(printable(name), None, "is in the manifest's output, which a RUN does not have")
        return
    for name in sorted(output.keys() - source.keys() - own - {CARD}):
        yield Problem(printable(name), None, "is in the manifest's output, but not in its source")
    if "config.json" not in output:
        yield Problem("config.json", None, "is not in the manifest's output; a checkpoint has one")
    if CARD not in output:
        yield Problem(CARD, None, "is not in the manifest's output; a checkpoint has a card")
    edited = {entry.file for entry in manifest.tensors.values()}
    for name, entry in source.items():
        if name not in output:
            yield Problem(printable(name), None, "is in the source, but not in the output")
        elif name != CARD and output[name] != entry and (name not in edited or output[name].size != entry.size):
            yield Problem(printable(name), None, "differs from the source, and no target is in it")


def check_names(manifest: Manifest, tensors: Mapping[str, tuple[str, TensorInfo]], name: str) -> Iterator[Problem]:
    """Targets and skipped tensors against the headers: all of them there, each float matrix in exactly one."""
    for target, entry in manifest.tensors.items():
        file, info = tensors.get(target, (None, None))
        if info is None:
            yield Problem(name, target, "is a target, but not in the checkpoint")
        elif (file, info.dtype, list(info.shape)) != (entry.file, entry.dtype, entry.shape):
            found = f"{info.dtype} {list(info.shape)} in {file}"
            yield Problem(name, target, f"is {found}, the manifest says {entry.dtype} {entry.shape} in {entry.file}")
    skipped = Counter(skipped for names in manifest.skipped.values() for skipped in names)
    for other, number in skipped.items():
        if number > 1 or other in manifest.tensors:
            yield Problem(name, other, "is named more than once among targets and skipped")
        if other not in tensors or not _is_matrix(tensors[other][1]):
            yield Problem(name, other, "is in skipped, but is no float tensor of two or more dimensions")
    for other, (_, info) in tensors.items():
        if _is_matrix(info) and other not in manifest.tensors and other not in skipped:
            yield Problem(name, other, "is a float tensor of two or more dimensions, neither target nor in skipped")


def _is_matrix(info: TensorInfo) -> bool:
    return len(info.shape) >= 2 and info.dtype.startswith(("F64", "F32", "F16", "BF16", "F8"))


def named_pairs(names: Sequence[str], suffixes: Sequence[str]) -> set[str]:
    """Every name with every suffix."""
    return {name + suffix for name in names for suffix in suffixes}
