"""The Hub's own client: loaded late, with finite timeouts, bounded retries, and one line for each of its errors.

A token comes from the environment (`HF_TOKEN`) or the Hub's login and is never an argument, logged or put in a message.
"""

import errno
import importlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import mathneuro_export

from ..errors import Error, ResourceError, UsageError
from ..talk import RedactTokens, Talk
from .regular import reason

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT: Final = "MATHNEURO_HUB_TIMEOUT"
"""Environment variable: seconds without an answer after which a request is given up (120 if it is not set)."""
_PAUSES: Final = (1, 2, 4, 8)
_LONGEST_WAIT: Final = 300
_PASSING: Final = {408, 429, 500, 502, 503, 504}
_TOKEN: Final = re.compile(r"hf_[A-Za-z0-9_]{4,}")
_XET: Final = "; if it happens again, try --no-xet (or HF_HUB_DISABLE_XET=1)"
T = TypeVar("T")


@cache
def _prepare() -> None:
    """Give the client finite timeouts; its own default waits for ever."""
    from huggingface_hub import set_client_factory

    http = importlib.import_module("huggingface_hub.utils._http")
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(RedactTokens())
    answer = _timeout()
    limits = {"connect": min(10.0, answer), "read": answer, "write": answer, "pool": answer}

    def limit(request: Any) -> None:  # some of the client's calls ask for no timeout themselves
        asked = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {key: asked.get(key) or value for key, value in limits.items()}

    def factory() -> Any:
        client = http.default_client_factory()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "request": [*hooks.get("request", []), limit]}
        return client

    set_client_factory(factory)


def _timeout() -> float:
    try:
        seconds = float(os.environ.get(TIMEOUT, "120"))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise UsageError(f"{TIMEOUT} {os.environ[TIMEOUT]!r}: expected seconds above 0, as 120")
    return seconds


def utils() -> Any:
    """The client's own helpers, and its HTTP library under whichever name (`httpx`)."""
    return importlib.import_module("huggingface_hub.utils")


def connect() -> "HfApi":
    """The client, which names this tool to the Hub."""
    _prepare()
    from huggingface_hub import HfApi

    return HfApi(library_name="mathneuro-export", library_version=mathneuro_export.__version__)


def is_offline() -> bool:
    """Whether the environment forbids the network (`HF_HUB_OFFLINE`)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@contextmanager
def client_settings(*, bars: bool, xet: bool = True) -> Iterator[None]:
    """The client's own progress bars off unless `bars`, and its xet path off unless `xet`, for a while."""
    from huggingface_hub import constants

    hidden, without = utils().are_progress_bars_disabled(), constants.HF_HUB_DISABLE_XET
    if not bars:
        utils().disable_progress_bars()
    constants.HF_HUB_DISABLE_XET = without or not xet
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_XET = without
        if not bars and not hidden:
            utils().enable_progress_bars()


def retrying(work: Callable[[], T], what: str, talk: Talk) -> T:
    """The result of `work`, called again after failures that pass by: at most five times, with growing pauses.

    `work` must be such that calling it again does no harm. A 412 (the branch moved) is tried once more, since the
    commit of a lost answer is met that way.

    Args:
        what: the repository, for messages.

    Raises:
        Error: one line, see `explain`.
    """
    moved = False
    for tries, pause in enumerate((*_PAUSES, None), 1):
        try:
            return work()
        except Exception as error:
            again = status_of(error) == 412 and not moved
            moved = moved or again
            wait = max(pause or 0, wait_of(error))
            if pause is None or not (again or _passes(error)) or wait > _LONGEST_WAIT:
                raise explain(error, what, tries) from error
            talk.say(f"{what}: {_short(error)}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("unreachable")


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what caused it; a kind that only wraps the network's error is told by its cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status an exception stands for, None where there was no answer."""
    for link in chain_of(error):
        status = getattr(getattr(link, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    for link in chain_of(error):  # hf_xet tells the status in words alone
        found = (
            re.search(r"\b(40[0-9]|413|422|429|50[0-4])\b", str(link)) if isinstance(link, ConnectionError) else None
        )
        if found:
            return int(found[1])
    return None


def wait_of(error: BaseException) -> int:
    """Seconds the Hub asks to wait; 0 where it does not."""
    for link in chain_of(error):
        headers = getattr(getattr(link, "response", None), "headers", None)
        if headers is None:
            continue
        limit = re.search(r"\bt\s*=\s*(\d{1,9})", headers.get("ratelimit", ""))
        after = headers.get("retry-after", "").strip()
        asked = limit[1] if limit else after
        return int(asked) + 1 if asked.isdigit() and len(asked) < 10 and status_of(error) == 429 else 0
    return 0


def _passes(error: BaseException) -> bool:
    status = status_of(error)
    if status is not None:
        return status in _PASSING
    if is_full_disk(error):
        return False
    return any(_is_network(link) for link in chain_of(error))


def _is_network(error: BaseException) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return False
    return isinstance(error, (utils().httpx.TransportError, ConnectionError, TimeoutError))


def is_full_disk(error: BaseException) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    texts = ("No space left on device", "Disk quota exceeded")
    return any(
        (isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT))
        or any(text in str(link) for text in texts)
        for link in chain_of(error)
    )


def redact(text: str) -> str:
    """One line of a text from outside, without anything that looks like a token or is the token in use."""
    from huggingface_hub import get_token

    try:
        token = get_token()
    except Exception:  # a broken login must not hide the error that is being told
        token = None
    text = _TOKEN.sub("hf_[redacted]", " ".join(text.split()))
    return text.replace(token, "[redacted]") if token else text


def _server_words(error: BaseException) -> str:
    for link in chain_of(error):
        words = getattr(link, "server_message", None)
        if isinstance(words, str) and words.strip():
            return redact(words)[:300].rstrip(".")
    return ""


def _short(error: BaseException) -> str:
    status = status_of(error)
    return f"the Hub answered {status}" if status else f"the connection failed ({_network_words(error)})"


def _network_words(error: BaseException) -> str:
    for link in chain_of(error):
        name = type(link).__name__
        if "Timeout" in name:
            return f"no answer within {_timeout():g} s"
        if name in ("ConnectError", "ReadError", "WriteError", "RemoteProtocolError"):
            return redact(str(link))[:120] or name
    return redact(reason(error) if isinstance(error, OSError) else str(error))[:120] or type(error).__name__


def explain(error: BaseException, what: str, tries: int = 1) -> Error:
    """The one line for an exception of the Hub's client: what happened to `what`, and the next step."""
    from huggingface_hub import errors

    if isinstance(error, Error):
        return error
    if is_full_disk(error):
        return ResourceError(
            f"{what}: no space left on the disk; free some, or choose another --cache-dir, and run again"
        )
    links = list(chain_of(error))

    def found(*kinds: type[BaseException]) -> bool:
        return any(isinstance(link, kinds) for link in links)

    status, words = status_of(error), _server_words(error)
    if found(errors.OfflineModeIsEnabled):
        return Error(
            f"{what}: the network is off (HF_HUB_OFFLINE) and it is not in the cache; unset that and run again"
        )
    if found(errors.GatedRepoError):
        return Error(f"{what}: is gated; accept its terms on its page with the account of your token, then run again")
    if found(errors.RevisionNotFoundError):
        return Error(f"{what}: has no such revision; name a branch, tag or commit that it has")
    if found(errors.RepositoryNotFoundError):
        return Error(
            f"{what}: no such repository, or a private one that {_token_words()} cannot see; check the name, and set"
            " HF_TOKEN or run `hf auth login`"
        )
    if found(errors.LocalTokenNotFoundError):
        return Error(f"{what}: there is no token; set HF_TOKEN or run `hf auth login`")
    if status == 401:
        return Error(f"{what}: the Hub refused {_token_words()} (401); set a valid HF_TOKEN or run `hf auth login`")
    if status == 403:
        said = words or "forbidden"
        return Error(f"{what}: the Hub refused it (403): {said}; check the rights of the token and the account's quota")
    if status == 412:
        return Error(f"{what}: somebody else committed to it meanwhile (412); look at it and push again")
    if status == 429:
        return Error(f"{what}: the rate limit is reached (429); wait {wait_of(error) or 300} s and run again")
    if status is not None:
        said = f": {words}" if words else ""
        tried = f" after {tries} tries" if tries > 1 else ""
        step = "run the same command again later" if status >= 500 else "see what it says"
        without = _XET if any(type(link) is ConnectionError for link in links) else ""  # hf_xet's own kind
        return Error(f"{what}: the Hub answered {status}{tried}{said}; {step}{without}")
    if any(_is_network(link) for link in links):
        tried = f" in {tries} tries" if tries > 1 else ""
        return Error(
            f"{what}: the Hub could not be reached{tried} ({_network_words(error)}); check the network and run the same"
            f" command again{_XET if _is_xet(links) else ''}"
        )
    if found(errors.HFValidationError):
        return Error(f"{what}: {redact(str(error))[:200]}; name it org/name")
    text = redact(str(error))[:300].rstrip(".") or type(error).__name__
    return Error(f"{what}: {text}; run the same command again{_XET if _is_xet(links) else ''}")


def _is_xet(links: list[BaseException]) -> bool:
    return any("xet" in f"{type(link).__module__} {link}".lower() for link in links)


def _token_words() -> str:
    from huggingface_hub import get_token

    return "the token" if get_token() else "a request without a token"
