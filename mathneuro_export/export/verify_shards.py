"""Shards against the base's: header, every byte outside the masks, and the formula at each masked element."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mathneuro_export.checkpoint.header import Header, TensorInfo, read_header
from mathneuro_export.checkpoint.strictjson import read_json
from mathneuro_export.errors import Error

from .manifest import TensorEntry
from .verify_manifest import matrices, values
from .verify_numbers import BYTES, Csr, edited, is_nan, raw_rows
from .verify_report import Problem

INDEX = "model.safetensors.index.json"
LONE = "model.safetensors"


def shard_names(folder: Path, names: Mapping[str, object]) -> list[str]:
    """The shards of a checkpoint among `names`, as its index, or else the lone file, says; sorted.

    Raises:
        Error: no weights, a bad index, or a shard in it that is not among `names`.
    """
    if INDEX not in names:
        if LONE not in names:
            raise Error(f"the manifest names neither {LONE} nor {INDEX}")
        return [LONE]
    document = read_json(folder / INDEX)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise Error(f"{INDEX} has no weight_map of names")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if shard not in names:
            raise Error(f"{INDEX} names {shard!r:.120}, which the manifest does not")
    return shards


def read_shards(folder: Path, names: list[str]) -> dict[str, Header]:
    """The headers of shards.

    Raises:
        Error: a shard that is missing or damaged.
    """
    return {name: read_header(folder / name) for name in names}


def check_header(base: Header, path: Path, file: str) -> Iterator[Problem]:
    """The header of a written shard: the base's, byte for byte, in a file of the same size."""
    with path.open("rb") as stream:
        same = stream.read(len(base.raw)) == base.raw
    if not same:
        yield Problem(file, None, "its header differs from the base's")
    elif path.stat().st_size != base.file_size:
        yield Problem(file, None, f"has {path.stat().st_size} bytes, the base has {base.file_size}")


def check_untouched(base: Header, written: Header, info: TensorInfo, file: str) -> Iterator[Problem]:
    """A tensor without a mask: the base's bytes."""
    with base.path.open("rb") as first, written.path.open("rb") as second:
        first.seek(info.start)
        second.seek(info.start)
        for start in range(0, info.nbytes, BYTES):
            size = min(BYTES, info.nbytes - start)
            left, right = first.read(size), second.read(size)
            if left != right:
                pairs = zip(left, right, strict=False)
                at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
                yield Problem(file, info.name, f"differs from the base at its byte {start + at}; it is no target")
                return


def check_edited(
    base: Header, written: Header, info: TensorInfo, entry: TensorEntry, mask: Csr, factor: float, file: str
) -> Iterator[Problem]:
    """A target: the formula at masked elements, the base's bits elsewhere, and the count of changed elements.

    An element is changed where its bits differ from the base's.
    """
    experts, rows, cols = matrices(entry)
    changed = [0] * experts
    wrong, first = [0, 0], ""
    for expert in range(experts):
        span = expert * rows, (expert + 1) * rows
        pairs = zip(raw_rows(base, info, cols, *span), raw_rows(written, info, cols, *span), strict=True)
        for (row, before), (_, after) in pairs:
            flat = mask.flat(row, row + before.shape[0])
            expected = before.reshape(-1).copy()
            expected[flat] = edited(expected[flat], info.dtype, factor)
            changed[expert] += int(np.count_nonzero(expected != before.reshape(-1)))
            bad = _wrong(expected, after.reshape(-1), flat, info.dtype)
            if bad.size:
                masked = np.isin(bad, flat)
                wrong = [wrong[0] + int(np.count_nonzero(masked)), wrong[1] + int(np.count_nonzero(~masked))]
                first = first or f"[{row + int(bad[0]) // cols}, {int(bad[0]) % cols}]"
    for number, what in zip(wrong, ("masked elements are not", "elements outside the mask are not"), strict=True):
        if number:
            rule = "the formula's" if what.startswith("masked") else "the base's"
            yield Problem(file, info.name, f"{number} {what} {rule}; the first difference is at {first}")
    said = values(entry.count.changed, entry)
    if changed != said:
        yield Problem(file, info.name, f"the edit changes {sum(changed)} elements, the manifest says {said}")


def _wrong(expected: NDArray[Any], actual: NDArray[Any], flat: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    bad = np.flatnonzero(expected != actual)
    if bad.size:
        both = is_nan(expected[bad], dtype) & is_nan(actual[bad], dtype)
        bad = bad[~(both & np.isin(bad, flat))]
    return bad
