"""Killed at any moment: no `config.json` unless `verify` passes, and the same command goes on to the same bytes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mathneuro_export
from mathneuro_export.checkpoint import durable, journal
from mathneuro_export.cli.main import main
from tests.conftest import snapshot
from tests.tiny import tiny_checkpoint

MOMENTS = 20


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("source") / "model", shards=3, num_hidden_layers=1)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


@pytest.fixture(scope="module")
def run(source, corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return mathneuro_export.identify(source, folder, math=corpora[0], general=corpora[1], proportion=0.2).output


@pytest.fixture(scope="module")
def verbs(source, run):
    """The commands that are killed, without their -o."""
    return {"scale": ["scale", source, "--from", run], "identify": ["identify", source, "--from", run]}


@pytest.fixture(scope="module")
def finished(verbs, tmp_path_factory):
    """What the commands write when they are left alone."""
    made = {}
    for verb, arguments in verbs.items():
        folder = tmp_path_factory.mktemp("finished") / "out"
        assert in_child([*arguments, "-o", folder])[0] == 0
        made[verb] = contents(folder)
    return made


def in_child(arguments, prepare=lambda: None):
    """Run a command in a forked child, where torch cannot compute; its exit code (or minus signal) and its stderr."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(read)
            os.dup2(write, 2)
            sys.stderr = os.fdopen(os.dup(2), "w")
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            prepare()
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def die_at(number, how=signal.SIGKILL):
    """Kill this process before its `number`-th change of a folder or, half a line written, of the journal."""
    calls = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                if function is append:
                    durable.write_all(arguments[0]._fd, b'{"key":"shard:mo')
                os.kill(os.getpid(), how)
            return function(*arguments, **options)

        return call

    append = journal.Journal._append
    for name in ("replace", "unlink", "mkdir", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    journal.Journal._append = counted(append)


def contents(folder):
    """Every file, but of the manifest what two runs have in common."""
    found = snapshot(folder)
    for name in found:
        if name.endswith("manifest.json"):
            document = json.loads(found[name])
            found[name] = {k: v for k, v in document.items() if k not in ("created", "environment", "digest")}
    return found


def check_killed(folder, marker="config.json"):
    """The promise: no marker unless the folder verifies. Whether it is there."""
    if (folder / marker).exists():
        report = mathneuro_export.verify(folder)
        assert report.ok, report.problems
        return True
    return False


def has_begun(folder):
    """Whether a journal says so; an empty one does not yet."""
    path = folder / ".cache/mathneuro-export/journal.jsonl"
    return path.exists() and path.stat().st_size > 0


def check_done(folder, expected):
    assert contents(folder) == expected
    assert not (folder / ".cache").exists()
    assert not [path for path in folder.rglob("*") if path.name.startswith(".mathneuro-")]


def go_on(cli, folder, arguments, expected):
    """The same command, which completes; it may be refused only where nothing was left to do."""
    outcome = cli(*arguments, "-o", folder)
    if outcome.code:
        assert outcome.code == 2
        assert "finished output" in outcome.last
        shutil.rmtree(folder / ".cache", ignore_errors=True)
    check_done(folder, expected)


@pytest.mark.parametrize("verb", ["scale", "identify"])
def test_killed_at_every_step(verb, verbs, finished, cli, tmp_path):
    marker = "config.json" if verb == "scale" else "manifest.json"
    resumed = 0
    for number in range(1, 1000):
        out = tmp_path / str(number)
        code, _ = in_child([*verbs[verb], "-o", out], lambda number=number: die_at(number))
        complete = check_killed(out, marker)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if has_begun(out) and not complete:
            before = snapshot(out)
            other = cli(*verbs[verb], "-o", out, "--proportion", 0.3)
            assert other.code == 2
            assert "--overwrite" in other.last
            assert "--no-resume" in other.last
            assert snapshot(out) == before
            resumed += 1
        go_on(cli, out, verbs[verb], finished[verb])
        shutil.rmtree(out)
    assert resumed > (15 if verb == "scale" else 8)
    print(f"{verb}: {number - 1} steps")


@pytest.mark.parametrize("complete", [True, False], ids=["finished", "unfinished"])
def test_killed_while_overwriting(complete, source, run, verbs, finished, cli, tmp_path):
    """The folder holds a finished or unfinished OUT of another factor."""
    old = tmp_path / "old"
    prepare = (lambda: None) if complete else (lambda: die_at(25))
    in_child([*verbs["scale"], "--factor", 3, "-o", old], prepare)
    assert (old / "config.json").exists() == complete
    command = [*verbs["scale"], "--overwrite"]
    for number in range(1, 1000, 1 if complete else 3):
        out = Path(shutil.copytree(old, tmp_path / str(number)))
        code, said = in_child([*command, "-o", out], lambda number=number: die_at(number))
        check_killed(out)
        if code == 0:
            break
        assert code == -signal.SIGKILL, said
        again = command if number % 2 or (out / "config.json").exists() else verbs["scale"]
        outcome = cli(*again, "-o", out)
        if outcome.code == 2 and again is verbs["scale"]:
            assert "differ" in outcome.last
            outcome = cli(*command, "-o", out)
        assert outcome.code == 0, outcome.err
        check_done(out, finished["scale"])
        shutil.rmtree(out)
    assert number > 25
    check_done(out, finished["scale"])


def test_killed_while_giving_up(source, run, cli, tmp_path):
    """What is refused midway is removed; killed meanwhile, the same command removes the rest."""
    damaged = Path(shutil.copytree(run, tmp_path / "run"))
    data = bytearray((damaged / "masks.safetensors").read_bytes())
    data[len(data) // 4] ^= 1
    (damaged / "masks.safetensors").write_bytes(data)
    command = ["scale", source, "--from", damaged]
    for number in range(1, 1000):
        out = tmp_path / str(number)
        code, said = in_child([*command, "-o", out], lambda number=number: die_at(number))
        assert not (out / "config.json").exists()
        if code == 1:
            break
        assert code == -signal.SIGKILL, said
        begun = has_begun(out)
        assert cli(*command, "-o", out).code == 1
        assert not out.exists() or not (begun or any(out.iterdir()))
    assert not out.exists()
    assert number > 10


def test_killed_at_random_moments(source, texts, cli, server, tmp_path):
    """`scale` from the calibration on, one kill after another in the same folder."""
    command = ["scale", source, *texts]
    assert cli(*command, "-o", tmp_path / "here").code == 0
    expected = contents(tmp_path / "here")
    assert server([*command, "-o", tmp_path / "first"]) == 0
    check_done(tmp_path / "first", expected)
    start = time.monotonic()
    assert server([*command, "-o", tmp_path / "whole"]) == 0
    duration = time.monotonic() - start
    chance = random.Random(1)
    out, completed, killed = tmp_path / "out", 0, 0
    for _ in range(MOMENTS):
        code = server([*command, "-o", out], kill_after=chance.uniform(0, 1.3 * duration))
        assert code in (0, 2, -signal.SIGKILL)
        killed += code == -signal.SIGKILL
        if check_killed(out):
            completed += 1
            go_on(cli, out, command, expected)
            shutil.rmtree(out)
        elif has_begun(out):
            assert cli(*command, "-o", out, "--factor", 3).code == 2
    if out.exists():
        go_on(cli, out, command, expected)
    print(f"{killed} of {MOMENTS} killed, {completed} complete, {duration:.2f} s undisturbed")
    assert killed >= MOMENTS // 3


@pytest.fixture
def unfinished(verbs, tmp_path):
    """An OUT whose `scale` was killed when one shard was there."""
    out = tmp_path / "unfinished"
    for number in range(10, 100):
        in_child([*verbs["scale"], "-o", out], lambda number=number: die_at(number))
        if list(out.glob("*.safetensors")):
            break
        shutil.rmtree(out)
    assert not (out / "config.json").exists()
    return out


def test_what_is_done_is_not_done_again(unfinished, verbs, finished, cli, monkeypatch):
    from mathneuro_export.export import shards

    written = []
    rewrite = shards.rewrite_shard
    monkeypatch.setattr(shards, "rewrite_shard", lambda h, t, e: written.append(t.name) or rewrite(h, t, e))
    there = [path.name for path in unfinished.glob("*.safetensors")]
    recorded = [
        n for n in there if f'"shard:{n}"' in (unfinished / ".cache/mathneuro-export/journal.jsonl").read_text()
    ]
    assert cli(*verbs["scale"], "-o", unfinished).code == 0
    assert len(written) == 3 - len(recorded)
    assert not set(written) & set(recorded)
    check_done(unfinished, finished["scale"])


def test_another_command(unfinished, verbs, finished, cli):
    before = snapshot(unfinished)
    for option in (["--factor", 3], ["--proportion", 0.3], ["--control", "wanda"]):
        outcome = cli(*verbs["scale"], "-o", unfinished, *option)
        assert outcome.code == 2
        assert "--overwrite" in outcome.last
        assert "--no-resume" in outcome.last
    prune = ["prune", *verbs["scale"][1:]]
    assert cli(*prune, "-o", unfinished).code == 2
    assert snapshot(unfinished) == before
    assert cli(*prune, "-o", unfinished, "--overwrite").code == 0
    assert check_killed(unfinished)
    assert cli(*verbs["scale"], "-o", unfinished, "--overwrite").code == 0
    check_done(unfinished, finished["scale"])


def test_begin_anew(unfinished, verbs, finished, cli):
    (unfinished / "mathneuro" / "statistics.safetensors").write_bytes(b"not what was written")
    shard = next(unfinished.glob("*.safetensors"))
    shard.write_bytes(bytes(shard.stat().st_size))
    assert cli(*verbs["scale"], "-o", unfinished, "--no-resume").code == 0
    check_done(unfinished, finished["scale"])


@pytest.mark.parametrize("further", [[], ["--overwrite"], ["--no-resume"], ["--no-resume", "--overwrite"]])
def test_someone_elses_files(further, unfinished, verbs, cli, tmp_path):
    out = tmp_path / "out"
    assert cli(*verbs["scale"], "-o", out).code == 0
    for folder, name in ((unfinished, "notes.txt"), (out, "notes.txt"), (out, "mathneuro/mine.json")):
        (folder / name).write_text("mine")
        before = snapshot(folder)
        outcome = cli(*verbs["scale"], "-o", folder, *further)
        assert outcome.code == 2
        assert outcome.last.startswith("Error: ")
        assert name in outcome.last or "finished output" in outcome.last
        assert snapshot(folder) == before
        (folder / name).unlink()


def test_a_finished_output(verbs, finished, cli, tmp_path):
    for verb, command in verbs.items():
        out = tmp_path / verb
        assert cli(*command, "-o", out).code == 0
        before = snapshot(out)
        for further in ([], ["--no-resume"]):
            outcome = cli(*command, "-o", out, *further)
            assert outcome.code == 2
            assert "--overwrite" in outcome.last
            assert snapshot(out) == before
        assert cli(*command, "-o", out, "--overwrite").code == 0
        check_done(out, finished[verb])


def test_git_and_caches_in_out_stay(verbs, finished, cli, tmp_path):
    out = tmp_path / "out"
    for name in (".git/HEAD", ".cache/huggingface/x", ".gitattributes"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("kept")
    assert cli(*verbs["scale"], "-o", out).code == 0
    assert cli(*verbs["scale"], "-o", out, "--overwrite").code == 0
    found = contents(out)
    assert [found.pop(name) for name in (".git/HEAD", ".cache/huggingface/x", ".gitattributes")] == [b"kept"] * 3
    assert found == finished["scale"]


def test_the_source_changed(source, run, cli, tmp_path):
    model = Path(shutil.copytree(source, tmp_path / "model"))
    command = ["scale", model, "--from", run]
    for name in ("model-00002-of-00003.safetensors", "config.json", "model.safetensors.index.json"):
        out = tmp_path / name
        in_child([*command, "-o", out], lambda: die_at(20))
        assert (out / ".cache").exists()
        os.utime(model / name, (1, 1))
        outcome = cli(*command, "-o", out)
        assert outcome.code == 2
        assert "model differ" in outcome.last
    assert cli(*command, "-o", out, "--no-resume").code == 0
    assert check_killed(out)


@pytest.mark.parametrize("damage", ["garbage", "a line", "the first line", "the files", "empty"])
def test_a_damaged_journal(damage, unfinished, verbs, finished, cli):
    path = unfinished / ".cache/mathneuro-export/journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 4
    if damage == "garbage":
        path.write_bytes(os.urandom(300) + b"\n")
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        number = {"a line": 3, "the first line": 0, "the files": 1}[damage]
        path.write_bytes(b"".join([*lines[:number], b'{"key": \n', *lines[number + 1 :]]))
    before = snapshot(unfinished)
    for further in ([], ["--overwrite"]) if damage == "empty" else ([],):
        outcome = cli(*verbs["scale"], "-o", unfinished, *further)
        assert outcome.code == (2 if damage == "empty" else 1)
        assert "--overwrite" in outcome.last or damage == "empty"
        assert snapshot(unfinished) == before
    if damage != "empty":
        assert cli(*verbs["scale"], "-o", unfinished, "--overwrite").code == 0
        check_done(unfinished, finished["scale"])


def test_two_at_once(verbs, finished, cli, tmp_path):
    out = tmp_path / "out"
    ready, proceed = os.pipe(), os.pipe()

    def wait():
        from mathneuro_export.export import shards

        rewrite = shards.rewrite_shard

        def slow(*arguments):
            os.write(ready[1], b"x")
            os.read(proceed[0], 1)
            return rewrite(*arguments)

        shards.rewrite_shard = slow

    pid = os.fork()
    if pid == 0:
        os._exit(0 if in_child([*verbs["scale"], "-o", out], wait)[0] == 0 else 1)
    os.read(ready[0], 1)
    before = snapshot(out)
    for further in ([], ["--overwrite"], ["--no-resume"], ["--factor", 3], ["--factor", 3, "--overwrite"]):
        outcome = cli(*verbs["scale"], "-o", out, *further)
        assert outcome.code == 2
        assert "another process" in outcome.last
        assert snapshot(out) == before
    os.write(proceed[1], b"xxx")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check_done(out, finished["scale"])


def test_interrupted(verbs, finished, cli, tmp_path):
    """Ctrl-C ends with 130 and leaves the journal; within one process too, where its lock must go."""
    out = tmp_path / "out"
    code, said = in_child([*verbs["scale"], "-o", out], lambda: die_at(12, signal.SIGINT))
    assert code == 130
    assert said.splitlines()[-1].startswith("Error: interrupted")
    assert not (out / "config.json").exists()
    with pytest.MonkeyPatch.context() as patch:
        from mathneuro_export.export import shards

        def interrupt(*arguments):
            raise KeyboardInterrupt

        patch.setattr(shards, "rewrite_shard", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mathneuro_export.scale(verbs["scale"][1], out, from_run=verbs["scale"][3])
    assert cli(*verbs["scale"], "-o", out).code == 0
    check_done(out, finished["scale"])


def test_the_disk_fills_up(verbs, finished, cli, tmp_path, monkeypatch):
    """Wherever it does: exit 4, and the same command goes on when there is space."""
    import mathneuro_export.produce

    monkeypatch.setattr(mathneuro_export.produce, "require_space", lambda path, nbytes: None)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "none", disk, "-o"]
    for verb, command in verbs.items():
        full = 0
        for kilobytes in range(8, 1000, 12):
            done = subprocess.run([*mount, f"size={kilobytes}k"], capture_output=True)
            if done.returncode:
                pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
            try:
                out = disk / "out"
                outcome = cli(*command, "-o", out)
                check_killed(out, "config.json" if verb == "scale" else "manifest.json")
                if outcome.code == 0:
                    break
                assert outcome.code == 4, outcome.err
                assert "full" in outcome.last
                full += 1
                subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
                assert cli(*command, "-o", out).code == 0
                check_done(out, finished[verb])
            finally:
                subprocess.run(["umount", disk], check=True)
        assert full >= 2
