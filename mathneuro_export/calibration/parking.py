"""Where the tensors of waiting forward passes lie: in memory while they fit, else in files of the work folder.

A tensor that goes to a file is given a private map of it in place of its memory, so that every name the model's own
code has for it stays valid; pages are read when the layer reads them.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathneuro_export.calibration.forwards import Call
from mathneuro_export.checkpoint.durable import is_full
from mathneuro_export.errors import Error, ResourceError

SMALL = 1 << 12
"""Tensors of fewer bytes stay where they are."""


class Parking:
    """The tensors of waiting passes.

    `files`: pass -> the file with its hidden states at the layer it waits at, and their crc32; empty where `keep` is
    false or they are in memory.
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None, device_budget: int = 0) -> None:
        """At most `budget` bytes of host memory (None: no limit), the rest in `folder`; on a GPU that much before."""
        self.keep = False
        self.files: dict[int, tuple[Path, int]] = {}
        self._budget, self._folder, self._device_budget = budget, folder, device_budget
        self._host: dict[int, int] = {}
        self._device: dict[int, int] = {}

    def park(self, number: int, call: Call) -> None:
        """A pass waits: move its tensors where there is room. Errors: `ResourceError` where the disk is full."""
        self.files.pop(number, None)
        tensors = list(_large(call))
        size = sum(tensor.nbytes for tensor in tensors)
        if any(tensor.is_cuda for tensor in tensors):
            if sum(self._device.values()) + size <= self._device_budget:
                self._device[number] = size
                return
            for tensor in tensors:
                tensor.data = tensor.cpu()
        if self._folder is None or self._budget is None or sum(self._host.values()) + size <= self._budget:
            self._host[number] = size
            return
        hidden = call.hidden
        for tensor in tensors:
            kept = tensor is hidden and self.keep
            path = self._folder / f"{'hidden' if kept else 'other'}-{call.layer}-{number}"
            checksum = write_tensor(path, tensor)
            tensor.data = map_tensor_file(path, tensor)
            if kept:
                self.files[number] = (path, checksum)
            else:
                path.unlink()

    def fetch(self, number: int, call: Call, device: str) -> None:
        """A pass is about to go on: its tensors on the device it computes on."""
        self._host.pop(number, None)
        self._device.pop(number, None)
        if device != "cpu":
            for tensor in _large(call):
                tensor.data = tensor.to(device)


def _large(call: Call) -> Iterator[Tensor]:
    """The tensors that a call is given, each memory once, but small ones and views of a part."""
    seen = set()
    for tensor in tensors_of(call):
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        if tensor.nbytes >= SMALL and whole and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield tensor


def tensors_of(call: Call) -> Iterator[Tensor]:
    """Every tensor that a call is given."""
    yield from _tensors([*call.args, *call.kwargs.values()])


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def write_tensor(path: Path, tensor: Tensor) -> int:
    """Write the bytes of a contiguous tensor, in one step; their crc32.

    Errors: `ResourceError` where the disk is full.
    """
    data = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data
    try:
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        if is_full(error):
            raise ResourceError(
                f"{path.name}: the disk is full of hidden states; free space in the output's folder"
            ) from error
        raise Error(f"{path.name}: cannot be written: {error.strerror}") from error
    return zlib.crc32(data)


def map_tensor_file(path: Path, like: Tensor) -> Tensor:
    """A private map of a file that `write_tensor` wrote, of the shape and dtype of `like`."""
    return torch.from_numpy(np.memmap(path, np.uint8, mode="c")).view(like.dtype).view(like.shape)
