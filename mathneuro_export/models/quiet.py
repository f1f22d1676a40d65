"""Keep transformers from talking, and one thread at a time in it.

Its log level, its progress bars, Python's warnings and torch's default dtype, which transformers sets while it builds a
model, belong to the process: a thread that runs a model while another loads one would compute in the wrong dtype.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Silence transformers' log, its progress bars and Python warnings inside the block, unless `verbose`."""
    with _ONE_AT_A_TIME:
        if verbose:
            yield
            return
        import transformers

        log = transformers.logging
        verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
        log.set_verbosity(log.CRITICAL)
        log.disable_progress_bar()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            log.set_verbosity(verbosity)
            if bars:
                log.enable_progress_bar()
