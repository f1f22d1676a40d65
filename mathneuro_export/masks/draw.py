"""The random control: as many weights as a mask holds, drawn without replacement."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


def draw_flat(numel: int, count: int, seed: int, name: str, expert: int | None = None) -> npt.NDArray[Any]:
    """`count` distinct flat indices below `numel`, every set equally likely, ascending (uint32 or int64 [count]).

    The draw depends on `seed`, the tensor's name and the expert's index alone. It takes memory for a few times `count`.
    """
    if not 0 <= count <= numel:
        raise ValueError(f"cannot draw {count} of {numel} elements")
    generator = _generator(seed, name, expert)
    if count > numel // 2:
        chosen = np.ones(numel, dtype=bool)
        chosen[_distinct(generator, numel, numel - count)] = False
        return np.flatnonzero(chosen)
    return _distinct(generator, numel, count)


def _distinct(generator: np.random.Generator, numel: int, count: int) -> npt.NDArray[Any]:
    dtype: type[np.uint32 | np.int64] = np.uint32 if numel <= 1 << 32 else np.int64
    chosen: npt.NDArray[Any] = np.empty(0, dtype=dtype)
    while chosen.size < count:
        drawn = generator.integers(0, numel, size=count - chosen.size, dtype=dtype)
        chosen = np.concatenate((chosen, drawn))
        chosen.sort()
        chosen = chosen[np.append(True, chosen[1:] != chosen[:-1])]
    return chosen


def _generator(seed: int, name: str, expert: int | None) -> np.random.Generator:
    words = f"{seed}\n{'' if expert is None else expert}\n{name}"
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(words.encode("utf-8")).digest(), "big")))
