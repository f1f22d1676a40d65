"""Model and tokenizer in memory, from the checkpoint's own folder alone: no network, no pickle, no remote code."""

import hashlib
from collections import Counter
from typing import Any

from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.names import load_config, model_class, one_line
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.targets import Note

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# What may hold a vocabulary, then what else shapes the tokens.
_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
)
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


def resolve_device(option: str) -> str:
    """The device a model runs on: `option`, or for `auto` cuda where there is one, else mps, else the CPU.

    Errors: `UsageError` for a device that torch does not know or that is not there.
    """
    import torch

    if option == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    name, _, index = option.partition(":")
    there = {
        "cpu": lambda: not index,
        "cuda": lambda: torch.cuda.is_available() and (not index or int(index) < torch.cuda.device_count()),
        "mps": lambda: torch.backends.mps.is_available() and not index,
    }
    if name not in there or (index and not (index.isascii() and index.isdigit())):
        raise UsageError(f"--device {option!r}: expected auto, cpu, cuda, cuda:N or mps")
    if not there[name]():
        raise UsageError(f"--device {option!r}: there is no such device here; use --device auto")
    return option


def compute_dtype(option: str, source: Source, device: str) -> str:
    """The dtype to calibrate in: `option`, or for `auto` the one that holds most weights of the checkpoint's matrices.

    On the CPU `auto` is float32: the 16-bit kernels of a processor without such instructions are many times slower, and
    the statistic then hardly depends on the machine.
    """
    if option != "auto":
        if option not in DTYPES.values():
            raise UsageError(f"--dtype {option!r}: expected auto, {', '.join(DTYPES.values())}")
        return option
    if device == "cpu":
        return "float32"
    sizes: Counter[str] = Counter()
    for _, info in source.tensors.values():
        if len(info.shape) == 2 and info.dtype in DTYPES:
            sizes[DTYPES[info.dtype]] += info.numel
    most = max(sizes.values(), default=0)
    return next((name for name in DTYPES.values() if sizes[name] == most and most), "float32")


def check_loadable(source: Source) -> None:
    """Refuse a folder that transformers would load something else from. Errors: `Error` for an adapter in it."""
    if (source.folder / "adapter_config.json").exists():
        raise Error("adapter_config.json: the folder holds an adapter; merge it into the weights and remove that file")


def load_model(source: Source, device: str, dtype: str, trust_remote_code: bool = False, verbose: bool = False) -> Any:
    """The model on `device` in `dtype` (float32, float16 or bfloat16), in eval mode, without gradients.

    Every parameter comes from the safetensors files. Errors: `Error` where the files lack a parameter, a shape differs,
    or transformers cannot load it; `UsageError` for remote code (not supported yet) and an adapter in the folder.
    """
    import torch

    if trust_remote_code:
        raise UsageError("--trust-remote-code: models with code of their own are not supported yet; leave it out")
    check_loadable(source)
    cls, config = model_class(source), load_config(source)
    try:
        with quiet(verbose):
            model, info = cls.from_pretrained(
                source.folder,
                config=config,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # anything: the loader raises whatever the file made it trip over
        raise Error(f"{source.id}: transformers cannot load {source.architecture}: {one_line(error)}") from error
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        raise Error(
            f"{source.id}: has no tensor for {missing[0]!r} ({len(missing)} missing), which {source.architecture} "
            "needs; expected a whole checkpoint; download it again"
        )
    mismatched = sorted(str(entry[0]) for entry in info.get("mismatched_keys") or ())
    if mismatched:
        raise Error(f"{source.id}: the shape of {mismatched[0]!r} is not the one that config.json makes it")
    failed = sorted(info.get("conversion_errors") or ())
    if failed:
        raise Error(f"{source.id}: transformers cannot convert the tensors of {failed[0]!r}")
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(source: Source, trust_remote_code: bool = False, verbose: bool = False) -> Any:
    """The checkpoint's own tokenizer; it truncates on the right.

    Errors: `Error` where its files are missing or cannot be read; `UsageError` for remote code (not supported yet).
    """
    import transformers

    if trust_remote_code:
        raise UsageError("--trust-remote-code: tokenizers with code of their own are not supported yet; leave it out")
    present = [name for name in _VOCABULARIES if (source.folder / name).is_file()]
    if not present and not list(source.folder.glob("*.tiktoken")):
        raise Error(
            f"{source.id}: the folder has no tokenizer (expected tokenizer.json or tokenizer.model); copy the "
            "tokenizer's files of the model into it"
        )
    try:
        with quiet(verbose):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source.folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # anything: see load_model
        raise Error(f"{source.id}: transformers cannot load the tokenizer: {one_line(error)}") from error
    if len(tokenizer) == 0:
        raise Error(f"{source.id}: the tokenizer has no entries; copy the tokenizer's files of the model again")
    tokenizer.truncation_side = "right"
    return tokenizer


def tokenizer_digest(source: Source) -> str | None:
    """sha256 (hex) over name, length and bytes of each tokenizer file there is, by name; None if there is none."""
    names = {name for name in _TOKENIZER_FILES if (source.folder / name).is_file()}
    names |= {path.name for path in source.folder.glob("*.tiktoken") if path.is_file()}
    templates = source.folder / "additional_chat_templates"
    names |= {f"{templates.name}/{path.name}" for path in templates.glob("*.jinja") if path.is_file()}
    digest = hashlib.sha256()
    for name in sorted(names):
        data = (source.folder / name).read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest() if names else None


def embedding_rows(model: Any) -> int:
    """How many token ids the model's embedding has."""
    return int(model.get_input_embeddings().weight.shape[0])


def tokenizer_note(tokenizer: Any, rows: int) -> Note | None:
    """A warning where the tokenizer has more entries than the embedding has rows; in a text they are an error."""
    entries = len(tokenizer)
    if entries <= rows:
        return None
    message = f"the tokenizer has {entries} entries, the embedding {rows} rows; no text may use the others"
    return Note("tokenizer-larger", message, {"entries": entries, "rows": rows})
