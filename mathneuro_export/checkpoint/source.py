"""A checkpoint in a local folder: config, shards, tensors and the files beside them, all validated before any work."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Error
from .carry import OWN_FOLDER, check_file, sort_files, sort_names
from .header import Header, TensorInfo, read_header
from .index import Layout, find_layout
from .regular import label, quote
from .strictjson import canonical, read_json

_CONFIG = "config.json"
_CONFIG_LIMIT = 10_000_000
_QUANTISED_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


@dataclass(frozen=True, slots=True)
class Source:
    """An opened checkpoint; every header has been read, no tensor has.

    Attributes:
        folder: resolved.
        id: the Hub id where the folder is a snapshot of the Hub's cache, else the folder's last name.
        revision: the snapshot's commit, else the one given.
        config: `config.json`, not interpreted.
        architecture: the first of the config's `architectures`.
        index: name of the index file, None where there is a lone `model.safetensors`.
        shards: file name -> header, sorted by name.
        tensors: tensor name -> (shard, info).
        carried: POSIX names of all other files that go to OUT, sorted.
        left_out: what does not go there; a folder left out whole ends in a slash.
        stray: the part of `left_out` that loaders may take for weights: top-level safetensors that are no shards.
        parent: digest of a former manifest.
        sizes: bytes of the carried files and of the index.
    """

    folder: Path
    id: str
    revision: str | None
    config: dict[str, Any]
    architecture: str
    index: str | None
    shards: dict[str, Header]
    tensors: dict[str, tuple[str, TensorInfo]]
    carried: tuple[str, ...]
    left_out: tuple[str, ...]
    stray: tuple[str, ...]
    parent: str | None
    sizes: dict[str, int]

    def size_of(self, name: str) -> int | None:
        """Bytes of a shard, of the index or of a carried file; None for any other name."""
        return self.shards[name].file_size if name in self.shards else self.sizes.get(name)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a whole checkpoint, of which a folder may hold a part.

    Attributes:
        sizes: POSIX name -> bytes of every file.
        headers: the headers of shards that are not in the folder.
        whole: whether all carried files are in the folder.
    """

    sizes: Mapping[str, int]
    headers: Mapping[str, Header] = field(default_factory=dict)
    whole: bool = True


def open_source(model: str | Path, revision: str | None = None, listing: Listing | None = None) -> Source:
    """Open and validate a checkpoint folder.

    Args:
        model: a folder.
        revision: what to record as its revision where the folder does not tell.
        listing: what the checkpoint holds where the folder does not hold it all.

    Raises:
        Error: no such folder, no or a bad config, quantised, encoder-decoder, no safetensors weights, a bad header,
            an index and headers that contradict each other, or files that lead out of the folder.
    """
    folder = _resolve(model)
    names = None if listing is None else listing.sizes.keys()
    config = _read_config(folder)
    architecture = _architecture(config, folder)
    _refuse_quantised(config, folder, names)
    layout = find_layout(folder, names)
    headers: Mapping[str, Header] = {} if listing is None else listing.headers
    shards = {name: headers.get(name) or _read_shard(folder, name, layout) for name in layout.shards}
    tensors = _tensors(shards)
    if layout.weight_map is not None:
        _check_index(layout.weight_map, tensors, folder)
    _refuse_low_bits(tensors, folder)
    weights = frozenset(layout.shards) | ({layout.index} if layout.index else set())
    files = sort_files(folder, weights, layout.ignored) if names is None else sort_names(names, weights, layout.ignored)
    if listing is not None and listing.whole:
        for name in files.carried:
            check_file(folder, name)
    others = [*files.carried, *([layout.index] if layout.index else [])]
    identity, commit = identity_of(folder)
    return Source(
        folder=folder,
        id=identity,
        revision=commit or revision,
        config=config,
        architecture=architecture,
        index=layout.index,
        shards=shards,
        tensors=tensors,
        carried=files.carried,
        left_out=files.left_out,
        stray=files.stray,
        parent=_parent(folder),
        sizes={name: listing.sizes[name] if listing else (folder / name).stat().st_size for name in others},
    )


def _resolve(model: str | Path) -> Path:
    try:
        folder = Path(model).resolve()
        if folder.is_dir():
            return folder
        found = "is a file, expected the folder it is in" if folder.exists() else "no such directory"
    except (OSError, RuntimeError, ValueError):
        found = "no such directory"
    raise Error(f"MODEL {quote(str(model))}: {found}; name a folder with config.json and safetensors weights")


def identity_of(folder: Path) -> tuple[str, str | None]:
    """Hub id and commit of a snapshot in the Hub's cache; of any other folder its last name and None."""
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        owner, _, name = cache.removeprefix("models--").partition("--")
        return (f"{owner}/{name}" if name else owner), folder.name
    return folder.name, None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    if not path.exists() and not path.is_symlink():
        raise Error(f"{folder.name}: has no {_CONFIG}; name the folder of a whole checkpoint, or download it again")
    config = read_json(check_file(folder, _CONFIG), _CONFIG_LIMIT)
    if not isinstance(config, dict):
        raise Error(f"{label(path)}: is {quote(config)}, expected a JSON object; download it again")
    return config


def _sections(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [config, *(value for value in config.values() if isinstance(value, dict))]


def _architecture(config: dict[str, Any], folder: Path) -> str:
    where = label(folder / _CONFIG)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise Error(
            f"{where}: architectures is {quote(names)}, expected the model's class, as ['LlamaForCausalLM']; download"
            " the config again or add it"
        )
    if any(section.get("is_encoder_decoder") for section in _sections(config)):
        raise Error(
            f"{where}: {quote(names[0])} is an encoder-decoder model (is_encoder_decoder), expected a causal language"
            " model; choose a decoder-only model"
        )
    return str(names[0])


def _refuse_quantised(config: dict[str, Any], folder: Path, names: Collection[str] | None) -> None:
    for section in _sections(config):
        found = section.get("quantization_config") or section.get("compression_config")
        if found:
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise Error(_quantised(label(folder / _CONFIG), f"quantised with {quote(method or 'an unnamed method')}"))
    for name, method in _QUANTISED_FILES.items():
        if (folder / name).exists() if names is None else name in names:
            raise Error(_quantised(label(folder / name), f"says that the weights are quantised with {quote(method)}"))


def _refuse_low_bits(tensors: dict[str, tuple[str, TensorInfo]], folder: Path) -> None:
    for name, (shard, info) in tensors.items():
        if info.dtype.startswith(("F8_", "F6_", "F4")):
            raise Error(_quantised(f"{folder.name}/{shard}", f"tensor {quote(name)} is quantised to {info.dtype}"))


def _quantised(where: str, found: str) -> str:
    return (
        f"{where}: {found}, expected float32, float16 or bfloat16 weights; take the unquantised base, or load it with"
        " transformers, call dequantize() and save_pretrained('CONVERTED'), and take CONVERTED"
    )


def _read_shard(folder: Path, name: str, layout: Layout) -> Header:
    path = folder / name
    if not path.exists() and not path.is_symlink():
        raise Error(f"{folder.name}: {layout.index} names {quote(name)}, which is missing; download it")
    return read_header(check_file(folder, name))


def _tensors(shards: dict[str, Header]) -> dict[str, tuple[str, TensorInfo]]:
    tensors: dict[str, tuple[str, TensorInfo]] = {}
    for shard, header in shards.items():
        for info in header.tensors:
            if info.name in tensors:
                other = tensors[info.name][0]
                raise Error(
                    f"{label(header.path)}: tensor {quote(info.name)} is in {quote(other)} too, expected it once;"
                    " download the checkpoint again"
                )
            tensors[info.name] = (shard, info)
    return tensors


def _check_index(weight_map: dict[str, str], tensors: dict[str, tuple[str, TensorInfo]], folder: Path) -> None:
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name][0] != shard:
            found = f"which is in {quote(tensors[name][0])}" if name in tensors else "which is not in it"
            raise Error(
                f"{folder.name}: the index names tensor {quote(name)} in {quote(shard)}, {found}; download both again"
            )
    for name, (shard, _) in tensors.items():
        if name not in weight_map:
            raise Error(f"{folder.name}/{shard}: tensor {quote(name)} is not in the index; download both again")


def _parent(folder: Path) -> str | None:
    name = f"{OWN_FOLDER}/manifest.json"
    if not (folder / name).exists() and not (folder / name).is_symlink():
        return None
    manifest = read_json(check_file(folder, name))
    if not isinstance(manifest, dict):
        raise Error(f"{label(folder / name)}: is {quote(manifest)}, expected a manifest; run `mathneuro-export verify`")
    digest = hashlib.sha256(canonical({key: value for key, value in manifest.items() if key != "digest"})).hexdigest()
    if manifest.get("digest") != digest:
        raise Error(
            f"{label(folder / name)}: its digest is {quote(manifest.get('digest'))}, expected {digest}; it was edited,"
            " run `mathneuro-export verify`"
        )
    return digest
