"""Heatmaps of a comparison as PNG or SVG; matplotlib is imported only here, and only when one is drawn."""

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mathneuro_export.checkpoint.durable import write_bytes
from mathneuro_export.errors import Error
from mathneuro_export.export.colours import NAME, top_of
from mathneuro_export.export.diff_report import Diff, Report
from mathneuro_export.export.diff_rows import labels, shown
from mathneuro_export.export.diff_text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = {".png": "png", ".svg": "svg"}
_WRITTEN = 40
"""Values are written into the cells of at most so many columns."""


def check_matplotlib() -> None:
    """Refuse early where nothing can be drawn.

    Raises:
        Error: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        command = "pip install 'mathneuro-export[plot]'"
        raise Error(f"--plot: needs matplotlib, which is not installed; run `{command}`") from None


def write_plot(report: Report, path: Path) -> None:
    """Draw layers x kinds, or of three or more inputs the pairwise matrix; the suffix (of `FORMATS`) is the form.

    Raises:
        Error: matplotlib is missing, or the file cannot be written.
    """
    check_matplotlib()
    import matplotlib

    settings: Any = {"svg.hashsalt": "mathneuro-export", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = _pair_figure(report) if len(report.inputs) == 2 else _matrix_figure(report)
        data = io.BytesIO()
        form = FORMATS[path.suffix.lower()]
        stamp = {"Date": None} if form == "svg" else {"Software": "mathneuro-export"}
        figure.savefig(data, format=form, dpi=150, metadata=stamp, bbox_inches="tight")
    write_bytes(path, data.getvalue())


def _pair_figure(report: Report) -> "Figure":
    diff = report.pairs[0]
    layers, kinds = list(diff.cells), list(diff.masks.kinds)
    values = [[_cell(diff, layer, kind) for layer in layers] for kind in kinds]
    if not layers:
        layers, values = ["all"], [[diff.masks.kinds[kind].jaccard] for kind in kinds]
    a, b = labels(report.inputs)
    overall = diff.masks.overall
    title = f"Jaccard index of the masks, {a} and {b}\n" + ", ".join(
        f"{what} {number(value)}"
        for what, value in (
            ("overall", overall.jaccard),
            ("by chance", overall.chance_jaccard),
            ("halves of A", diff.ceiling_a.overall.jaccard if diff.ceiling_a else None),
            ("halves of B", diff.ceiling_b.overall.jaccard if diff.ceiling_b else None),
        )
        if value is not None
    )
    figure, axes = _heatmap(values, layers, [shown(kind) for kind in kinds], title)
    axes.set_xlabel("layer")
    return figure


def _cell(diff: Diff, layer: str, kind: str) -> float | None:
    found = diff.cells[layer].get(kind)
    return found.jaccard if found else None


def _matrix_figure(report: Report) -> "Figure":
    names = labels(report.inputs)
    figure, axes = _heatmap(report.matrix("jaccard"), names, names, "Jaccard index of the masks, each with each")
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    return figure


def _heatmap(
    values: list[list[float | None]], columns: list[str], lines: list[str], title: str
) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    known = [value for line in values for value in line if value is not None]
    top = top_of(known)
    written = len(columns) <= _WRITTEN
    width = max(5.0, (0.42 if written else 0.2) * len(columns) + 2.5)
    figure = Figure(figsize=(width, 0.42 * len(lines) + 1.8), layout="constrained")
    axes = figure.subplots()
    table = np.array([[np.nan if value is None else value for value in line] for line in values], np.float64)
    axes.set_facecolor("white")
    image = axes.imshow(table, cmap=NAME, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    text: Any = {"parse_math": False}
    step = 1 if written else 5
    axes.set_xticks(range(0, len(columns), step), columns[::step], **text)
    axes.set_yticks(range(len(lines)), lines, **text)
    axes.set_title(title, fontsize=10, **text)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if value is None:
                axes.text(j, i, "-", ha="center", va="center", color="black", fontsize=7)
            elif written:
                ink = "white" if value < 0.45 * top else "black"
                axes.text(j, i, f"{value:.2f}".replace("0.", ".", 1), ha="center", va="center", color=ink, fontsize=7)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.outline.set_visible(False)
    bar.set_label("Jaccard")
    return figure, axes
