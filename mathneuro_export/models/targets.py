"""The plan: which tensors of a checkpoint are targets, which are not and why; from config and headers alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mathneuro_export.checkpoint.dtypes import EDITABLE
from mathneuro_export.checkpoint.header import TensorInfo
from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.models.layers import Sizes, sizes_of
from mathneuro_export.models.names import Placement, meta_model, place
from mathneuro_export.models.roles import EXPERTS, NOT_LINEAR, Role, output_weight, roles

NOT_LOADED = "not loaded by the model class"
CONVERTED = "converted on loading"
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
    """One tensor on disk: the matrix of a linear map, or [E, ., .], the matrices of all experts of a mixture.

    `name`, `file`, `shape`, `dtype` are those on disk, `module` is the dotted name in the loaded model. `input_axis` is
    the axis of the matrix that the statistic runs along: 1 for [out, in], 0 for [in, out] (transformers' Conv1D,
    gpt-oss). `group` is the parameter of the model that holds all experts' matrices, None outside a mixture of experts;
    `expert` is the index there of a tensor that is one expert's alone.
    """

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    input_axis: int = 1
    group: str | None = None
    expert: int | None = None

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix, or of each expert's."""
        return self.shape[-2], self.shape[-1]

    @property
    def experts(self) -> int | None:
        """How many matrices the tensor holds; None where it is a matrix itself."""
        return self.shape[0] if len(self.shape) == 3 else None

    @property
    def inputs(self) -> int:
        """The length of its statistic."""
        return self.matrix[self.input_axis]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be calibrated.

    `linear` is every linear map whose input is recorded, the output layer among them, in the order of the model,
    whatever the shards. `skipped` names, by reason, every float tensor of two or more dimensions that is none.
    `lm_head` is the output layer if it is a tensor of its own; `sizes` is None for a model
    without a list of decoder layers.
    """

    linear: tuple[Target, ...]
    skipped: dict[str, tuple[str, ...]]
    lm_head: Target | None = None
    notes: tuple[Note, ...] = ()
    sizes: Sizes | None = None

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(target.group for target in self.linear)


def plan_targets(source: Source) -> Plan:
    """The plan for a checkpoint; reads config and headers, no weight.

    Errors: `Error` for a model that is no causal language model or does not fit the tensors.
    """
    model = meta_model(source)
    found, head = roles(model), output_weight(model)
    placements = place(model, source.tensors)
    _check_shapes(source, placements, model.state_dict())
    order = {key: position for position, key in enumerate(found)}

    skipped: dict[str, list[str]] = {}
    linear: dict[str, tuple[int, int, Target]] = {}
    own_head: Target | None = None
    for name, placement in placements.items():
        file, info = source.tensors[name]
        if len(info.shape) < 2 or not is_float(info.dtype):
            continue
        reason = _reason(placement, found, info)
        if reason:
            skipped.setdefault(reason, []).append(name)
            continue
        key = placement.parameter or ""
        target = _target(name, file, info, placement, found[key])
        linear[name] = (order[key], placement.expert or 0, target)
        if key == head:
            own_head = target
    if not linear:
        raise Error(f"{source.id}: no weight of a linear map in float32, float16 or bfloat16 among its tensors")
    ordered = tuple(target for _, _, target in sorted(linear.values(), key=lambda entry: entry[:2]))
    return Plan(ordered, _frozen(skipped), own_head, _notes(skipped), sizes_of(source, model, placements.values()))


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


def _target(name: str, file: str, info: TensorInfo, placement: Placement, role: Role) -> Target:
    axis = 1 - role.input_axis if placement.transposed else role.input_axis
    group = placement.parameter if role.experts else None
    return Target(name, file, info.shape, info.dtype, role.module, axis, group, placement.expert)


def _reason(placement: Placement, found: dict[str, Role], info: TensorInfo) -> str | None:
    if placement.parameter is None:
        return NOT_LOADED
    role = found.get(placement.parameter)
    if placement.converted and placement.expert is None:
        return EXPERTS if role and (role.experts or role.reason == EXPERTS) else CONVERTED
    if role is None or role.reason:
        return role.reason if role else NOT_LINEAR
    return None if info.dtype in EDITABLE else f"dtype {info.dtype}"


def _notes(skipped: dict[str, list[str]]) -> tuple[Note, ...]:
    notes = []
    for reason, code in ((EXPERTS, "experts-skipped"), (CONVERTED, "converted-skipped")):
        names = skipped.get(reason, [])
        if names:
            message = f"{len(names)} tensors are left as they are ({reason}): {_examples(names)}"
            notes.append(Note(code, message, {"count": len(names)}))
    return tuple(notes)


def _examples(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _frozen(skipped: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {reason: tuple(skipped[reason]) for reason in sorted(skipped)}
