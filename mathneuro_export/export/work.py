"""An output folder from begin to end: what may be replaced, the journal of unfinished work, and what is removed.

A folder is complete when its *marker* exists: `config.json` of an OUT, `manifest.json` of a RUN. The journal and the
work files lie under `.cache/mathneuro-export`, which neither a server nor `verify` looks at, and go when it is there.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathneuro_export.checkpoint.durable import fsync_folder, is_temporary, make_folder
from mathneuro_export.checkpoint.index import INDEX
from mathneuro_export.checkpoint.journal import Journal, read_journal
from mathneuro_export.checkpoint.output import check_output, files_below, require_folders
from mathneuro_export.checkpoint.regular import is_plain, quote
from mathneuro_export.errors import Error, ResourceError, UsageError
from mathneuro_export.export.manifest import read_document
from mathneuro_export.export.records import check_records

WORK = ".cache/mathneuro-export"
EXEMPT = (".git/", ".cache/")
_JOURNAL = "journal.jsonl"
_STAGED = frozenset({"config.json", INDEX})
_WORKED = re.compile(r"[a-z0-9-]+\.spool|(hidden|other)-[0-9]+-[0-9]+(\.part)?|statistics-[0-9]+")


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
            unfinished work of another fingerprint; or its work folder is a link or holds what is not this tool's.
        ResourceError: the disk is full.
        Error: the journal of unfinished work is damaged and neither `overwrite` nor `resume` false is given.
    """
    check_output(folder, source)
    _check_work(folder)
    path = folder / WORK / _JOURNAL
    names = sorted(planned, key=lambda name: (name != layout.marker, name))
    known: list[str] = []
    existed = folder.is_dir()
    if path.is_file() and path.stat().st_size:
        found, records = _journaled(path, anew=overwrite or not resume)
        files = records.get("files", {"planned": names, "clear": names, "existed": existed})
        known, existed = [*files["planned"], *files["clear"]], files["existed"]
        if resume and (found == fingerprint or not overwrite):
            _refuse_links(folder, _present(folder, layout, known))
            journal = Journal.open(path, fingerprint, resume=True, records={"files": files})
            with _closed_on_error(journal):
                _clear(folder, layout, journal)
            return journal
    elif is_plain(folder / layout.manifest):
        if not overwrite:
            raise UsageError(f"{folder}: holds a finished output; give --overwrite to replace it, or another -o")
    elif existed and any(not is_exempt(name) for name in files_below(folder)):
        raise UsageError(f"{folder}: not empty, and nothing in it says that this tool wrote it; give another -o")
    old = _present(folder, layout, known)
    before(sum((folder / name).lstat().st_size for name in old))
    record = {"planned": names, "clear": old, "existed": existed}
    try:
        make_folder(path.parent)
        journal = Journal.open(path, fingerprint, resume=False, records={"files": record})
    except BaseException:
        _drop_work(folder, existed)
        raise
    with _closed_on_error(journal):
        _empty_work(folder)
        _clear(folder, layout, journal)
    return journal


@contextmanager
def working(folder: Path, journal: Journal) -> Iterator[None]:
    """Work on an output: at the end its journal goes; an error that another try cannot mend removes all it wrote.

    What another try can mend (a full disk, an interruption, the system's refusal to read or write) leaves the journal.
    """
    with _closed_on_error(journal):
        try:
            yield
        except ResourceError:
            raise
        except Error as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno):
                abandon(folder, journal)
            raise
        finish(folder, journal)


def is_finished(folder: Path, layout: Layout, journal: Journal) -> bool:
    """Whether only the removal of the work files is left to do."""
    return journal.get("finishing") is not None and (folder / layout.marker).is_file()


def finish(folder: Path, journal: Journal) -> None:
    """Remove the work files and, last of them, the journal."""
    _empty_work(folder)
    journal.close()
    (folder / WORK / _JOURNAL).unlink(missing_ok=True)
    _drop_work(folder, existed=True)
    fsync_folder(folder)


def abandon(folder: Path, journal: Journal) -> None:
    """Remove everything this work wrote, and the folder too if the work made it and nothing else is in it."""
    files = journal.get("files")
    _remove(folder, files["planned"])
    finish(folder, journal)
    if not files["existed"]:
        with suppress(OSError):
            folder.rmdir()


def _journaled(path: Path, anew: bool) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Fingerprint and records of a journal; of a damaged one, where work begins anew, the records before the damage."""
    try:
        found, records = read_journal(path)
        where = f"{path.parent.name}/{path.name}"
        if found is not None and "files" not in records:
            raise Error(f"{where}: does not say which files it is about; start with --overwrite")
        check_records(records, where)
        return found, records
    except Error:
        if not anew:
            raise
        return None, _salvaged(path)


def _salvaged(path: Path) -> dict[str, Any]:
    """What a damaged journal still tells of the files it is about."""
    try:
        records = read_journal(path, salvage=True)[1]
        files = {key: value for key, value in records.items() if key == "files"}
        check_records(files, path.name)
        return files
    except Error:
        return {}


@contextmanager
def _closed_on_error(journal: Journal) -> Iterator[None]:
    try:
        yield
    except BaseException:
        journal.close()
        raise


def _present(folder: Path, layout: Layout, journaled: list[str]) -> list[str]:
    """The files in the folder, all of them this tool's; refuses if one is not."""
    known = set(journaled)
    if is_plain(folder / layout.manifest):
        known.add(layout.manifest)
        try:
            known |= _listed(folder / layout.manifest)
        except Error as error:
            if not journaled:
                raise UsageError(f"{folder}: cannot tell what to replace ({error}); give another -o") from None
    present = [name for name in files_below(folder) if not is_exempt(name)] if folder.is_dir() else []
    other = [name for name in present if name not in known and not is_temporary(name.rpartition("/")[2])]
    if other:
        count = f"{len(other)} such file{'s' if len(other) != 1 else ''}"
        raise UsageError(
            f"{folder}: {other[0]} is in the way and not this tool's ({count}); move it or give another -o"
        )
    return present


def _listed(manifest: Path) -> set[str]:
    output = read_document(manifest).get("output", {})
    if not isinstance(output, dict):
        raise Error(f"{manifest.name}: output is {quote(output)}, expected an object")
    return set(output)


def _refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse to go on where a file is a link or special: this tool writes neither, and would write through it."""
    for name in names:
        if not is_plain(folder / name):
            raise UsageError(
                f"{folder}: {quote(name)} is no regular file, so this tool did not write it; remove it or give"
                " another -o"
            )


def _clear(folder: Path, layout: Layout, journal: Journal) -> None:
    if journal.get("cleared") is None:
        _remove(folder, sorted(journal.get("files")["clear"], key=lambda name: name != layout.marker))
        journal.record("cleared", {})


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Unlink in order what of it is there, durably after the first; then drop folders that became empty.

    Names come from a journal or manifest: only what a listing of the folder shows is touched.
    """
    there = set(files_below(folder))
    for number, name in enumerate(name for name in names if name in there):
        (folder / name).unlink()
        if number == 0:
            fsync_folder(folder)
    for base, _, _ in os.walk(folder, topdown=False):
        below = Path(base)
        exempt = below == folder or f"{below.relative_to(folder).as_posix()}/".startswith(EXEMPT)
        if not exempt and not any(below.iterdir()):
            below.rmdir()


def _empty_work(folder: Path) -> None:
    """Remove the work files but the journal; what else lies in the work folder stays, and no link is followed."""
    require_folders(folder, WORK)
    with os.scandir(folder / WORK) as entries:
        ours = [entry.name for entry in entries if _is_work(entry.name) and not entry.is_dir(follow_symlinks=False)]
    for name in ours:
        if name != _JOURNAL:
            (folder / WORK / name).unlink()


def _is_work(name: str) -> bool:
    """Whether this tool gives such a name in the work folder: journal, staged, spool, calibration's, temporary."""
    return name == _JOURNAL or name in _STAGED or is_temporary(name) or _WORKED.fullmatch(name) is not None


def _check_work(folder: Path) -> None:
    """Refuse a work folder that is a link, has one above it, or holds what this tool does not put there."""
    if not require_folders(folder, WORK):
        return
    with os.scandir(folder / WORK) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not _is_work(entry.name) or not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                raise UsageError(
                    f"{folder}: {quote(f'{WORK}/{entry.name}')} is in the way and not this tool's; move it or give"
                    " another -o"
                )


def _drop_work(folder: Path, existed: bool) -> None:
    """Remove the work folder and the folder above it where they are empty, and `folder` unless it existed."""
    with suppress(OSError):
        (folder / WORK).rmdir()
        (folder / WORK).parent.rmdir()
        if not existed:
            folder.rmdir()
