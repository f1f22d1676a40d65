"""Streaming from the command line: same bytes, less memory, killed and resumed, refusals that name the way out."""

import json
import random
import shutil
import signal
import time

import pytest
from safetensors.torch import save_file

import mathneuro_export
from mathneuro_export.cli.main import main
from mathneuro_export.models import memory
from tests.models.test_architectures import tensors
from tests.test_resume import check_done, check_killed, contents, go_on
from tests.tiny import tiny_checkpoint

MOMENTS = 20


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def source(request, tmp_path_factory):
    import torch

    torch.set_num_threads(1)  # children are forked
    return tiny_checkpoint(tmp_path_factory.mktemp("source") / "model", request.param, shards=3)


@pytest.fixture(scope="module")
def command(source, texts):
    return [
        "scale",
        source,
        *texts,
        "--stream",
        "always",
        "--min-expert-tokens",
        20,
        "--factor",
        3,
        "--proportion",
        0.1,
    ]


@pytest.fixture(scope="module")
def finished(command, tmp_path_factory):
    """What the command writes when it is left alone, and the seconds it takes."""
    out = tmp_path_factory.mktemp("finished") / "out"
    start = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in [*command, "-o", out]])
    assert stop.value.code == 0
    return contents(out), time.monotonic() - start, out


def tight(source):
    """A --max-memory that leaves a few hidden states in memory and no more."""
    largest = sum(sorted(path.stat().st_size for path in source.glob("*.safetensors"))) * 2
    return ["--max-memory", f"{largest}B"]


def test_streamed_or_not_the_same_bytes(source, command, finished, cli, tmp_path):
    other = [word if word != "always" else "never" for word in command]
    for name, arguments in (("memory", other), ("disk", [*command, *tight(source)])):
        assert cli(*arguments, "-o", tmp_path / name).code == 0
        assert contents(tmp_path / name) == finished[0]
    assert mathneuro_export.verify(finished[2], source).ok


def test_the_layout_does_not_matter(source, command, finished, cli, tmp_path):
    """One file or three, with the base model's prefix or without: the same masks."""
    whole = {name: tensor.contiguous() for name, tensor in tensors(source).items()}
    masks = finished[2] / "mathneuro" / "masks.safetensors"
    for kind in ("one", "bare"):
        folder = tmp_path / kind
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
        bare = {name.removeprefix("model."): tensor for name, tensor in whole.items()}
        save_file(whole if kind == "one" else bare, folder / "model.safetensors", {"format": "pt"})
        assert cli(command[0], folder, *command[2:], "-o", tmp_path / f"{kind}-out").code == 0
        found = tensors(tmp_path / f"{kind}-out" / "mathneuro")
        expected = tensors(finished[2] / "mathneuro")
        prefix = "model." if kind == "bare" else ""
        for name, tensor in expected.items():
            own = "/".join(part.removeprefix(prefix) for part in name.split("/"))
            assert tensor.equal(found[own]), name
    assert masks.read_bytes() == (tmp_path / "one-out" / "mathneuro" / "masks.safetensors").read_bytes()


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
def test_killed_at_random_moments(disk, source, command, finished, cli, server, tmp_path):
    expected, duration, _ = finished
    arguments = [*command, *(tight(source) if disk else [])]
    chance = random.Random(3)
    out, completed, killed = tmp_path / "out", 0, 0
    for _ in range(MOMENTS // 2):
        code = server([*arguments, "-o", out], kill_after=chance.uniform(0, duration))
        assert code in (0, 2, -signal.SIGKILL)
        killed += code == -signal.SIGKILL
        if check_killed(out):
            completed += 1
            go_on(cli, out, arguments, expected)
            shutil.rmtree(out)
    if out.exists():
        go_on(cli, out, arguments, expected)
    print(f"{killed} of {MOMENTS // 2} killed, {completed} complete, {duration:.2f} s undisturbed")
    assert killed >= MOMENTS // 4


def test_killed_at_every_fifth_step_of_the_calibration(source, command, finished, cli, server, tmp_path):
    arguments = [*command, *tight(source)]
    for number in range(2, 200, 5):
        out = tmp_path / str(number)
        code = server([*arguments, "-o", out], step=number)
        if code == 0 or (out / "mathneuro" / "statistics.safetensors").exists():
            break
        outcome = cli(*arguments, "-o", out)
        assert outcome.code == 0, outcome.err
        check_done(out, finished[0])
        shutil.rmtree(out)
    assert number > 5


class TestPreflight:
    def test_max_memory_that_cannot_be(self, source, command, cli, tmp_path):
        outcome = cli(*command, "--max-memory", "10KB", "-o", tmp_path / "out")
        assert outcome.code == 4
        assert "--max-memory 10KB" in outcome.last
        whole = [word if word != "always" else "never" for word in command]
        outcome = cli(*whole, "--max-memory", "10KB", "-o", tmp_path / "out")
        assert outcome.code == 4
        assert "--stream always" in outcome.last
        for size in ("0", "many", "5XB", "-3"):
            refused = cli(*command, f"--max-memory={size}", "-o", tmp_path / "out")
            assert refused.code == 2
            assert "5GB" in refused.last
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("stream", "free", "words"),
        [("never", 1000, "--stream always"), ("always", 1000, "--dtype bfloat16"), ("always", 1 << 30, "--max-memory")],
    )
    def test_refusals_name_the_way_out(self, stream, free, words, source, command, cli, tmp_path, monkeypatch):
        from mathneuro_export import preflight

        monkeypatch.setattr(memory, "available_memory", lambda: free)
        if words == "--max-memory":
            many = preflight.Corpora({"math": 10**9, "general": 1}, 10**9)
            monkeypatch.setattr(preflight, "count_tokens", lambda job: many)
        arguments = [word if word != "always" else stream for word in command]
        outcome = cli(*arguments, "-o", tmp_path / "out")
        assert outcome.code == 4
        assert words in outcome.last
        assert not (tmp_path / "out").exists()

    def test_auto_streams_what_does_not_fit(self, source, command, cli, monkeypatch):
        arguments = [word if word != "always" else "auto" for word in command]
        plan = json.loads(cli(*arguments, "--dry-run", "--json").out)
        assert plan["model"]["streamed"] is False
        monkeypatch.setattr(memory, "available_memory", lambda: plan["peak_host_bytes"] - 1)
        streamed = json.loads(cli(*arguments, "--dry-run", "--json").out)
        assert streamed["model"]["streamed"] is True

    def test_dry_run_tells_layers_ties_and_experts(self, source, command, cli):
        outcome = cli(*command, "--dry-run", "--json")
        model = json.loads(outcome.out)["model"]
        assert model["layers"] == 3
        assert model["ties"] == []
        text = cli(*command, "--dry-run").out
        assert "decoder layers" in text
        if model["experts"]:
            assert (model["experts"], model["experts_per_token"]) == (8, 2)
            run = mathneuro_export.plan("scale", source, math=command[3], general=command[5])
            assert run.model["expert_tokens"] == model["expert_tokens"]
            assert set(model["expert_tokens"]) == {"math", "general"}
            assert "tokens per expert, math" in text

    def test_beside_from_a_run(self, source, finished, cli, tmp_path):
        outcome = cli("scale", source, "--from", finished[2], "--stream", "always", "-o", tmp_path / "x")
        assert outcome.code == 2
        assert "--stream beside --from" in outcome.last
