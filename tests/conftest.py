"""Models, corpora and runs that several tests share, each made once; the command line within the process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mathneuro_export.cli.main import main
from tests.tiny import sentences, tiny_checkpoint, write_jsonl

SAMPLES = 24
CHECKPOINTS = {
    "llama": {"arch": "llama", "shards": 3},
    "gpt2": {"arch": "gpt2", "shards": 1},
    "qwen3": {"arch": "qwen3", "shards": 2, "tie_word_embeddings": True},
    "float32": {"arch": "llama", "shards": 3, "dtype": "float32"},
    "float16": {"arch": "llama", "shards": 2, "dtype": "float16"},
    "one-file": {"arch": "llama", "shards": 1},
    "one-file-float32": {"arch": "llama", "shards": 1, "dtype": "float32"},
    "other-version": {"arch": "llama", "shards": 2, "seed": 7},
    "other-shapes": {"arch": "llama", "shards": 1, "intermediate_size": 40},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line on stderr."""
        return (self.err.splitlines() or [""])[-1]


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, called in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A random checkpoint by its name in CHECKPOINTS; not to be written to."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tiny_checkpoint(tmp_path_factory.mktemp("models") / name, **CHECKPOINTS[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A math and a general corpus of SAMPLES samples each."""
    folder = tmp_path_factory.mktemp("corpora")
    math = write_jsonl(folder / "math.jsonl", [{"text": text} for text in sentences(SAMPLES)])
    general = write_jsonl(folder / "general.jsonl", [{"text": text} for text in sentences(SAMPLES, 5)])
    return math, general


@pytest.fixture(scope="session")
def texts(corpora: tuple[Path, Path]) -> list[str]:
    """The options that name the corpora."""
    return ["--math", str(corpora[0]), "--general", str(corpora[1])]


@pytest.fixture(scope="session")
def identified(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path], corpora: tuple[Path, Path]
) -> Callable[[str], Path]:
    """The RUN of a checkpoint on the corpora, at proportion 0.1 in float32; not to be written to."""
    from mathneuro_export import identify

    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            run = tmp_path_factory.mktemp("runs") / name
            options = {"math": corpora[0], "general": corpora[1], "proportion": 0.1, "dtype": "float32"}
            made[name] = identify(checkpoint(name), run, **options).output
        return made[name]

    return make


@pytest.fixture
def model(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the llama checkpoint of three shards, to be damaged at will."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "model"))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# A process that has imported all and computed nothing, from which children can be forked safely.
SERVER = """
import json, os, sys
import transformers.models.llama.modeling_llama
import mathneuro_export.calibration.stream
from mathneuro_export.cli.main import main
from tests.test_resume import die_at
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            arguments, step = json.loads(line)
            if step is not None:
                die_at(step)
            main(arguments)
        except SystemExit as stop:
            os._exit(stop.code)
        finally:
            os._exit(99)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def server(tmp_path):
    """Runs a command in a process of its own that can calibrate; its exit code.

    It is killed after some seconds, or dies at a step (see `die_at`).
    """
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout.readline() == "ready\n"

        def call(arguments, kill_after=None, step=None):
            print(json.dumps([[str(argument) for argument in arguments], step]), file=process.stdin, flush=True)
            pid = int(process.stdout.readline())
            if kill_after is not None:
                time.sleep(kill_after)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return int(process.stdout.readline())

        yield call
        process.stdin.close()
        assert process.wait(60) == 0
