"""What is settled before a push: token, write access, visibility, and what the repository holds already."""

import glob
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mathneuro_export.checkpoint.hub_client import connect, is_offline, retrying
from mathneuro_export.checkpoint.hub_names import is_repository_id
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.talk import Talk

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelInfo

WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
"""How top-level files end that a loader may take for weights; those of an earlier push are deleted."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A repository that may be pushed to.

    `revision` is the branch or the pull request's ref, `private` what a new one becomes, `info` what the Hub tells of
    an existing one (None: it is to be made).
    """

    api: "HfApi"
    repo_id: str
    revision: str | None
    create_pr: bool
    private: bool
    info: "ModelInfo | None"


def preflight(
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    talk: Talk,
) -> Destination:
    """Check whether a push can succeed, before any work; nothing is made or changed.

    Raises:
        UsageError: a bad id, options that contradict each other, or `private` with an existing public repository.
        Error: no or a bad token, one that may not write, or no network.
    """
    if not is_repository_id(repo_id):
        raise UsageError(f"{repo_id}: is no repository id, expected org/name of letters, digits and . _ - (at most 96)")
    if create_pr and revision is not None:
        raise UsageError(f"--create-pr: a pull request is made against main; leave --revision {revision} out")
    if is_offline():
        raise Error(f"{repo_id}: the network is off (HF_HUB_OFFLINE); unset it to push")
    api = connect()
    who = retrying(api.whoami, repo_id, talk)
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise Error(f"{repo_id}: the token of {who.get('name')} may only read; set HF_TOKEN to one that may write")
    info = _info(api, repo_id, None, talk)
    destination = Destination(api, repo_id, revision, create_pr, private, info)
    if info is None:
        _check_new(destination, who)
    else:
        _check_existing(destination, talk)
    return destination


def _check_new(destination: Destination, who: dict[str, Any]) -> None:
    repo_id = destination.repo_id
    owner = repo_id.partition("/")[0]
    mine = [str(who.get("name")), *(str(org.get("name")) for org in who.get("orgs") or ())]
    if owner not in mine:
        raise Error(f"{repo_id}: the token may make repositories of {', '.join(mine)} only; choose such a name")
    if destination.create_pr or (destination.revision or "").startswith("refs/"):
        raise Error(f"{repo_id}: no such repository, so nothing a pull request could be made against; push to it first")


def _check_existing(destination: Destination, talk: Talk) -> None:
    assert destination.info is not None
    if destination.private and not destination.info.private:
        raise UsageError(
            f"--private: {destination.repo_id} exists and is public; make it private in its settings, or choose another"
        )
    if not destination.create_pr:
        check = destination.api.auth_check
        write: dict[str, Any] = {"write": True} if "write" in inspect.signature(check).parameters else {}
        retrying(lambda: check(destination.repo_id, **write), destination.repo_id, talk)


def _info(api: "HfApi", repo_id: str, revision: str | None, talk: Talk) -> "ModelInfo | None":
    """What the Hub tells; None for no such repository or revision."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    def ask() -> "ModelInfo | None":
        try:
            return api.model_info(repo_id, revision=revision)
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            if isinstance(error, GatedRepoError):
                raise
            return None

    return retrying(ask, repo_id, talk)


def head_of(destination: Destination, revision: str | None, talk: Talk) -> tuple[str, list[str]]:
    """The commit a branch points to and the names of its files.

    Raises:
        Error: no such branch, or the failures of the network.
    """
    info = _info(destination.api, destination.repo_id, revision, talk)
    if info is None or info.sha is None:
        raise Error(f"{destination.repo_id}@{revision or 'main'}: no such branch; make it or leave --revision out")
    return info.sha, [file.rfilename for file in info.siblings or ()]


def check_kind(repo_id: str, there: Collection[str], kind: str) -> None:
    """Refuse to mix a RUN and a checkpoint in one repository.

    Raises:
        UsageError: it holds the other.
    """
    holds_run = "manifest.json" in there and "config.json" not in there
    holds_model = "config.json" in there or "mathneuro/manifest.json" in there
    if (kind == "run" and holds_model) or (kind == "output" and holds_run):
        found, pushed = ("a checkpoint", "a RUN") if kind == "run" else ("a RUN", "an OUT")
        raise UsageError(f"{repo_id}: holds {found}, and this is {pushed}; push it to a repository of its own")


def stale_patterns(there: Collection[str], earlier: Collection[str], names: Collection[str]) -> list[str]:
    """What to delete in the same commit: weights and files of an earlier push that this one does not hold."""
    stale = {name for name in there if name.endswith(WEIGHTS) and "/" not in name}
    stale |= {name for name in there if name.startswith("mathneuro/") or name in earlier}
    return [glob.escape(name) for name in sorted(stale - set(names) - {".gitattributes"})]
