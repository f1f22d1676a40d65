"""One commit of a repository in the Hub's cache: its list of files, and the fetching of files and of headers."""

import glob
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from ..errors import Error
from ..talk import Talk
from .durable import make_folder, require_space, write_bytes
from .header import FIRST_BYTES, Header, header_end, parse_header
from .hub_client import client_settings, connect, is_offline, retrying, utils
from .hub_names import DEFAULTS, Reference
from .regular import quote

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SMALL: Final = 100_000_000
"""Largest config, index or manifest that is fetched to make a plan, in bytes."""
_FIRST_RANGE: Final = 64 << 10
_WORKERS: Final = 8


class Store:
    """One commit of a repository and the folder of the cache that its files are fetched into.

    `commit` is the revision's; `sizes` are the bytes of every file of it by POSIX name.
    """

    def __init__(self, name: Reference, cache_dir: str | Path | None, offline: bool, talk: Talk) -> None:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        self.name, self.talk = name, talk
        usual_cache, usually_offline = DEFAULTS.get()
        self.cache = Path(cache_dir or usual_cache or constants.HF_HUB_CACHE).expanduser().resolve()
        self.repository = self.cache / repo_folder_name(repo_id=name.id, repo_type="model")
        self.api: HfApi | None = None if offline or usually_offline or is_offline() else connect()
        if self.api is None:
            self.commit = self._cached_commit()
            self.sizes = self._cached_sizes()
        else:
            self.commit, self.sizes = self._ask(self.api)
            self._remember()

    @property
    def folder(self) -> Path:
        """The snapshot; it is there once something was fetched."""
        return self.repository / "snapshots" / self.commit

    def _ask(self, api: "HfApi") -> tuple[str, dict[str, int]]:
        try:
            info = retrying(
                lambda: api.model_info(self.name.id, revision=self.name.revision, files_metadata=True),
                str(self.name),
                self.talk,
            )
        except Error as error:
            raise Error(str(error).replace(": no such repo", ": no such directory, and no such repo", 1)) from error
        if info.sha is None or not _COMMIT.fullmatch(info.sha):
            raise Error(f"{self.name}: the Hub named no commit; run the same command again")
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        for path in sizes:
            _check_path(self.name, path)
        return info.sha, sizes

    def _remember(self) -> None:
        """Write the commit of a branch or tag where the Hub's client and `--offline` look for it."""
        wanted = self.name.revision or "main"
        if wanted == self.commit:
            return
        path = self.repository / "refs" / wanted
        with suppress(Error, OSError):
            make_folder(path.parent)
            write_bytes(path, self.commit.encode())

    def _cached_commit(self) -> str:
        wanted = self.name.revision or "main"
        commit = wanted if _COMMIT.fullmatch(wanted) else ""
        with suppress(OSError, UnicodeError):
            commit = commit or (self.repository / "refs" / wanted).read_text().strip()
        if not _COMMIT.fullmatch(commit) or not (self.repository / "snapshots" / commit).is_dir():
            raise Error(f"{self.name}: no such directory, and not in the cache; run the same command once online")
        return commit

    def _cached_sizes(self) -> dict[str, int]:
        """The list of files as it was when they were fetched; where that was not kept, the files that are there."""
        try:
            from huggingface_hub import get_cached_repo_tree

            tree = get_cached_repo_tree(self.name.id, revision=self.commit, cache_dir=self.cache)
        except Exception:  # not kept, damaged, or a client that keeps none
            paths = [path for path in self.folder.rglob("*") if path.is_file()]
            return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}
        for file in tree:
            _check_path(self.name, file.path)
        return {file.path: file.size for file in tree}

    def _missing(self, names: Iterable[str]) -> list[str]:
        return sorted({name for name in names if not (self.folder / name).is_file()})

    def fetch_small(self, names: Iterable[str]) -> None:
        """Fetch files that a plan is made from; refuses what is too large for one."""
        names = sorted(names)
        for name in names:
            if self.sizes[name] > _SMALL:
                raise Error(
                    f"{self.name}: {name} has {self.sizes[name]} bytes, expected at most {_SMALL}; choose another"
                )
        self.fetch(names)

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch what is not in the cache yet; a file is there whole or not at all, so a repetition goes on."""
        wanted = list(names)
        missing = self._missing(wanted)
        if not missing:
            return
        if self.api is None:
            raise Error(
                f"{self.name}: {missing[0]} is not in the cache ({len(missing)} files missing); run the same command"
                " once online"
            )
        total = sum(self.sizes[name] for name in missing)
        require_space(self.cache, total)
        with client_settings(bars=False), self.talk.bar(f"fetch {self.name.id}", total, "B") as advance:
            retrying(lambda: self._download(missing, advance), str(self.name), self.talk)
        left = self._missing(wanted)
        if left:
            raise Error(
                f"{self.name}: {left[0]} was not fetched ({len(left)} files missing); run the same command again"
            )

    def _download(self, names: list[str], advance: Any) -> None:
        from huggingface_hub import snapshot_download

        snapshot_download(
            self.name.id,
            revision=self.commit,
            cache_dir=self.cache,
            allow_patterns=[glob.escape(name) for name in self._missing(names)],
            max_workers=_WORKERS,
            tqdm_class=_bytes_bar(advance),
            library_name="mathneuro-export",
        )

    def headers(self, shards: Iterable[str]) -> dict[str, Header]:
        """The headers of shards that are not in the cache, by ranges; none is read of one that is."""
        missing = self._missing(shards)
        if missing and self.api is None:
            self.fetch(missing)
        with client_settings(bars=False), ThreadPoolExecutor(_WORKERS) as pool:
            return dict(zip(missing, pool.map(self._header, missing), strict=True))

    def _header(self, shard: str) -> Header:
        size, path = self.sizes[shard], self.folder / shard
        raw = self._range(shard, min(size, _FIRST_RANGE))
        end = header_end(raw[:FIRST_BYTES], size, path)
        if end > len(raw):
            raw = self._range(shard, end)
        return parse_header(raw[:end], size, path)

    def _range(self, name: str, count: int) -> bytes:
        """The first `count` bytes of a file."""
        if count == 0:
            return b""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.name.id, name, revision=self.commit)

        def ask() -> bytes:
            headers = {**utils().build_hf_headers(library_name="mathneuro-export"), "Range": f"bytes=0-{count - 1}"}
            headers["Accept-Encoding"] = "identity"
            data = bytearray()
            with utils().get_session().stream("GET", url, headers=headers) as response:
                utils().hf_raise_for_status(response)
                for part in response.iter_bytes(_FIRST_RANGE):
                    data += part
                    if len(data) >= count:
                        break
            if len(data) < count:
                raise ConnectionError(f"{name}: {len(data)} of {count} bytes came")
            return bytes(data[:count])

        return retrying(ask, f"{self.name}: {name}", self.talk)


def _check_path(name: Reference, path: str) -> None:
    parts = PurePosixPath(path).parts
    if not path or path != "/".join(parts) or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise Error(f"{name}: the Hub lists {quote(path)}, expected a path below a folder; do not use this repository")


def _bytes_bar(advance: Any) -> type[Any]:
    """A silent stand-in for tqdm that hands the bytes written on to one bar of ours."""
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            self._counts = kwargs.get("unit") == "B" and "Reconstruct" in str(kwargs.get("desc"))
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts and n:
                advance(int(n))
            return None

    return Bar
