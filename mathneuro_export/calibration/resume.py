"""Unfinished work of a streamed calibration: statistics and hidden states after a decoder layer, journaled.

A resumed calibration embeds its texts again, hands every pass the kept hidden states as the result of the last layer
that is done, and goes on from there. That needs a model whose layers pass on hidden states and nothing else.
"""

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathneuro_export.calibration.forwards import Call
from mathneuro_export.calibration.hooks import Recorder
from mathneuro_export.calibration.parking import Parking, map_tensor_file, write_tensor
from mathneuro_export.checkpoint.header import map_tensor, read_header
from mathneuro_export.checkpoint.journal import Journal
from mathneuro_export.checkpoint.strictjson import canonical, parse_json
from mathneuro_export.checkpoint.write import Entry, write_safetensors
from mathneuro_export.errors import Error

KEY = "calibration"
SHARE = 10
"""Hidden states in memory are kept when this many times the cost of doing so has passed since the last time."""
SPEED = 200 << 20
"""Bytes a second that writing is expected to take, before it is known."""

Form = list[Any]
"""How a layer gives its hidden states back: ["tensor"], or ["tuple", n] with nothing else in the tuple."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The work up to the decoder layer `layer`, which is the next one to run."""

    layer: int
    form: Form
    files: Mapping[int, Path]

    def hidden(self, number: int, like: Tensor) -> Tensor:
        """The kept hidden states of a pass, on the device of `like`, of its shape and dtype."""
        return map_tensor_file(self.files[number], like).to(like.device, copy=True)

    def result(self, hidden: Tensor) -> Any:
        """What the layer before would have returned."""
        if self.form[0] == "tensor":
            return hidden
        return (hidden, *[None] * (self.form[1] - 1))


KEPT = re.compile(r"hidden-[0-9]+-[0-9]+|statistics-[0-9]+")
"""Names of the files that a record may point at."""


class Checkpoints:
    """Keeps work in `folder` and its record in `journal`; `say` is told what a resumed calibration repeats."""

    def __init__(self, journal: Journal, folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self._journal, self._folder, self._say, self._shares = journal, folder, say, False
        self._saved: set[str] = set()
        self._record: dict[str, Any] = {"layer": 0, "statistics": []}
        self._last = time.monotonic()
        self._cost: float | None = None

    def load(self, recorders: Sequence[Recorder], passes: Sequence[int]) -> Kept | None:
        """What an earlier process kept, with its statistics in `recorders`; None if there is nothing whole."""
        record = self._journal.get(KEY)
        if record is None or set(record["hidden"]) != {str(number) for number in passes}:
            return None
        names = [*(name for name, _ in record["hidden"].values()), *record["statistics"]]
        if not all(isinstance(name, str) and KEPT.fullmatch(name) for name in names):
            return None
        files = {int(number): self._folder / name for number, (name, _) in record["hidden"].items()}
        try:
            for number, (_, checksum) in record["hidden"].items():
                if zlib.crc32(files[int(number)].read_bytes()) != checksum:
                    return None
            for name in record["statistics"]:
                self._read_statistics(self._folder / name, recorders)
        except (OSError, Error):
            for recorder in recorders:
                for found in (recorder.sums, recorder.tokens, recorder.leaders):
                    found.clear()
            return None
        self._say(f"go on with decoder layer {record['layer']}")
        self._record = record
        self._saved = {name for recorder in recorders for name in recorder.sums}
        return Kept(record["layer"], record["form"], files)

    def after(
        self,
        layer: int,
        form: Form | None,
        recorders: Sequence[Recorder],
        hidden: Mapping[int, Tensor],
        parking: Parking,
    ) -> None:
        """A decoder layer is done and every pass waits at the next: keep that if it costs little."""
        if form is None:
            parking.keep = False
            self._sweep(layer + 2)
            if not self._shares:
                self._say("the layers pass on more than hidden states: an interrupted calibration starts again")
            self._shares = True
            return
        missing = {number: tensor for number, tensor in hidden.items() if number not in parking.files}
        size = sum(tensor.nbytes for tensor in missing.values())
        cost = size / SPEED if self._cost is None else self._cost
        if missing and time.monotonic() - self._last < SHARE * cost:
            self._sweep(layer + 1)
            return
        began = time.monotonic()
        files = {str(number): [path.name, checksum] for number, (path, checksum) in parking.files.items()}
        for number, tensor in missing.items():
            path = self._folder / f"hidden-{layer + 1}-{number}"
            files[str(number)] = [path.name, write_tensor(path, tensor)]
        statistics = self._write_statistics(layer, recorders)
        self._record = {
            "layer": layer + 1,
            "form": form,
            "hidden": files,
            "statistics": [*self._record["statistics"], statistics],
        }
        self._journal.record(KEY, self._record)
        self._sweep(layer + 1)
        self._last = time.monotonic()
        if missing:
            self._cost = self._last - began

    def _sweep(self, layer: int) -> None:
        """Remove hidden states that neither the record nor a pass that waits at `layer` needs."""
        kept = {name for name, _ in self._record.get("hidden", {}).values()}
        for path in self._folder.glob("hidden-*"):
            if path.name not in kept and (path.suffix or int(path.name.split("-")[1]) < layer):
                path.unlink()

    def _write_statistics(self, layer: int, recorders: Sequence[Recorder]) -> str:
        entries = []
        for number, recorder in enumerate(recorders):
            for kind, tensors in (("sums", recorder.sums), ("tokens", recorder.tokens)):
                for name in sorted(tensors.keys() - self._saved):
                    array = tensors[name].cpu().numpy()
                    dtype = "F64" if kind == "sums" else "I64"
                    entries.append(Entry(f"{number}/{kind}/{name}", dtype, array.shape, partial(_bytes, array)))
        self._saved |= {name for recorder in recorders for name in recorder.sums}
        path = self._folder / f"statistics-{layer}"
        path.parent.mkdir(exist_ok=True)
        write_safetensors(path, entries, {"leaders": canonical(recorders[0].leaders).decode()})
        return path.name

    def _read_statistics(self, path: Path, recorders: Sequence[Recorder]) -> None:
        header = read_header(path)
        for info in header.tensors:
            number, kind, name = info.name.split("/", 2)
            into = recorders[int(number)].sums if kind == "sums" else recorders[int(number)].tokens
            into[name] = torch.from_numpy(np.array(map_tensor(header, info)))
        leaders = parse_json((header.metadata or {}).get("leaders", "{}").encode(), path.name)
        recorders[0].leaders.update(leaders)


def _bytes(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [np.ascontiguousarray(array)]


def form_of(call: Call, result: Any) -> Form | None:
    """How a layer gives its hidden states back; None where it is given or gives anything that others may share."""
    if not all(_is_plain(value) for value in (*call.args, *call.kwargs.values())):
        return None
    if isinstance(result, Tensor):
        return ["tensor"]
    if isinstance(result, tuple) and isinstance(result[0], Tensor) and all(value is None for value in result[1:]):
        return ["tuple", len(result)]
    return None


def passed_on(result: Any, hidden: Tensor) -> bool:
    """Whether the hidden states that a layer gave back are the very ones that the next is given."""
    first = result if isinstance(result, Tensor) else result[0]
    with suppress(RuntimeError):
        return bool(first.shape == hidden.shape and first.data_ptr() == hidden.data_ptr())
    return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, Tensor | bool | int | float | str)
