"""Builders that write safetensors by hand, and a reader that shares nothing with the package."""

import json
import struct
from pathlib import Path


def raw_file(header, data=b"", length=None):
    """The bytes of a file with this header (bytes, str or an object) and data."""
    if not isinstance(header, (bytes, str)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def shard(tensors, metadata=None):
    """A file of {name: (dtype, shape, bytes)}."""
    document = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, part) in tensors.items():
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return raw_file(document, data)


def read_plain(path):
    """{name: (dtype, shape, bytes)} by the format's definition."""
    content = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    document = json.loads(content[8 : 8 + length])
    document.pop("__metadata__", None)
    base = 8 + length
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            content[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]],
        )
        for name, entry in document.items()
    }


def make_model(folder, tensors=None, config=None, index=None):
    """A small checkpoint in a folder; `index` is {tensor: shard} where there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors or {"a.weight": ("F32", (2, 2), bytes(16)), "b.weight": ("BF16", (2, 3), bytes(12))}
    (folder / "config.json").write_text(json.dumps(config or {"architectures": ["LlamaForCausalLM"]}))
    if index is None:
        (folder / "model.safetensors").write_bytes(shard(tensors, {"format": "pt"}))
        return folder
    for name in sorted(set(index.values())):
        (folder / name).write_bytes(shard({key: tensors[key] for key, file in index.items() if file == name}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def names(folder):
    """The names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
