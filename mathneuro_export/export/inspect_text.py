"""What `inspect` found, as text for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def inspect_text(info: Mapping[str, Any]) -> str:
    """Aligned lines of text, without a line end after the last."""
    if info["kind"] == "checkpoint":
        blocks = [_pairs(_checkpoint(info)), _dtypes(info)]
    elif "totals" in info:
        blocks = [_pairs(_run(info)), _groups("layer", info["layers"]), _groups("kind", info["kinds"])]
    else:
        blocks = [_pairs([("kind", info["kind"]), ("name", info["id"])])]
    blocks.append([f"warning: {_line(warning.get('message', warning))}" for warning in info.get("warnings", [])])
    blocks.append([f"problem: {_line(problem)}" for problem in info["problems"]])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _checkpoint(info: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    largest = info["largest"]
    yield "kind", "checkpoint"
    yield "name", info["id"] + (f" at {info['revision']}" if info["revision"] else "")
    yield "architecture", info["architecture"] or "unknown"
    yield "parameters", f"{info['parameters']:,} in {info['tensor_count']:,} tensors"
    yield "size", f"{_size(info['bytes'])} in {len(info['shards']):,} {'file' if len(info['shards']) == 1 else 'files'}"
    yield "layers", info["layers"]
    yield "experts", info["experts"]
    yield "lm_head", _head(info)
    yield "quantisation", info["quantization"]
    if largest:
        yield "largest tensor", f"{largest['name']} {largest['dtype']} {largest['shape']}, {_size(largest['bytes'])}"
    yield "carried files", _list(info["carried"])
    yield "left out", _list(info["left_out"])


def _head(info: Mapping[str, Any]) -> str:
    tied = {True: "tied to the embedding by the config", False: "not tied by the config", None: "config says nothing"}
    where = f"{info['lm_head']} in the files" if info["lm_head"] else "no tensor of its own in the files"
    return f"{where}; {tied[info['tie_word_embeddings']]}"


def _dtypes(info: Mapping[str, Any]) -> list[str]:
    rows = [
        (dtype, f"{entry['tensors']:,}", f"{entry['parameters']:,}", _size(entry["bytes"]))
        for dtype, entry in info["dtypes"].items()
    ]
    return _table(("dtype", "tensors", "parameters", "size"), rows)


def _run(info: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    selection, edit, totals = info["selection"], info["edit"], info["totals"]
    yield "kind", "RUN" if info["kind"] == "run" else "OUT"
    yield "name", info["id"]
    yield "made by", f"{info['tool']['name']} {info['tool']['version']}, {info['created']}"
    source = info["source"]
    yield (
        "source",
        f"{source['id']}{' at ' + source['revision'] if source['revision'] else ''} ({source['architecture']})",
    )
    for corpus, entry in info["calibration"].items():
        cut = f", {entry['truncated']:,} truncated" if entry["truncated"] else ""
        counts = f"{entry['samples']:,} samples, {entry['tokens']:,} tokens, {entry['blocks']} blocks"
        yield f"corpus {corpus}", f"{entry['spec']}: {counts}{cut}"
    yield "proportion", f"{selection['proportion']:.12g}"
    yield "control", selection["control"]
    if edit:
        yield "edit", f"{edit['operation']}, factor {edit['factor']:.12g} ({edit['factor_source']})"
    yield "targets", f"{totals['targets']:,} tensors, {totals['weights']:,} weights"
    yield "masked", f"{totals['masked']:,}{_share(totals)}"
    if totals["changed"] is not None:
        yield "changed", f"{totals['changed']:,}"
    yield "skipped", "; ".join(f"{count:,} {reason}" for reason, count in info["skipped"].items())
    yield "files", f"{info['files']:,}, {_size(info['bytes'])}"
    yield "missing or other size", ", ".join(info["missing"])
    yield "left out", ", ".join(info["left_out"])
    yield "digest", f"{info['digest']} ({'fits' if info['digest_ok'] else 'DOES NOT FIT'})"


def _groups(title: str, groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        (name, f"{entry['targets']:,}", f"{entry['masked']:,}", _share(entry).strip(" ()"))
        for name, entry in groups.items()
    ]
    return _table((title, "targets", "masked", "share"), rows)


def _share(entry: Mapping[str, Any]) -> str:
    return f" ({100 * entry['masked'] / entry['weights']:.3g} %)" if entry["weights"] else ""


def _size(count: int) -> str:
    return next((f"{count / unit:.2f} {name}" for unit, name in _UNITS if count >= unit), f"{count} bytes")


def _list(names: Sequence[str] | None) -> str | None:
    if names is None:
        return None
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) + more) or "none"


def _line(text: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text))


def _pairs(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    shown = [(key, _line(value)) for key, value in pairs if value not in (None, "")]
    width = max(len(key) for key, _ in shown)
    return [f"{key:<{width}}  {value}" for key, value in shown]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [head, *([_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
