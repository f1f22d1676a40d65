"""Names on disk <-> parameters of the model, without reading a weight.

transformers renames and fuses tensors while it loads. The same rules, asked for from outside, tell for each tensor of a
checkpoint which parameter it lands in, or that the model class does not load it. This module alone knows those rules
(the calls are semi-public; `convert_and_load_state_dict_in_model` of transformers does the same steps).
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.models.quiet import quiet

if TYPE_CHECKING:
    from torch import nn

_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers")
_MOST = 1 << 24
"""A count in a config beyond this is a mistake or an attack: vocabularies and positions stay far below."""
_SIZES = frozenset({"vocab_size", "hidden_size", "n_positions", "n_ctx", "n_embd", "max_position_embeddings"})


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one tensor on disk lands: the (first) key `parameter` of the model's state dict, None if it is not loaded.

    `converted`: the parameter is made from the tensor by more than a new name (fused, transposed, split). `expert`: the
    tensor is a matrix of this expert, which the parameter holds at this index, beside no more than further matrices of
    the same input; `transposed`: the other way round there.
    """

    name: str
    parameter: str | None
    converted: bool = False
    expert: int | None = None
    transposed: bool = False


def model_class(source: Source) -> Any:
    """The transformers class that `config.architectures[0]` names.

    Errors: `Error` when transformers has no such model class (remote code is not supported yet).
    """
    import transformers

    found = getattr(transformers, source.architecture, None) if source.architecture else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise Error(
            f"config.json: architecture {source.architecture!r} is no model class of transformers "
            f"{transformers.__version__}; models with code of their own are not supported yet"
        )
    return found


def load_config(source: Source) -> Any:
    """The transformers config of the checkpoint, from its folder alone.

    Kernels that a config names would be fetched from the Hub and run: the model class's own default is used instead.

    Errors: `Error` for one that transformers cannot read, or that asks for more layers than there are tensors.
    """
    import transformers

    sections = (source.config, *(value for value in source.config.values() if isinstance(value, dict)))
    for section in sections:
        for key, value in section.items():
            if isinstance(value, int) and not isinstance(value, bool) and value > _MOST and key in _SIZES:
                raise Error(f"config.json: {key} is {value}, more than any model has; expected at most {_MOST}")
        if isinstance(section.get("num_labels"), int) and section["num_labels"] > 10_000:
            raise Error(f"config.json: num_labels is {section['num_labels']}; a causal language model has no labels")
        for key in _LAYER_COUNTS:
            count = section.get(key)
            if isinstance(count, int) and count > len(source.tensors):
                raise Error(f"config.json: {key} is {count}, but the checkpoint has only {len(source.tensors)} tensors")
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(
                source.folder, local_files_only=True, trust_remote_code=False
            )
            config._attn_implementation = None  # the setters reach nested configs too
            config._experts_implementation = None
            return config
    except Exception as error:  # transformers and huggingface_hub raise a dozen kinds for a bad config
        raise Error(f"config.json: transformers cannot read it: {one_line(error)}") from error


def meta_model(source: Source, dtype: Any = None) -> "nn.Module":
    """The model on the meta device: its modules and shapes, no weights; `dtype` is torch's, None as the config says.

    Errors: `Error` for an unknown class, a config it refuses, or a model that is not a causal language model.
    """
    import torch

    cls, config = model_class(source), load_config(source)
    try:
        with quiet(), torch.device("meta"):
            model = cls._from_config(config) if dtype is None else cls._from_config(config, dtype=dtype)
    except Exception as error:
        raise Error(f"config.json: {source.architecture} cannot be built from it: {one_line(error)}") from error
    head = None
    with suppress(NotImplementedError):
        head = model.get_output_embeddings()
    if head is None or not model.can_generate():
        raise Error(
            f"config.json: {source.architecture} is not a causal language model; "
            "expected a class that ends in ForCausalLM or the like, with an output layer"
        )
    return model  # type: ignore[no-any-return]


def place(model: Any, names: Iterable[str]) -> dict[str, Placement]:
    """Where each tensor named in `names` lands in `model` (see `Placement`)."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        Concatenate,
        MergeModulelist,
        Transpose,
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    rules = get_model_conversion_mapping(model)  # afresh every time: some rules keep state while they are applied
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    parameters = model.state_dict()
    prefix = model.base_model_prefix
    placements = {}
    stacks: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names, key=dot_natural_key):  # the order in which those rules expect the names
        parameter, pattern = rename_source_key(name, renamings, converters, prefix, parameters)
        if parameter not in parameters and name in parameters:
            parameter, pattern = rename_source_key(name, [], [], prefix, parameters)
        known = parameter in parameters
        placements[name] = Placement(name, parameter if known else None, known and pattern is not None)
        if known and pattern is not None and "*" in pattern:
            stacks.setdefault((parameter, pattern), []).append(name)
    for (parameter, pattern), stack in stacks.items():
        operations = by_pattern[pattern].operations
        if all(isinstance(step, MergeModulelist | Concatenate | Transpose) for step in operations):
            turned = sum(isinstance(step, Transpose) for step in operations) % 2 == 1
            if [_last_number(name) for name in stack] == list(range(parameters[parameter].shape[0])):
                for expert, name in enumerate(stack):
                    placements[name] = Placement(name, parameter, True, expert, turned)
    return placements


def _last_number(name: str) -> int | None:
    """The last number in a dotted name: 3 for `mlp.experts.3.up_proj.weight`."""
    numbers = [part for part in name.split(".") if part.isdigit()]
    return int(numbers[-1]) if numbers else None


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of `error` on one line, cut to `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
