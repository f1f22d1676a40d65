"""The statistic while the model runs: for each sample the L2 norm of every input feature over its real tokens.

Forward pre-hooks see the input of a linear map before it is used. Three things they must not do: change it (in float32
`x.float()` is `x` itself, so everything here is out of place), count a pad (rows are selected; a product would keep a
NaN), and return anything (it would become the input).
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

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
class Passing:
    """One batch on its way through the model: its rows, the inputs seen that are still alive, the maps that ran."""

    rows: Rows
    live: dict[int, tuple["weakref.ref[Tensor]", int, str]] = field(default_factory=dict)
    fired: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Recorder:
    """Sums of norms in float64 on the input's device: [blocks, in] by the name of the first map that sees an input.

    Experts: [blocks, E, in] by the parameter that holds their matrices, and in `tokens` int64 [E], how many real tokens
    each one saw. Which maps share an input is found in the first batch (one tensor object, unchanged since) and held to
    later.
    """

    blocks: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    passing: Passing | None = None

    def begin(self, rows: Rows) -> None:
        """Announce the batch that runs next."""
        self.passing = Passing(rows)

    def end(self) -> None:
        """Forget the batch: what a hook sees from now on is an error."""
        self.passing = None

    def see(self, name: str, x: Tensor) -> None:
        """Record the input `x` of the linear map `name`.

        Errors: `Error` for a map that runs twice in a batch, an input whose tokens cannot be told, or one that is no
        longer shared.
        """
        passing = self._fire(name)
        reference, version, leader = passing.live.get(id(x), (None, -1, ""))
        shared = reference is not None and reference() is x and version == x._version
        known = self.leaders.get(name)
        if known is None:
            self.leaders[name] = known = leader if shared else name
        if known != name:
            if not (shared and leader == known):
                raise Error(f"{name}: no longer sees the same input as {known}; exclude one of them (--exclude)")
            return
        passing.live[id(x)] = (weakref.ref(x), x._version, name)
        self._add(name, x, passing.rows)

    def see_expert(self, group: str, shape: tuple[int, int], expert: int, x: Tensor, tokens: Tensor, of: int) -> None:
        """Record the input `x` of one expert's matrix (see `experts.ExpertsObserver`); pads are dropped.

        Errors: `Error` for a module that runs twice in a batch, or whose tokens are not those of the batch.
        """
        rows = self._fire(f"{group} {expert}").rows
        if of != len(rows.lengths) * rows.padded:
            raise Error(
                f"{group}: its experts see {of} tokens, the batch has {len(rows.lengths)} x {rows.padded}; exclude it "
                "(--exclude)"
            )
        sums = self._sums(group, shape, x)
        if group not in self.tokens:
            self.tokens[group] = torch.zeros(shape[0], dtype=torch.int64)
        lengths = torch.tensor(rows.lengths, device=x.device)
        row = tokens // rows.padded
        real = tokens % rows.padded < lengths[row]
        x, row = x[real], row[real]
        self.tokens[group][expert] += len(row)
        squares = torch.zeros(len(rows.lengths), shape[1], dtype=torch.float32, device=x.device)
        squares.index_add_(0, row, x.float().pow(2))
        norms = squares.sqrt().to(sums.device)
        for number, block in enumerate(rows.blocks):
            sums[block, expert] += norms[number]

    def _fire(self, name: str) -> Passing:
        if self.passing is None:
            raise Error(f"{name}: ran outside a calibration batch")
        if name in self.passing.fired:
            raise Error(f"{name}: ran twice in one forward pass, which is not supported; exclude it (--exclude)")
        self.passing.fired.add(name)
        return self.passing

    def _sums(self, name: str, shape: tuple[int, ...], x: Tensor) -> Tensor:
        if name not in self.sums:
            device = torch.device("cpu") if x.device.type == "mps" else x.device  # mps has no float64
            self.sums[name] = torch.zeros(self.blocks, *shape, dtype=torch.float64, device=device)
        return self.sums[name]

    def _add(self, name: str, x: Tensor, rows: Rows) -> None:
        tokens = _tokens_of(name, x, len(rows.lengths), rows.padded)
        sums = self._sums(name, (x.shape[-1],), x)
        for row, (block, length) in enumerate(zip(rows.blocks, rows.lengths, strict=True)):
            sums[block] += tokens(row, length).float().pow(2).sum(0).sqrt().to(sums.device)


class Observer(Protocol):
    """What the hooks tell: a `Recorder`, or whatever chooses one."""

    def see(self, name: str, x: Tensor) -> None:
        """The input `x` of the linear map `name`."""


def _tokens_of(name: str, x: Tensor, rows: int, padded: int) -> Callable[[int, int], Tensor]:
    """How to take one row's real tokens [n, in] of an input [B, T, in], [B*T, in], [..., B, T, in], [B, T, ..., in]
    or [B, 1, T, in].

    Leading or middle dimensions beyond the tokens count as further tokens of the same sample.
    """
    lead, features = tuple(x.shape[:-1]), x.shape[-1]
    if lead in ((rows * padded,), (rows, 1, padded)):
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
def recording(recorder: Observer, modules: Mapping[str, nn.Module], output: nn.Module | None) -> Iterator[None]:
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


def _observe(recorder: Observer, name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def observe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder.see(name, args[0] if args else next(iter(kwargs.values())))

    return observe


def _stop(module: nn.Module, args: tuple[Any, ...]) -> None:
    raise StopForwardError
