"""Narrowing the targets by name on disk, and the layer and kind a name belongs to; no torch."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mathneuro_export.errors import UsageError

UNUSED_HEAD = "lm_head (use --lm-head)"


def layers_of(names: Iterable[str]) -> dict[str, int | None]:
    """The decoder layer of each name, from 0: its number in the numbered list that holds most of the names.

    None outside that list, as for `model.altup_projections.0.weight` beside `model.layers.0.mlp.up_proj.weight`.
    """
    places = {name: _first_number(name) for name in names}
    lists = Counter(place[0] for place in places.values() if place)
    decoder = lists.most_common(1)[0][0] if lists else None
    return {name: place[1] if place and place[0] == decoder else None for name, place in places.items()}


def _first_number(name: str) -> tuple[str, int] | None:
    match = re.match(r"(.*?)(?:^|\.)([0-9]{1,9})(?:\.|$)", name)
    return (match[1], int(match[2])) if match else None


def kind_of(name: str) -> str:
    """The kind of module a weight belongs to, as `q_proj` for `model.layers.0.self_attn.q_proj.weight`."""
    parts = [part for part in name.split(".") if part != "weight" and not part.isdigit()]
    return parts[-1] if parts else name


def parse_layers(layers: str) -> list[tuple[int, int]]:
    """First and last layer of each part of `4-20`, `4` or `4-20,25`, ends included.

    Raises:
        UsageError: another form, or an end before the start.
    """
    parts = []
    for part in layers.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(
                f"--layers {layers!r}: expected decoder layers from 0, ends included, as 4-20, 4 or 4-20,25"
            )
        parts.append((first, last))
    return parts


def narrow(
    names: Sequence[str],
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    layers: str | None = None,
    lm_head: bool = False,
    head: str | None = None,
) -> tuple[list[str], dict[str, list[str]]]:
    """Split names into those kept and those skipped, reason -> names; `head` is the name of an lm_head of its own.

    Raises:
        UsageError: a glob or range that matches nothing, `lm_head` without a head of its own, or nothing left.
    """
    include, exclude = list(include), list(exclude)
    for option, globs in (("--include", include), ("--exclude", exclude)):
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in names):
                raise UsageError(f"{option} {glob}: no target's name matches; `inspect` lists the names on disk")
    place = layers_of(names)
    chosen = None if layers is None else _choose(layers, {layer for layer in place.values() if layer is not None})
    if lm_head and head is None:
        raise UsageError("--lm-head: lm_head is tied to the embedding, which is never edited; leave the option out")

    kept: list[str] = []
    skipped: dict[str, list[str]] = {}
    for name in names:
        if name == head and not lm_head:
            reason = UNUSED_HEAD
        elif chosen is not None and place[name] not in chosen:
            reason = "outside --layers"
        elif include and not any(fnmatchcase(name, glob) for glob in include):
            reason = "not included"
        elif any(fnmatchcase(name, glob) for glob in exclude):
            reason = "excluded"
        else:
            kept.append(name)
            continue
        skipped.setdefault(reason, []).append(name)
    if not kept:
        raise UsageError("no target is left after --include, --exclude and --layers; widen them")
    return kept, skipped


def _choose(layers: str, present: set[int]) -> set[int]:
    chosen: set[int] = set()
    for first, last in parse_layers(layers):
        found = {layer for layer in present if first <= layer <= last}
        if not found:
            highest = max(present, default=None)
            raise UsageError(f"--layers {layers}: no such decoder layer; the layers with targets end at {highest}")
        chosen |= found
    return chosen
