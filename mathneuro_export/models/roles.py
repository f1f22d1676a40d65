"""What each parameter of a model is: the matrix of a linear map, or why it is none."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

EMBEDDING = "embedding"
CONVOLUTION = "convolution"
ROUTER = "router"
EXPERTS = "experts that cannot be observed"
NOT_LINEAR = "not a linear map"
NO_TEXT = "no text input"
TIED = "tied weights"
TIED_HEAD = "tied lm_head"
EXPERT_MATRICES = ("gate_up_proj", "up_proj", "down_proj")

_ROUTER_CLASS = re.compile(r"router|gating", re.IGNORECASE)
_ROUTER_NAME = re.compile(r"(^|_)(router|shared_expert_gate)$")


@dataclass(frozen=True, slots=True)
class Role:
    """`reason` is None for the matrix of a linear map, whose inputs run along `input_axis`; else why it is none.

    `experts`: the matrices of all experts in one tensor [E, ., .]; `input_axis` is then that of each slice.
    """

    module: str
    reason: str | None
    input_axis: int = 1
    experts: bool = False


def roles(model: Any) -> dict[str, Role]:
    """The role of every key of the state dict with two or more dimensions; `model` may be on the meta device."""
    modules = dict(model.named_modules())
    tied = _tied(model)
    text = text_module(model)
    head = output_weight(model)
    found = {}
    for key, tensor in model.state_dict().items():
        if tensor.dim() < 2:
            continue
        path, _, leaf = key.rpartition(".")
        reason, axis = _kind(modules, path, leaf, tensor.dim())
        experts = reason is None and tensor.dim() == 3
        if reason is None and key in tied:
            reason = TIED_HEAD if key == head else TIED
        elif reason is None and text and key != head and not key.startswith(text + "."):
            reason = NO_TEXT
        found[key] = Role(path, reason, axis, experts)
    return found


def output_weight(model: Any) -> str | None:
    """The state dict's key of the output layer's weight (`lm_head.weight` in most models)."""
    head = model.get_output_embeddings()
    return next((f"{name}.weight" for name, module in model.named_modules() if module is head), None)


def _kind(modules: dict[str, Any], path: str, leaf: str, dims: int) -> tuple[str | None, int]:
    from torch import nn
    from torch.nn.modules.conv import _ConvNd
    from transformers.pytorch_utils import Conv1D

    module, parts = modules[path], path.split(".")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return EMBEDDING, 1
    if isinstance(module, _ConvNd):
        return CONVOLUTION, 1
    if "bias" in leaf:
        return NOT_LINEAR, 1
    if _is_router(modules, parts):
        return ROUTER, 1
    if is_experts(module) and dims == 3 and leaf in EXPERT_MATRICES:
        return None, 0 if module.is_transposed else 1
    if (dims == 3 and hasattr(module, "num_experts")) or "experts" in parts:
        return EXPERTS, 1
    if leaf == "weight" and dims == 2 and isinstance(module, nn.Linear | Conv1D):
        return None, 0 if isinstance(module, Conv1D) else 1
    return NOT_LINEAR, 1


def is_experts(module: Any) -> bool:
    """Whether a module runs its experts through transformers' registered implementations, one of which records."""
    return all(hasattr(module, name) for name in ("num_experts", "is_transposed", "has_gate", "has_bias"))


def _is_router(modules: dict[str, Any], parts: list[str]) -> bool:
    """By class (MixtralTopKRouter, JetMoeTopKGating), by name, or a `gate` beside `experts`."""
    for end in range(len(parts), 0, -1):
        if _ROUTER_CLASS.search(type(modules[".".join(parts[:end])]).__name__):
            return True
    parent = modules[".".join(parts[:-1])] if parts else None
    return bool(_ROUTER_NAME.search(parts[-1])) or (parts[-1] == "gate" and hasattr(parent, "experts"))


def _tied(model: Any) -> set[str]:
    """Keys that share their tensor with another: neither side may be edited as if it were alone."""
    pairs = dict(getattr(model, "all_tied_weights_keys", None) or {})
    return set(pairs) | set(pairs.values())


def text_module(model: Any) -> str | None:
    """The dotted name of the language model inside a multimodal wrapper; None where the whole model reads text."""
    with suppress(ValueError):  # several text configs: then the decoder below tells
        if model.config.get_text_config(decoder=True) is model.config:
            return None
    decoder = None
    with suppress(AttributeError, NotImplementedError):
        decoder = model.get_decoder()
    return next((name for name, module in model.named_modules() if module is decoder), None) or None
