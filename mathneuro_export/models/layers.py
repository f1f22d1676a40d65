"""The decoder layers of a model and what belongs to none of them; `model` may be on the meta device."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.models.names import Placement
from mathneuro_export.models.roles import is_experts, output_weight, text_module


@dataclass(frozen=True, slots=True)
class Units:
    """Names on disk by what is loaded at a time: each decoder layer, and the rest that reading text needs.

    `names` are the dotted names of the layers' modules. The output layer is in no unit, unless it is the embedding: its
    product is never taken.
    """

    names: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    rest: tuple[str, ...]


def layer_names(model: Any) -> tuple[str, ...]:
    """Dotted names of the decoder layers: the list of modules, within no other list, that holds most weights.

    Errors: `Error` for a model without such a list.
    """
    from torch import nn

    text = text_module(model)
    lists: dict[str, int] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{other}.") for other in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not inside and (not text or name.startswith(text)):
            lists[name] = sum(parameter.numel() for parameter in module.parameters())
    if not lists:
        raise Error(f"{type(model).__name__}: has no list of decoder layers; use --stream never")
    best = max(lists, key=lambda name: lists[name])
    return tuple(f"{best}.{number}" for number in range(len(model.get_submodule(best))))


def units_of(model: Any, placements: Iterable[Placement]) -> Units:
    """Which tensors on disk are loaded together."""
    names = layer_names(model)
    text, head = text_module(model), output_weight(model)
    tied = dict(model.all_tied_weights_keys or {})
    alone = head is not None and head not in tied and head not in tied.values()
    layers: dict[str, list[str]] = {name: [] for name in names}
    rest = []
    for placement in placements:
        key = placement.parameter
        if key is None or (key == head and alone):
            continue
        layer = next((name for name in names if key.startswith(f"{name}.")), None)
        if layer is not None:
            layers[layer].append(placement.name)
        elif not text or key == head or key.startswith(f"{text}."):
            rest.append(placement.name)
    return Units(names, tuple(tuple(found) for found in layers.values()), tuple(rest))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a model is in parts, in numbers of weights, and what else the preflight tells.

    `layers`: each decoder layer; `rest`: what lies outside and is needed for text; `hidden`: numbers that a layer hands
    on for one token; `ties`: pairs of parameters that share a tensor; `experts` of a mixture, and how many of them a
    token goes to (None where there are none, or the config does not say).
    """

    layers: tuple[int, ...]
    rest: int
    hidden: int
    ties: tuple[tuple[str, str], ...]
    experts: int | None
    experts_per_token: int | None


_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")


def sizes_of(source: Source, model: Any, placements: Iterable[Placement]) -> Sizes | None:
    """The sizes of a model from headers and config; None where it has no list of decoder layers."""
    try:
        units = units_of(model, placements)
    except Error:
        return None
    numel = {name: info.numel for name, (_, info) in source.tensors.items()}
    config = model.config.get_text_config(decoder=True)
    experts = max((getattr(module, "num_experts", 0) for module in model.modules() if is_experts(module)), default=0)
    per_token = next((getattr(config, key) for key in _PER_TOKEN if getattr(config, key, None)), None)
    ties = dict(model.all_tied_weights_keys or {})
    return Sizes(
        layers=tuple(sum(numel[name] for name in layer) for layer in units.layers),
        rest=sum(numel[name] for name in units.rest),
        hidden=int(model.get_input_embeddings().weight.shape[1]) * int(getattr(config, "altup_num_inputs", 1)),
        ties=tuple(sorted(ties.items())),
        experts=experts or None,
        experts_per_token=int(per_token) if experts and per_token else None,
    )
