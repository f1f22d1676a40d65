"""Forward passes that wait at each decoder layer until it is there, so that a layer is read once for all batches.

Each batch's forward pass is a thread, one of which runs at a time. Where it would call a decoder layer, it hands the
call over and waits; the layer itself runs in the thread that leads. So whatever the model's own code does between
layers (masks, rotary embeddings, inputs per layer, shared keys and values) runs unchanged, and a waiting pass costs no
more than its tensors and a small stack.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

STACK = 1 << 20
"""Bytes of a waiting pass's stack; it holds the model's outer code only."""


@dataclass(slots=True)
class Call:
    """A call of a decoder layer that waits."""

    layer: int
    forward: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def hidden(self) -> torch.Tensor:
        """The hidden states that the layer is given."""
        hidden = self.args[0] if self.args else self.kwargs["hidden_states"]
        assert isinstance(hidden, torch.Tensor)
        return hidden


class _CancelledError(BaseException):
    """Ends the thread of a pass that nobody goes on with."""


class Forward:
    """One forward pass; `call` is the layer it waits at, None before the start and when it is done."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.call: Call | None = None
        self.done = False
        self._run = run
        self._result: Any = None
        self._error: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run up to the first decoder layer. Errors: whatever the pass raises."""
        self._thread = threading.Thread(target=self._main, daemon=True)
        _PASSES[self._thread] = self
        self._thread.start()
        self._turn()

    def proceed(self, result: Any) -> None:
        """Give the waiting call its result and run up to the next decoder layer. Errors: whatever the pass raises."""
        self.call, self._result = None, result
        self._go.release()
        self._turn()

    def cancel(self) -> None:
        """End the thread, wherever it waits; nothing happens to one that is done."""
        if self._thread is not None and not self.done:
            self._cancelled = True
            self._go.release()
            self._thread.join()

    def _turn(self) -> None:
        self._back.acquire()
        if self.done and self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            with torch.no_grad():
                self._run()
        except BaseException as error:  # handed to the thread that leads
            if not isinstance(error, _CancelledError):
                self._error = error
        finally:
            _PASSES.pop(threading.current_thread(), None)
            self.done = True
            self._back.release()

    def offer(self, call: Call) -> Any:
        """From the pass's own thread: wait for the result of a decoder layer."""
        self.call = call
        del call
        self._back.release()
        self._go.acquire()
        if self._cancelled:
            raise _CancelledError
        result, self._result = self._result, None
        return result


_PASSES: dict[threading.Thread, Forward] = {}


@contextmanager
def waiting_at(layers: Sequence[Any]) -> Iterator[None]:
    """Inside the block a forward pass in a thread of a `Forward` waits at each of these modules."""
    own = [vars(layer).get("forward") for layer in layers]
    try:
        for number, layer in enumerate(layers):
            layer.forward = _waiting(number, layer.forward)
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward


def _waiting(number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        own = _PASSES[threading.current_thread()]
        call = Call(number, forward, args, kwargs)
        del args, kwargs
        return own.offer(call)

    return wait


@contextmanager
def small_stacks() -> Iterator[None]:
    """Threads that start in the block have small stacks and compute alone (a thread of its own each would stay)."""
    threads, size = torch.get_num_threads(), threading.stack_size(STACK)
    try:
        if threads > 1:
            torch.set_num_threads(1)
        yield
    finally:
        threading.stack_size(size)
        if threads > 1:
            torch.set_num_threads(threads)
