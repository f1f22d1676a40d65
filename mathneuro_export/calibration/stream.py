"""Calibration layer by layer: the batches of all corpora go through a decoder layer before the next one is read."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mathneuro_export.calibration.corpus import Corpus
from mathneuro_export.calibration.forwards import Call, Forward, small_stacks, waiting_at
from mathneuro_export.calibration.hooks import Passing, Recorder
from mathneuro_export.calibration.parking import Parking, tensors_of
from mathneuro_export.calibration.result import Calibration, Work, collect
from mathneuro_export.calibration.resume import Checkpoints, Kept, form_of, passed_on
from mathneuro_export.calibration.runner import observing, prepare_works, rows_of, run_batch
from mathneuro_export.errors import Error
from mathneuro_export.models.loading import embedding_rows, tokenizer_note
from mathneuro_export.models.names import one_line
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.streaming import StreamedModel
from mathneuro_export.models.targets import Plan

LayerProgress = Callable[[int], None]
"""Called after each decoder layer of each batch with the samples in it."""


@dataclass(slots=True)
class _Pass:
    number: int
    work: Work
    recorder: Recorder
    passing: Passing
    forward: Forward
    samples: int
    embedded: list["weakref.ref[Tensor]"] = field(default_factory=list)

    def forget(self, call: Call) -> None:
        """Free what the embedding gave, which the model's own code has a name for to the end of the pass.

        Where the call is given it, it stays. In its place is NaN: if it is used after all, the statistic tells.
        """
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(call)}
        rest = []
        for reference in self.embedded:
            tensor = reference()
            if tensor is not None and tensor.untyped_storage().data_ptr() in given:
                rest.append(reference)
            elif tensor is not None and tensor.is_floating_point():
                tensor.data = torch.full((1,), torch.nan, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        self.embedded = rest


@dataclass(slots=True)
class _Switch:
    """Hands what the hooks see to the recorder of the corpus whose batch runs now."""

    recorder: Recorder
    current: _Pass | None = None

    def enter(self, one: _Pass) -> None:
        self.current = one
        self.recorder = one.recorder
        self.recorder.passing = one.passing

    def see(self, name: str, x: Tensor) -> None:
        self.recorder.see(name, x)

    def see_expert(self, group: str, shape: tuple[int, int], expert: int, x: Tensor, tokens: Tensor, of: int) -> None:
        self.recorder.see_expert(group, shape, expert, x, tokens, of)


def calibrate_streamed(
    streamed: StreamedModel,
    plan: Plan,
    corpora: Sequence[Corpus],
    tokenizer: Any,
    *,
    max_length: int = 1024,
    batch_size: int | None = None,
    blocks: int | None = None,
    chat_template: bool = False,
    progress: LayerProgress | None = None,
    parking: Parking | None = None,
    checkpoints: Checkpoints | None = None,
) -> Calibration:
    """As `runner.calibrate`, and to the same bits on one thread, with one decoder layer in memory at a time.

    `parking` holds the hidden states of waiting batches (None: in memory); `checkpoints` keeps and finds unfinished
    work (None: neither). The model's layers are empty afterwards.

    Errors: as `runner.calibrate`; `Error` for a layer that cannot be loaded.
    """
    model = streamed.model
    rows = embedding_rows(model)
    works = prepare_works(plan, corpora, tokenizer, rows, max_length, batch_size, blocks, chat_template)
    leaders: dict[str, str] = {}
    recorders = [Recorder(work.blocks, leaders=leaders) for work in works]
    switch = _Switch(recorders[0])
    passes = _passes(streamed, works, recorders)
    parking = parking or Parking()
    parking.keep = checkpoints is not None
    try:
        with quiet(), torch.no_grad(), _watched(streamed, plan, switch):
            kept = checkpoints.load(recorders, [one.number for one in passes]) if checkpoints else None
            for one in passes:
                _go_on(one, switch, kept, parking)
                if progress and kept is not None:
                    progress(one.samples * kept.layer)
            _layers(streamed, passes, switch, recorders, parking, checkpoints, progress)
    finally:
        for one in passes:
            one.forward.cancel()
        for recorder in recorders:
            recorder.end()
        for layer in range(len(streamed.units.names)):
            streamed.free(layer)
    larger = tokenizer_note(tokenizer, rows)
    notes = [larger] if larger else []
    return collect(plan, works, recorders, max_length=max_length, chat_template=chat_template, notes=notes)


def _passes(streamed: StreamedModel, works: Sequence[Work], recorders: Sequence[Recorder]) -> list[_Pass]:
    passes: list[_Pass] = []
    for work, recorder in zip(works, recorders, strict=True):
        for batch in work.batches:

            def run(work: Work = work, batch: Any = batch) -> None:
                run_batch(streamed.model, work, batch, streamed.device)

            passing = Passing(rows_of(work, batch))
            passes.append(_Pass(len(passes), work, recorder, passing, Forward(run), len(batch.samples)))
    return passes


def _layers(
    streamed: StreamedModel,
    passes: Sequence[_Pass],
    switch: _Switch,
    recorders: Sequence[Recorder],
    parking: Parking,
    checkpoints: Checkpoints | None,
    progress: LayerProgress | None,
) -> None:
    while waiting := [one for one in passes if one.forward.call is not None]:
        layer = min(one.forward.call.layer for one in waiting if one.forward.call)
        streamed.load(layer)
        streamed.read_ahead(layer + 1)
        form: Any = None
        for one in waiting:
            if one.forward.call is not None and one.forward.call.layer == layer:
                form = _one_layer(one, streamed, switch, parking)
                if progress:
                    progress(one.samples)
        streamed.free(layer)
        if checkpoints is not None:
            calls = [one.forward.call for one in passes]
            if all(call is not None and call.layer == layer + 1 for call in calls):
                hidden = {one.number: one.forward.call.hidden for one in passes if one.forward.call}
                checkpoints.after(layer, form, recorders, hidden, parking)


def _one_layer(one: _Pass, streamed: StreamedModel, switch: _Switch, parking: Parking) -> Any:
    """Run the layer that a pass waits at, and the pass up to its next one; the form of the layer's result."""
    call = one.forward.call
    assert call is not None
    parking.fetch(one.number, call, streamed.device)
    switch.enter(one)
    try:
        result = call.forward(*call.args, **call.kwargs)
    except Error:
        raise
    except Exception as error:  # anything: the model's own program
        name = one.work.corpus.name
        raise Error(f"{name}: the model failed on {one.samples} samples: {one_line(error)}") from error
    form = form_of(call, result)
    one.forward.proceed(result)
    following = one.forward.call
    if following is None:
        return form
    if form is not None and not passed_on(result, following.hidden):
        form = None
    del result, call
    one.forget(following)
    parking.park(one.number, following)
    return form


def _go_on(one: _Pass, switch: _Switch, kept: Kept | None, parking: Parking) -> None:
    """Start a pass and bring it to its first layer, or to the one after the last that is kept."""
    switch.enter(one)
    with small_stacks():
        one.forward.start()
        while kept is not None and (call := one.forward.call) is not None and call.layer < kept.layer:
            last = call.layer == kept.layer - 1
            one.forward.proceed(kept.result(kept.hidden(one.number, call.hidden) if last else call.hidden))
    if one.forward.call is not None:
        one.forget(one.forward.call)
        parking.park(one.number, one.forward.call)


@contextmanager
def _watched(streamed: StreamedModel, plan: Plan, switch: _Switch) -> Iterator[None]:
    """Passes show their inputs to `switch`, wait at each decoder layer, and know what the embedding gave them."""
    with observing(streamed.model, plan, switch), _embeddings(streamed.model, switch), waiting_at(streamed.layers):
        yield


@contextmanager
def _embeddings(model: Any, switch: _Switch) -> Iterator[None]:
    """Remember what the embedding gives each pass, so that `_Pass.forget` can let go of it."""

    def remember(module: Any, args: Any, output: Any) -> None:
        if switch.current is not None and isinstance(output, Tensor):
            switch.current.embedded.append(weakref.ref(output))

    handle = model.get_input_embeddings().register_forward_hook(remember)
    try:
        yield
    finally:
        handle.remove()
