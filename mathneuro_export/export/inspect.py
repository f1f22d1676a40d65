"""`inspect`: what a checkpoint, RUN or OUT holds, as its headers, index, config and manifest say; no weight is read."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mathneuro_export.checkpoint.header import Header, read_header
from mathneuro_export.checkpoint.hub import local_plan
from mathneuro_export.checkpoint.source import Listing, identity_of, open_source
from mathneuro_export.checkpoint.strictjson import read_json
from mathneuro_export.errors import Error

from .inspect_text import inspect_text
from .manifest import FileEntry, Manifest, TensorEntry, digest_of, parse, read_document

__all__ = ["inspect", "inspect_text"]

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "ffn_config.moe_num_experts")
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_FLOATS = ("F64", "F32", "F16", "BF16", "F8", "F6", "F4")


def inspect(path: str | Path, listing: Listing | None = None) -> dict[str, Any]:
    """Describe a folder or a repository on the Hub as a JSON object; its `kind` is "checkpoint", "run" or "output".

    `listing` tells what belongs to it where the folder holds a part only. What cannot be read is named in `problems`,
    and what could not be told because of it is null.

    Raises:
        Error: no folder, or one that holds neither a manifest nor a config nor safetensors.
    """
    if listing is None:
        found = local_plan(path)
        path, listing = found.folder, found.listing
    path = Path(path)
    if not path.is_dir():
        raise Error(f"{path.name}: no such folder, expected a checkpoint, RUN or OUT; name its folder")
    if os.path.lexists(path / "mathneuro" / "manifest.json"):
        return _manifest(path, "output", "mathneuro/manifest.json", listing)
    if os.path.lexists(path / "manifest.json"):
        return _manifest(path, "run", "manifest.json", listing)
    if (path / "config.json").exists() or any(path.glob("*.safetensors")):
        return _checkpoint(path, listing)
    raise Error(
        f"{path.resolve().name}: holds no manifest, no config.json and no safetensors; name a checkpoint, RUN or OUT"
    )


def _checkpoint(path: Path, listing: Listing | None) -> dict[str, Any]:
    problems: list[str] = []
    carried: list[str] | None = None
    left_out: list[str] | None = None
    identity, revision = identity_of(path.resolve())
    try:
        source = open_source(path, listing=listing)
        config, shards = source.config, source.shards
        carried, left_out = list(source.carried), list(source.left_out)
        identity, revision = source.id, source.revision
    except Error as error:
        problems.append(str(error))
        config, shards = _config(path, problems), _headers(path, problems)
        shards = {**shards, **(listing.headers if listing else {})}
    tensors = {
        info.name: {"shape": list(info.shape), "dtype": info.dtype, "file": file}
        for file, header in shards.items()
        for info in header.tensors
    }
    return {
        "kind": "checkpoint",
        "id": identity,
        "revision": revision,
        "architecture": _architecture(config),
        "model_type": config.get("model_type") if isinstance(config.get("model_type"), str) else None,
        "parameters": sum(info.numel for header in shards.values() for info in header.tensors),
        "bytes": sum(info.nbytes for header in shards.values() for info in header.tensors),
        "dtypes": _dtypes(shards.values()),
        "tensor_count": len(tensors),
        "shards": {name: {"size": header.file_size, "tensors": len(header.tensors)} for name, header in shards.items()},
        "layers": _number(config, _LAYERS),
        "experts": _number(config, _EXPERTS),
        "tie_word_embeddings": _tied(config),
        "lm_head": next((name for name in tensors if name.endswith(_HEADS)), None),
        "quantization": _quantisation(config, tensors),
        "largest": _largest(shards),
        "carried": carried,
        "left_out": left_out,
        "tensors": dict(sorted(tensors.items())),
        "problems": problems,
    }


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        config = read_json(path / "config.json")
    except Error as error:
        problems.extend([] if str(error) in problems else [str(error)])
        return {}
    return config if isinstance(config, dict) else {}


def _headers(path: Path, problems: list[str]) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            headers[file.name] = read_header(file)
        except Error as error:
            problems.extend([] if str(error) in problems else [str(error)])
    return headers


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _dtypes(headers: Iterable[Header]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for header in headers:
        for info in header.tensors:
            entry = counts.setdefault(info.dtype, {"tensors": 0, "parameters": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["parameters"] += info.numel
            entry["bytes"] += info.nbytes
    return dict(sorted(counts.items()))


def _sections(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    text = config.get("text_config")
    return [config, text] if isinstance(text, dict) else [config]


def _number(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    for section in _sections(config):
        for key in keys:
            value: Any = section
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _tied(config: Mapping[str, Any]) -> bool | None:
    """The config's `tie_word_embeddings`; None where it does not say (the architecture's default holds)."""
    for section in _sections(config):
        if isinstance(section.get("tie_word_embeddings"), bool):
            return bool(section["tie_word_embeddings"])
    return None


def _quantisation(config: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]) -> str | None:
    for section in _sections(config):
        found = section.get("quantization_config") or section.get("compression_config")
        if found:
            method = found.get("quant_method") if isinstance(found, dict) else found
            return method if isinstance(method, str) else "unnamed"
    low = sorted({entry["dtype"] for entry in tensors.values() if entry["dtype"].startswith(("F8", "F6", "F4"))})
    return ", ".join(low) or None


def _largest(shards: Mapping[str, Header]) -> dict[str, Any] | None:
    infos = [info for header in shards.values() for info in header.tensors]
    if not infos:
        return None
    info = max(infos, key=lambda info: info.nbytes)
    return {"name": info.name, "shape": list(info.shape), "dtype": info.dtype, "bytes": info.nbytes}


def _manifest(path: Path, kind: str, name: str, listing: Listing | None) -> dict[str, Any]:
    try:
        document = read_document(path / name)
        manifest = parse(document, name)
    except Error as error:
        return {"kind": kind, "id": identity_of(path.resolve())[0], "problems": [str(error)], "digest_ok": False}
    weights = sum(math.prod(entry.shape) for entry in manifest.tensors.values())
    edit = manifest.edit
    digest_ok = digest_of(document) == manifest.digest
    return {
        "kind": kind,
        "id": identity_of(path.resolve())[0],
        "tool": manifest.tool.model_dump(),
        "created": manifest.created,
        "source": {key: getattr(manifest.source, key) for key in ("id", "revision", "architecture", "parent")},
        "calibration": {
            corpus: {key: getattr(entry, key) for key in ("spec", "samples", "blocks", "tokens", "truncated", "seed")}
            for corpus, entry in manifest.calibration.items()
        },
        "selection": manifest.selection.model_dump(),
        "edit": edit.model_dump() if edit else None,
        "totals": _totals(manifest.tensors.values(), edited=edit is not None) | {"weights": weights},
        "layers": _grouped(manifest, layer_of),
        "kinds": _grouped(manifest, kind_of),
        "skipped": {reason: len(names) for reason, names in sorted(manifest.skipped.items())},
        "left_out": manifest.left_out,
        "files": len(manifest.output),
        "bytes": sum(entry.size for entry in manifest.output.values()),
        "missing": sorted(file for file, entry in manifest.output.items() if not _is_there(path, file, entry, listing)),
        "warnings": manifest.warnings,
        "digest": manifest.digest,
        "digest_ok": digest_ok,
        "problems": []
        if digest_ok
        else [f"{name}: its digest does not fit its content; run `mathneuro-export verify`"],
    }


def _is_there(path: Path, file: str, entry: FileEntry, listing: Listing | None) -> bool:
    if listing is not None:
        return listing.sizes.get(file) == entry.size
    try:
        return (path / file).stat().st_size == entry.size
    except OSError:
        return False


def _totals(entries: Iterable[TensorEntry], *, edited: bool) -> dict[str, int | None]:
    targets = masked = changed = 0
    for entry in entries:
        targets += 1
        masked += _sum(entry.count.masked)
        changed += _sum(entry.count.changed or 0)
    return {"targets": targets, "masked": masked, "changed": changed if edited else None}


def _sum(count: int | list[int]) -> int:
    return count if isinstance(count, int) else sum(count)


def layer_of(name: str) -> str | None:
    """The layer in a tensor's name: its first part that is all digits, None where there is none."""
    return next((part for part in name.split(".") if part.isascii() and part.isdigit()), None)


def kind_of(name: str) -> str:
    """The kind of module in a tensor's name: the last part before `weight`, or the last part."""
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else parts[-1]


def _grouped(manifest: Manifest, group: Any) -> dict[str, dict[str, int | None]]:
    """Totals by group, layers in numeric order; targets outside every layer are not in `layers`."""
    groups: dict[str, list[TensorEntry]] = {}
    for name, entry in manifest.tensors.items():
        key = group(name)
        if key is not None:
            groups.setdefault(key, []).append(entry)
    ordered = sorted(groups, key=lambda key: (0, int(key), "") if key.isascii() and key.isdigit() else (1, 0, key))
    edited = manifest.edit is not None
    return {
        key: _totals(groups[key], edited=edited) | {"weights": sum(math.prod(e.shape) for e in groups[key])}
        for key in ordered
    }
