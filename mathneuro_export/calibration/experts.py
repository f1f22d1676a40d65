"""The statistic of a mixture of experts: each expert sees only the tokens routed to it, at both of its matrices.

No hook can see the input of an expert's second matrix. transformers runs the experts of a module through a registered
function; the one here runs them one after another and shows both inputs to the recorder.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

NAME = "mathneuro_recording"


class ExpertsObserver(Protocol):
    """Who is shown what the experts see."""

    def see_expert(self, group: str, shape: tuple[int, int], expert: int, x: Tensor, tokens: Tensor, of: int) -> None:
        """The input `x` [n, in] of one matrix of the parameter `group`.

        Args:
            shape: experts, and length of the input.
            tokens: int64 [n], ascending: which of the `of` tokens of the batch, pads included, the rows of `x` are.
        """


@contextmanager
def recording_experts(model: Any, observer: ExpertsObserver, modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Inside the block the experts' modules (by dotted name) show their inputs to `observer`.

    Without such modules the model is left alone; else its former implementation of experts is set again afterwards.
    """
    if not modules:
        yield
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    names = {id(module): name for name, module in modules.items()}
    before = model.config._experts_implementation
    ALL_EXPERTS_FUNCTIONS.register(NAME, _recorded(observer, names))
    try:
        model.set_experts_implementation(NAME)
        yield
    finally:
        model.set_experts_implementation(before or "eager")


def _recorded(observer: ExpertsObserver, names: Mapping[int, str]) -> Callable[..., Tensor]:
    def forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return _run(module, hidden_states, top_k_index, top_k_weights, observer, names.get(id(module)))

    return forward


def _run(
    module: Any, hidden: Tensor, chosen: Tensor, weights: Tensor, observer: ExpertsObserver, name: str | None
) -> Tensor:
    """What `module` computes for hidden states [N, H], experts [N, K] and their weights [N, K]: [N, H]."""
    experts, choices = module.num_experts, chosen.shape[-1]
    up = "gate_up_proj" if module.has_gate else "up_proj"
    out = torch.zeros(len(hidden), choices, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
    order = torch.argsort(chosen.reshape(-1), stable=True)
    counts = torch.bincount(chosen.reshape(-1).clamp(max=experts), minlength=experts + 1).tolist()
    start = 0
    for expert in range(experts):
        places = order[start : start + counts[expert]]
        start += counts[expert]
        tokens, positions = places // choices, places % choices
        x = hidden[tokens]
        _see(observer, module, name, up, expert, x, tokens, len(hidden))
        if len(tokens) == 0:
            continue
        inner = _linear(module, up, expert, x)
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        _see(observer, module, name, "down_proj", expert, inner, tokens, len(hidden))
        y = _linear(module, "down_proj", expert, inner)
        if getattr(module, "has_post_expert_norm", False):
            y = module.post_expert_norm(y)
        out[tokens, positions] = (y * weights[tokens, positions, None]).to(out.dtype)
    return out.sum(1)


def _see(
    observer: ExpertsObserver, module: Any, name: str | None, leaf: str, expert: int, x: Tensor, tokens: Tensor, of: int
) -> None:
    if name is not None:
        observer.see_expert(f"{name}.{leaf}", (module.num_experts, x.shape[-1]), expert, x, tokens, of)


def _linear(module: Any, leaf: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(module, leaf)[expert]
    y = x @ weight if module.is_transposed else nn.functional.linear(x, weight)
    return y + getattr(module, f"{leaf}_bias")[expert] if module.has_bias else y
