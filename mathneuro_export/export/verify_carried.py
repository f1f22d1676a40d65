"""The files of the base that go to the output and those that do not, sorted again from the base itself."""

from collections.abc import Iterator
from pathlib import Path

from mathneuro_export.checkpoint.carry import sort_files, sort_names
from mathneuro_export.checkpoint.index import INDEX, find_layout
from mathneuro_export.errors import Error

from .manifest import Manifest
from .verify_report import Problem, printable

_FREE = {".git", ".cache"}


def check_left_out(folder: Path, left_out: list[str]) -> Iterator[Problem]:
    """Names in `left_out` that the rules do not leave out; `folder` is the output, whose shards are the base's.

    Raises:
        Error: the output has no weights, or a bad index.
    """
    layout = find_layout(folder)
    weights = frozenset(layout.shards) | ({layout.index} if layout.index else set())
    ignored = layout.ignored if layout.index else INDEX
    for name in left_out:
        try:
            fits = name in sort_names([name + "x" if name.endswith("/") else name], weights, ignored).left_out
        except Error:
            fits = False
        if name in weights or not fits:
            yield Problem(printable(name), None, "is in left_out, but is of a kind that is carried")


def check_base_names(base: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files of the base that the manifest does not treat as the rules say: carried, or left out.

    `.git/` and `.cache/` need not be named, and `left_out` may name what only the Hub holds.

    Raises:
        Error: a base that could not have been a source.
    """
    base, named, left_out = base.resolve(), manifest.source.files, set(manifest.left_out)
    layout = find_layout(base)
    weights = frozenset(layout.shards) | ({layout.index} if layout.index else set())
    files = sort_files(base, weights, layout.ignored)
    for name in sorted(weights.union(files.carried)):
        if name not in named:
            yield Problem(printable(name), None, "is in the base, but the manifest does not carry it")
    for name in files.left_out:
        if name not in left_out and _FREE.isdisjoint(name.lower().split("/")):
            yield Problem(printable(name), None, "is in the base, but the manifest does not leave it out")
    for name in sorted(named.keys() - weights.union(files.carried)):
        if (base / name).exists():
            yield Problem(printable(name), None, "is in the manifest's source, but is of a kind that is left out")
