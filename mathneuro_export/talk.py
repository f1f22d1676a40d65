"""What is said on stderr while work goes on; results go to stdout and are not this module's business."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Talk:
    """Sentences and progress bars; the default is silent, as the Python functions are."""

    sentences: bool = False
    bars: bool = False

    def say(self, text: str) -> None:
        """One line of talk."""
        if self.sentences:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """A progress bar over `total` units; yields the function that advances it."""
        if not self.bars:
            yield lambda amount: None
            return
        from tqdm import tqdm

        scale = unit == "B"
        with tqdm(desc=what, total=total, unit=unit, unit_scale=scale, unit_divisor=1024, file=sys.stderr) as bar:

            def advance(amount: int) -> None:
                bar.update(amount)

            yield advance
