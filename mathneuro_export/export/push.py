"""`push`: a verified OUT or RUN to the Hub, in one commit with its card and manifest. Neither torch nor transformers.

The call of the Hub's client is wrapped in a bounded retry; repeating it is harmless, since what the Hub has already is
neither sent nor committed again. Below 250 files it is one commit.
"""

import glob
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mathneuro_export
from mathneuro_export.checkpoint.durable import write_bytes
from mathneuro_export.checkpoint.hub_client import client_settings, explain, retrying
from mathneuro_export.errors import Error, UsageError, VerificationError
from mathneuro_export.talk import Talk

from .card import read_base_card
from .licences import licence_warnings
from .manifest import read_document, seal
from .push_check import Destination, check_kind, head_of, preflight, stale_patterns
from .verify import locate, verify

__all__ = ["Pushed", "preflight", "push", "push_output"]

_MASKS = "masks.safetensors"
SILENT = Talk()


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push made: the page, the commit, the branch it is on, and the page of the pull request if there is one."""

    url: str
    commit: str
    repo_id: str
    revision: str
    pull_request: str | None

    def as_json(self) -> dict[str, Any]:
        """As `push --json` prints it."""
        return {name: getattr(self, name) for name in ("url", "commit", "repo_id", "revision", "pull_request")}


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What is sent: `names` below `folder`, of which `sizes` and `hashes` (sha256) are known; `title` of the commit."""

    folder: Path
    kind: str
    sizes: dict[str, int]
    hashes: dict[str, str]
    title: str


def push(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    message: str | None = None,
    masks: bool = True,
    xet: bool = True,
    talk: Talk = SILENT,
) -> Pushed:
    """Verify a RUN or OUT, then push it: weights, card and manifest in one commit, stale files of an earlier push gone.

    Args:
        folder: the RUN or OUT.
        repo_id: org/name; made if it does not exist.
        private: make it private; an existing public one is refused.
        revision: branch, made if it does not exist, or `refs/pr/N` to go on with a pull request.
        create_pr: open a pull request against main.
        message: of the commit.
        masks: of a RUN; without, statistics and manifest alone are pushed, and `apply` selects the masks again.
        xet: use the Hub's xet path where the client can.
        talk: what is said on stderr; nothing by default.

    Raises:
        VerificationError: the folder is not what its manifest says.
        UsageError: options or a repository that do not fit.
        Error: no access, no network, or a conflict with somebody else's commit.
    """
    folder = Path(folder)
    if message is not None and not message.strip():
        raise UsageError("--commit-message: is empty; give some words or leave it out")
    kind, _ = locate(folder)
    if not masks and kind == "output":
        raise UsageError(f"--no-masks: {folder.name} is an OUT, which holds the masks it was edited with; push a RUN")
    _verify(folder, talk)
    destination = preflight(repo_id, private=private, revision=revision, create_pr=create_pr, talk=talk)
    return _send(folder, destination, message, masks=masks, xet=xet, talk=talk)


def push_output(folder: Path, destination: Destination, *, talk: Talk = SILENT) -> Pushed:
    """Push what a verb has just written to a repository that was checked before it began.

    Raises:
        VerificationError, UsageError, Error: as `push`; the line says that OUT is complete and how to push it again.
    """
    try:
        _verify(folder, talk)
    except VerificationError:
        raise
    try:
        return _send(folder, destination, None, masks=True, xet=True, talk=talk)
    except Error as error:
        private = " --private" if destination.private else ""
        again = f"`mathneuro-export push {folder} {destination.repo_id}{private}`"
        raise type(error)(f"{error}; {folder} is complete, push it with {again}") from error


def _verify(folder: Path, talk: Talk) -> None:
    talk.say(f"verify {folder}")
    report = verify(folder)
    if not report.ok:
        first = report.problems[0]
        where = ": ".join(part for part in (first.file, first.tensor, first.message) if part)
        raise VerificationError(
            f"{folder}: {where} ({len(report.problems)} problems in all); it was not pushed, make it anew"
        )


def _send(folder: Path, destination: Destination, message: str | None, *, masks: bool, xet: bool, talk: Talk) -> Pushed:
    with _parcel(folder, masks) as parcel, client_settings(bars=talk.bars, xet=xet):
        return _send_parcel(parcel, destination, message, talk)


@contextmanager
def _parcel(folder: Path, masks: bool) -> Iterator[_Parcel]:
    kind, manifest = locate(folder)
    document = read_document(folder / manifest)
    if masks or _MASKS not in document["output"]:
        yield _parcel_of(folder, kind, manifest, document)
        return
    with tempfile.TemporaryDirectory(prefix="mathneuro-") as name:
        stage = Path(name)
        output = {file: entry for file, entry in document["output"].items() if file != _MASKS}
        for file in output:
            shutil.copyfile(folder / file, stage / file)
        write_bytes(stage / manifest, seal({**document, "output": output}))
        yield _parcel_of(stage, kind, manifest, read_document(stage / manifest))


def _parcel_of(folder: Path, kind: str, manifest: str, document: dict[str, Any]) -> _Parcel:
    sizes = {name: entry["size"] for name, entry in document["output"].items()}
    hashes = {name: entry["sha256"] for name, entry in document["output"].items()}
    edit = document.get("edit")
    what = "Masks and statistics" if edit is None else f"Masked weights times {edit['factor']:g}"
    title = f"{what} (mathneuro-export {mathneuro_export.__version__})"
    return _Parcel(folder, kind, {**sizes, manifest: (folder / manifest).stat().st_size}, hashes, title)


def _send_parcel(parcel: _Parcel, destination: Destination, message: str | None, talk: Talk) -> Pushed:
    api, repo_id = destination.api, destination.repo_id
    there = [] if destination.info is None else [file.rfilename for file in destination.info.siblings or ()]
    check_kind(repo_id, there, parcel.kind)
    for warning in _warnings(parcel, there, repo_id):
        talk.say(f"warning: {warning}")
    _tell_size(parcel, destination, talk)
    if destination.info is None:
        retrying(lambda: api.create_repo(repo_id, private=destination.private or None, exist_ok=True), repo_id, talk)
    branch, pull_request = destination.revision, None
    title = message or parcel.title
    if destination.create_pr:
        branch, pull_request = _open_pull_request(destination, title)
        talk.say(f"{pull_request}: go on with it, if this is interrupted, by --revision {branch}")
    elif branch not in (None, "main") and not branch.startswith("refs/"):
        retrying(lambda: api.create_branch(repo_id, branch=str(branch), exist_ok=True), repo_id, talk)
    head, there = head_of(destination, branch, talk)
    check_kind(repo_id, there, parcel.kind)
    stale = stale_patterns(there, _earlier(destination, head, there), parcel.sizes)
    made = retrying(
        lambda: api.upload_folder(
            repo_id=repo_id,
            folder_path=parcel.folder,
            allow_patterns=[glob.escape(name) for name in parcel.sizes],
            delete_patterns=stale or None,
            commit_message=title,
            revision=branch,
            parent_commit=head,
        ),
        repo_id,
        talk,
    )
    _check_arrival(parcel, destination, made.oid, talk)
    page = f"{api.endpoint}/{repo_id}"
    url = page if branch in (None, "main") else pull_request or f"{page}/tree/{branch}"
    return Pushed(url, made.oid, repo_id, branch or "main", pull_request)


def _warnings(parcel: _Parcel, there: list[str], repo_id: str) -> list[str]:
    warnings = []
    if "README.md" in parcel.sizes:
        text = (parcel.folder / "README.md").read_text("utf-8", "replace")
        warnings += licence_warnings(read_base_card(text).metadata, parcel.sizes, repo_id)
    if "config.json" in there and "mathneuro/manifest.json" not in there:
        warnings.append(f"{repo_id}: holds a checkpoint that this tool did not push; it is replaced, its history stays")
    return warnings


def _tell_size(parcel: _Parcel, destination: Destination, talk: Talk) -> None:
    private = destination.private if destination.info is None else bool(destination.info.private)
    size = f"{sum(parcel.sizes.values()):,} bytes in {len(parcel.sizes)} files"
    quota = "; the Hub tells no quota, a free account has 100 GB of private storage" if private else ""
    talk.say(f"push {size} to {destination.repo_id} ({'private' if private else 'public'}{quota})")


def _open_pull_request(destination: Destination, title: str) -> tuple[str, str]:
    try:
        made = destination.api.create_pull_request(destination.repo_id, title=title)
    except Exception as error:  # not tried again: it would open a second one
        raise explain(error, destination.repo_id) from error
    return f"refs/pr/{made.num}", made.url


def _earlier(destination: Destination, head: str, there: list[str]) -> set[str]:
    """The files that the manifest of an earlier push lists; none where there is no such manifest that can be read."""
    name = next((name for name in ("mathneuro/manifest.json", "manifest.json") if name in there), None)
    if name is None:
        return set()
    try:
        with tempfile.TemporaryDirectory(prefix="mathneuro-") as folder:
            path = destination.api.hf_hub_download(destination.repo_id, name, revision=head, cache_dir=folder)
            return set(map(str, read_document(Path(path)).get("output", {})))
    except Exception:  # whatever it is, the push replaces it
        return set()


def _check_arrival(parcel: _Parcel, destination: Destination, commit: str, talk: Talk) -> None:
    """Compare what the commit holds with what was sent: names and sizes, and sha256 where the Hub tells it."""
    api, repo_id = destination.api, destination.repo_id
    tree = retrying(lambda: list(api.list_repo_tree(repo_id, recursive=True, revision=commit)), repo_id, talk)
    found = {entry.path: entry for entry in tree if hasattr(entry, "size")}
    for name, size in parcel.sizes.items():
        entry = found.get(name)
        lfs = getattr(entry, "lfs", None)
        sha256 = lfs.sha256 if lfs is not None else None
        if entry is None or entry.size != size or (sha256 and name in parcel.hashes and sha256 != parcel.hashes[name]):
            state = "is missing" if entry is None else "is another"
            raise Error(f"{repo_id}: {name} {state} in commit {commit}; push again")
