"""An output folder from begin to end: what may be replaced, the journal of unfinished work, and what is removed.

A folder is complete when its *marker* exists: `config.json` of an OUT, `manifest.json` of a RUN. The journal and the work
files lie under `.cache/mathneuro-export`, which neither a server nor `verify` looks at, and go when the marker is there.
"""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathneuro_export.checkpoint.durable import fsync_folder, is_temporary, make_folder
from mathneuro_export.checkpoint.journal import Journal, read_fingerprint
from mathneuro_export.checkpoint.output import check_output, files_below
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.manifest import read_document

WORK = ".cache/mathneuro-export"
EXEMPT = (".git/", ".cache/")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an output's own files lie below its folder."""

    marker: str
    prefix: str

    @property
    def manifest(self) -> str:
        return self.prefix + "manifest.json"

    @property
    def masks(self) -> str:
        return self.prefix + "masks.safetensors"

    @property
    def statistics(self) -> str:
        return self.prefix + "statistics.safetensors"


RUN = Layout(marker="manifest.json", prefix="")
OUT = Layout(marker="config.json", prefix="mathneuro/")


def is_exempt(name: str) -> bool:
    """Whether a file below an output folder is nobody's business: `.gitattributes`, `.git/`, `.cache/`."""
    return name == ".gitattributes" or name.startswith(EXEMPT)


def begin(
    folder: Path,
    layout: Layout,
    fingerprint: dict[str, Any],
    planned: Iterable[str],
    *,
    source: Path,
    before: Callable[[int], None],
    resume: bool,
    overwrite: bool,
) -> Journal:
    """The journal to work with; what stood in the way and may go is gone.

    Args:
        planned: the files this work will write, POSIX names below the folder.
        before: called with the bytes that will be freed, before anything is written or removed; may refuse.

    Raises:
        UsageError: the folder is the source's, holds other files, is complete and `overwrite` is not set, or holds
            unfinished work of another fingerprint.
    """
    check_output(folder, source)
    path = folder / WORK / "journal.jsonl"
    if path.is_file():
        same = read_fingerprint(path) == fingerprint
        if resume and (same or not overwrite):
            journal = Journal.open(path, fingerprint, resume=True)
            _clear(folder, layout, journal)
            return journal
        listed = _journaled(path)
    elif (folder / layout.manifest).is_file():
        if not overwrite:
            raise UsageError(f"{folder}: holds a finished output; give --overwrite to replace it, or another -o")
        listed = []
    elif folder.is_dir() and any(not is_exempt(name) for name in files_below(folder)):
        raise UsageError(f"{folder}: not empty, and nothing in it says that this tool wrote it; give another -o")
    else:
        listed = []
    old = _removable(folder, layout, listed)
    before(sum((folder / name).lstat().st_size for name in old))
    make_folder(path.parent)
    journal = Journal.open(path, fingerprint, resume=False)
    journal.record("files", {"planned": sorted(planned), "clear": old})
    _clear(folder, layout, journal)
    return journal


def is_finished(folder: Path, layout: Layout, journal: Journal) -> bool:
    """Whether only the removal of the work files is left to do."""
    return journal.get("finishing") is not None and (folder / layout.marker).is_file()


def finish(folder: Path, journal: Journal) -> None:
    """Remove the journal and the work files."""
    journal.close()
    shutil.rmtree(folder / WORK)
    cache = folder / ".cache"
    if not any(cache.iterdir()):
        cache.rmdir()
    fsync_folder(folder)


def abandon(folder: Path, journal: Journal, *, keep_folder: bool) -> None:
    """Remove everything this work wrote, and the folder too unless it is to be kept or holds something else."""
    record = journal.get("files") or {"planned": []}
    _remove(folder, record["planned"])
    finish(folder, journal)
    if not keep_folder and not any(folder.iterdir()):
        folder.rmdir()


def _journaled(path: Path) -> list[str]:
    fingerprint = read_fingerprint(path)
    journal = Journal.open(path, fingerprint, resume=True)
    record = journal.get("files") or {}
    journal.close()
    return [*record.get("planned", []), *record.get("clear", [])]


def _removable(folder: Path, layout: Layout, journaled: list[str]) -> list[str]:
    """The files in the way, all of them known; refuses if one is not."""
    known = set(journaled)
    if (folder / layout.manifest).is_file():
        try:
            known |= {layout.manifest, *map(str, read_document(folder / layout.manifest).get("output", {}))}
        except Error as error:
            raise UsageError(f"{folder}: --overwrite cannot tell what to replace ({error}); give another -o") from None
    present = [name for name in files_below(folder) if not is_exempt(name)] if folder.is_dir() else []
    other = [name for name in present if name not in known and not is_temporary(name.rpartition("/")[2])]
    if other:
        raise UsageError(
            f"{folder}: {other[0]} is in the way and not this tool's ({len(other)} such files); move it or give another -o"
        )
    return present


def _clear(folder: Path, layout: Layout, journal: Journal) -> None:
    if journal.get("cleared") is None:
        old = (journal.get("files") or {}).get("clear", [])
        _remove(folder, sorted(old, key=lambda name: name != layout.marker))
        journal.record("cleared", {})


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Unlink in order, durably after the first; then drop folders that became empty."""
    for number, name in enumerate(names):
        (folder / name).unlink(missing_ok=True)
        if number == 0:
            fsync_folder(folder)
    for below in sorted((p for p in folder.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
        if not str(below.relative_to(folder).as_posix() + "/").startswith(EXEMPT) and not any(below.iterdir()):
            below.rmdir()
