"""A comparison as rows, for the table, the page and CSV; and names made fit to be shown."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from mathneuro_export.export.diff_input import Input
from mathneuro_export.export.diff_report import Diff, Grouped, Report
from mathneuro_export.export.diff_weights import PARTS, Changes
from mathneuro_export.masks.compare import FIELDS, Comparison

LEVELS = ("overall", "kind", "layer", "tensor", "expert")
_NAME_LIMIT = 200


class Row(NamedTuple):
    """One line: its level (of `LEVELS`), a name, the masks, the Jaccard index of each noise ceiling, the values."""

    level: str
    name: str
    masks: Comparison
    ceiling_a: float | None
    ceiling_b: float | None
    changes: Changes | None


def rows(diff: Diff) -> Iterator[Row]:
    """Every row, in the order of `LEVELS`."""
    groups = {"kind": "kinds", "layer": "layers", "tensor": "tensors"}
    yield Row("overall", "overall", diff.masks.overall, *_beside(diff, None, ""))
    for level, group in groups.items():
        for name, comparison in getattr(diff.masks, group).items():
            yield Row(level, name, comparison, *_beside(diff, group, name))
    for name, comparison in diff.experts.items():
        yield Row("expert", name, comparison, None, None, None)


def _beside(diff: Diff, group: str | None, name: str) -> tuple[float | None, float | None, Changes | None]:
    half_a, half_b, changes = (_of(value, group, name) for value in (diff.ceiling_a, diff.ceiling_b, diff.changes))
    return half_a.jaccard if half_a else None, half_b.jaccard if half_b else None, changes


def _of(values: Grouped[Any] | None, group: str | None, name: str) -> Any:
    """One value of a group (`kinds`, `layers`, `tensors`), the overall one where that is None."""
    return None if values is None else values.overall if group is None else getattr(values, group).get(name)


def csv_text(report: Report) -> str:
    """All rows of all pairs; numbers unrounded, what is undefined is empty."""
    shifts = [f"{part}_{what}" for part in PARTS for what in ("weights", "changed", "relative_change")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["a", "b", "level", "name", *FIELDS, "ceiling_a", "ceiling_b", *shifts])
    for pair in report.pairs:
        for row in rows(pair):
            numbers = [getattr(row.masks, field) for field in FIELDS]
            writer.writerow([pair.a.spec, pair.b.spec, row.level, row.name, *numbers, *row[3:5], *_values(row.changes)])
    return out.getvalue()


def _values(changes: Changes | None) -> list[float | int | None]:
    if changes is None:
        return [None] * (3 * len(PARTS))
    return [
        number
        for change in (getattr(changes, part) for part in PARTS)
        for number in (change.weights, change.changed, change.relative_change)
    ]


def shown(text: str) -> str:
    """A name as one bounded line of printable characters; others come as their escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _NAME_LIMIT else text[: _NAME_LIMIT - 3] + "..."


def labels(inputs: Sequence[Input]) -> list[str]:
    """What a page or plot calls the inputs: as many of the last parts of their paths as tell them apart."""
    paths = [PurePath(item.spec) for item in inputs]
    parts = [(path.parent if path.suffix == ".json" else path).parts or (".",) for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-count:]) for part in parts]
        if len(set(tails)) == len(set(parts)):
            break
    return [shown(tail.lstrip("/") or "/") for tail in tails]
