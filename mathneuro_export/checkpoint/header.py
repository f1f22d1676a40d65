"""Strict reader of safetensors headers, and a memory map of one tensor.

The format: 8 bytes little-endian N, N bytes of JSON that begin with `{` (padded by spaces), then the tensors back to
back. A header is refused for everything that the safetensors library refuses and, on top, for duplicate keys.
"""

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Error
from .dtypes import ITEMBITS, RAW
from .regular import label, open_regular, quote, read_into, reason
from .strictjson import parse_json

MAX_HEADER = 100_000_000
"""Longest header in bytes, the limit of the safetensors library."""
FIRST_BYTES = 64
"""As many bytes at the start of a file tell whether it is one, and how long its header is."""
MAX_DIMS = 32
_LARGEST = 2**63 - 1
_AGAIN = "copy or download it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a shard: `start` and `end` are its absolute byte range in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes in the file."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """A validated header: `raw` are the first 8 + N bytes of the file, `tensors` stand in the order of offsets."""

    path: Path
    raw: bytes
    metadata: dict[str, str] | None
    tensors: tuple[TensorInfo, ...]
    file_size: int


def read_header(path: Path) -> Header:
    """Read and validate the header of a safetensors file; no tensor is read.

    Raises:
        Error: no regular file, a git-lfs pointer, truncated, a header longer than the file or `MAX_HEADER`, invalid
            JSON, an unknown dtype, an invalid shape, or offsets that overlap, leave a hole or do not fill the file.
    """
    path = Path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = bytearray(min(size, FIRST_BYTES))
        read_into(file, memoryview(start), path)
        raw = bytearray(header_end(bytes(start), size, path))
        file.seek(0)
        read_into(file, memoryview(raw), path)
    return parse_header(bytes(raw), size, path)


def header_end(start: bytes, file_size: int, path: Path) -> int:
    """The length of a file's header, 8 + N bytes, told by its first `FIRST_BYTES` (or all, if it has fewer).

    Raises:
        Error: a git-lfs pointer, truncated, or a header longer than the file or `MAX_HEADER`.
    """
    what = label(path)
    if start.startswith(b"version https://git-lfs"):
        raise Error(
            f"{what}: is a git-lfs pointer of {file_size} bytes, not the weights; run `git lfs pull` in its folder"
        )
    if file_size < 8 or len(start) < 8:
        raise Error(f"{what}: has {file_size} bytes, expected a safetensors file of at least 8; {_AGAIN}")
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER:
        raise Error(f"{what}: header length {length}, expected at most {MAX_HEADER}; no safetensors file, {_AGAIN}")
    if length > file_size - 8:
        raise Error(
            f"{what}: truncated: its header ends at byte {length + 8}, the file has {file_size} bytes; {_AGAIN}"
        )
    return 8 + length


def parse_header(raw: bytes, file_size: int, path: Path) -> Header:
    """Validate the header of a file of which only the first bytes are at hand.

    Args:
        raw: the first 8 + N bytes of the file, as `header_end` tells.
        file_size: bytes of the whole file.
        path: where the file is or would be; it is not looked at.

    Raises:
        Error: as `read_header`.
    """
    what = label(path)
    if raw[8:9] != b"{":
        raise Error(f"{what}: the header begins with {quote(raw[8:9])}, expected b'{{'; {_AGAIN}")
    document = parse_json(raw[8:], f"{what}: header")
    if not isinstance(document, dict):
        raise Error(f"{what}: the header is no JSON object; {_AGAIN}")
    metadata = _metadata(document.pop("__metadata__", None), what) if "__metadata__" in document else None
    tensors = [_tensor(name, entry, len(raw), what) for name, entry in document.items()]
    tensors.sort(key=lambda info: (info.start, info.end))
    _check_layout(tensors, len(raw), file_size, what)
    return Header(path, raw, metadata, tuple(tensors), file_size)


def _metadata(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise Error(f"{what}: __metadata__ is {quote(value)}, expected an object of strings; {_AGAIN}")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _tensor(name: str, entry: Any, base: int, what: str) -> TensorInfo:
    where = f"{what}: tensor {quote(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise Error(f"{where}: has {quote(entry)}, expected dtype, shape and data_offsets; {_AGAIN}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMBITS:
        raise Error(f"{where}: unknown dtype {quote(dtype)}, expected one of {', '.join(ITEMBITS)}; convert the model")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_size, shape)):
        raise Error(f"{where}: shape {quote(shape)}, expected at most {MAX_DIMS} integers from 0; {_AGAIN}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise Error(f"{where}: data_offsets {quote(offsets)}, expected two integers from 0; {_AGAIN}")
    bits = ITEMBITS[dtype]
    for extent in shape:
        bits *= extent
        if bits > _LARGEST:
            raise Error(f"{where}: shape {quote(shape)} is larger than any file; {_AGAIN}")
    start, end = offsets
    if bits % 8 or end - start != bits // 8:
        expected = f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits, no whole bytes,"
        raise Error(f"{where}: data_offsets hold {end - start} bytes, shape and dtype need {expected}; {_AGAIN}")
    return TensorInfo(name, dtype, tuple(shape), base + start, base + end)


def _check_layout(tensors: list[TensorInfo], base: int, size: int, what: str) -> None:
    position = base
    for info in tensors:
        if info.start != position:
            kind = "overlaps the one before it" if info.start < position else "leaves a hole before it"
            found = f"it starts at byte {info.start}, expected {position}"
            raise Error(f"{what}: tensor {quote(info.name)} {kind}: {found}; {_AGAIN}")
        position = info.end
    if position > size:
        raise Error(f"{what}: truncated: its tensors end at byte {position}, the file has {size} bytes; {_AGAIN}")
    if position < size:
        raise Error(f"{what}: its tensors end at byte {position}, the file goes on to {size} bytes; {_AGAIN}")


def map_tensor(header: Header, info: TensorInfo) -> np.ndarray[Any, Any]:
    """A read-only memory map of this tensor alone, in its raw dtype and the shape stored.

    BF16 comes as uint16, F8 as uint8; F4 and F6, whose elements are no bytes, as the flat bytes [nbytes]. The map
    closes with the array.

    Raises:
        Error: the file is gone or became shorter since the header was read.
    """
    raw, shape = RAW[info.dtype], info.shape
    if ITEMBITS[info.dtype] < 8:
        shape = (info.nbytes,)
    if not info.nbytes:
        empty = np.empty(shape, raw)
        empty.flags.writeable = False
        return empty
    page = info.start - info.start % mmap.ALLOCATIONGRANULARITY
    with open_regular(header.path) as file:
        if os.fstat(file.fileno()).st_size != header.file_size:
            raise Error(f"{label(header.path)}: changed its size since its header was read; start again")
        try:
            mapped = mmap.mmap(file.fileno(), info.end - page, access=mmap.ACCESS_READ, offset=page)
        except (OSError, ValueError) as error:
            raise Error(f"{label(header.path)}: cannot be mapped into memory ({reason(error)}); copy it") from None
    return np.frombuffer(mapped, raw, info.nbytes // raw.itemsize, info.start - page).reshape(shape)
