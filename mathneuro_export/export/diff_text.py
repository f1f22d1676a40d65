"""What `diff` found, as text for people."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from mathneuro_export.export.diff_input import Input
from mathneuro_export.export.diff_report import Diff, Report
from mathneuro_export.export.diff_rows import Row, rows, shown

_HEAD = ("size A", "size B", "both", "Jaccard", "chance", "times", "overlap", "A in B", "B in A")
MEANING = (
    "Jaccard: both / (A or B). Chance: its value for random masks of these sizes in each tensor. Times: Jaccard /"
    " chance. Overlap: both / the smaller. Halves: a run's first half of the blocks against its second, the noise"
    " ceiling."
)


def diff_text(report: Report) -> str:
    """Each pair in turn, then, of three or more inputs, the matrix; without a line end after the last."""
    blocks = [block for pair in report.pairs for block in _pair(pair)]
    if len(report.inputs) > 2:
        blocks.append(_matrix(report, "jaccard", "Jaccard"))
        blocks.append(_matrix(report, "ratio_to_chance", "times chance"))
    blocks.append(fill(MEANING, 110))
    return "\n\n".join(blocks)


def comparable_text(diff: Diff) -> str:
    """One sentence on whether the two are comparable."""
    if not diff.warnings:
        return "comparable: yes, nothing but the masks differs"
    count = f"{len(diff.warnings)} warning{'s' if len(diff.warnings) > 1 else ''}"
    return f"comparable: {'with care' if diff.comparable else 'NO'}, {count}"


def described(item: Input) -> str:
    """One line on a run: what it is of, and how its masks were made."""
    manifest = item.manifest
    source, selection = manifest.source, manifest.selection
    masked = sum(sum(n) if isinstance(n := entry.count.masked, list) else n for entry in manifest.tensors.values())
    parts = [
        f"{source.id}{' at ' + source.revision if source.revision else ''} ({source.architecture})",
        f"proportion {selection.proportion:.12g}",
        *([f"control {selection.control}"] if selection.control else []),
        *([f"made of {len(selection.parents)} other run(s)"] if selection.parents else []),
        f"{len(manifest.tensors):,} targets, {masked:,} masked",
    ]
    return shown(", ".join(parts))


def number(value: float | None, form: str = ".4f") -> str:
    """A number as it is shown; what is undefined is a dash."""
    return "-" if value is None else format(value, form)


def _pair(diff: Diff) -> Iterator[str]:
    lines = [f"A  {shown(diff.a.spec)}: {described(diff.a)}", f"B  {shown(diff.b.spec)}: {described(diff.b)}"]
    lines.append(comparable_text(diff))
    lines += [f"  {warning.severity:<7} {shown(warning.message)}" for warning in diff.warnings]
    yield "\n".join(lines)
    yield _table(diff)
    for side, names in (("A", diff.only_in_a), ("B", diff.only_in_b)):
        if names:
            listed = [
                f"only in {side}, or of another shape, {len(names)}:",
                *(f"  {shown(name)}" for name in names[:20]),
            ]
            yield "\n".join([*listed, *(["  ... (--json lists all)"] if len(names) > 20 else [])])
    if diff.changes:
        yield _changes(diff)


def _table(diff: Diff) -> str:
    ceilings = [("halves A", diff.ceiling_a), ("halves B", diff.ceiling_b)]
    head = ["", *_HEAD, *(name for name, ceiling in ceilings if ceiling)]
    lines: list[list[str]] = []
    level = "overall"
    for row in rows(diff):
        if row.level in ("tensor", "expert"):
            break
        if row.level != level:
            lines.append([])
            level = row.level
        half = [number(j) for j, (_, ceiling) in zip(row[3:5], ceilings, strict=True) if ceiling]
        lines.append([_title(row), *_numbers(row), *half])
    more = f"{len(diff.masks.tensors):,} tensors one by one: --json, --csv FILE or --html FILE"
    return "\n".join([*_aligned([head, *lines]), more])


def _title(row: Row) -> str:
    return shown(row.name) if row.level != "layer" else f"layer {row.name}"


def _numbers(row: Row) -> list[str]:
    masks = row.masks
    sizes = [f"{size:,}" for size in (masks.size_a, masks.size_b, masks.intersection)]
    shares = [number(masks.jaccard), number(masks.chance_jaccard), number(masks.ratio_to_chance, ".1f")]
    return [*sizes, *shares, *(number(n) for n in (masks.overlap, masks.containment_a, masks.containment_b))]


def _changes(diff: Diff) -> str:
    lines = [["relative change of the values", "in A's mask", "in B's mask", "outside both", "A's / outside"]]
    for row in rows(diff):
        if row.changes and row.level in ("overall", "kind", "layer"):
            shares = [part.relative_change for part in (row.changes.in_a, row.changes.in_b, row.changes.outside)]
            lines.append([_title(row), *(number(share, ".4g") for share in shares), number(row.changes.ratio, ".3g")])
    note = (
        "Masked weights are large by selection, which alone lowers their change: see a wanda-matched control beside it."
    )
    return "\n".join([*_aligned(lines), note])


def _matrix(report: Report, name: str, title: str) -> str:
    letters = [str(i + 1) for i in range(len(report.inputs))]
    form = ".4f" if name == "jaccard" else ".1f"
    body = [
        [f"{letter}  {shown(item.spec)}", *(number(value, form) for value in line)]
        for letter, item, line in zip(letters, report.inputs, report.matrix(name), strict=True)
    ]
    return "\n".join(_aligned([[title, *letters], *body]))


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines if line) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in lines
    ]
