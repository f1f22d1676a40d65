"""The statistics file: one vector per block, corpus and target; no torch here.

`CORPUS/TARGET` float32 [B, in] holds, for each of the B blocks of a corpus, the sum over the block's samples of the
L2 norm of every input feature; [B, E, in] for a tensor that holds the matrices of E experts. Targets that see the same
input share one tensor, stored under the first one's name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mathneuro_export.checkpoint.durable import Digest
from mathneuro_export.checkpoint.header import map_tensor, read_header
from mathneuro_export.checkpoint.strictjson import canonical, parse_json
from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.errors import Error

Vectors = Mapping[str, Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]]
"""corpus -> stored name -> float32 [B, in]."""

Blocks = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Statistics:
    """`stored`: corpus -> stored name -> float32 [B, in]; `shared`: target -> the name its vector is stored under."""

    stored: Vectors
    shared: Mapping[str, str]

    def stored_name(self, target: str) -> str:
        """The name that the target's vector is stored under: its own unless it shares one."""
        return self.shared.get(target, target)

    def blocks(self, corpus: str, target: str) -> Blocks:
        """float32 [B, in] or [B, E, in]. Errors: `Error` where there is no such vector."""
        name = self.stored_name(target)
        try:
            return self.stored[corpus][name]
        except KeyError:
            raise Error(f"statistics: {corpus}/{name} is missing; identify again") from None

    def vector(self, corpus: str, target: str) -> Blocks:
        """a_j, float32 [in] or [E, in]: see `total`."""
        return total(self.blocks(corpus, target))


def total(blocks: Blocks) -> Blocks:
    """a_j, float32 [in] or [E, in], of blocks float32 [B, ...]: their float64 sum, in order, rounded once."""
    sums = np.zeros(blocks.shape[1:], np.float64)
    for block in blocks:
        sums += block
    return sums.astype(np.float32)


class StatisticsFile:
    """A statistics file; vectors are read when they are asked for.

    Attributes:
        axes: every tensor with a statistic -> the axis of its matrix the vector runs along.
        head: the lm_head among them, None where it is tied.

    Raises:
        Error: no statistics file, or one whose tensors and metadata do not agree.
    """

    def __init__(self, path: Path) -> None:
        self._header = read_header(path)
        self._infos = {info.name: info for info in self._header.tensors}
        names, self.head = _read_metadata(path.name, self._header.metadata or {})
        self.axes = {name: axis for name, (_, axis) in names.items()}
        self._stored = {name: leader for name, (leader, _) in names.items()}
        self.corpora = {name.partition("/")[0] for name in self._infos}
        for info in self._header.tensors:
            corpus, slash, name = info.name.partition("/")
            if not (corpus and slash and name) or info.dtype != "F32" or len(info.shape) not in (2, 3):
                found = f"{info.dtype} {list(info.shape)}"
                raise Error(
                    f"{path.name}: tensor {info.name!r} is {found}, expected CORPUS/TARGET in F32 [blocks, inputs] or "
                    "[blocks, experts, inputs]"
                )
        for corpus in self.corpora:
            for name, leader in self._stored.items():
                if f"{corpus}/{leader}" not in self._infos:
                    raise Error(f"{path.name}: {corpus}/{leader}, the statistic of {name}, is missing; identify again")
        self.path = path

    def stored_name(self, target: str) -> str:
        """The name that the target's vector is stored under: its own unless it shares one."""
        return self._stored.get(target, target)

    def blocks(self, corpus: str, target: str) -> Blocks:
        """float32 [B, in] or [B, E, in].

        Errors: `Error` where there is no such vector, or one that is negative or not finite.
        """
        name = f"{corpus}/{self.stored_name(target)}"
        if name not in self._infos:
            raise Error(f"{self.path.name}: {name} is missing; identify again")
        array = np.array(map_tensor(self._header, self._infos[name]), np.float32)
        if not np.isfinite(array).all() or (array < 0).any():
            raise Error(
                f"{self.path.name}: tensor {name!r} holds a value that is negative or not finite; identify again"
            )
        return array

    def vector(self, corpus: str, target: str) -> Blocks:
        """a_j, float32 [in] or [E, in]: see `total`."""
        return total(self.blocks(corpus, target))


def _read_metadata(file: str, metadata: Mapping[str, str]) -> tuple[dict[str, tuple[str, int]], str | None]:
    document = parse_json(metadata.get("tensors", "null").encode(), f"{file}: tensors in the metadata")
    names: dict[str, tuple[str, int]] = {}
    try:
        for name, entry in document.items():
            leader, axis = entry["statistic"], entry["input_axis"]
            if not isinstance(leader, str) or axis not in (0, 1) or isinstance(axis, bool):
                raise TypeError
            names[name] = (leader, axis)
    except (AttributeError, KeyError, TypeError):
        raise Error(f"{file}: its metadata does not say which tensor has which statistic; identify again") from None
    head = metadata.get("lm_head")
    if head is not None and head not in names:
        raise Error(f"{file}: its metadata names an lm_head without a statistic; identify again")
    return names, head


def write_statistics(path: Path, statistics: Statistics, axes: Mapping[str, int], head: str | None) -> Digest:
    """Write a statistics file: corpora and names in the order given.

    Args:
        axes: each tensor that was observed -> the axis of its matrix that its vector runs along.
        head: the lm_head among them, None where it is tied.

    Raises:
        Error: as `check_statistics` says.
    """
    check_statistics(path.name, statistics)
    entries = [
        Entry(f"{corpus}/{name}", "F32", blocks.shape, partial(_little_endian, blocks))
        for corpus, vectors in statistics.stored.items()
        for name, blocks in vectors.items()
    ]
    tensors = {
        name: {"statistic": statistics.stored_name(name), "input_axis": axis}
        for name, axis in axes.items()
        if name in statistics.shared
    }
    metadata = {"format": "mathneuro-statistics", "tensors": canonical(tensors).decode()}
    return write_safetensors(
        path, entries, metadata if head is None or head not in tensors else {**metadata, "lm_head": head}
    )


def _little_endian(blocks: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [np.ascontiguousarray(blocks, "<f4")]


def check_statistics(file: str, statistics: Statistics, inputs: Iterable[tuple[str, int]] = ()) -> None:
    """Refuse statistics that cannot be: negative or not finite, uneven blocks, names that only some corpora have.

    `inputs` holds (target, length of its vector) of targets that must be there for every corpus.
    Errors: `Error` naming the file and the tensor.
    """
    stored = statistics.stored
    if not stored or not all(stored.values()):
        raise Error(f"{file}: holds no statistic; identify again")
    first_corpus, first = next(iter(stored.items()))
    for corpus, vectors in stored.items():
        if vectors.keys() != first.keys():
            odd = min(vectors.keys() ^ first.keys())
            raise Error(f"{file}: {odd} is in only one of the corpora {first_corpus} and {corpus}; identify again")
        blocks = {array.shape[0] for array in vectors.values() if array.ndim in (2, 3)}
        for name, array in vectors.items():
            what = f"{file}: tensor '{corpus}/{name}'"
            if array.ndim not in (2, 3) or array.dtype != np.float32 or array.shape[0] < 1 or len(blocks) != 1:
                found = f"{array.dtype} {list(array.shape)}"
                raise Error(f"{what} is {found}, expected float32 [blocks, inputs] with the same blocks in all")
            if array.shape[1:] != first[name].shape[1:]:
                raise Error(f"{what} has {array.shape[-1]} inputs, but {first[name].shape[-1]} in {first_corpus}")
            if not np.isfinite(array).all() or (array < 0).any():
                raise Error(f"{what} holds a value that is negative or not finite; identify again")
    for target, name in statistics.shared.items():
        if name not in first:
            raise Error(f"{file}: {target} uses the statistic of {name}, which is not there; identify again")
    for target, length in inputs:
        for corpus in stored:
            found_length = statistics.blocks(corpus, target).shape[-1]
            if found_length != length:
                raise Error(f"{file}: {corpus}/{target} has {found_length} inputs, but the tensor has {length}")
