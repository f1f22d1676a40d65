"""Checkpoints, RUNs and OUTs by name: `org/name[@revision]`, fetched into the Hub's cache as far as they are needed.

A revision becomes a commit once. The plan is made from the file list, config, index and the headers of the shards, got
by ranges; only then weights are fetched. A snapshot of the cache is a folder like any other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import Error
from ..talk import Talk
from .carry import OWN_FOLDER
from .hub_names import reference
from .hub_store import Store
from .index import INDEX, find_layout
from .regular import quote
from .source import Listing, Source, open_source

_CONFIG: Final = "config.json"
_MANIFEST: Final = "manifest.json"
SILENT: Final = Talk()


@dataclass(frozen=True, slots=True)
class Resolved:
    """A folder to work with. `id`, the commit `revision` and the `listing` are None where it is a local one."""

    folder: Path
    id: str | None = None
    revision: str | None = None
    listing: Listing | None = None


def open_model(
    spec: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    weights: bool = True,
    talk: Talk = SILENT,
) -> Source:
    """`local_folder`, opened: the MODEL of every command.

    Raises:
        UsageError, ResourceError, Error: as `local_folder` and `open_source`.
    """
    found = local_folder(spec, revision=revision, cache_dir=cache_dir, offline=offline, weights=weights, talk=talk)
    return open_source(found.folder, listing=found.listing)


def local_folder(
    spec: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    weights: bool = True,
    talk: Talk = SILENT,
) -> Resolved:
    """The folder of a checkpoint: the local one, or the snapshot of a repository with the files that are needed.

    Args:
        spec: a path, or `org/name[@revision]` where there is no such path.
        revision: branch, tag or commit.
        cache_dir: the Hub's cache; its own setting where None.
        offline: take what the cache holds, without any request.
        weights: fetch shards and carried files too. Without, config, index and a former manifest are fetched, and of
            shards that are not in the cache only the headers, which stand in the listing.

    Raises:
        UsageError: see `reference`.
        ResourceError: not enough disk for what is to be fetched.
        Error: no such repository or revision, no access, no network, nothing in the cache, or no checkpoint.
    """
    name = reference(spec, revision)
    if name is None:
        return Resolved(Path(spec))
    store = Store(name, cache_dir, offline, talk)
    planned = _planned(store)
    if not weights:
        return Resolved(store.folder, name.id, store.commit, planned)
    source = open_source(store.folder, listing=planned)
    store.fetch([*_plan_files(store), *source.shards, *source.carried])
    return Resolved(store.folder, name.id, store.commit, Listing(store.sizes))


def _plan_files(store: Store) -> set[str]:
    return {_CONFIG, INDEX, f"{OWN_FOLDER}/{_MANIFEST}"} & store.sizes.keys()


def _planned(store: Store) -> Listing:
    """Fetch what a plan is made from: config, index, a former manifest, and the headers of shards not yet there."""
    if _CONFIG not in store.sizes:
        raise Error(f"{store.name}: the repository has no {_CONFIG}; name one that holds a whole checkpoint")
    store.fetch_small(_plan_files(store))
    layout = find_layout(store.folder, store.sizes.keys())
    for shard in layout.shards:
        if shard not in store.sizes:
            raise Error(
                f"{store.name}: {layout.index} names {quote(shard)}, which the repository does not have; choose another"
            )
    return Listing(store.sizes, store.headers(layout.shards), whole=False)


def local_plan(
    spec: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    talk: Talk = SILENT,
) -> Resolved:
    """What `inspect` looks at: a RUN's or OUT's manifest, or what `local_folder` fetches without weights.

    Raises:
        UsageError, ResourceError, Error: as `local_folder`.
    """
    name = reference(spec, revision)
    if name is None:
        return Resolved(Path(spec))
    store = Store(name, cache_dir, offline, talk)
    prefix = _prefix(store)
    if prefix is None:
        return Resolved(store.folder, name.id, store.commit, _planned(store))
    store.fetch_small([prefix + _MANIFEST])
    return Resolved(store.folder, name.id, store.commit, Listing(store.sizes))


def _prefix(store: Store) -> str | None:
    """The folder of the manifest in a RUN or OUT; None where there is neither."""
    if f"{OWN_FOLDER}/{_MANIFEST}" in store.sizes:
        return f"{OWN_FOLDER}/"
    return "" if _MANIFEST in store.sizes and _CONFIG not in store.sizes else None


def local_run(
    spec: str | Path,
    *,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    whole: bool = False,
    talk: Talk = SILENT,
) -> Resolved:
    """The folder of a RUN or OUT: the local one, or the snapshot of a repository that holds a manifest.

    Args:
        spec: a path, or `org/name[@revision]` where there is no such path.
        cache_dir, offline: as in `local_folder`.
        whole: fetch every file (of a RUN but its README.md), as `verify` wants; else manifest, statistics and masks.

    Raises:
        UsageError, ResourceError, Error: as `local_folder`; a repository without a manifest too.
    """
    name = reference(spec)
    if name is None:
        return Resolved(Path(spec))
    store = Store(name, cache_dir, offline, talk)
    prefix = _prefix(store)
    if prefix is None:
        raise Error(f"{name}: the repository holds no {_MANIFEST}, so it is neither a RUN nor an OUT; check the name")
    store.fetch_small([prefix + _MANIFEST])
    if whole:
        skipped = {".gitattributes", *(() if prefix else ("README.md",))}
        store.fetch(store.sizes.keys() - skipped)
    else:
        own = {f"{prefix}{stem}.safetensors" for stem in ("statistics", "masks")}
        store.fetch(own & store.sizes.keys())
    return Resolved(store.folder, name.id, store.commit, Listing(store.sizes))
