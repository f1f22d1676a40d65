"""Streaming writer of safetensors files."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .dtypes import ITEMBITS
from .durable import Digest, temporary, write_all

Data = bytes | bytearray | memoryview | np.ndarray[Any, Any]

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to be written.

    Attributes:
        name: its name in the file.
        dtype: as safetensors names it, "F32".
        shape: as it will be read.
        data: gives its bytes in order, in parts of any size: contiguous little-endian arrays or bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Iterable[Data]]

    @property
    def nbytes(self) -> int:
        """Number of bytes in the file."""
        return prod(self.shape) * ITEMBITS[self.dtype] // 8


def write_safetensors(path: Path, entries: Sequence[Entry], metadata: dict[str, str] | None = None) -> Digest:
    """Write tensors in the order given, durably, holding no more than one part in memory.

    The header is padded so that the data begin at a multiple of 8 bytes. The format allows no gaps between tensors, so
    each is aligned if none of a smaller item size with an odd number of bytes stands before it.

    Raises:
        ResourceError: the disk is full; met before any tensor is asked for.
        Error: `path` cannot be written.
        ValueError: a name stands twice, or a tensor's parts do not add up to its size.
    """
    header = _header(entries, metadata)
    digest = hashlib.sha256(header)
    size = len(header) + sum(entry.nbytes for entry in entries)
    with temporary(path, size) as work:
        write_all(work.fd, header)
        for entry in entries:
            written = 0
            for part in entry.data():
                view = _bytes(part)
                written += view.nbytes
                if written > entry.nbytes:
                    break
                digest.update(view)
                write_all(work.fd, view)
            if written != entry.nbytes:
                raise ValueError(f"tensor {entry.name!r}: got {written} bytes or more, expected {entry.nbytes}")
    return Digest(size, digest.hexdigest())


def _bytes(part: Data) -> memoryview:
    return part.reshape(-1).view(np.uint8).data if isinstance(part, np.ndarray) else memoryview(part)


def _header(entries: Sequence[Entry], metadata: dict[str, str] | None) -> bytes:
    document: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for entry in entries:
        if entry.name in document or entry.name == "__metadata__":
            raise ValueError(f"tensor name {entry.name!r} stands twice or is reserved")
        end = position + entry.nbytes
        document[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
