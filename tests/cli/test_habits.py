"""What every command keeps to: results on stdout, talk on stderr, exit codes, and what is not imported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mathneuro_export.cli.main import COMMANDS
from tests.conftest import snapshot

RESULT = {"output", "manifest", "targets", "masked", "changed", "seconds", "warnings"}
PLAN = {"targets", "skipped", "bytes_read", "bytes_written", "peak_host_bytes", "peak_device_bytes", "model"}
UNTUNED = "factor 1.1 is the default and untuned for this model (the paper's setting at 8B is 1.01)"


@pytest.fixture
def arguments(checkpoint, identified, tmp_path):
    """Of each command that writes, with --from where it can be."""
    source, run = checkpoint("llama"), identified("llama")
    return {
        "identify": ["identify", source, "--from", run, "-o", tmp_path / "identify"],
        "scale": ["scale", source, "--from", run, "-o", tmp_path / "scale"],
        "prune": ["prune", source, "--from", run, "-o", tmp_path / "prune"],
        "apply": ["apply", run, source, "--factor", "2", "-o", tmp_path / "apply"],
    }


@pytest.fixture
def out(arguments, cli):
    """An OUT."""
    assert cli(*arguments["scale"]).code == 0
    return arguments["scale"][-1]


@pytest.mark.parametrize("verb", ["identify", "scale", "prune", "apply"])
def test_json_of_a_result(verb, arguments, cli):
    outcome = cli(*arguments[verb], "--json")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    found = json.loads(outcome.out)
    assert found.keys() == RESULT
    assert found["output"] == str(arguments[verb][-1])
    document = json.loads(Path(found["manifest"]).read_text())
    counts = [tensor["count"] for tensor in document["tensors"].values()]
    assert found["targets"] == len(counts)
    assert found["masked"] == sum(count["masked"] for count in counts)
    if verb == "identify":
        assert found["changed"] is None
        assert not any("changed" in count for count in counts)
        assert "edit" not in document
    else:
        assert found["changed"] == sum(count["changed"] for count in counts) > 0
    assert found["warnings"] == document["warnings"]
    assert 0 < found["seconds"] < 600


@pytest.mark.parametrize("verb", ["identify", "scale", "prune", "apply"])
def test_text_of_a_result(verb, arguments, cli):
    outcome = cli(*arguments[verb])
    assert outcome.code == 0
    first, second = outcome.out.splitlines()
    assert first.startswith(f"{arguments[verb][-1]}: 21 targets, ")
    assert ("changed" in first) == (verb != "identify")
    assert Path(second).is_file()


@pytest.mark.parametrize("verb", ["identify", "scale", "prune", "apply"])
def test_dry_run(verb, arguments, cli, checkpoint):
    out = arguments[verb][-1]
    outcome = cli(*arguments[verb], "--dry-run", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    found = json.loads(outcome.out)
    assert found.keys() == PLAN
    assert found["targets"]["q_proj"] == {"tensors": 3, "weights": 3 * 32 * 32}
    assert found["skipped"]["lm_head (use --lm-head)"] == ["lm_head.weight"]
    shards = sum(path.stat().st_size for path in checkpoint("llama").glob("*.safetensors"))
    assert found["bytes_read"] == shards
    assert (found["bytes_written"] > shards) or verb == "identify"
    assert found["peak_device_bytes"] == 0
    assert not out.exists()
    assert cli(*arguments[verb], "--proportion" if verb != "apply" else "--factor", 0.3).code == 0
    written = sum(len(data) for data in snapshot(out).values())
    assert written <= found["bytes_written"]
    shutil.rmtree(out)
    text = cli(*arguments[verb][:-2], "--dry-run")
    assert text.code == 0
    assert "q_proj" in text.out
    assert "lm_head (use --lm-head): 1 (lm_head.weight)" in text.out


def test_dry_run_of_a_calibration_reads_no_weight(cli, model, texts):
    shards = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    for path in model.glob("*.safetensors"):
        data = path.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        path.write_bytes(data[:header] + b"\xff" * (len(data) - header))
    outcome = cli("identify", model, "--dry-run", "--json", *texts)
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert found["bytes_read"] == 2 * shards
    assert found["peak_host_bytes"] > 0
    assert sum(row["tensors"] for row in found["targets"].values()) == 21
    assert cli("identify", model, "--dry-run", "--math", "none.jsonl").code == 1


def test_json_of_verify_and_inspect(cli, out, checkpoint, identified):
    found = json.loads(cli("verify", out, "--base", checkpoint("llama"), "--json").out)
    assert found.keys() >= {"ok", "files", "elements_checked", "problems"}
    assert (found["ok"], found["problems"]) == (True, [])
    assert found["elements_checked"] > 30_000
    for folder, kind in ((out, "output"), (identified("llama"), "run"), (checkpoint("llama"), "checkpoint")):
        outcome = cli("inspect", folder, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out)["kind"] == kind
        assert cli("inspect", folder).out


def test_verify_of_a_damaged_output(cli, out):
    (out / "generation_config.json").write_text("{}")
    (out / "extra.txt").write_text("x")
    outcome = cli("verify", out, "--json")
    assert outcome.code == 3
    found = json.loads(outcome.out)
    assert not found["ok"]
    assert {problem["file"] for problem in found["problems"]} == {"generation_config.json", "extra.txt"}
    assert outcome.last.startswith("Error: ")
    assert "problems found" in outcome.last
    text = cli("verify", out)
    assert text.code == 3
    assert "NOT ok" in text.out
    assert "extra.txt: " in text.out
    for folder in (out.parent / "none", out.parent):
        assert cli("verify", folder).code == 1
        assert cli("inspect", folder).code == 1
    assert cli("verify", out, "--base", out.parent / "none").code == 1


def test_talk_goes_to_stderr_and_quiet_is_silent(cli, checkpoint, texts, tmp_path):
    command = ["scale", checkpoint("llama"), *texts, "--dtype", "bfloat16", "-o"]
    loud = cli(*command, tmp_path / "loud")
    assert loud.code == 0
    assert loud.err.startswith(UNTUNED)
    assert "load llama in bfloat16 on cpu\n" in loud.err
    assert len(loud.out.splitlines()) == 2
    quiet = cli(*command, tmp_path / "quiet", "-q")
    assert quiet.code == 0
    assert quiet.err == ""
    assert len(quiet.out.splitlines()) == 2
    failed = cli(*command, tmp_path / "loud", "-q")
    assert failed.code == 2
    assert len(failed.err.splitlines()) == 1


def test_where_the_factor_came_from(cli, arguments, tmp_path):
    for verb, options, source in (
        ("scale", [], "default"),
        ("scale", ["--factor", 1.1], "option"),
        ("scale", ["--scalar", 1.2], "option"),
        ("prune", [], "option"),
        ("apply", [], "option"),
    ):
        out = tmp_path / f"{verb}{len(options)}{options[-1:]}"
        outcome = cli(*arguments[verb][:-1], out, *options)
        assert outcome.code == 0
        assert (UNTUNED in outcome.err) == (source == "default")
        assert json.loads((out / "mathneuro/manifest.json").read_text())["edit"]["factor_source"] == source


def test_strict(cli, tmp_path, texts):
    from tests.tiny import tiny_checkpoint

    mamba = tiny_checkpoint(tmp_path / "mamba", "mamba")
    for verb in ("identify", "scale"):
        outcome = cli(verb, mamba, *texts, "-o", tmp_path / "out", "--strict")
        assert outcome.code == 1
        assert "dt_proj.weight: its input was never seen" in outcome.last
        assert not (tmp_path / "out").exists()
    loose = cli("scale", mamba, *texts, "-o", tmp_path / "out", "--json")
    assert loose.code == 0, loose.err
    warning = next(w for w in json.loads(loose.out)["warnings"] if w["code"] == "not-observed")
    assert warning["count"] > 0
    assert f"warning: {warning['message']}" in loose.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command, cli):
    for flag in ("--help", "-h"):
        outcome = cli(command, flag)
        assert outcome.code == 0
        assert outcome.err == ""
        assert outcome.out.startswith(f"Usage: mathneuro-export {command}")
        assert max(map(len, outcome.out.splitlines())) <= 110


def test_version_and_help_of_all(cli):
    assert cli("--version").out.startswith("mathneuro-export, version ")
    for arguments in (["--help"], ["-h"]):
        outcome = cli(*arguments)
        assert outcome.code == 0
        assert all(f"  {command} " in outcome.out for command in COMMANDS)


def test_a_traceback_only_with_vv(cli, tmp_path):
    for flags, there in (([], False), (["-v"], False), (["-vv"], True), (["-v", "-v"], True)):
        outcome = cli("scale", tmp_path / "none", "-o", tmp_path / "out", *flags)
        assert outcome.code == 1
        assert ("Traceback" in outcome.err) == there
        assert outcome.last.startswith("Error: MODEL ")


def test_an_unexpected_error_is_one_line(cli, arguments, monkeypatch):
    import mathneuro_export.api

    def fail(*arguments):
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.setattr(mathneuro_export.api, "carry_out", fail)
    outcome = cli(*arguments["prune"])
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "Error: ZeroDivisionError: first second; give -vv for the traceback, and please report it"
    ]


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (MemoryError(), 4, "out of memory"),
        (OSError(28, "No space left on device", "x.safetensors"), 4, "x.safetensors"),
        (PermissionError(13, "Permission denied", "y"), 1, "Permission denied (y)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (EOFError("end"), 1, "EOFError"),
        (RecursionError(), 1, "nested too deeply"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_codes_of_other_errors(error, code, word, cli, arguments, monkeypatch):
    import mathneuro_export.api

    def fail(*arguments):
        raise error

    monkeypatch.setattr(mathneuro_export.api, "carry_out", fail)
    outcome = cli(*arguments["prune"])
    assert outcome.code == code
    assert outcome.last.startswith("Error: ")
    assert word in outcome.last


def test_neither_torch_nor_transformers(arguments, out, checkpoint, tmp_path):
    """In one process: `--help`, then each command that needs neither."""
    commands = [
        ["--help"],
        *([command, "--help"] for command in COMMANDS),
        ["inspect", out],
        ["inspect", checkpoint("llama")],
        ["verify", out, "--base", checkpoint("llama")],
        arguments["apply"],
        arguments["prune"],
        [*arguments["scale"][:-1], tmp_path / "wider", "--proportion", "0.3"],
        arguments["identify"],
        [*arguments["scale"], "--dry-run"],
    ]
    code = f"""
import sys
from mathneuro_export.cli.main import main
for arguments in {[[str(part) for part in command] for command in commands]!r}:
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code, arguments
    heavy = sorted(set(sys.modules) & {{"torch", "transformers", "tokenizers", "pandas", "matplotlib"}})
    assert not heavy, (arguments, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mathneuro_export", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Usage: mathneuro-export" in done.stdout
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in modules
    assert not modules & {"torch", "transformers", "numpy", "pydantic", "mathneuro_export.api"}


def test_a_closed_pipe():
    code = "from mathneuro_export.cli.main import main; main(['scale', '--help'])"
    done = subprocess.run(f'{sys.executable} -c "{code}" | true', shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
