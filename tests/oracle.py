"""The statistic measured without modules or hooks, to compare calibration with.

The linear operations themselves are intercepted; a weight is recognised by its address. Every sample runs alone and
without a pad, in float64 sums. A tied output layer is not covered: its weight is the embedding's. Experts run through
transformers' own loop over them; one that no token reached has zeros.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class LinearOperations(TorchFunctionMode):
    """Collects, by parameter, the norm over tokens of every input feature that meets it in a product."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.names: dict[int, tuple[str, int | None, int]] = {}
        for name, p in model.named_parameters():
            if p.dim() == 2:
                self.names[p.data_ptr()] = (name, None, 0)
            elif p.dim() == 3:
                for expert in range(p.shape[0]):
                    self.names[p[expert].data_ptr()] = (name, expert, p.shape[0])
        self.norms: dict[str, Tensor] = {}
        self.tokens: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = getattr(func, "__name__", "")
        if operation == "linear":
            self.record(args[0], args[1])
        elif operation == "addmm":
            self.record(args[1], args[2].T)
        elif operation in ("matmul", "__matmul__") and args[1].dim() == 2:
            self.record(args[0], args[1].T)
        return func(*args, **(kwargs or {}))

    def record(self, x: Tensor, weight: Tensor) -> None:
        name, expert, experts = self.names.get(weight.data_ptr(), (None, None, 0))
        if name is None:
            return
        flat = x.detach().double().reshape(-1, weight.shape[1])
        norms = torch.einsum("tc,tc->c", flat, flat) ** 0.5
        if expert is None:
            before = self.norms.get(name, torch.zeros_like(norms))
            self.norms[name] = (before**2 + norms**2) ** 0.5  # routers may run twice
            return
        if name not in self.norms:
            self.norms[name] = torch.zeros(experts, len(norms), dtype=torch.float64)
            self.tokens[name] = torch.zeros(experts, dtype=torch.int64)
        assert self.tokens[name][expert] == 0
        self.norms[name][expert] = norms
        self.tokens[name][expert] = len(flat)


def oracle(model: Any, samples: Sequence[Sequence[int]]) -> list[dict[str, Tensor]]:
    """For each sample (token ids) the float64 norms [in] by the name of the parameter ([E, in] of experts)."""
    return [norms for norms, _ in oracle_with_tokens(model, samples)]


def oracle_with_tokens(
    model: Any, samples: Sequence[Sequence[int]]
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """As `oracle`, and the tokens of each expert, int64 [E]."""
    before = getattr(model.config, "_experts_implementation", None)
    with suppress(ValueError, RuntimeError, KeyError):
        model.set_experts_implementation("eager")
    found = []
    for ids in samples:
        with torch.no_grad(), LinearOperations(model) as operations:
            model(input_ids=torch.tensor([ids]), use_cache=False)
        found.append((operations.norms, operations.tokens))
    with suppress(ValueError, RuntimeError, KeyError):
        model.set_experts_implementation(before or "eager")
    return found
