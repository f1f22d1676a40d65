"""`export-mask`: the masks of a run in the formats of other tools, one mask in memory at a time but for `torch`."""

import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.checkpoint.carry import OWN_FOLDER
from mathneuro_export.checkpoint.durable import Temporary, temporary, write_all
from mathneuro_export.checkpoint.regular import is_plain, quote
from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.diff_input import Input, no_masks, open_any
from mathneuro_export.export.work import OUT
from mathneuro_export.masks.mask import Mask

FORMATS = ("npz", "torch", "bool-safetensors", "trainable-json")
_CHUNK = 1 << 20
_ROWS = 8 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """The file that was written; `masked` counts the weights in the masks."""

    file: Path
    format: str
    tensors: int
    masked: int
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The result as `--json` prints it."""
        return {
            "file": str(self.file),
            "format": self.format,
            "tensors": self.tensors,
            "masked": self.masked,
            "bytes": self.bytes,
        }


def export_mask(run: str | Path, file: str | Path, format: str, *, overwrite: bool = False) -> Exported:
    """Write the masks of a run to one file.

    Formats:
        npz: `NAME.crow_indices` int64, `NAME.col_indices` uint16 or uint32, `NAME.shape` int64, for NumPy.
        torch: name -> `torch.sparse_csr` tensor of bools [rows, cols], for `torch.load(FILE, weights_only=True)`.
        bool-safetensors: a dense bool tensor of the target's shape under its name.
        trainable-json: {"source", "manifest", "tensors": {name: {"shape", "indices"}}}; flat row-major indices.

    Args:
        run: a RUN, OUT or manifest.
        file: in a folder that exists.
        format: one of `FORMATS`.
        overwrite: replace a file that is there.

    Raises:
        UsageError: an unknown format, or a file that may not be written: a link, a special file, one in the run's
            folder.
        ResourceError: the disk is full.
        Error: a bad run; for `torch`, torch is not installed.
    """
    if format not in FORMATS:
        raise UsageError(f"--format {format}: expected one of {', '.join(FORMATS)}")
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "its folder does not exist"
        raise UsageError(f"-o {quote(str(path))}: {what}, expected a file in a folder that exists; choose another name")
    if os.path.lexists(path) and not is_plain(path):
        raise UsageError(f"-o {quote(str(path))}: is a link or a special file, expected a file; choose another name")
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"-o {quote(str(path))}: is there already; give --overwrite to replace it, or another name")
    item = open_any(run)
    if item.masks is None:
        raise no_masks(item)
    own = {item.masks.path, item.folder / "statistics.safetensors", item.folder / "manifest.json"}
    if any(path.exists() and other.exists() and path.samefile(other) for other in own):
        raise UsageError(f"-o {quote(str(path))}: is the run's own file; choose another name")
    _refuse_own_folder(item, path)
    masked = _WRITERS[format](item, path)
    return Exported(path, format, len(item.tensors), masked, path.stat().st_size)


def _refuse_own_folder(item: Input, path: Path) -> None:
    """Refuse a file in the RUN or OUT that is read: `verify` would find it there."""
    folder, parent = item.folder.resolve(), path.parent.resolve()
    if folder.name == OWN_FOLDER and (folder.parent / OUT.marker).is_file():
        folder = folder.parent
    if parent.is_relative_to(folder) or any(_same(above, folder) for above in (parent, *parent.parents)):
        raise UsageError(f"-o {quote(str(path))}: lies in the run's own folder; choose another folder")


def _same(a: Path, b: Path) -> bool:
    return a.exists() and b.exists() and a.samefile(b)


def _npz(item: Input, path: Path) -> int:
    masked = 0
    with temporary(path) as work, _file(work) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, entry in sorted(item.tensors.items()):
            if "\0" in name:
                raise Error(f"{item.spec}: {quote(name)} cannot be a name in an archive; take another --format")
            mask = item.mask(name)
            masked += mask.nnz
            parts = {"crow_indices": mask.crow, "col_indices": mask.col, "shape": np.array(entry.shape, np.int64)}
            for part, array in parts.items():
                with archive.open(zipfile.ZipInfo(f"{name}.{part}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    return masked


def _torch(item: Input, path: Path) -> int:
    try:
        import torch
    except ImportError:
        raise Error("--format torch: torch is not installed; install it, or take --format npz") from None
    tensors = {}
    masked = 0
    for name in sorted(item.tensors):
        mask = item.mask(name)
        masked += mask.nnz
        index = np.int32 if max(mask.nnz, mask.cols) < 1 << 31 else np.int64
        parts = torch.from_numpy(mask.crow.astype(index)), torch.from_numpy(mask.col.astype(index))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the layout is in beta
            tensors[name] = torch.sparse_csr_tensor(
                *parts, torch.ones(mask.nnz, dtype=torch.bool), size=mask.shape, check_invariants=True
            )
    with temporary(path) as work, _file(work) as file:
        torch.save(tensors, file)
    return masked


def _bools(item: Input, path: Path) -> int:
    counts: list[int] = []

    def data(name: str) -> Iterator[np.ndarray[Any, Any]]:
        mask = item.mask(name)
        counts.append(mask.nnz)
        step = max(1, _ROWS // max(1, mask.cols))
        for row in range(0, mask.rows, step):
            end = min(mask.rows, row + step)
            held = np.zeros((end - row, mask.cols), dtype=np.uint8)
            bounds = mask.crow[row : end + 1]
            held[np.repeat(np.arange(end - row), np.diff(bounds)), mask.col[bounds[0] : bounds[-1]]] = 1
            yield held

    entries = [
        Entry(name, "BOOL", tuple(entry.shape), partial(data, name)) for name, entry in sorted(item.tensors.items())
    ]
    write_safetensors(path, entries, {"manifest": item.manifest.digest})
    return sum(counts)


def _trainable(item: Input, path: Path) -> int:
    source = item.manifest.source
    head = {"source": {"id": source.id, "revision": source.revision}, "manifest": item.manifest.digest}
    masked = 0
    with temporary(path) as work:

        def put(text: str) -> None:
            write_all(work.fd, text.encode())

        put(json.dumps(head)[:-1] + ', "tensors": {')
        for number, (name, entry) in enumerate(sorted(item.tensors.items())):
            mask = item.mask(name)
            masked += mask.nnz
            put(
                f"{', ' if number else ''}\n {json.dumps(name)}: "
                + json.dumps({"shape": entry.shape})[:-1]
                + ', "indices": ['
            )
            for start, part in _flat(mask):
                put((", " if start else "") + ", ".join(map(str, part.tolist())))
            put("]}")
        put("\n}}\n")
    return masked


def _flat(mask: Mask) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Flat indices, ascending, in parts with the number of those before."""
    for start in range(0, mask.nnz, _CHUNK):
        places = np.arange(start, min(start + _CHUNK, mask.nnz))
        rows = np.searchsorted(mask.crow, places, side="right") - 1
        yield start, rows * mask.cols + mask.col[start : start + _CHUNK]


def _file(work: Temporary) -> Any:
    return os.fdopen(os.dup(work.fd), "wb")


_WRITERS: dict[str, Callable[[Input, Path], int]] = {
    "npz": _npz,
    "torch": _torch,
    "bool-safetensors": _bools,
    "trainable-json": _trainable,
}
