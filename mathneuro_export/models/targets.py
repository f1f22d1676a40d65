"""The plan: which tensors of a checkpoint are targets, which are not and why; from config and headers alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mathneuro_export.checkpoint.dtypes import EDITABLE
from mathneuro_export.checkpoint.header import TensorInfo
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.models.filters import narrow
from mathneuro_export.models.names import Placement, meta_model, place
from mathneuro_export.models.roles import EXPERTS, Role, output_weight, roles

NOT_LOADED = "not loaded by the model class"
CONVERTED = "converted on loading (not supported yet)"
NOT_OBSERVED = "not observed"

_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Note:
    """A counted warning for the manifest: `code` is stable, `message` is for people, `details` holds the numbers."""

    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    def as_warning(self) -> dict[str, Any]:
        """Its entry in the manifest's `warnings`."""
        return {"code": self.code, "message": self.message, **self.details}


@dataclass(frozen=True, slots=True)
class Target:
    """A matrix of a linear map, one to one with a tensor on disk.

    `name`, `file`, `shape`, `dtype` are those on disk, `module` is the dotted name in the loaded model.
    `input_axis` is the axis the statistic runs along: 1 for [out, in], 0 for [in, out] (transformers' Conv1D).
    """

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    input_axis: int = 1

    @property
    def inputs(self) -> int:
        """The length of its statistic."""
        return self.shape[self.input_axis]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be calibrated and edited.

    `targets` are in the order of the model, whatever the shards. `skipped` names, by reason, every float tensor of two
    or more dimensions that is no target. `lm_head` is the output layer if it is a tensor of its own: its input is
    recorded even where it is no target.
    """

    targets: tuple[Target, ...]
    skipped: dict[str, tuple[str, ...]]
    lm_head: Target | None = None
    notes: tuple[Note, ...] = ()

    @property
    def observed(self) -> tuple[Target, ...]:
        """Every linear map whose input is recorded: the targets, and the output layer."""
        extra = self.lm_head is not None and all(target.name != self.lm_head.name for target in self.targets)
        return (*self.targets, self.lm_head) if extra and self.lm_head else self.targets


def plan_targets(
    source: Source,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    layers: str | None = None,
    lm_head: bool = False,
    strict: bool = False,
) -> Plan:
    """The plan for a checkpoint; reads config and headers, no weight.

    The options only narrow the targets, as `filters.narrow` says.

    Errors: `Error` for a model that is no causal language model or does not fit the tensors, and under `strict` where
    there would be a warning; `UsageError` for an option that matches nothing, `lm_head` with a tied output layer, and
    options that leave no target.
    """
    model = meta_model(source)
    found, head = roles(model), output_weight(model)
    placements = place(model, source.tensors)
    _check_shapes(source, placements, model.state_dict())
    order = {key: position for position, key in enumerate(found)}

    skipped: dict[str, list[str]] = {}
    linear: dict[str, Target] = {}
    own_head: Target | None = None
    for name, placement in placements.items():
        file, info = source.tensors[name]
        if len(info.shape) < 2 or not is_float(info.dtype):
            continue
        reason = _reason(placement, found, info)
        if reason:
            skipped.setdefault(reason, []).append(name)
            continue
        role = found[placement.parameter or ""]
        linear[name] = Target(name, file, info.shape, info.dtype, role.module, role.input_axis)
        if placement.parameter == head:
            own_head = linear[name]
    if not linear:
        raise Error(f"{source.id}: no weight of a linear map in float32, float16 or bfloat16 among its tensors")
    names = sorted(linear, key=lambda name: order[f"{linear[name].module}.weight"])
    kept, reasons = narrow(
        names,
        include=include,
        exclude=exclude,
        layers=layers,
        lm_head=lm_head,
        head=own_head.name if own_head else None,
    )
    for reason, left in reasons.items():
        skipped.setdefault(reason, []).extend(left)
    notes = _experts_note(skipped)
    _check_strict(notes, strict)
    return Plan(tuple(linear[name] for name in kept), _frozen(skipped), own_head, notes)


def without_unobserved(plan: Plan, observed: Iterable[str], strict: bool = False) -> Plan:
    """The plan without the targets that are not named in `observed` (names on disk): no input of theirs was ever seen.

    They go to `skipped` with a warning. Errors: `Error` if none is left, or under `strict` if there are any.
    """
    seen = set(observed)
    lost = tuple(target.name for target in plan.targets if target.name not in seen)
    head = plan.lm_head if plan.lm_head and plan.lm_head.name in seen else None
    if not lost:
        return replace(plan, lm_head=head)
    note = Note(
        "not-observed",
        f"{len(lost)} linear weights were used without their module, or not at all, and are left as they are: "
        f"{_examples(lost)}",
        {"count": len(lost)},
    )
    _check_strict((note,), strict)
    targets = tuple(target for target in plan.targets if target.name in seen)
    if not targets:
        raise Error(f"{lost[0]}: no target saw an input; expected the model to run its linear layers on the texts")
    skipped = {reason: list(names) for reason, names in plan.skipped.items()}
    skipped.setdefault(NOT_OBSERVED, []).extend(lost)
    return Plan(targets, _frozen(skipped), head, (*plan.notes, note))


def is_float(dtype: str) -> bool:
    """Whether a dtype on disk is a float of 8 or more bits."""
    return dtype in _FLOATS or dtype.startswith("F8")


def _check_shapes(source: Source, placements: dict[str, Placement], parameters: dict[str, Any]) -> None:
    taken: dict[str, str] = {}
    for name, placement in placements.items():
        key = placement.parameter
        if key is None or placement.converted:
            continue
        if key in taken:
            raise Error(f"{name}: is the parameter {key}, as {taken[key]} is too; expected one tensor for it")
        taken[key] = name
        file, info = source.tensors[name]
        expected = tuple(parameters[key].shape)
        if info.shape != expected:
            raise Error(
                f"{file}: {name} has shape {list(info.shape)}, but config.json makes it {list(expected)}; "
                "config and weights are not of one model"
            )


def _reason(placement: Placement, found: dict[str, Role], info: TensorInfo) -> str | None:
    if placement.parameter is None:
        return NOT_LOADED
    role = found.get(placement.parameter)
    if placement.converted:
        return EXPERTS if role and role.reason == EXPERTS else CONVERTED
    if role and role.reason:
        return role.reason
    return None if info.dtype in EDITABLE else f"dtype {info.dtype}"


def _experts_note(skipped: dict[str, list[str]]) -> tuple[Note, ...]:
    names = skipped.get(EXPERTS, [])
    if not names:
        return ()
    message = f"{len(names)} tensors of experts are left as they are (not supported yet): {_examples(names)}"
    return (Note("experts-skipped", message, {"count": len(names)}),)


def _examples(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _check_strict(notes: tuple[Note, ...], strict: bool) -> None:
    if strict and notes:
        raise Error(f"--strict: {notes[0].message}")


def _frozen(skipped: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {reason: tuple(skipped[reason]) for reason in sorted(skipped)}
