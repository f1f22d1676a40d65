"""Names of repositories on the Hub: `org/name[@revision]`, and what tells them from local paths."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import UsageError
from .regular import quote

_ID: Final = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_REVISION: Final = re.compile(r"[\w][\w./+-]{0,199}", re.ASCII)


DEFAULTS: Final[ContextVar[tuple[str | None, bool]]] = ContextVar("hub_defaults", default=(None, False))
"""Cache folder and whether to stay offline, for names that are resolved without saying so."""


@contextmanager
def hub_defaults(cache_dir: str | None, offline: bool) -> Iterator[None]:
    """Set the cache folder and whether to stay offline for what is resolved within."""
    token = DEFAULTS.set((cache_dir, offline))
    try:
        yield
    finally:
        DEFAULTS.reset(token)


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository's id and the revision asked for, None for the default branch."""

    id: str
    revision: str | None

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def is_repository_id(text: str) -> bool:
    """Whether a text is org/name as the Hub allows it."""
    return (
        _ID.fullmatch(text) is not None
        and len(text) <= 96
        and not text.endswith(".git")
        and not any(mark in text for mark in ("--", ".."))
    )


def reference(spec: str | Path, revision: str | None = None) -> Reference | None:
    """The repository that `org/name[@revision]` names; None for a local path: one that exists, or no such name.

    Args:
        revision: the option `--revision`.

    Raises:
        UsageError: a revision beside a local path, two different ones, or one that cannot be.
    """
    text = str(spec)
    name, mark, own = text.partition("@")
    if _exists(spec) or not is_repository_id(name):
        if revision is not None:
            raise UsageError(f"--revision {revision}: {quote(text)} is a local path; give it with org/name alone")
        return None
    if mark and revision is not None and own != revision:
        raise UsageError(f"--revision {revision}: {text} names another revision; give one of them")
    wanted = own if mark else revision
    if wanted is not None and (not _REVISION.fullmatch(wanted) or ".." in wanted):
        raise UsageError(f"{text}: {quote(wanted)} is no revision; give a branch, tag or commit, as {name}@main")
    return Reference(name, wanted)


def _exists(spec: str | Path) -> bool:
    try:
        return Path(spec).exists()
    except (OSError, ValueError):
        return False
