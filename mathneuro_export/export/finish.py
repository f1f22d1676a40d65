"""The last files of an output: carried files, model card, manifest, and the marker that makes it complete."""

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import mathneuro_export
from mathneuro_export.checkpoint.carry import README, README_LIMIT, check_file, open_file
from mathneuro_export.checkpoint.durable import Digest, copy_file, fsync_folder, write_bytes
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.rewrite import digest_file
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.export.card import build_card
from mathneuro_export.export.manifest import seal
from mathneuro_export.export.work import OUT, RUN, WORK, Layout


@dataclass(frozen=True, slots=True)
class Facts:
    """What the manifest says beside the files: its sections as JSON values."""

    calibration: dict[str, Any]
    selection: dict[str, Any]
    edit: dict[str, Any] | None
    skipped: Mapping[str, Sequence[str]]
    warnings: Sequence[dict[str, Any]]
    environment: dict[str, Any]
    tokenizer: str | None


def environment(**extra: Any) -> dict[str, Any]:
    """Versions of what can change a result, and what the caller adds (device, dtype, threads, kernels)."""
    versions = {name: metadata.version(name) for name in ("numpy", "safetensors", "torch", "transformers")}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **versions,
        **extra,
    }


def tool() -> dict[str, str]:
    return {"name": "mathneuro-export", "version": mathneuro_export.__version__}


def write_run(
    folder: Path,
    source: Source,
    facts: Facts,
    records: Sequence[dict[str, Any]],
    files: Mapping[str, Digest],
    journal: Journal,
) -> dict[str, Any]:
    """Write the manifest of a RUN, its marker; returns the document."""
    source_files = {name: entry(digest_file(check_file(source.folder, name))) for name in unhashed(source)}
    document = _document(
        source, facts, records, source_files, {name: entry(d) for name, d in files.items()}, left_out=False
    )
    journal.record("finishing", {})
    write_bytes(folder / RUN.manifest, seal(document))
    return document


def write_output(
    folder: Path,
    source: Source,
    facts: Facts,
    records: Sequence[dict[str, Any]],
    files: Mapping[str, Digest],
    journal: Journal,
) -> dict[str, Any]:
    """Carry the other files of the source, write card, manifest, index and, last, config.json; returns the document.

    Index and config are copied into the work folder first and take their places when all else is there.
    """
    source_files: dict[str, dict[str, Any]] = {}
    output = {name: entry(digest) for name, digest in files.items()}
    for record in records:
        output[record["file"]] = record["written"]
    last = [name for name in (source.index, OUT.marker) if name]
    readme = None
    for name in unhashed(source):
        if name == README:
            readme = _read_readme(source.folder)
            source_files[name] = {"size": len(readme), "sha256": hashlib.sha256(readme).hexdigest()}
        else:
            target = folder / WORK / name if name in last else folder / name
            source_files[name] = output[name] = entry(
                copy_file(source.folder / name, target, open_file(source.folder, name))
            )
    document = _document(source, facts, records, source_files, {}, left_out=True)
    card, notes = build_card(source, document, readme.decode("utf-8", "replace") if readme is not None else None)
    document["warnings"] = [*document["warnings"], *notes]
    page = card.encode()
    write_bytes(folder / README, page)
    output[README] = {"size": len(page), "sha256": hashlib.sha256(page).hexdigest()}
    document["output"] = dict(sorted(output.items()))
    write_bytes(folder / OUT.manifest, seal(document))
    journal.record("finishing", {})
    for name in last:
        (folder / WORK / name).replace(folder / name)
        fsync_folder(folder)
    return document


def _read_readme(folder: Path) -> bytes:
    """The source's README.md, which `check_file` has bounded."""
    with open_file(folder, README) as file:
        data = bytearray()
        while len(data) <= README_LIMIT and (part := file.read(1 << 20)):
            data += part
    if len(data) > README_LIMIT:
        raise Error(f"{folder.name}/{README}: grew past {README_LIMIT} bytes; shorten it and run the command again")
    return bytes(data)


def unhashed(source: Source) -> list[str]:
    """Files of the source that no pass over the shards has read, sorted."""
    return sorted({*source.carried, *([source.index] if source.index else [])})


def entry(digest: Digest) -> dict[str, Any]:
    """A file's entry in the manifest."""
    return {"size": digest.size, "sha256": digest.sha256}


def _document(
    source: Source,
    facts: Facts,
    records: Sequence[dict[str, Any]],
    source_files: dict[str, dict[str, Any]],
    output: dict[str, dict[str, Any]],
    *,
    left_out: bool,
) -> dict[str, Any]:
    tensors = {name: strip(tensor) for record in records for name, tensor in record["tensors"].items()}
    shards = {record["file"]: record["source"] for record in records}
    source_section = {
        "id": source.id,
        "revision": source.revision,
        "architecture": source.architecture,
        "tokenizer": facts.tokenizer,
        "files": dict(sorted({**source_files, **shards}.items())),
        "parent": source.parent,
    }
    edit = {} if facts.edit is None else {"edit": facts.edit}
    return {
        "schema": 1,
        "tool": tool(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": facts.environment,
        "source": source_section,
        "calibration": facts.calibration,
        "selection": facts.selection,
        **edit,
        "tensors": dict(sorted(tensors.items())),
        "skipped": {reason: sorted(names) for reason, names in sorted(facts.skipped.items())},
        "output": dict(sorted(output.items())),
        "left_out": list(source.left_out) if left_out else [],
        "warnings": list(facts.warnings),
    }


def strip(tensor: dict[str, Any]) -> dict[str, Any]:
    """A target's record without what only the work needs."""
    return {key: value for key, value in tensor.items() if key != "spool"}


def planned_files(source: Source, layout: Layout) -> Iterable[str]:
    """Every file an output will hold, POSIX names below its folder."""
    own = [layout.manifest, layout.masks, layout.statistics]
    return own if layout is RUN else [*own, *source.shards, *unhashed(source), README]
