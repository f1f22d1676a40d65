"""Keep transformers from talking: no warnings, no progress bars of its own."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Silence transformers' log, its progress bars and Python warnings inside the block, unless `verbose`."""
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
