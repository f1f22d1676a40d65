"""`verify`: prove by reading that a RUN or an OUT is what its manifest says, and what it was made of.

It shares with the selection and the edit nothing but the parsers of headers and of JSON. Memory: about twice the
largest tensor and some 100 MB.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mathneuro_export.checkpoint.header import Header, TensorInfo, read_header
from mathneuro_export.checkpoint.hub import local_folder, local_run
from mathneuro_export.errors import Error

from . import verify_carried, verify_files, verify_manifest, verify_selection, verify_shards, verify_targets
from .manifest import FileEntry, Manifest, parse, read_document
from .verify_manifest import MASKS, STATISTICS, Kind, matrices, prefix_of
from .verify_numbers import read_csr
from .verify_report import Problem, Progress, Report, guarded, printable

__all__ = ["Problem", "Progress", "Report", "locate", "verify"]

_ONLY_INTEGRITY = "Without a base only integrity was checked; give the base to prove the edit and the masks."
_PARENTS = "The masks came from another run: digests, formula and counts were proved, the masks were not made again."
_RANDOM = "The masks are a random control: their sizes were proved, not which weights were drawn."
_NO_MASKS = "The RUN holds no masks; whoever uses it selects them again from its statistics, with the base."


@dataclass(slots=True)
class _Work:
    """What the stages hand on: `problems` and `elements` grow, the rest is fixed."""

    folder: Path
    kind: Kind
    manifest: Manifest
    progress: Progress | None
    problems: list[Problem]
    elements: int = 0

    def take(self, found: Iterator[Problem], file: str | None, tensor: str | None = None) -> bool:
        """Add the problems of one check; whether there were none."""
        before = len(self.problems)
        self.problems.extend(guarded(found, file, tensor))
        return len(self.problems) == before

    def own(self, name: str) -> str:
        """A file of the tool's own, relative to the folder."""
        return prefix_of(self.kind) + name

    def there(self, name: str) -> bool:
        return self.own(name) in self.manifest.output


def locate(folder: Path) -> tuple[Kind, str]:
    """Whether a folder is a RUN or an OUT, and the name of its manifest.

    Raises:
        Error: it is no folder, or holds neither.
    """
    if not folder.is_dir():
        raise Error(f"{folder.name}: no such folder, expected a RUN or an OUT; name one that holds a manifest")
    if os.path.lexists(folder / "mathneuro" / "manifest.json"):
        return "output", "mathneuro/manifest.json"
    if os.path.lexists(folder / "manifest.json"):
        return "run", "manifest.json"
    raise Error(
        f"{folder.name}: holds neither manifest.json (a RUN) nor mathneuro/manifest.json (an OUT); name a folder"
        " that `identify`, `scale`, `prune` or `apply` finished"
    )


def verify(folder: str | Path, base: str | Path | None = None, progress: Progress | None = None) -> Report:
    """Check a RUN or an OUT against its manifest and, where a base is given, against the base.

    Damage of whatever kind is a problem in the report, never an exception.

    Args:
        folder: the RUN or OUT, a folder or a repository on the Hub.
        base: the checkpoint it was made from, likewise.
        progress: called with the stage, the bytes done and the bytes of the stage.

    Raises:
        Error: `folder` is neither a RUN nor an OUT, or `base` is no folder.
    """
    folder = local_run(folder, whole=True).folder
    base = None if base is None else local_folder(base).folder
    kind, name = locate(folder)
    if base is not None and not base.is_dir():
        raise Error(f"{base.name}: no such folder, expected the base as a checkpoint; name its folder")
    found, problems = verify_files.scan(folder)
    if name not in found:
        return _report([*problems, Problem(name, None, "is no regular file, nothing could be checked")], 0, 0, [])
    try:
        document = read_document(folder / name)
        manifest = parse(document, name)
    except (Error, ArithmeticError, LookupError, OSError, RecursionError, ValueError) as error:
        return _report([*problems, Problem(name, None, str(error))], 1, 0, [])
    work = _Work(folder, kind, manifest, progress, problems)
    work.take(verify_manifest.check_form(folder / name, document, name), name)
    work.take(verify_files.check_listed(folder, manifest.output, found, name), None)
    readable = {file: entry for file, entry in manifest.output.items() if file in found}
    work.take(verify_files.check_hashes(folder, readable, "hash", progress), None)
    _check_manifest(work, name)
    _check_own_files(work, found, name)
    if base is not None:
        _check_base(work, base, name, found)
    elif kind == "output":
        _take_names(work, folder, manifest.output, name)
    return _report(work.problems, len(readable) + 1, work.elements, _notes(work, base is not None))


def _report(problems: list[Problem], files: int, elements: int, notes: list[str]) -> Report:
    return Report(not problems, files, elements, tuple(problems), tuple(notes))


def _notes(work: _Work, based: bool) -> list[str]:
    notes = [] if based else [_ONLY_INTEGRITY]
    if work.manifest.selection.parents:
        notes.append(_PARENTS)
    elif work.manifest.selection.control == "random" and based:
        notes.append(_RANDOM)
    if not work.there(MASKS):
        notes.append(_NO_MASKS)
    return notes


def _check_manifest(work: _Work, name: str) -> None:
    manifest, kind = work.manifest, work.kind
    work.take(verify_manifest.check_numbers(manifest, kind, name), name)
    work.take(verify_manifest.check_output(manifest, kind), name)
    if kind == "output":
        work.take(verify_carried.check_left_out(work.folder, manifest.left_out), name)
    work.take(verify_targets.check_kinds(manifest, name), name)
    for target, entry in manifest.tensors.items():
        sentences = verify_manifest.check_entry(manifest, entry, kind)
        work.take((Problem(name, target, sentence) for sentence in sentences), name, target)


def _check_own_files(work: _Work, found: list[str], manifest_name: str) -> None:
    for file, check in ((MASKS, verify_selection.check_masks), (STATISTICS, verify_selection.check_statistics)):
        name = work.own(file)
        header = _header(work, work.folder / name, name) if name in found and work.there(file) else None
        if header is None or not work.take(check(work.manifest, header, name), name):
            continue
        if file == STATISTICS and not work.manifest.selection.parents:
            work.take(verify_targets.check_selection(work.manifest, header, manifest_name), manifest_name)


def _header(work: _Work, path: Path, name: str) -> Header | None:
    headers: list[Header] = []

    def read() -> Iterator[Problem]:
        headers.append(read_header(path))
        yield from ()

    work.take(read(), name)
    return headers[0] if headers else None


def _take_names(work: _Work, folder: Path, names: dict[str, FileEntry], manifest_name: str) -> dict[str, Header]:
    """The headers of a checkpoint's shards; its tensors are checked against the manifest's names."""
    shards: dict[str, Header] = {}

    def read() -> Iterator[Problem]:
        for shard in verify_shards.shard_names(folder, names):
            header = _header(work, folder / shard, shard)
            if header:
                shards[shard] = header
        yield from verify_manifest.check_names(work.manifest, _tensors(shards), manifest_name)

    work.take(read(), manifest_name)
    return shards


def _tensors(shards: dict[str, Header]) -> dict[str, tuple[str, TensorInfo]]:
    return {info.name: (shard, info) for shard, header in shards.items() for info in header.tensors}


def _check_base(work: _Work, base: Path, name: str, found: list[str]) -> None:
    source = work.manifest.source.files
    mismatch: list[Problem] = []
    for problem in guarded(verify_files.check_hashes(base, source, "base", work.progress), None):
        mismatch.append(
            Problem(problem.file, None, f"in the base: {problem.message}; is this the base it was made of?")
        )
    work.problems.extend(mismatch)
    if work.kind == "output":
        work.take(verify_carried.check_base_names(base, work.manifest), None)
    other = {problem.file for problem in mismatch}
    shards = {
        shard: header
        for shard, header in _take_names(work, base, source, name).items()
        if printable(shard) not in other
    }
    masks = _header(work, work.folder / work.own(MASKS), work.own(MASKS)) if work.own(MASKS) in found else None
    if work.kind == "output":
        _compare(work, shards, masks, found)
    if not work.manifest.selection.parents:
        _prove(work, shards, masks, found)


def _compare(work: _Work, shards: dict[str, Header], masks: Header | None, found: list[str]) -> None:
    total = sum(header.file_size for header in shards.values())
    done = 0
    for shard, base in shards.items():
        path = work.folder / shard
        if shard in found and work.take(verify_shards.check_header(base, path, shard), shard):
            written = Header(path, base.raw, base.metadata, base.tensors, base.file_size)
            for info in base.tensors:
                work.take(_compare_tensor(work, base, written, info, masks, shard), shard, info.name)
                work.elements += info.numel
                done += info.nbytes
                if work.progress:
                    work.progress("compare", done, total)


def _compare_tensor(
    work: _Work, base: Header, written: Header, info: TensorInfo, masks: Header | None, shard: str
) -> Iterator[Problem]:
    entry, edit = work.manifest.tensors.get(info.name), work.manifest.edit
    if entry is None or edit is None:
        yield from verify_shards.check_untouched(base, written, info, shard)
    elif masks is None or list(info.shape) != entry.shape or info.dtype != entry.dtype:
        yield Problem(shard, info.name, "cannot be compared: its mask or its manifest entry does not fit")
    else:
        experts, rows, cols = matrices(entry)
        mask = read_csr(masks, verify_selection.by_name(masks), info.name, experts * rows, cols)
        yield from verify_shards.check_edited(base, written, info, entry, mask, edit.factor, shard)


def _prove(work: _Work, shards: dict[str, Header], masks: Header | None, found: list[str]) -> None:
    name, file = work.own(STATISTICS), work.own(MASKS)
    statistics = _header(work, work.folder / name, name) if name in found else None
    if statistics is None:
        return
    tensors = _tensors(shards)
    wanted = [target for target in work.manifest.tensors if target in tensors]
    total = sum(tensors[target][1].nbytes for target in wanted)
    done = 0
    for target in wanted:
        shard, info = tensors[target]
        work.take(_prove_tensor(work, target, (shards[shard], info), statistics, masks), file, target)
        work.elements += info.numel if work.kind == "run" else 0
        done += info.nbytes
        if work.progress:
            work.progress("select", done, total)


def _prove_tensor(
    work: _Work, target: str, base: tuple[Header, TensorInfo], statistics: Header, masks: Header | None
) -> Iterator[Problem]:
    entry, info, file = work.manifest.tensors[target], base[1], work.own(MASKS)
    if list(info.shape) != entry.shape or info.dtype != entry.dtype:
        return
    experts, rows, cols = matrices(entry)
    stored = None
    if masks is not None and f"{target}.crow_indices" in verify_selection.by_name(masks):
        stored = read_csr(masks, verify_selection.by_name(masks), target, experts * rows, cols)
    yield from verify_selection.prove_target(work.manifest, target, base, statistics, stored, file)
