"""The statistic while the model runs: for each sample the L2 norm of every input feature over its real tokens.

Forward pre-hooks see the input of a linear map before it is used. Three things they must not do: change it (in float32
`x.float()` is `x` itself, so everything here is out of place), count a pad (rows are selected; a product would keep a
NaN), and return anything (it would become the input).
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mathneuro_export.errors import Error


class StopForwardError(Exception):
    """Ends a forward pass before the output layer's product: nobody needs the logits."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The batch in the model now: `blocks[b]` and `lengths[b]` of the sample in row b, rows padded to `padded`."""

    blocks: Sequence[int]
    lengths: Sequence[int]
    padded: int


@dataclass(slots=True)
class Recorder:
    """Sums of norms, float64 [blocks, in] on the input's device, by the name of the first map that sees an input.

    Which maps share an input is found in the first batch (one tensor object, unchanged since) and held to later.
    """

    blocks: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    _rows: Rows | None = None
    _live: dict[int, tuple["weakref.ref[Tensor]", int, str]] = field(default_factory=dict)
    _fired: set[str] = field(default_factory=set)

    def begin(self, rows: Rows) -> None:
        """Announce the batch that runs next."""
        self._rows = rows
        self._live.clear()
        self._fired.clear()

    def end(self) -> None:
        """Forget the batch: what a hook sees from now on is an error."""
        self._rows = None
        self._live.clear()

    def see(self, name: str, x: Tensor) -> None:
        """Record the input `x` of the linear map `name`.

        Errors: `Error` for a map that runs twice in a batch, an input whose tokens cannot be told, or one that is no
        longer shared.
        """
        if self._rows is None:
            raise Error(f"{name}: ran outside a calibration batch")
        if name in self._fired:
            raise Error(f"{name}: ran twice in one forward pass, which is not supported; exclude it (--exclude)")
        self._fired.add(name)
        reference, version, leader = self._live.get(id(x), (None, -1, ""))
        shared = reference is not None and reference() is x and version == x._version
        known = self.leaders.get(name)
        if known is None:
            self.leaders[name] = known = leader if shared else name
        if known != name:
            if not (shared and leader == known):
                raise Error(f"{name}: no longer sees the same input as {known}; exclude one of them (--exclude)")
            return
        self._live[id(x)] = (weakref.ref(x), x._version, name)
        self._add(name, x, self._rows)

    def _add(self, name: str, x: Tensor, rows: Rows) -> None:
        tokens = _tokens_of(name, x, len(rows.lengths), rows.padded)
        sums = self.sums.get(name)
        if sums is None:
            device = torch.device("cpu") if x.device.type == "mps" else x.device  # mps has no float64
            self.sums[name] = sums = torch.zeros(self.blocks, x.shape[-1], dtype=torch.float64, device=device)
        for row, (block, length) in enumerate(zip(rows.blocks, rows.lengths, strict=True)):
            sums[block] += tokens(row, length).float().pow(2).sum(0).sqrt().to(sums.device)


def _tokens_of(name: str, x: Tensor, rows: int, padded: int) -> Callable[[int, int], Tensor]:
    """How to take one row's real tokens [n, in] of an input [B, T, in], [B*T, in], [..., B, T, in] or [B, T, ..., in].

    Leading or middle dimensions beyond the tokens count as further tokens of the same sample.
    """
    lead, features = tuple(x.shape[:-1]), x.shape[-1]
    if lead == (rows * padded,):
        x = x.reshape(rows, padded, features)
        lead = (rows, padded)
    if lead == (rows, padded):
        return lambda row, length: x[row, :length]
    if lead[-2:] == (rows, padded):
        return lambda row, length: x[..., row, :length, :].reshape(-1, features)
    if lead[:2] == (rows, padded):
        return lambda row, length: x[row, :length].reshape(-1, features)
    raise Error(
        f"{name}: its input has shape {list(x.shape)}, in which the {rows} x {padded} tokens of the batch cannot be "
        "told; exclude it (--exclude)"
    )


@contextmanager
def recording(recorder: Recorder, modules: Mapping[str, nn.Module], output: nn.Module | None) -> Iterator[None]:
    """Record the inputs of `modules` (by name) inside the block, and stop every forward pass before `output` runs.

    All hooks are gone afterwards, whatever happened.
    """
    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(_observe(recorder, name), with_kwargs=True))
        if output is not None:
            handles.append(output.register_forward_pre_hook(_stop))
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(model: Any, ids: Tensor, attention_mask: Tensor | None) -> None:
    """One forward pass up to the output layer, without gradients. `ids` int64 [B, T] on the model's device."""
    options = {} if attention_mask is None else {"attention_mask": attention_mask}
    try:
        with torch.no_grad():  # not inference_mode: its tensors have no version counter
            model(input_ids=ids, use_cache=False, **options)
    except StopForwardError:
        pass


def _observe(recorder: Recorder, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def observe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.see(name, args[0] if args else next(iter(kwargs.values())))

    return observe


def _stop(module: nn.Module, args: tuple[Any, ...]) -> None:
    raise StopForwardError
