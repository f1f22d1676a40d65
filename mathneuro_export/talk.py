"""What is said on stderr while work goes on; results go to stdout and are not this module's business."""

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_TOKEN = re.compile(r"hf_[A-Za-z0-9]{8,}")


def without_tokens(text: str) -> str:
    """A text with everything that looks like a token of the Hub made unreadable."""
    return _TOKEN.sub("hf_[redacted]", text)


class RedactTokens(logging.Filter):
    """Keeps tokens out of a log, those that a server repeats too."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_tokens(record.getMessage()), ()
        return True


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
