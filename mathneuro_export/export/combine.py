"""`combine`: one RUN whose masks are made from those of several, with the statistics of the first."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import mathneuro_export
from mathneuro_export.checkpoint.durable import copy_file, make_folder, remove_temporaries, require_space, write_bytes
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.output import check_output
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.diff_input import Input, no_masks, open_any
from mathneuro_export.export.finish import entry, environment, tool
from mathneuro_export.export.manifest import read_document, seal
from mathneuro_export.export.work import RUN, WORK, begin, is_finished, working
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.maskfile import write_masks
from mathneuro_export.masks.merge import OPERATIONS, merge
from mathneuro_export.masks.spool import MaskSpool, Record
from mathneuro_export.talk import Talk


@dataclass(frozen=True, slots=True)
class Combined:
    """The RUN that was written: its folder, targets, masked weights and the manifest's warnings."""

    output: Path
    operation: str
    targets: int
    masked: int
    warnings: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "output": str(self.output),
            "manifest": str(self.output / RUN.manifest),
            "op": self.operation,
            "targets": self.targets,
            "masked": self.masked,
            "warnings": self.warnings,
        }


def combine(
    runs: Sequence[str | Path],
    output: str | Path,
    op: str = "and",
    *,
    resume: bool = True,
    overwrite: bool = False,
    talk: Talk | None = None,
) -> Combined:
    """Write a RUN of the weights in all masks (`and`), any (`or`), the first alone (`minus`) or most (`majority`).

    Everything else is the first's, statistics and selection too; `selection.parents` holds the digests of all.

    Args:
        runs: two or more RUNs, OUTs or manifests of the same targets.
        output: folder of the RUN.
        op: one of `OPERATIONS`; a majority is more than half.
        resume: go on with unfinished work of the same command.
        overwrite: replace what an earlier command wrote.
        talk: what is said on stderr; nothing by default.

    Raises:
        UsageError: fewer than two runs, an unknown operation, or a folder that may not be used.
        ResourceError: not enough disk.
        Error: a bad run, or runs of other targets or shapes.
    """
    if op not in OPERATIONS:
        raise UsageError(f"--op {op}: expected one of {', '.join(OPERATIONS)}")
    if len(runs) < 2:
        raise UsageError(f"combine: {len(runs)} inputs, expected at least two RUNs")
    inputs = [open_any(spec) for spec in runs]
    _check(inputs)
    folder = Path(output)
    for item in inputs[1:]:
        check_output(folder, item.folder)
    journal = begin(
        folder,
        RUN,
        _fingerprint(inputs, op),
        (RUN.manifest, RUN.masks, RUN.statistics),
        source=inputs[0].folder,
        before=lambda freed: require_space(folder, _bytes(inputs) - freed),
        resume=resume,
        overwrite=overwrite,
    )
    with working(folder, journal):
        if not is_finished(folder, RUN, journal):
            remove_temporaries(folder)
            _write(inputs, folder, op, journal, talk or Talk())
    document = read_document(folder / RUN.manifest)
    return Combined(folder, op, len(document["tensors"]), _masked(document), document["warnings"])


def _check(inputs: Sequence[Input]) -> None:
    first = inputs[0]
    for item in inputs:
        if item.masks is None:
            raise no_masks(item)
        differ = first.tensors.keys() ^ item.tensors.keys()
        if differ:
            raise Error(
                f"{item.spec}: {quote(min(differ))} is a target of only one of it and {first.spec} ({len(differ)} such"
                " names); combine runs of the same targets"
            )
        for name, found in item.tensors.items():
            if found.shape != first.tensors[name].shape:
                raise Error(
                    f"{item.spec}: {quote(name)} is {found.shape}, but {first.tensors[name].shape} in {first.spec};"
                    " combine runs of the same shapes"
                )
    if first.statistics is None:
        raise Error(f"{first.spec}: {RUN.statistics} is missing, and the new RUN takes it over; fetch the whole RUN")


def _fingerprint(inputs: Sequence[Input], op: str) -> dict[str, Any]:
    return {
        "command": "combine",
        "version": mathneuro_export.__version__,
        "--op": op,
        "RUN": [item.manifest.digest for item in inputs],
    }


def _bytes(inputs: Sequence[Input]) -> int:
    """At most: the masks twice (put aside, then written), the statistics, the manifest."""
    masks = sum(item.masks.path.stat().st_size for item in inputs if item.masks)
    statistics = inputs[0].statistics.stat().st_size if inputs[0].statistics else 0
    return 2 * masks + statistics + 2 * len(json.dumps(inputs[0].document))


def _write(inputs: Sequence[Input], folder: Path, op: str, journal: Journal, talk: Talk) -> None:
    first = inputs[0]
    assert first.statistics is not None
    statistics = copy_file(first.statistics, folder / RUN.statistics)
    _check_copy(first, statistics.size, statistics.sha256)
    make_folder(folder / WORK)
    spool = MaskSpool(folder / WORK, "combine")
    spool.remove()
    tensors: dict[str, dict[str, Any]] = {}
    records: list[Record] = []
    with talk.bar("combine", len(first.tensors), " tensors") as advance:
        for name in sorted(first.tensors):
            mask = merge([item.mask(name) for item in inputs], op)
            records.append(spool.add(name, mask))
            tensors[name] = _entry(first.document["tensors"][name], mask)
            advance(1)
    masks = write_masks(
        folder / RUN.masks,
        [(r["name"], r["rows"], r["cols"], r["nnz"], partial(spool.read, r)) for r in records],
    )
    files = {RUN.masks: entry(masks), RUN.statistics: entry(statistics)}
    journal.record("finishing", {})
    write_bytes(folder / RUN.manifest, seal(_document(inputs, op, tensors, files)))


def _check_copy(item: Input, size: int, sha256: str) -> None:
    for name, listed in item.manifest.output.items():
        if name.rpartition("/")[2] == RUN.statistics and (listed.size, listed.sha256) != (size, sha256):
            raise Error(f"{item.spec}: {name} differs from its manifest; run `mathneuro-export verify` on it")


def _entry(tensor: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """The first run's entry with the new mask; no top was taken, so there is no `k`, threshold or size of one."""
    shape = tensor["shape"]
    masked: int | list[int] = mask.nnz
    if len(shape) == 3:
        masked = [int(mask.crow[(e + 1) * shape[1]] - mask.crow[e * shape[1]]) for e in range(shape[0])]
    return {**tensor, "k": 0, "threshold": {}, "count": {"top": {}, "masked": masked}, "mask": mask.digest}


def _document(
    inputs: Sequence[Input], op: str, tensors: dict[str, dict[str, Any]], files: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    first = inputs[0].document
    parents = [item.manifest.digest for item in inputs]
    return {
        "schema": 1,
        "tool": tool(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": environment(),
        "source": first["source"],
        "calibration": first["calibration"],
        "selection": {**first["selection"], "parents": parents},
        "tensors": dict(sorted(tensors.items())),
        "skipped": first["skipped"],
        "output": dict(sorted(files.items())),
        "left_out": [],
        "warnings": list(_warnings(inputs, op, tensors)),
    }


def _warnings(inputs: Sequence[Input], op: str, tensors: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {
        "code": "combined",
        "message": f"masks of {len(inputs)} runs combined by {op}; statistics and selection are the first's",
        "op": op,
        "parents": [
            {
                "digest": item.manifest.digest,
                "source": item.manifest.source.id,
                "revision": item.manifest.source.revision,
                "proportion": item.manifest.selection.proportion,
                "control": item.manifest.selection.control,
                "seed": item.manifest.selection.seed,
            }
            for item in inputs
        ],
    }
    empty = sorted(name for name, tensor in tensors.items() if _count(tensor) == 0)
    if empty:
        message = f"{len(empty)} of {len(tensors)} targets have an empty mask"
        yield {"code": "empty-mask", "message": message, "count": len(empty), "tensors": empty}


def _count(tensor: dict[str, Any]) -> int:
    masked = tensor["count"]["masked"]
    return sum(masked) if isinstance(masked, list) else int(masked)


def _masked(document: dict[str, Any]) -> int:
    return sum(_count(tensor) for tensor in document["tensors"].values())
