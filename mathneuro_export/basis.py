"""What a selection stands on: the linear maps of a checkpoint with a statistic, and why every other tensor has none.

It comes from the model's class before a calibration, or from a RUN; the latter needs no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mathneuro_export.calibration.statistics import StatisticsFile
from mathneuro_export.checkpoint.dtypes import EDITABLE
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.export.run import Run
from mathneuro_export.models.targets import Target

FLOATS = ("F64", "F32", "F16", "BF16", "F8_", "F6_", "F4")


@dataclass(frozen=True, slots=True)
class Basis:
    """`linear`: tensors that have, or will have, a statistic; `head`: the lm_head among them; `skipped`: why not."""

    linear: tuple[Target, ...]
    head: str | None
    skipped: Mapping[str, Sequence[str]]


def basis_of_run(source: Source, run: Run, statistics: StatisticsFile) -> Basis:
    """The tensors of a checkpoint that a RUN's statistics cover.

    Raises:
        Error: a covered tensor is missing from the checkpoint, has another shape or a dtype that is not edited.
    """
    linear = tuple(_target(source, name, axis) for name, axis in statistics.axes.items())
    reasons = {name: reason for reason, names in run.manifest.skipped.items() for name in names}
    return Basis(linear, statistics.head, _others(source, {t.name for t in linear}, reasons))


def basis_of_masks(source: Source, run: Run) -> Basis:
    """The tensors of a checkpoint that a RUN has masks for, matched by name and shape.

    Raises:
        Error: as `basis_of_run`.
    """
    linear = []
    for name, entry in run.manifest.tensors.items():
        target = _target(source, name, entry.input_axis)
        if list(target.shape) != entry.shape:
            raise Error(
                f"{name}: is {list(target.shape)} in {source.id}, its mask is of {entry.shape}; these are another"
                " model's masks: name the RUN of a model with these shapes"
            )
        linear.append(target)
    reasons = {name: reason for reason, names in run.manifest.skipped.items() for name in names}
    return Basis(tuple(linear), None, _others(source, {t.name for t in linear}, reasons))


def check_same_source(source: Source, run: Run) -> None:
    """Refuse a checkpoint that is not the RUN's source, as far as names and sizes tell; bytes are compared when read.

    Raises:
        Error: names the first file that differs, and `apply`.
    """
    for name, entry in run.manifest.source.files.items():
        if source.size_of(name) != entry.size:
            raise not_the_source(name, source, run)


def not_the_source(name: str, source: Source, run: Run) -> Error:
    """The refusal of a checkpoint in which a file differs from the RUN's source."""
    return Error(
        f"{name}: {source.id} is not the source of {run.folder}, whose {name} is another; "
        "`mathneuro-export apply` puts a RUN's masks on another version"
    )


def is_matrix(shape: Iterable[int], dtype: str) -> bool:
    """Whether a tensor must be named as a target or as skipped: a float tensor of two or more dimensions."""
    return dtype.startswith(FLOATS) and len(tuple(shape)) >= 2


def _target(source: Source, name: str, axis: int) -> Target:
    if name not in source.tensors:
        raise Error(
            f"{name}: is a target of the RUN but no tensor of {source.id}; these are another model's masks: name the"
            " RUN of a model with these tensors"
        )
    file, info = source.tensors[name]
    if info.dtype not in EDITABLE or len(info.shape) not in (2, 3) or prod(info.shape) == 0:
        raise Error(
            f"{name}: is {info.dtype} {list(info.shape)} in {source.id}, expected a matrix, or those of experts, in"
            " F32, F16 or BF16; name the RUN of a model with this tensor"
        )
    return Target(name=name, file=file, shape=info.shape, dtype=info.dtype, module="", input_axis=axis)


def _others(source: Source, covered: set[str], reasons: Mapping[str, str]) -> dict[str, list[str]]:
    others: dict[str, list[str]] = {}
    for name, (_, info) in source.tensors.items():
        if name not in covered and is_matrix(info.shape, info.dtype):
            others.setdefault(reasons.get(name, "not in the RUN"), []).append(name)
    return others
