"""One pass over each shard: select the masks of its targets, or read them, and write the edited shard.

Every pass is journaled under the shard's name, so that a killed command repeats one shard at most.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mathneuro_export.calibration.statistics import StatisticsFile
from mathneuro_export.checkpoint.durable import Digest
from mathneuro_export.checkpoint.header import Header, TensorInfo, map_tensor
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.regular import is_plain
from mathneuro_export.checkpoint.rewrite import Editor, digest_file, rewrite_shard
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.export.edit import Tally, make_editor
from mathneuro_export.masks.mask import Mask, join_masks
from mathneuro_export.masks.maskfile import MaskEntry, MaskFile, write_masks
from mathneuro_export.masks.select import Selection, select
from mathneuro_export.masks.spool import MaskSpool
from mathneuro_export.models.targets import Target


@dataclass(frozen=True, slots=True)
class Rule:
    """How masks are selected; `corpora` is math first, then the general ones.

    `starved`: for each statistic of experts, by its name in the statistics file, which of them are left alone.
    """

    corpora: tuple[str, ...]
    proportion: float
    control: str | None
    seed: int
    starved: Mapping[str, Sequence[bool]]


class MaskMaker(Protocol):
    """Gives each target its mask and its manifest entry."""

    def __call__(
        self, target: Target, header: Header, info: TensorInfo, spool: MaskSpool
    ) -> tuple[Mask, dict[str, Any]]: ...


def selecting(statistics: StatisticsFile, rule: Rule) -> MaskMaker:
    """Masks selected from the statistics and the weights on disk; they are spooled."""

    def make(target: Target, header: Header, info: TensorInfo, spool: MaskSpool) -> tuple[Mask, dict[str, Any]]:
        statistic = statistics.stored_name(target.name)
        vectors = [statistics.vector(corpus, target.name) for corpus in rule.corpora]
        starved = rule.starved.get(statistic, [False] * (target.experts or 1))
        weight = map_tensor(header, info)
        chosen = [
            _nothing(target, rule)
            if starved[number]
            else select(
                weight if target.experts is None else weight[number],
                target.dtype,
                vectors if target.experts is None else [vector[number] for vector in vectors],
                target.input_axis,
                rule.proportion,
                control=rule.control,
                seed=rule.seed,
                name=target.name,
                expert=None if target.experts is None else number,
            )
            for number in range(target.experts or 1)
        ]
        mask = chosen[0].mask if target.experts is None else join_masks([each.mask for each in chosen])
        thresholds = {corpus: [each.thresholds[i] for each in chosen] for i, corpus in enumerate(rule.corpora)}
        top = {corpus: [each.top[i] for each in chosen] for i, corpus in enumerate(rule.corpora)}
        entry = {
            "shape": list(target.shape),
            "dtype": target.dtype,
            "file": target.file,
            "statistic": statistic,
            "input_axis": target.input_axis,
            "k": chosen[0].k,
            "threshold": {corpus: _each(target, values) for corpus, values in thresholds.items()},
            "count": {
                "top": {corpus: _each(target, values) for corpus, values in top.items()},
                "masked": _each(target, [each.mask.nnz for each in chosen]),
            },
            "mask": mask.digest,
        }
        return mask, {**entry, "spool": spool.add(target.name, mask)}

    return make


def _each(target: Target, values: list[Any]) -> Any:
    """The number of a matrix, or the list of numbers of the experts in one tensor."""
    return values[0] if target.experts is None else values


def _nothing(target: Target, rule: Rule) -> Selection:
    """The selection in an expert that is left alone."""
    rows, cols = target.matrix
    none = len(rule.corpora)
    return Selection(Mask.empty(rows, cols), int(rule.proportion * rows * cols), (None,) * none, (0,) * none)


def stored(masks: MaskFile, entries: Mapping[str, dict[str, Any]]) -> MaskMaker:
    """Masks as a RUN holds them, each checked against its digest; nothing is spooled."""

    def make(target: Target, header: Header, info: TensorInfo, spool: MaskSpool) -> tuple[Mask, dict[str, Any]]:
        mask = masks.read(target.name, info.shape)
        entry = entries[target.name]
        if mask.digest != entry["mask"]:
            raise Error(
                f"{masks.path.name}: the mask of {target.name} differs from the manifest's digest; `verify` the RUN"
            )
        count = {key: value for key, value in entry["count"].items() if key != "changed"}
        return mask, {**entry, "dtype": target.dtype, "file": target.file, "count": count}

    return make


def matching(make: MaskMaker, entries: Mapping[str, dict[str, Any]]) -> MaskMaker:
    """The masks of `make`, each of which must have the digest that a manifest's entry names."""

    def checked(target: Target, header: Header, info: TensorInfo, spool: MaskSpool) -> tuple[Mask, dict[str, Any]]:
        mask, entry = make(target, header, info, spool)
        if entry["mask"] != entries[target.name]["mask"]:
            raise Error(
                f"{target.name}: the mask selected again differs from the RUN's digest; "
                "the RUN's statistics or the weights are not those it was made from"
            )
        return mask, entry

    return checked


def pass_shards(
    source: Source,
    targets: Sequence[Target],
    make: MaskMaker,
    journal: Journal,
    work: Path,
    *,
    factor: float | None,
    output: Path | None,
    progress: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """Yield each shard's record {file, source, written, tensors}; with `output` None nothing is edited or written.

    Args:
        progress: called with the bytes of each shard that is done.

    Raises:
        Error: from selection, a stored mask or the edit; names the tensor.
    """
    wanted = {target.name: target for target in targets}
    for number, (file, header) in enumerate(source.shards.items()):
        record = journal.get(f"shard:{file}")
        if record is None or not _is_there(record, output):
            record = _one_shard(header, file, wanted, make, MaskSpool(work, f"masks-{number}"), factor, output)
            journal.record(f"shard:{file}", record)
        progress(header.file_size)
        yield record


def _is_there(record: dict[str, Any], output: Path | None) -> bool:
    """Whether what a killed process recorded still stands; an abandonment that was cut short removed some of it."""
    if output is None:
        return True
    path, written = output / str(record["file"]), record["written"]
    if written is None or not is_plain(path) or path.stat().st_size != written["size"]:
        return False
    return digest_file(path).sha256 == str(written["sha256"])


def _one_shard(
    header: Header,
    file: str,
    wanted: Mapping[str, Target],
    make: MaskMaker,
    spool: MaskSpool,
    factor: float | None,
    output: Path | None,
) -> dict[str, Any]:
    entries: dict[str, dict[str, Any]] = {}
    tallies: dict[str, Tally] = {}

    def editor(info: TensorInfo) -> Editor | None:
        target = wanted.get(info.name)
        if target is None:
            return None
        mask, entries[info.name] = make(target, header, info, spool)
        if factor is None or mask.nnz == 0:
            return None
        tallies[info.name] = Tally([0] * (target.experts or 1))
        return make_editor(info.name, mask, target.dtype, factor, tallies[info.name])

    written: Digest | None = None
    if output is None:
        for info in header.tensors:
            editor(info)
        read = digest_file(header.path)
    else:
        read, written = rewrite_shard(header, output / file, editor)
        for name, entry in entries.items():
            changed = tallies[name].changed if name in tallies else [0] * (wanted[name].experts or 1)
            entry["count"]["changed"] = _each(wanted[name], changed)
    return {
        "file": file,
        "source": {"size": read.size, "sha256": read.sha256},
        "written": None if written is None else {"size": written.size, "sha256": written.sha256},
        "tensors": entries,
    }


def assemble_masks(path: Path, work: Path, records: Sequence[dict[str, Any]]) -> Digest:
    """Write masks.safetensors from the spools of the shards, sorted by name, one mask in memory at a time."""
    masks: list[MaskEntry] = []
    for number, record in enumerate(records):
        spool = MaskSpool(work, f"masks-{number}")
        for name, entry in record["tensors"].items():
            put = entry["spool"]
            masks.append(MaskEntry(name, put["rows"], put["cols"], put["nnz"], partial(spool.read, put)))
    masks.sort(key=lambda mask: mask.name)
    return write_masks(path, masks)
