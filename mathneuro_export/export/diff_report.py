"""What `diff` found, as values and as the JSON document of `--json`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from mathneuro_export.export.comparability import Warn
from mathneuro_export.export.diff_input import Input
from mathneuro_export.export.diff_pairs import Prefix
from mathneuro_export.export.diff_weights import Changes
from mathneuro_export.masks.compare import Comparison

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class OtherShape:
    """Two tensors of the same name, but for a prefix, that cannot be compared."""

    a: str
    b: str
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grouped(Generic[Value]):
    """A value overall, by layer (in order; what is in none is left out), kind of module and tensor (A's names)."""

    overall: Value
    layers: Mapping[str, Value]
    kinds: Mapping[str, Value]
    tensors: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs compared.

    Attributes:
        a, b: the runs.
        warnings: the gravest first.
        prefix: how names were matched that are not equal, None where all are.
        only_in_a, only_in_b: targets left out, sorted, those of `other_shape` among them.
        masks: the comparison of the masks.
        experts: each expert of a fused tensor, as `NAME[e]`.
        cells: layer -> kind -> comparison.
        ceiling_a, ceiling_b: the mask of the first half of each run's blocks against that of the second half; None
            where there is no base or the run has no halves.
        changes: the values of the two models; None where they were not asked for.
    """

    a: Input
    b: Input
    warnings: tuple[Warn, ...]
    prefix: Prefix | None
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    other_shape: tuple[OtherShape, ...]
    masks: Grouped[Comparison]
    experts: Mapping[str, Comparison]
    cells: Mapping[str, Mapping[str, Comparison]]
    ceiling_a: Grouped[Comparison] | None
    ceiling_b: Grouped[Comparison] | None
    changes: Grouped[Changes] | None

    @property
    def comparable(self) -> bool:
        """Whether no warning is of high severity."""
        return all(warning.severity != "high" for warning in self.warnings)

    def as_json(self) -> dict[str, Any]:
        """The document of `--json` for two inputs."""
        json = Comparison.as_json
        return {
            "warnings": [warning.as_json() for warning in self.warnings],
            **_grouped(self.masks, json),
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "comparable": self.comparable,
            "prefix": asdict(self.prefix) if self.prefix else None,
            "other_shape": [asdict(one) for one in self.other_shape],
            "experts": _mapped(self.experts, json),
            "cells": {layer: _mapped(kinds, json) for layer, kinds in self.cells.items()},
            "ceiling": {
                side: _grouped(ceiling, json) if ceiling else None
                for side, ceiling in (("a", self.ceiling_a), ("b", self.ceiling_b))
            },
            "weights": _grouped(self.changes, Changes.as_json) if self.changes else None,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Every pair of the inputs, in the order given: (0, 1), (0, 2), ..., (1, 2), ..."""

    pairs: tuple[Diff, ...]
    inputs: tuple[Input, ...]

    def matrix(self, number: str) -> list[list[float | None]]:
        """One number of `overall` for each pair of inputs; None on the diagonal."""
        count = len(self.inputs)
        rows: list[list[float | None]] = [[None] * count for _ in range(count)]
        places = [(i, j) for i in range(count) for j in range(i + 1, count)]
        for (i, j), pair in zip(places, self.pairs, strict=True):
            rows[i][j] = rows[j][i] = getattr(pair.masks.overall, number)
        return rows

    def as_json(self) -> dict[str, Any]:
        """The document of `--json`: of two inputs their comparison, of more the list `pairs` and the matrices."""
        if len(self.inputs) == 2:
            return self.pairs[0].as_json()
        return {
            "warnings": [
                {**warning.as_json(), "a": pair.a.spec, "b": pair.b.spec}
                for pair in self.pairs
                for warning in pair.warnings
            ],
            "pairs": [{"a": pair.a.spec, "b": pair.b.spec, **pair.as_json()} for pair in self.pairs],
            "inputs": [item.spec for item in self.inputs],
            "matrix": {number: self.matrix(number) for number in ("jaccard", "chance_jaccard", "ratio_to_chance")},
        }


def _mapped(values: Mapping[str, Value], json: Callable[[Value], Any]) -> dict[str, Any]:
    return {name: json(value) for name, value in values.items()}


def _grouped(values: Grouped[Value], json: Callable[[Value], Any]) -> dict[str, Any]:
    return {
        "overall": json(values.overall),
        "layers": _mapped(values.layers, json),
        "kinds": _mapped(values.kinds, json),
        "tensors": _mapped(values.tensors, json),
    }
