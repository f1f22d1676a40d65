"""Which tensor of one run belongs to which of another, by name; names may differ by one common prefix."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_MOST_PARTS = 8
"""A prefix has at most so many parts of a dotted name."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Names of the first run that begin with `a` are those of the second with `b` instead; `tensors` were paired so."""

    a: str
    b: str
    tensors: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of names in the order of the first run; what has no partner; how names were matched that are not equal."""

    paired: tuple[tuple[str, str], ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    prefix: Prefix | None


def pair_names(a: Sequence[str], b: Sequence[str]) -> Pairs:
    """Pair equal names; then those that are equal but for a prefix on each side: the two prefixes that fit most names.

    A prefix ends before the first part that is a number, so that layers and experts keep theirs.
    """
    names_b = set(b)
    partner = {name: name for name in a if name in names_b}
    left_a = [name for name in a if name not in partner]
    left_b = [name for name in b if name not in partner]
    prefix = None
    rule = _rule(left_a, left_b)
    if rule:
        rest = set(left_b)
        matched = {name: rule[1] + name[len(rule[0]) :] for name in left_a if name.startswith(rule[0])}
        matched = {name: other for name, other in matched.items() if other in rest}
        partner.update(matched)
        prefix = Prefix(rule[0], rule[1], len(matched))
    taken = set(partner.values())
    return Pairs(
        tuple((name, partner[name]) for name in a if name in partner),
        tuple(sorted(name for name in a if name not in partner)),
        tuple(sorted(name for name in b if name not in taken)),
        prefix,
    )


def _rule(a: Iterable[str], b: Iterable[str]) -> tuple[str, str] | None:
    places: dict[str, list[str]] = {}
    for name in b:
        for prefix, rest in _splits(name):
            places.setdefault(rest, []).append(prefix)
    votes: Counter[tuple[str, str]] = Counter()
    for name in a:
        for prefix, rest in _splits(name):
            found = places.get(rest, [])
            if len(found) == 1:
                votes[prefix, found[0]] += 1
                break
    return min(votes, key=lambda rule: (-votes[rule], rule)) if votes else None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Prefix and rest, the longest rest first; only of names with a number among their parts."""
    parts = name.split(".")
    if not any(part.isdecimal() for part in parts):
        return
    end = 0
    for part in parts[: _MOST_PARTS + 1]:
        yield name[:end], name[end:]
        if part.isdecimal():
            return
        end += len(part) + 1
