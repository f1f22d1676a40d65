"""The statistic measured without modules or hooks, to compare calibration with.

The linear operations themselves are intercepted; a weight is recognised by its address. Every sample runs alone and
without a pad, in float64 sums. A tied output layer is not covered: its weight is the embedding's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class LinearOperations(TorchFunctionMode):
    """Collects, by parameter, the norm over tokens of every input feature that meets it in a product."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.names = {p.data_ptr(): name for name, p in model.named_parameters() if p.dim() == 2}
        self.norms: dict[str, Tensor] = {}

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
        name = self.names.get(weight.data_ptr())
        if name is not None:
            assert name not in self.norms
            flat = x.detach().double().reshape(-1, weight.shape[1])
            self.norms[name] = torch.einsum("tc,tc->c", flat, flat) ** 0.5


def oracle(model: Any, samples: Sequence[Sequence[int]]) -> list[dict[str, Tensor]]:
    """For each sample (token ids) the float64 norms [in] by the name of the parameter."""
    found = []
    for ids in samples:
        with torch.no_grad(), LinearOperations(model) as operations:
            model(input_ids=torch.tensor([ids]), use_cache=False)
        found.append(operations.norms)
    return found
