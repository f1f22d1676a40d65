"""The test hub, an OUT of three shards, and the command line in a process of its own that talks to the hub."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome
from tests.hub.server import TOKEN, Hub

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = "3"
"""Seconds the command line waits for an answer."""


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Hub]]:
    """One hub for each way of uploading."""
    with Hub(tmp_path_factory.mktemp("lfs")) as lfs, Hub(tmp_path_factory.mktemp("xet"), xet=True) as xet:
        yield {"lfs": lfs, "xet": xet}


@pytest.fixture(params=["lfs", "xet"])
def hub(request: pytest.FixtureRequest, hubs: dict[str, Hub]) -> Hub:
    """A hub without repositories."""
    return fresh(hubs[request.param])


@pytest.fixture
def lfs(hubs: dict[str, Hub]) -> Hub:
    """The hub without xet, without repositories."""
    return fresh(hubs["lfs"])


def fresh(hub: Hub) -> Hub:
    hub.reset()
    hub.role = "write"
    hub.state.repositories.clear()
    for blob in (hub.root / "blobs").iterdir():
        blob.unlink()
    return hub


class Client:
    """The command line with a home of its own; `home / "hub"` is its cache."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def environment(self, hub: Hub, **changes: str | None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        values: dict[str, str | None] = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(self.home),
            "HF_XET_CACHE": str(self.home / "xet"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": None if hub.xet else "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": PATIENCE,
            "HF_HUB_ETAG_TIMEOUT": PATIENCE,
            "MATHNEURO_HUB_TIMEOUT": PATIENCE,
            "NO_PROXY": "*",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **changes,
        }
        return kept | {key: value for key, value in values.items() if value is not None}

    def __call__(self, hub: Hub, *arguments: object, **changes: str | None) -> Outcome:
        """Run a command; keyword arguments change its environment."""
        return self.python(hub, "-m", "mathneuro_export", *arguments, **changes)

    def python(self, hub: Hub, *arguments: object, **changes: str | None) -> Outcome:
        """Run Python with the environment of a command."""
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=self.environment(hub, **changes),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert TOKEN not in done.stdout + done.stderr
        return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """The command line, at home in an empty folder."""
    home = tmp_path / "home"
    home.mkdir()
    return Client(home)


@pytest.fixture(scope="session")
def made(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path], identified: Callable[[str], Path]
) -> Callable[..., Path]:
    """An OUT of the llama checkpoint in three shards by its factor; not to be written to."""
    from mathneuro_export import scale

    outs: dict[float, Path] = {}

    def make(factor: float = 1.5) -> Path:
        if factor not in outs:
            out = tmp_path_factory.mktemp("outs") / "out"
            outs[factor] = scale(checkpoint("llama"), out, from_run=identified("llama"), factor=factor).output
        return outs[factor]

    return make


@pytest.fixture
def out(made: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of the OUT of factor 1.5."""
    return Path(shutil.copytree(made(), tmp_path / "out"))


def refused(outcome: Outcome, code: int, *words: str) -> None:
    """Check a failure: its code, and one line, the last, with these words."""
    assert outcome.code == code, outcome.err
    assert outcome.out == ""
    assert outcome.last.startswith("Error: ")
    assert outcome.err.count("Error: ") == 1, outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.last


def files_of(folder: Path) -> dict[str, Any]:
    """Name -> bytes of what a push of this folder sends."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
