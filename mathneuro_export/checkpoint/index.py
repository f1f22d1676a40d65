"""Which safetensors files of a checkpoint hold its weights: the index, or the lone file."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..errors import Error
from .regular import label, quote
from .strictjson import read_json

LONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".ckpt")
_CONVERT = (
    "convert it with `python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('MODEL')"
    ".save_pretrained('CONVERTED')\"` and take CONVERTED, with the tokenizer's files copied there"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shards by name, and the index as {tensor: shard} where there is one.

    `ignored` is an index that loaders pass over because a lone file stands beside it.
    """

    shards: tuple[str, ...]
    index: str | None
    weight_map: dict[str, str] | None
    ignored: str | None = None


def find_layout(folder: Path, names: Collection[str] | None = None) -> Layout:
    """Find the shards of a checkpoint as transformers does: a lone `model.safetensors` goes before an index.

    Args:
        folder: holds the index, if there is one.
        names: the files of the checkpoint where the folder does not hold them all.

    Raises:
        Error: no safetensors weights (other formats: with the command that converts them), or a bad index.
    """
    lone, index = folder / LONE, folder / INDEX
    has_lone, has_index = (_there(path) if names is None else path.name in names for path in (lone, index))
    if has_index:
        weight_map = read_weight_map(index)
        shards = tuple(sorted(set(weight_map.values())))
        if not has_lone or LONE in shards:
            return Layout(shards, INDEX, weight_map)
        return Layout((LONE,), None, None, ignored=INDEX)
    if has_lone:
        return Layout((LONE,), None, None)
    raise Error(_without_weights(folder, names))


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def read_weight_map(path: Path) -> dict[str, str]:
    """Read an index file: {tensor name: shard name}, where every shard name is a plain file name.

    Raises:
        Error: invalid JSON, no `weight_map`, or a shard name that could lead out of the folder.
    """
    document = read_json(path)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise Error(f"{label(path)}: weight_map is {quote(weight_map)}, expected {{tensor: shard}}; download it again")
    for tensor, shard in weight_map.items():
        if not is_shard_name(shard):
            raise Error(
                f"{label(path)}: tensor {quote(tensor)} is in {quote(shard)}, expected the plain name of a .safetensors"
                " file in the same folder; do not use this checkpoint"
            )
    return weight_map


def is_shard_name(name: object) -> bool:
    """Whether this is a plain, printable name of a safetensors file, without any folder."""
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and name != ".safetensors"
        and name.isprintable()
        and not any(mark in name for mark in "/\\:")
    )


def _without_weights(folder: Path, listed: Collection[str] | None) -> str:
    names = sorted(entry.name for entry in folder.iterdir()) if listed is None else sorted(listed)
    other = [name for name in names if name.lower().endswith(_OTHER_FORMATS)]
    tensors = [name for name in names if name.lower().endswith(".safetensors")]
    if tensors:
        return (
            f"{folder.name}: has {quote(tensors[0])} but neither {LONE} nor {INDEX}; download the index, merge an"
            f" adapter into its base, or {_CONVERT}"
        )
    if other:
        return f"{folder.name}: its weights are in {quote(other[0])}, expected safetensors; {_CONVERT}"
    return f"{folder.name}: no {LONE} and no {INDEX}; download the weights, or name a folder that holds a checkpoint"
