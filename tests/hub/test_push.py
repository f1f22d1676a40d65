import hashlib
import json
import shutil

import pytest

from tests.hub.conftest import files_of, refused
from tests.hub.server import TOKEN

SHARD = "model-00001-of-00003.safetensors"


def commits(hub, name="tester/model", ref="main"):
    return hub.repository(name).history(ref)


def holds(hub, folder, name="tester/model", ref="main"):
    """Whether a ref holds the files of a folder, byte for byte, and no other."""
    wanted = {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in files_of(folder).items()}
    files = hub.repository(name).head(ref).files
    found = {
        path: (file.size, file.lfs or hashlib.sha256(hub.content(name, path, ref)).hexdigest())
        for path, file in files.items()
    }
    return found == wanted


def test_create_again_and_another_factor(hub, client, out, made):
    first = client(hub, "push", out, "tester/model", "--json", "--no-progress")
    assert first.code == 0, first.err
    head = hub.repository("tester/model").head()
    assert json.loads(first.out) == {
        "url": f"{hub.url}/tester/model",
        "commit": head.oid,
        "repo_id": "tester/model",
        "revision": "main",
        "pull_request": None,
    }
    assert len(list(out.glob("*.safetensors"))) == 3
    assert holds(hub, out)
    assert len(commits(hub)) == 1
    assert not hub.repository("tester/model").private

    hub.reset()
    again = client(hub, "push", out, "tester/model")
    assert again.code == 0, again.err
    assert again.out.split() == [f"{hub.url}/tester/model", "commit", head.oid]
    assert not hub.asked(r"PUT |/commit/")

    other = client(hub, "push", made(1.75), "tester/model", "-q")
    assert other.code == 0, other.err
    assert len(commits(hub)) == 2
    assert holds(hub, made(1.75))


def test_stale_files_of_an_earlier_push_go_in_the_same_commit(hub, client, out):
    names = {"model-00004-of-00004.safetensors": b"old", "pytorch_model.bin": b"old", "notes.txt": b"mine"}
    repository = hub.state.create("tester/model")
    files = {name: hub.state.store(data, not name.endswith(".txt")) for name, data in names.items()}
    repository.commit("main", "earlier", files)
    done = client(hub, "push", out, "tester/model")
    assert done.code == 0, done.err
    assert len(commits(hub)) == 2
    assert commits(hub)[0].files.keys() == {*files_of(out), "notes.txt"}


def test_private_branch_and_pull_request(hub, client, out):
    assert client(hub, "push", out, "tester/model", "--private").code == 0
    assert hub.repository("tester/model").private
    (empty,) = (commit for commit in hub.repository("tester/model").commits.values() if not commit.files)
    hub.repository("tester/model").refs["main"] = empty.oid

    branch = client(hub, "push", out, "tester/model", "--revision", "v1", "--commit-message", "One", "--json")
    assert branch.code == 0, branch.err
    assert json.loads(branch.out)["url"] == f"{hub.url}/tester/model/tree/v1"
    assert json.loads(branch.out)["revision"] == "v1"
    assert commits(hub, ref="v1")[0].title == "One"
    assert holds(hub, out, ref="v1")

    request = client(hub, "push", out, "tester/model", "--create-pr", "--json")
    assert request.code == 0, request.err
    document = json.loads(request.out)
    assert document["pull_request"] == f"{hub.url}/tester/model/discussions/1"
    assert document["revision"] == "refs/pr/1"
    assert holds(hub, out, ref="refs/pr/1")
    assert hub.repository("tester/model").head() is empty


def test_an_existing_public_repository_is_not_private(lfs, client, out):
    lfs.state.create("tester/model")
    refused(client(lfs, "push", out, "tester/model", "--private"), 2, "--private", "public")
    assert not commits(lfs)


def test_without_xet(hubs, client, out):
    from tests.hub.conftest import fresh

    hub = fresh(hubs["xet"])
    assert client(hub, "push", out, "tester/model", "--no-xet").code == 0
    assert len(hub.asked("PUT /_lfs/")) == 5
    assert not hub.asked("xet-write-token")


def test_what_does_not_verify_is_not_pushed(lfs, client, out):
    data = bytearray((out / SHARD).read_bytes())
    data[-1] ^= 1
    (out / SHARD).write_bytes(data)
    refused(client(lfs, "push", out, "tester/model"), 3, SHARD)
    assert not lfs.log


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tester"], ["tester", "org/name"]),
        (["tester/a--b"], ["org/name"]),
        (["tester/model", "--create-pr", "--revision", "v1"], ["--create-pr", "v1"]),
        (["tester/model", "--commit-message", " "], ["--commit-message"]),
        (["tester/model", "--no-masks"], ["--no-masks"]),
    ],
)
def test_refused_before_any_request(lfs, client, out, arguments, words):
    refused(client(lfs, "push", out, *arguments), 2, *words)
    assert not lfs.log


def test_a_run_with_and_without_masks(hub, client, identified, checkpoint, tmp_path):
    run = identified("llama")
    assert client(hub, "push", run, "tester/run").code == 0
    assert holds(hub, run, "tester/run")
    done = client(hub, "push", run, "tester/run", "--no-masks")
    assert done.code == 0, done.err
    assert hub.repository("tester/run").head().files.keys() == {"manifest.json", "statistics.safetensors"}

    model = checkpoint("llama")
    verified = client(hub, "verify", "tester/run", "--base", model)
    assert verified.code == 0, verified.out + verified.err
    rebuilt = tmp_path / "rebuilt"
    applied = client(hub, "apply", "tester/run", model, "-o", rebuilt, "--factor", "1.5")
    assert applied.code == 0, applied.err
    direct = tmp_path / "direct"
    assert client(hub, "apply", run, model, "-o", direct, "--factor", "1.5").code == 0
    shards = sorted(path.name for path in model.glob("*.safetensors"))
    assert all((rebuilt / name).read_bytes() == (direct / name).read_bytes() for name in shards)


def test_a_run_and_a_checkpoint_do_not_share_a_repository(lfs, client, out, identified):
    lfs.state.add("tester/model", out)
    lfs.state.add("tester/run", identified("llama"))
    before = {name: lfs.repository(name).head() for name in ("tester/model", "tester/run")}
    refused(client(lfs, "push", identified("llama"), "tester/model"), 2, "tester/model", "of its own")
    refused(client(lfs, "push", out, "tester/run"), 2, "tester/run", "of its own")
    assert before == {name: lfs.repository(name).head() for name in before}


def test_names_that_a_licence_asks_for(lfs, client, checkpoint, identified, tmp_path):
    from mathneuro_export import scale

    model = shutil.copytree(checkpoint("llama"), tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: llama3.1\n---\n# Base\n")
    out = scale(model, tmp_path / "out", from_run=identified("llama"), factor=1.5).output
    assert "Built with Llama." in (out / "README.md").read_text()
    done = client(lfs, "push", out, "tester/model")
    assert done.code == 0, done.err
    assert "begin with 'Llama'" in done.err
    assert "notice" in done.err
    assert "begin with" not in client(lfs, "push", out, "tester/Llama-3.1-math").err


def test_push_imports_neither_torch_nor_transformers(hub, client, out):
    script = (
        "import sys\nfrom mathneuro_export.cli.main import main\ntry:\n    main(sys.argv[1:])\nfinally:\n"
        "    print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = client.python(hub, "-c", script, "push", out, "tester/model")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "[]"


def test_push_to_hub_after_an_edit(hub, client, checkpoint, identified, tmp_path):
    out = tmp_path / "out"
    edit = ["scale", checkpoint("llama"), "--from", identified("llama"), "--factor", "1.5"]
    done = client(hub, *edit, "-o", out, "--push-to-hub", "tester/model", "--private", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["pushed"]["commit"] == hub.repository("tester/model").head().oid
    assert hub.repository("tester/model").private
    assert holds(hub, out)


def test_a_failed_push_after_an_edit_leaves_a_complete_out(lfs, client, checkpoint, identified, tmp_path):
    out = tmp_path / "out"
    lfs.fail("/commit/", 403, message="Private repository storage limit reached")
    edit = ["apply", identified("llama"), checkpoint("llama"), "--factor", "1.5", "-o", out]
    failed = client(lfs, *edit, "--push-to-hub", "tester/model")
    again = f"mathneuro-export push {out} tester/model"
    refused(failed, 1, "storage limit", "is complete", again)
    assert client(lfs, "verify", out).code == 0
    assert client(lfs, *again.split()[1:]).code == 0
    assert holds(lfs, out)


def test_an_edit_is_not_begun_when_the_push_cannot_succeed(lfs, client, checkpoint, identified, tmp_path):
    out = tmp_path / "out"
    edit = ["scale", checkpoint("llama"), "--from", identified("llama"), "--factor", "1.5", "-o", out]
    refused(client(lfs, *edit, "--push-to-hub", "somebody/model"), 1, "somebody/model", "tester")
    refused(client(lfs, *edit, "--push-to-hub", "tester/model", HF_TOKEN=None), 1, "HF_TOKEN")
    refused(client(lfs, *edit, "--private"), 2, "--private")
    refused(client(lfs, *edit, "--push-to-hub", "tester/model", "--offline"), 2, "--offline")
    assert not out.exists()


@pytest.mark.parametrize("debug", [None, "1"])
def test_the_token_is_never_shown(hub, client, out, debug):
    hub.fail("preupload", 500, message=f"bad {TOKEN} token")
    hub.fail("preupload", 403, message=f"bad {TOKEN} token")
    failed = client(hub, "push", out, "tester/model", "-vv", HF_DEBUG=debug)
    assert failed.code == 1
    assert "Traceback" in failed.err
    assert "Bearer hf_" not in failed.err
    assert client(hub, "push", out, "tester/model", "-vv", HF_DEBUG=debug).code == 0
    assert TOKEN not in "".join(path.read_text("latin-1") for path in client.home.rglob("*") if path.is_file())
    assert all(TOKEN.encode() not in data for data in files_of(out).values())
    assert "--token" not in client(hub, "push", "--help").out


def test_a_login_is_enough(lfs, client, out):
    (client.home / "token").write_text(TOKEN)
    assert client(lfs, "push", out, "tester/model", HF_TOKEN=None).code == 0
