"""The state of the test hub: repositories of commits, which are name -> file, and the blobs they name."""

import hashlib
import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path

_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class File:
    """`oid` is git's sha1; `lfs` the sha256 of a file that went the way of large ones; `key` names the blob."""

    size: int
    oid: str
    key: str
    lfs: str | None = None
    pointer: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    oid: str
    title: str
    files: dict[str, File]
    parent: str | None


@dataclass(slots=True)
class Repository:
    """One repository; `refs` hold branches and pull requests, `titles` those of the pull requests by number."""

    id: str
    private: bool = False
    gated: bool = False
    writable: bool = True
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, ref: str, title: str, files: dict[str, File]) -> Commit:
        parent = self.refs.get(ref)
        oid = hashlib.sha1(f"{next(_NUMBERS)} {title}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, title, files, parent)
        self.refs[ref] = oid
        return self.commits[oid]

    def resolve(self, revision: str) -> Commit | None:
        return self.commits.get(self.refs.get(revision, revision))

    def head(self, ref: str = "main") -> Commit:
        return self.commits[self.refs[ref]]

    def history(self, ref: str = "main") -> list[Commit]:
        """The commits of a ref, the newest first, without the first, empty one."""
        commits = []
        oid: str | None = self.refs[ref]
        while oid is not None:
            commits.append(self.commits[oid])
            oid = self.commits[oid].parent
        return commits[:-1]


@dataclass(slots=True)
class State:
    """All repositories, and the folder of the blobs."""

    root: Path
    repositories: dict[str, Repository] = field(default_factory=dict)

    def blob(self, key: str) -> Path:
        return self.root / "blobs" / key

    def create(self, name: str, private: bool = False) -> Repository:
        repository = Repository(name, private)
        repository.commit("main", "initial commit", {})
        self.repositories[name] = repository
        return repository

    def store(self, data: bytes, large: bool) -> File:
        """Keep a file's bytes, as git or as LFS does."""
        if not large:
            oid = git_oid(data)
            self.blob(oid).write_bytes(data)
            return File(len(data), oid, oid)
        sha256 = hashlib.sha256(data).hexdigest()
        self.blob(sha256).write_bytes(data)
        return large_file(sha256, len(data))

    def add(self, name: str, folder: Path, private: bool = False) -> Repository:
        """A repository with every file of a folder."""
        repository = self.create(name, private)
        files = {
            path.relative_to(folder).as_posix(): self.store(path.read_bytes(), is_large(path.name, 0))
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        repository.commit("main", "files", files)
        return repository


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_large(name: str, size: int) -> bool:
    return name.endswith((".safetensors", ".bin", ".gguf", ".pt")) or size > 10_000_000


def large_file(sha256: str, size: int) -> File:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    return File(size, git_oid(pointer), sha256, sha256, len(pointer))
