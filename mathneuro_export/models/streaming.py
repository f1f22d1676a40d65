"""A model whose decoder layers are read when they are needed, one at a time, through transformers' own loading.

The model is built on the meta device; non-persistent buffers and what lies outside the layers are loaded at once. The
files are opened for each layer and closed after it, so that no page of an earlier layer stays mapped.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mathneuro_export.checkpoint.source import Source
from mathneuro_export.errors import Error
from mathneuro_export.models.layers import Units, units_of
from mathneuro_export.models.loading import check_loadable
from mathneuro_export.models.memory import give_back
from mathneuro_export.models.names import Placement, meta_model, one_line, place
from mathneuro_export.models.quiet import quiet

_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"


@dataclass(frozen=True, slots=True)
class StreamedModel:
    """`model` with all but its decoder layers in memory, on `device` in `dtype` (a torch dtype)."""

    source: Source
    model: Any
    units: Units
    device: str
    dtype: Any

    @property
    def layers(self) -> list[Any]:
        """The decoder layers' modules, in order."""
        return [self.model.get_submodule(name) for name in self.units.names]

    def load(self, layer: int) -> None:
        """Read one decoder layer. Errors: `Error` where transformers cannot convert its tensors."""
        _load(self, self.units.layers[layer])
        module, name = self.model.get_submodule(self.units.names[layer]), self.units.names[layer]
        for key, parameter in module.named_parameters():
            if parameter.is_meta:
                raise Error(f"{self.source.id}: has no tensor for {name}.{key}; expected a whole checkpoint")

    def free(self, layer: int) -> None:
        """Give the memory of one decoder layer back."""
        _to_meta(self.model.get_submodule(self.units.names[layer]))
        give_back()

    def read_ahead(self, layer: int) -> None:
        """Ask the system to read a layer's bytes while others compute; does nothing where it cannot be asked."""
        if layer >= len(self.units.layers) or not hasattr(os, "posix_fadvise"):
            return
        by_file: dict[str, list[tuple[int, int]]] = {}
        for name in self.units.layers[layer]:
            file, info = self.source.tensors[name]
            by_file.setdefault(file, []).append((info.start, info.end))
        for file, ranges in by_file.items():
            with suppress(OSError), (self.source.folder / file).open("rb") as stream:
                for start, end in ranges:
                    os.posix_fadvise(stream.fileno(), start, end - start, os.POSIX_FADV_WILLNEED)


def stream_model(source: Source, device: str, dtype: str) -> StreamedModel:
    """The model of a checkpoint, ready for text but for its decoder layers, in eval mode.

    Errors: those of `meta_model`; `Error` where the files lack a parameter or transformers cannot load one.
    """
    import torch

    check_loadable(source)
    kind = getattr(torch, dtype)
    model = meta_model(source, kind).eval()
    placements = place(model, source.tensors)
    streamed = StreamedModel(source, model, units_of(model, placements.values()), device, kind)
    _check_complete(streamed, placements)
    with quiet():
        _fill_buffers(model, device)
    _load(streamed, streamed.units.rest)
    _tie(model, placements)
    return streamed


def _load(streamed: StreamedModel, names: Sequence[str]) -> None:
    from safetensors import safe_open
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    source, model = streamed.source, streamed.model
    files: dict[str, Any] = {}
    slices = {}
    for name in names:
        file = source.tensors[name][0]
        if file not in files:
            files[file] = safe_open(source.folder / file, framework="pt", device="cpu")
        slices[name] = files[file].get_slice(name)
    config = LoadStateDictConfig(
        device_map={"": streamed.device},
        dtype=streamed.dtype,
        weight_mapping=get_model_conversion_mapping(model),
        dtype_plan=model._get_dtype_plan(streamed.dtype),
    )
    try:
        with quiet(), _one_tensor_at_a_time():
            info, _ = convert_and_load_state_dict_in_model(model, slices, config)
    except Exception as error:  # anything: the loader raises whatever the file made it trip over
        raise Error(f"{source.id}: transformers cannot load {names[0]}: {one_line(error)}") from error
    wrong = [*sorted(info.conversion_errors), *sorted(str(entry[0]) for entry in info.mismatched_keys)]
    if wrong:
        raise Error(f"{source.id}: transformers cannot convert the tensors of {wrong[0]!r}")


@contextmanager
def _one_tensor_at_a_time() -> Iterator[None]:
    """transformers would read all tensors at once in threads, beside the fused ones it makes of them."""
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_THREADS]
        if before is not None:
            os.environ[_NO_THREADS] = before


def _to_meta(module: Any) -> None:
    import torch
    from torch import nn

    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not parameter.is_meta:
                part._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                part._buffers[name] = torch.empty_like(buffer, device="meta")


def _fill_buffers(model: Any, device: str) -> None:
    """Non-persistent buffers as from_pretrained fills them: parameters are on meta, so only buffers are computed."""
    import torch
    from transformers.modeling_utils import _load_parameter_into_model

    for name, buffer in list(model.named_non_persistent_buffers()):
        _load_parameter_into_model(model, name, torch.empty_like(buffer, device=device))
    for module in model.modules():
        if hasattr(module, "_is_hf_initialized"):
            del module._is_hf_initialized
    model.initialize_weights()


def _tie(model: Any, placements: dict[str, Placement]) -> None:
    """Tied parameters share the one that the checkpoint holds, whichever of the two that is."""
    from transformers.modeling_utils import _load_parameter_into_model

    there = {placement.parameter for placement in placements.values()}
    for target, source in dict(model.all_tied_weights_keys or {}).items():
        if target not in there and source in there:
            _load_parameter_into_model(model, target, model.get_parameter(source))
        elif source not in there and target in there:
            _load_parameter_into_model(model, source, model.get_parameter(target))


def _check_complete(streamed: StreamedModel, placements: dict[str, Placement]) -> None:
    """Refuse a checkpoint without a tensor for some parameter that reading text needs."""
    model = streamed.model
    if any(placement.converted and placement.expert is None for placement in placements.values()):
        return  # one tensor may fill several parameters: the layers are checked as they are loaded
    there = {placement.parameter for placement in placements.values()}
    for target, source in dict(model.all_tied_weights_keys or {}).items():
        if target in there or source in there:
            there |= {target, source}
    missing = sorted(key for key, _ in model.named_parameters() if key not in there)
    if missing:
        raise Error(
            f"{streamed.source.id}: has no tensor for {missing[0]!r} ({len(missing)} missing), which "
            f"{streamed.source.architecture} needs; expected a whole checkpoint; download it again"
        )
