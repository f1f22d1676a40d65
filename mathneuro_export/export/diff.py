"""`diff`: how the masks of two or more runs agree, by tensor, layer and kind of module, beside chance and noise.

Masks are read one tensor at a time; no torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from math import prod
from pathlib import Path
from typing import TypeVar

from mathneuro_export.errors import Error, UsageError
from mathneuro_export.export.comparability import Warn, by_severity, comparability
from mathneuro_export.export.diff_base import Base, blocks_of, mask_of, open_base, select_again, weight
from mathneuro_export.export.diff_input import Input, no_masks, open_any
from mathneuro_export.export.diff_pairs import Pairs, pair_names
from mathneuro_export.export.diff_report import Diff, Grouped, OtherShape, Report
from mathneuro_export.export.diff_weights import Changes, change_of, total_changes
from mathneuro_export.masks.compare import Comparison, compare, total
from mathneuro_export.masks.mask import Mask, rows_cols
from mathneuro_export.models.filters import kind_of, layers_of
from mathneuro_export.talk import Talk

EXPERTS = "experts"
Value = TypeVar("Value")
Side = tuple[Input, Base | None]


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of each tensor by A's name; it fills up tensor by tensor."""

    tensors: dict[str, Comparison] = field(default_factory=dict)
    experts: dict[str, Comparison] = field(default_factory=dict)
    halves: tuple[dict[str, Comparison], dict[str, Comparison]] = field(default_factory=lambda: ({}, {}))
    changes: dict[str, Changes] = field(default_factory=dict)


def diff(
    inputs: Sequence[str | Path],
    *,
    base_a: str | Path | None = None,
    base_b: str | Path | None = None,
    weights: bool = False,
    strict: bool = False,
    talk: Talk | None = None,
) -> Report:
    """Compare the masks of two or more runs, each with each.

    Args:
        inputs: RUNs, OUTs or paths of a manifest.
        base_a: the first one's source, for its noise ceiling, `weights`, and its masks where the RUN holds none.
        base_b: the second one's.
        weights: compare the values of the two bases too.
        strict: fail on a warning.
        talk: what is said on stderr; nothing by default.

    Raises:
        UsageError: fewer than two inputs, bases with more than two, or `weights` without both bases.
        Error: a bad input or base, no tensor in common, or a warning under `strict`.
    """
    talk = talk or Talk()
    based = [option for option, base in (("--base-a", base_a), ("--base-b", base_b)) if base is not None]
    if len(inputs) < 2:
        raise UsageError(f"diff: {len(inputs)} inputs, expected at least two; name A and B")
    if based and len(inputs) > 2:
        raise UsageError(f"{based[0]}: {len(inputs)} inputs, expected two beside it; compare them in pairs")
    if weights and len(based) < 2:
        raise UsageError("--weights: needs the values of both models; give --base-a and --base-b")
    opened = [open_any(spec) for spec in inputs]
    bases: list[Base | None] = [None] * len(opened)
    for i, base in enumerate((base_a, base_b)):
        if base is not None:
            bases[i] = open_base(opened[i], base, f"--base-{'ab'[i]}", talk)
    for item, opened_base in zip(opened, bases, strict=True):
        if item.masks is None and opened_base is None:
            raise no_masks(item)
    sides = list(zip(opened, bases, strict=True))
    return Report(tuple(_pair(a, b, weights, strict, talk) for a, b in combinations(sides, 2)), tuple(opened))


def _pair(a: Side, b: Side, weights: bool, strict: bool, talk: Talk) -> Diff:
    pairs = pair_names(list(a[0].tensors), list(b[0].tensors))
    alike = [(x, y) for x, y in pairs.paired if a[0].tensors[x].shape == b[0].tensors[y].shape]
    other = [
        OtherShape(x, y, tuple(a[0].tensors[x].shape), tuple(b[0].tensors[y].shape))
        for x, y in pairs.paired
        if a[0].tensors[x].shape != b[0].tensors[y].shape
    ]
    if not alike:
        raise Error(
            f"{a[0].spec} and {b[0].spec}: no tensor in common by name and shape ({len(pairs.only_a)} names only in A,"
            f" {len(pairs.only_b)} only in B, {len(other)} of other shapes); compare versions of one architecture"
        )
    warnings = by_severity([*comparability(a[0], b[0]), *_pairing(pairs, other), *_unknown_ceilings(a, b)])
    if strict and warnings:
        more = f" ({len(warnings) - 1} more)" if len(warnings) > 1 else ""
        raise Error(
            f"--strict: {a[0].spec} and {b[0].spec}: {warnings[0].message}{more}; leave --strict out to compare them"
        )

    layers = {name: str(layer) for name, layer in layers_of([x for x, _ in alike]).items() if layer is not None}
    kinds = {x: group_of(x, a[0].tensors[x].shape) for x, _ in alike}
    found = _Found()
    with talk.bar("compare", sum(prod(a[0].tensors[x].shape) for x, _ in alike), " weights") as advance:
        for x, y in alike:
            _compare(found, (a, b), (x, y), weights)
            advance(prod(a[0].tensors[x].shape))
    ceilings = [_grouped(half, layers, kinds, total) if half else None for half in found.halves]
    return Diff(
        a=a[0],
        b=b[0],
        warnings=warnings,
        prefix=pairs.prefix,
        only_in_a=tuple(sorted([*pairs.only_a, *(shape.a for shape in other)])),
        only_in_b=tuple(sorted([*pairs.only_b, *(shape.b for shape in other)])),
        other_shape=tuple(other),
        masks=_grouped(found.tensors, layers, kinds, total),
        experts=found.experts,
        cells={layer: _sums(found.tensors, kinds, total, of) for layer, of in _members(layers).items()},
        ceiling_a=ceilings[0],
        ceiling_b=ceilings[1],
        changes=_grouped(found.changes, layers, kinds, total_changes) if found.changes else None,
    )


def _compare(found: _Found, sides: tuple[Side, Side], names: tuple[str, str], weights: bool) -> None:
    """Compare one tensor, whose names in A and B are given."""
    (a, base_a), (b, base_b) = sides
    x, y = names
    masks = mask_of(a, base_a, x), mask_of(b, base_b, y)
    found.tensors[x] = compare(*masks)
    found.experts.update(_slices(x, a.tensors[x].shape, masks))
    for base, name, half in ((base_a, x, found.halves[0]), (base_b, y, found.halves[1])):
        if base is not None and _ceiling_reason(base) is None:
            half[x] = compare(select_again(base, name, 0), select_again(base, name, 1))
    if weights and base_a is not None and base_b is not None:
        values = (weight(base_a, x), a.tensors[x].dtype), (weight(base_b, y), b.tensors[y].dtype)
        found.changes[x] = change_of(x, *values, masks)


def group_of(name: str, shape: Sequence[int]) -> str:
    """The kind of module a target counts with; the matrices of experts, fused or one by one, are one kind."""
    parts = name.split(".")
    single = any(part == EXPERTS and after.isdecimal() for part, after in pairwise(parts))
    return EXPERTS if single or len(shape) == 3 else kind_of(name)


def _slices(name: str, shape: Sequence[int], masks: tuple[Mask, Mask]) -> dict[str, Comparison]:
    if len(shape) != 3 or rows_cols(shape)[0] == 0:
        return {}
    rows = shape[1]
    return {f"{name}[{e}]": compare(*masks, e * rows, (e + 1) * rows) for e in range(shape[0])}


def _grouped(
    values: Mapping[str, Value],
    layers: Mapping[str, str],
    kinds: Mapping[str, str],
    add: Callable[[Iterable[Value]], Value],
) -> Grouped[Value]:
    ordered = dict(sorted(_sums(values, layers, add).items(), key=lambda item: int(item[0])))
    return Grouped(add(values.values()), ordered, dict(sorted(_sums(values, kinds, add).items())), dict(values))


def _sums(
    values: Mapping[str, Value],
    groups: Mapping[str, str],
    add: Callable[[Iterable[Value]], Value],
    names: Iterable[str] | None = None,
) -> dict[str, Value]:
    members = _members({name: groups[name] for name in (values if names is None else names) if name in groups})
    return {group: add([values[name] for name in of]) for group, of in members.items()}


def _members(groups: Mapping[str, str]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for name, group in groups.items():
        members.setdefault(group, []).append(name)
    return members


def _pairing(pairs: Pairs, other: Sequence[OtherShape]) -> Iterable[Warn]:
    if other:
        yield Warn(
            "shapes", "high", f"{len(other)} tensors have other shapes in B and were left out: {other[0].a} first"
        )
    for side, names in (("A", pairs.only_a), ("B", pairs.only_b)):
        if names:
            yield Warn(
                f"only-in-{side.lower()}", "medium", f"{len(names)} targets are in {side} alone: {names[0]} first"
            )
    if pairs.prefix:
        said = f"{pairs.prefix.a!r} in A as {pairs.prefix.b!r} in B"
        yield Warn("prefix", "low", f"{pairs.prefix.tensors} tensors were paired under another prefix, {said}")


def _unknown_ceilings(a: Side, b: Side) -> Iterable[Warn]:
    for side, (_, base) in zip("AB", (a, b), strict=True):
        reason = _ceiling_reason(base) if base is not None else None
        if reason:
            yield Warn("no-ceiling", "low", f"no noise ceiling of {side}: {reason}")


def _ceiling_reason(base: Base) -> str | None:
    """Why two halves of a run's statistics cannot be compared, None where they can."""
    if base.statistics is None:
        return "it holds no statistics"
    if base.item.manifest.selection.parents:
        return "its masks were made from other runs, not selected from its statistics"
    if base.item.manifest.selection.control == "random":
        return "it is a random control, which its samples do not choose"
    if blocks_of(base.item) < 2:
        return "its statistics are in one block, at least 2 are needed"
    return None
