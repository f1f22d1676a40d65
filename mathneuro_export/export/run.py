"""A RUN (or an OUT, which serves wherever a RUN is asked for) as it lies on disk; no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathneuro_export.errors import Error
from mathneuro_export.export.manifest import Manifest, digest_of, parse, read_document
from mathneuro_export.export.work import OUT, RUN


@dataclass(frozen=True, slots=True)
class Run:
    """`document` is the manifest as written, `manifest` its typed form; `masks` is None where there is no such file."""

    folder: Path
    document: dict[str, Any]
    manifest: Manifest
    statistics: Path
    masks: Path | None

    @property
    def corpora(self) -> tuple[str, ...]:
        """`math` first, then the general corpora in the order given."""
        return tuple(sorted(self.manifest.calibration, key=corpus_order))


def corpus_order(name: str) -> int:
    """Sort key: math, general, general-2, ..."""
    return 0 if name == "math" else 1 if name == "general" else int(name.rpartition("-")[2])


def open_run(path: str | Path) -> Run:
    """The RUN in a folder, or the one an OUT carries.

    Raises:
        Error: no manifest, a manifest that is damaged or differs from its own digest, or no statistics file.
    """
    folder = Path(path)
    layout = next((lay for lay in (OUT, RUN) if (folder / lay.manifest).is_file()), None)
    if layout is None:
        raise Error(f"{path}: no manifest.json in it; a RUN is what `identify -o RUN` writes")
    document = read_document(folder / layout.manifest)
    manifest = parse(document, f"{path}: manifest.json")
    if digest_of(document) != manifest.digest:
        raise Error(
            f"{path}: manifest.json differs from its own digest, so it was edited by hand or damaged; make the RUN anew"
        )
    statistics, masks = folder / layout.statistics, folder / layout.masks
    if not statistics.is_file():
        raise Error(f"{path}: {layout.statistics} is missing; fetch the whole RUN or make it anew")
    return Run(folder, document, manifest, statistics, masks if masks.is_file() else None)
