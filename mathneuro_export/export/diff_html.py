"""One page with a comparison: summary, heatmap, sortable tables; everything is in the file, nothing is fetched.

Every name is escaped where it is put in, none stands inside the script, and a content security policy allows that
script alone, by its hash.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

from mathneuro_export.export.colours import colour, top_of
from mathneuro_export.export.diff_html_parts import PAGE, SCRIPT, STYLE
from mathneuro_export.export.diff_report import Diff, Report
from mathneuro_export.export.diff_rows import Row, labels, rows, shown
from mathneuro_export.export.diff_text import MEANING, comparable_text, described, number

_TITLES = {"kind": "Kinds of module", "layer": "Layers", "tensor": "Tensors", "expert": "Experts of fused tensors"}
_COLUMNS = (
    ("size A", "size_a", ","),
    ("size B", "size_b", ","),
    ("both", "intersection", ","),
    ("only A", "only_a", ","),
    ("only B", "only_b", ","),
    ("Jaccard", "jaccard", ".4f"),
    ("chance", "chance_jaccard", ".4f"),
    ("times", "ratio_to_chance", ".1f"),
    ("overlap", "overlap", ".4f"),
    ("A in B", "containment_a", ".4f"),
    ("B in A", "containment_b", ".4f"),
)
_OPEN = 400
"""Tables of tensors with more rows than that are folded at first."""
_LONG = 40
"""Cells of a heatmap with more columns than that are small and carry no number."""


def diff_html(report: Report) -> str:
    """The whole page."""
    names = labels(report.inputs)
    title = f"Masks compared: {', '.join(names)}"
    body = [f"<h1>{_text(title)}</h1>"]
    if len(names) > 2:
        body.append("<h2>Each with each: Jaccard index</h2>")
        values = report.matrix("jaccard")
        body.append(_heatmap(values, [str(i + 1) for i in range(len(names))], _numbered(names), "matrix"))
    place = iter([(i, j) for i in range(len(names)) for j in range(i + 1, len(names))])
    for at, pair in enumerate(report.pairs):
        i, j = next(place)
        body.extend(_pair(pair, names[i], names[j], at, heading=len(names) > 2))
    body.append(
        f"<p class=note>{_text(MEANING)} Undefined numbers (0/0) are dashes. Click a column's head to sort.</p>"
    )
    hashed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return PAGE.format(title=_text(title), style=STYLE, script=SCRIPT, hash=hashed, body="\n".join(body))


def _text(value: object) -> str:
    return escape(shown(str(value)), quote=True)


def _numbered(names: Sequence[str]) -> list[str]:
    return [f"{i + 1}  {name}" for i, name in enumerate(names)]


def _pair(diff: Diff, a: str, b: str, at: int, heading: bool) -> Iterator[str]:
    if heading:
        yield f"<h2>{_text(a)} and {_text(b)}</h2>"
    yield "<dl>"
    for side, name, item in (("A", a, diff.a), ("B", b, diff.b)):
        yield f"<dt>{side}</dt><dd><b>{_text(name)}</b>: {_text(described(item))}</dd>"
    yield "</dl>"
    yield f"<p class=verdict>{_text(comparable_text(diff).capitalize())}.</p>"
    if diff.warnings:
        yield "<ul class=warnings>"
        for warning in diff.warnings:
            yield f"<li><b class={warning.severity}>{warning.severity}</b> {_text(warning.message)}</li>"
        yield "</ul>"
    yield _summary(diff)
    if diff.cells:
        layers, kinds = list(diff.cells), list(diff.masks.kinds)
        values = [[_jaccard(diff, layer, kind) for layer in layers] for kind in kinds]
        yield "<h3>Jaccard index by layer and kind</h3>"
        yield _heatmap(values, layers, kinds, f"heatmap{at}")
    for level, group in groupby(rows(diff), lambda row: row.level):
        if level != "overall":
            yield _table(diff, level, list(group), at)
    for side, left in (("A", diff.only_in_a), ("B", diff.only_in_b)):
        if left:
            yield f"<details><summary>Only in {side}, or of another shape: {len(left)}</summary><ul>"
            yield "".join(f"<li>{_text(name)}</li>" for name in left)
            yield "</ul></details>"


def _jaccard(diff: Diff, layer: str, kind: str) -> float | None:
    found = diff.cells[layer].get(kind)
    return found.jaccard if found else None


def _summary(diff: Diff) -> str:
    overall = diff.masks.overall
    facts: list[tuple[str, str]] = [
        ("Jaccard index", number(overall.jaccard)),
        ("by chance", number(overall.chance_jaccard)),
        ("times chance", number(overall.ratio_to_chance, ".1f")),
        ("in both", f"{overall.intersection:,}"),
        ("only in A", f"{overall.only_a:,}"),
        ("only in B", f"{overall.only_b:,}"),
    ]
    for side, ceiling in (("A", diff.ceiling_a), ("B", diff.ceiling_b)):
        if ceiling:
            facts.append((f"halves of {side} (noise ceiling)", number(ceiling.overall.jaccard)))
    if diff.changes:
        for name, part in (("in A's mask", "in_a"), ("in B's mask", "in_b"), ("outside both", "outside")):
            change = getattr(diff.changes.overall, part).relative_change
            facts.append((f"change of values {name}", number(change, ".4g")))
    return "<div class=facts>" + "".join(f"<div><b>{v}</b><span>{_text(k)}</span></div>" for k, v in facts) + "</div>"


def _table(diff: Diff, level: str, found: Sequence[Row], at: int) -> str:
    extra = _extra(diff) if level != "expert" else []
    heads = ["name", *(title for title, _, _ in _COLUMNS), *(title for title, _ in extra)]
    cells = "".join(f"<th scope=col aria-sort=none><button type=button>{_text(head)}</button></th>" for head in heads)
    lines = "".join(_line(row, extra) for row in found)
    table = f"<table id={level}{at}><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
    is_open = " open" if level in ("kind", "layer") or len(found) <= _OPEN else ""
    return (
        f"<details{is_open}><summary>{_TITLES[level]} ({len(found):,})</summary><div class=wide>{table}</div></details>"
    )


def _extra(diff: Diff) -> list[tuple[str, Any]]:
    columns: list[tuple[str, Any]] = []
    if diff.ceiling_a:
        columns.append(("halves A", lambda row: row.ceiling_a))
    if diff.ceiling_b:
        columns.append(("halves B", lambda row: row.ceiling_b))
    if diff.changes:
        for name in ("in_a", "in_b", "outside"):
            title = f"change {name.replace('_', ' ')}"
            columns.append(
                (title, lambda row, n=name: getattr(row.changes, n).relative_change if row.changes else None)
            )
    return columns


def _line(row: Row, extra: Sequence[tuple[str, Any]]) -> str:
    numbers = [(getattr(row.masks, field), form) for _, field, form in _COLUMNS]
    numbers += [(read(row), ".4g") for _, read in extra]
    cells = "".join(
        f"<td{'' if value is None else f' data-v={value!r}'}>{number(value, form)}</td>" for value, form in numbers
    )
    return f"<tr><th scope=row>{_text(row.name)}</th>{cells}</tr>"


def _heatmap(values: Sequence[Sequence[float | None]], columns: Sequence[str], lines: Sequence[str], name: str) -> str:
    """An inline SVG; `values` are by line, then by column."""
    top = top_of([value for line in values for value in line if value is not None])
    size = 30 if len(columns) <= _LONG else 14
    left = 12 + 7 * max(len(shown(line)) for line in lines)
    width, height = left + max(size * len(columns), 170) + 10, 24 * len(lines) + 66
    step = 1 if size == 30 else 5
    parts = [
        f"<svg id={name} class=heatmap viewBox='0 0 {width} {height}' style='width:{width}px' role=img>",
        f"<title>Jaccard index, {len(lines)} lines, {len(columns)} columns</title>",
    ]
    for i, line in enumerate(lines):
        parts.append(f"<text x={left - 6} y={24 * i + 16} text-anchor=end>{_text(line)}</text>")
        for j, column in enumerate(columns):
            parts.append(_square(values[i][j], top, (left + size * j, 24 * i, size), f"{column}, {line}"))
    foot = 24 * len(lines)
    for j, column in list(enumerate(columns))[::step]:
        parts.append(f"<text x={left + size * (j + 0.5)} y={foot + 14} text-anchor=middle>{_text(column)}</text>")
    for k in range(20):
        fill = colour((k + 0.5) * top / 20, top).fill
        parts.append(f"<rect x={left + 8 * k} y={foot + 26} width=8 height=12 fill='{fill}' />")
    parts.append(f"<text x={left} y={foot + 52}>0</text>")
    parts.append(f"<text x={left + 160} y={foot + 52} text-anchor=end>{top:g}</text></svg>")
    return "<div class=wide>" + "".join(parts) + "</div>"


def _square(value: float | None, top: float, place: tuple[int, int, int], name: str) -> str:
    x, y, size = place
    said = f"<title>{_text(name)}: {number(value)}</title>"
    if value is None:
        return f"<g>{said}<text x={x + size // 2} y={y + 16} text-anchor=middle class=none>-</text></g>"
    fill, ink = colour(value, top)
    written = ""
    if size == 30:
        digits = f"{value:.2f}".replace("0.", ".", 1)
        written = f"<text x={x + 15} y={y + 16} text-anchor=middle class=in style='fill:{ink}'>{digits}</text>"
    return f"<g>{said}<rect x={x} y={y} width={size - 1} height=23 fill='{fill}' />{written}</g>"
