"""masks.safetensors: for each target NAME the tensors NAME.crow_indices (I64) and NAME.col_indices (U16 or U32).

All crow_indices stand first, so that every tensor is aligned. The header's metadata holds `columns`, a JSON object of
each mask's number of columns, which crow and col alone do not tell.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mathneuro_export.checkpoint.durable import Digest
from mathneuro_export.checkpoint.header import Header, TensorInfo, map_tensor, read_header
from mathneuro_export.checkpoint.regular import label, quote
from mathneuro_export.checkpoint.strictjson import canonical, parse_json
from mathneuro_export.checkpoint.write import Data, Entry, write_safetensors
from mathneuro_export.errors import Error
from mathneuro_export.masks.mask import MAX_COLS, Mask, column_dtype, digest_of, rows_cols

CROW, COL = ".crow_indices", ".col_indices"
_AGAIN = "restore the file or identify again"


class MaskEntry(NamedTuple):
    """A mask to be written: its sizes, and a call that gives it (made twice, once for each of its tensors)."""

    name: str
    rows: int
    cols: int
    nnz: int
    load: Callable[[], Mask]


def write_masks(path: Path, entries: Sequence[MaskEntry | tuple[str, int, int, int, Callable[[], Mask]]]) -> Digest:
    """Write masks in the order given, durably, with one of them in memory at a time.

    Raises:
        ResourceError: the disk is full.
        Error: `path` cannot be written.
        ValueError: a mask has other sizes than its entry says, or a name stands twice.
    """
    masks = [MaskEntry(*entry) for entry in entries]
    crows = [Entry(m.name + CROW, "I64", (m.rows + 1,), _part(m, "crow")) for m in masks]
    cols = [Entry(m.name + COL, f"U{_bits(m)}", (m.nnz,), _part(m, "col")) for m in masks]
    cols.sort(key=lambda entry: entry.dtype, reverse=True)
    columns = canonical({m.name: m.cols for m in masks}).decode("utf-8")
    return write_safetensors(path, crows + cols, {"columns": columns})


def _bits(entry: MaskEntry) -> int:
    return 8 * column_dtype(entry.cols).itemsize


def _part(entry: MaskEntry, part: str) -> Callable[[], Iterator[Data]]:
    def data() -> Iterator[Data]:
        mask = entry.load()
        if (mask.shape, mask.nnz) != ((entry.rows, entry.cols), entry.nnz):
            raise ValueError(f"mask of {entry.name!r} is {mask.shape} with {mask.nnz}, not what its entry says")
        array = mask.crow if part == "crow" else mask.col
        yield array.astype(array.dtype.newbyteorder("<"), copy=False)

    return data


class MaskFile:
    """The masks in a file; only its header is held.

    Raises:
        Error: no valid safetensors file, or a tensor in it is no half of a mask, or has no other half.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._header: Header = read_header(self.path)
        self._tensors: dict[str, TensorInfo] = {info.name: info for info in self._header.tensors}
        self.names: tuple[str, ...] = self._names()
        self._columns = self._metadata()

    def _names(self) -> tuple[str, ...]:
        names = []
        for info in self._header.tensors:
            suffix = CROW if info.name.endswith(CROW) else COL
            name = info.name.removesuffix(suffix)
            dtypes = ("I64",) if suffix == CROW else ("U16", "U32")
            if name == info.name or info.dtype not in dtypes or len(info.shape) != 1:
                found = f"{info.dtype} {list(info.shape)}"
                raise self._error(info.name, f"is {found}, expected {CROW[1:]} (I64) or {COL[1:]} (U16, U32)")
            other = name + (COL if suffix == CROW else CROW)
            if other not in self._tensors:
                raise self._error(info.name, f"has no {other.removeprefix(name + '.')} beside it")
            if suffix == CROW:
                names.append(name)
        return tuple(names)

    def _metadata(self) -> dict[str, int]:
        text = (self._header.metadata or {}).get("columns", "{}")
        columns = parse_json(text.encode("utf-8"), f"{label(self.path)}: columns in the metadata")
        valid = isinstance(columns, dict) and all(type(n) is int and 0 <= n <= MAX_COLS for n in columns.values())
        if not valid:
            raise Error(f"{label(self.path)}: columns in the metadata is no object of sizes; {_AGAIN}")
        return dict(columns)

    def read(self, name: str, shape: Sequence[int] | None = None) -> Mask:
        """Read and validate one mask.

        Args:
            name: the target's.
            shape: of the target (3-D as its 2-D view); the number of columns in the metadata where None.

        Raises:
            Error: no such mask, another shape, or damaged indices.
        """
        crow, col = self._mapped(name)
        cols = self._columns.get(name) if shape is None else rows_cols(shape)[1]
        if cols is None:
            raise self._error(name, "its number of columns is not in the metadata; give the target's shape")
        rows = crow.size - 1 if shape is None else rows_cols(shape)[0]
        if rows != crow.size - 1 or self._columns.get(name, cols) != cols:
            found = f"[{crow.size - 1}, {self._columns.get(name, '?')}]"
            raise self._error(name, f"is the mask of a matrix {found}, expected [{rows}, {cols}]")
        mask = Mask(rows, cols, crow.copy(), col.copy())
        mask.check(f"{label(self.path)}: {quote(name)}")
        return mask

    def digest(self, name: str) -> str:
        """The mask's digest (see `Mask.digest`), read in slices and not validated.

        Raises:
            Error: no such mask.
        """
        return digest_of(*self._mapped(name))

    def _mapped(self, name: str) -> tuple[Any, Any]:
        if name + CROW not in self._tensors:
            raise self._error(name, f"is not among its {len(self.names)} masks; identify again")
        crow, col = (map_tensor(self._header, self._tensors[name + half]) for half in (CROW, COL))
        return crow, col

    def _error(self, name: str, problem: str) -> Error:
        end = "" if ";" in problem else f"; {_AGAIN}"
        return Error(f"{label(self.path)}: {quote(name)} {problem}{end}")
