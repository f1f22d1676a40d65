"""The checkpoint a run was made from, and masks selected again from its weights and blocks of the run's statistics."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mathneuro_export.checkpoint.header import Header, map_tensor, read_header
from mathneuro_export.checkpoint.hub import open_model
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.checkpoint.rewrite import digest_file
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.export.diff_input import Input, check_digest, no_masks
from mathneuro_export.export.run import corpus_order
from mathneuro_export.masks.mask import Mask, join_masks, rows_cols
from mathneuro_export.masks.select import select
from mathneuro_export.talk import Talk


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint proved to be the source of `item`, and the item's statistics, None where it has none."""

    item: Input
    source: Source
    statistics: Header | None


def open_base(item: Input, folder: str | Path, option: str, talk: Talk) -> Base:
    """Open the base of a run; every shard that holds a target is hashed.

    Args:
        option: what the caller named it by, for messages.

    Raises:
        Error: it is no checkpoint, or not the one the run's masks were made for.
    """
    source = open_model(folder, talk=talk)
    files = sorted({entry.file for entry in item.tensors.values()})
    sizes = [item.manifest.source.files[file].size if file in item.manifest.source.files else 0 for file in files]
    with talk.bar(f"hash {option}", sum(sizes), "B") as advance:
        for file, size in zip(files, sizes, strict=True):
            wanted = item.manifest.source.files.get(file)
            found = digest_file(source.shards[file].path) if file in source.shards else None
            if wanted is None or found is None or (found.size, found.sha256) != (wanted.size, wanted.sha256):
                raise Error(
                    f"{option} {source.id}: {file} is not the one {item.spec} was made from"
                    f" ({item.manifest.source.id}); name that checkpoint"
                )
            advance(size)
    for name, entry in item.tensors.items():
        place = source.tensors.get(name)
        if place is None or list(place[1].shape) != entry.shape or place[1].dtype != entry.dtype:
            raise Error(
                f"{option} {source.id}: {quote(name)} is missing or no {entry.dtype} {entry.shape}, as the manifest of"
                f" {item.spec} says; run `mathneuro-export verify` on it"
            )
    return Base(item, source, read_header(item.statistics) if item.statistics else None)


def weight(base: Base, name: str) -> NDArray[Any]:
    """One target's raw elements, a read-only memory map of its 2-D view."""
    shard, info = base.source.tensors[name]
    return map_tensor(base.source.shards[shard], info).reshape(rows_cols(info.shape))


def mask_of(item: Input, base: Base | None, name: str) -> Mask:
    """The mask of one target: the stored one, or where the run holds none the one selected again from the base.

    Raises:
        Error: neither masks nor a base, or the mask is not the one the manifest names.
    """
    if item.masks is not None or base is None:
        return item.mask(name)
    if item.manifest.selection.parents:
        raise no_masks(item)
    mask = select_again(base, name, None)
    check_digest(item, name, mask)
    return mask


def blocks_of(item: Input) -> int:
    """The blocks that every corpus of a run has at least."""
    return min((used.blocks for used in item.manifest.calibration.values()), default=0)


def select_again(base: Base, name: str, half: int | None) -> Mask:
    """The mask that the run's rule selects from all blocks of its statistics, or from the first or second half of them.

    An expert whose mask is empty in the run has an empty one here.

    Args:
        half: 0, 1, or None for all blocks.

    Raises:
        Error: no or damaged statistics, or bad weights.
    """
    entry, selection = base.item.tensors[name], base.item.manifest.selection
    masked = entry.count.masked if isinstance(entry.count.masked, list) else [entry.count.masked]
    fused = len(entry.shape) == 3
    if len(entry.shape) not in (2, 3) or len(masked) != (entry.shape[0] if fused else 1) or not masked:
        raise Error(
            f"{base.item.spec}: {quote(name)}: count {masked} does not fit shape {entry.shape}; make the RUN anew"
        )
    matrix = weight(base, name)
    sums = [_sums(base, corpus, name, half) for corpus in sorted(base.item.manifest.calibration, key=corpus_order)]
    rows = entry.shape[-2]
    masks = []
    for expert, count in enumerate(masked):
        if count == 0 and fused:
            masks.append(Mask.empty(rows, matrix.shape[1]))
            continue
        chosen = select(
            matrix[expert * rows : (expert + 1) * rows],
            entry.dtype,
            [total[expert] for total in sums],
            entry.input_axis,
            selection.proportion,
            control=selection.control,
            seed=selection.seed,
            name=name,
            expert=expert if fused else None,
        )
        masks.append(chosen.mask)
    return join_masks(masks)


def _sums(base: Base, corpus: str, name: str, half: int | None) -> NDArray[np.float32]:
    """The statistic over the blocks of one half, or over all: float32 [E, in], E = 1 for a matrix."""
    item = base.item
    entry = item.tensors[name]
    stored = f"{corpus}/{entry.statistic}"
    info = None if base.statistics is None else next((i for i in base.statistics.tensors if i.name == stored), None)
    blocks = item.manifest.calibration[corpus].blocks
    experts, length = (entry.shape[0] if len(entry.shape) == 3 else 1), entry.shape[-2:][entry.input_axis]
    shape = (blocks, experts, length) if len(entry.shape) == 3 else (blocks, length)
    if base.statistics is None or info is None or info.dtype != "F32" or info.shape != shape:
        found = "missing" if info is None else f"{info.dtype} {list(info.shape)}"
        raise Error(
            f"{item.spec}: statistic {quote(stored)} is {found}, expected F32 {list(shape)}; fetch the whole RUN or"
            " identify again"
        )
    total = np.zeros((experts, length), np.float64)
    for block in _half(map_tensor(base.statistics, info).reshape(blocks, experts, length), half):
        total += block
    return total.astype(np.float32)


def _half(blocks: NDArray[Any], half: int | None) -> Iterator[NDArray[Any]]:
    middle = len(blocks) // 2
    yield from blocks if half is None else blocks[middle:] if half else blocks[:middle]
