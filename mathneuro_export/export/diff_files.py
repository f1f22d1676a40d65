"""The files that `diff` writes beside what it prints: CSV, a plot, a page."""

from collections.abc import Mapping
from pathlib import Path

from mathneuro_export.checkpoint.durable import write_bytes
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import UsageError
from mathneuro_export.export.diff_report import Report
from mathneuro_export.talk import Talk

SUFFIXES = {"csv": (".csv",), "plot": (".png", ".svg"), "html": (".html", ".htm")}


def check_files(files: Mapping[str, Path]) -> None:
    """Refuse, before any work, files that cannot be written; a file of the same suffix that is there is replaced.

    Args:
        files: `csv`, `plot` or `html` -> path.

    Raises:
        UsageError: another suffix, no such folder, or a folder in the file's place.
        Error: a plot without matplotlib.
    """
    for kind, path in files.items():
        where = f"--{kind} {quote(str(path))}"
        if path.suffix.lower() not in SUFFIXES[kind]:
            raise UsageError(f"{where}: expected a name that ends in {' or '.join(SUFFIXES[kind])}; name it so")
        if not path.parent.is_dir():
            raise UsageError(f"{where}: its folder does not exist; make it first")
        if path.is_dir():
            raise UsageError(f"{where}: is a folder, expected a file; choose another name")
    if "plot" in files:
        from mathneuro_export.export.diff_plot import check_matplotlib

        check_matplotlib()


def write_files(report: Report, files: Mapping[str, Path], talk: Talk) -> None:
    """Write the files asked for, each whole or not at all.

    Raises:
        ResourceError: the disk is full.
        Error: a file cannot be written.
    """
    for kind, path in files.items():
        if kind == "csv":
            from mathneuro_export.export.diff_rows import csv_text

            write_bytes(path, csv_text(report).encode("utf-8", "backslashreplace"))
        elif kind == "html":
            from mathneuro_export.export.diff_html import diff_html

            write_bytes(path, diff_html(report).encode("utf-8", "backslashreplace"))
        else:
            from mathneuro_export.export.diff_plot import write_plot

            write_plot(report, path)
        talk.say(f"{path}: written")
