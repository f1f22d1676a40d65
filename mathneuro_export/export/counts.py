"""Counts in the manifest's entries: a number for a matrix, a list of them for a tensor of experts; their warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

Records = Sequence[Mapping[str, Any]]


def total(count: Any) -> int:
    """All elements of a count; 0 where there is none."""
    return sum(count) if isinstance(count, list) else int(count or 0)


def _counts(records: Records) -> list[Mapping[str, Any]]:
    return [entry["count"] for record in records for entry in record["tensors"].values()]


def masked(records: Records) -> int:
    """Masked weights in all shards."""
    return sum(total(count["masked"]) for count in _counts(records))


def changed(records: Records) -> int:
    """Weights in all shards that the edit changed."""
    return sum(total(count.get("changed")) for count in _counts(records))


def warnings(records: Records, factor: float | None) -> list[dict[str, Any]]:
    """Counted warnings that follow from the masks and the edit."""
    found: list[dict[str, Any]] = []
    tensors = {name: entry for record in records for name, entry in record["tensors"].items()}
    empty = sorted(name for name, entry in tensors.items() if total(entry["count"]["masked"]) == 0)
    if empty:
        message = f"{len(empty)} of {len(tensors)} targets have an empty mask"
        found.append({"code": "empty-mask", "message": message, "count": len(empty), "tensors": empty})
    all_masked = masked(records)
    unchanged = all_masked - changed(records)
    if factor is not None and unchanged:
        message = f"{unchanged} of {all_masked} masked weights round back to what they were under factor {factor:g}"
        found.append({"code": "unchanged", "message": message, "count": unchanged, "masked": all_masked})
    return found


def starved(calibration: Mapping[str, Mapping[str, Any]], least: int) -> dict[str, list[bool]]:
    """For each statistic of experts, by name: which of them saw fewer than `least` tokens of any corpus."""
    names = {name for entry in calibration.values() for name in entry.get("expert_tokens", {})}
    found = {}
    for name in sorted(names):
        tokens = [entry.get("expert_tokens", {}).get(name) for entry in calibration.values()]
        counts = [each for each in tokens if each is not None]
        fewest = (
            [min(each) for each in zip(*counts, strict=True)] if len(counts) == len(tokens) else [0] * len(counts[0])
        )
        found[name] = [count < least for count in fewest]
    return found


def starved_warning(records: Records, which: Mapping[str, Sequence[bool]], least: int) -> list[dict[str, Any]]:
    """The warning that names the experts left alone: a tensor, or [index] where a tensor holds several."""
    names = []
    for record in records:
        for name, entry in record["tensors"].items():
            flags = which.get(entry["statistic"], ())
            fused = len(entry["shape"]) == 3
            names += [f"{name}[{number}]" if fused else name for number, flag in enumerate(flags) if flag]
    if not names:
        return []
    message = (
        f"{len(names)} matrices of experts are left as they are: fewer than {least} tokens of a corpus reached them; "
        "more samples, or another --min-expert-tokens"
    )
    return [{"code": "starved-experts", "message": message, "count": len(names), "tensors": sorted(names)}]
