import dataclasses
import json
import os
import shutil
import subprocess

import pytest

from tests.conftest import snapshot
from tests.hub.conftest import refused
from tests.tiny import tiny_checkpoint

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
OTHERS = {"pytorch_model.bin": b"pickled", "original/consolidated.00.pth": b"pickled", "notes.txt": b"some words"}


@pytest.fixture(scope="session")
def repository(tmp_path_factory, checkpoint):
    """The llama checkpoint of three shards, a card, and files that are not carried."""
    folder = tmp_path_factory.mktemp("repository") / "model"
    shutil.copytree(checkpoint("llama"), folder)
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [en]\n---\n# Base\n")
    for name, data in OTHERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def base(lfs, repository):
    """The repository org/base on the hub."""
    return lfs.state.add("org/base", repository)


@pytest.fixture
def calibrating(texts):
    return [*texts, "--proportion", "0.1", "--dtype", "float32", "--no-progress"]


def got(hub, name):
    return [request for request in hub.asked(rf"GET .*/resolve/.*{name}") if request.status]


def test_inspect_fetches_headers_alone(lfs, client, tmp_path_factory):
    folder = tiny_checkpoint(
        tmp_path_factory.mktemp("large") / "m", "llama", 3, hidden_size=512, intermediate_size=1024
    )
    lfs.state.add("org/large", folder)
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > 10_000_000
    seen = client(lfs, "inspect", "org/large", "--json")
    assert seen.code == 0, seen.err
    document, local = json.loads(seen.out), json.loads(client(lfs, "inspect", folder, "--json").out)
    assert document["id"] == "org/large"
    assert document["revision"] == lfs.repository("org/large").head().oid
    same = set(local) - {"id", "revision"}
    assert {key: document[key] for key in same} == {key: local[key] for key in same}
    assert sum(request.sent for request in lfs.log) < 2_000_000
    assert not list(client.home.rglob("*.safetensors"))


def test_dry_run_fetches_no_weight(lfs, base, client, repository, calibrating):
    plan = client(lfs, "identify", "org/base", "--dry-run", "--json", *calibrating)
    assert plan.code == 0, plan.err
    local = client(lfs, "identify", repository, "--dry-run", "--json", *calibrating)
    assert json.loads(plan.out) == json.loads(local.out)
    assert all(request.sent <= 65_536 for shard in SHARDS for request in got(lfs, shard))
    assert not list(client.home.rglob("*.safetensors"))


def test_identify_scale_verify_and_offline(lfs, base, client, repository, calibrating, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    done = client(lfs, "identify", "org/base@main", "-o", run, *calibrating)
    assert done.code == 0, done.err
    source = json.loads((run / "manifest.json").read_bytes())["source"]
    assert (source["id"], source["revision"]) == ("org/base", base.head().oid)
    assert not got(lfs, "pytorch_model.bin")
    assert not got(lfs, "original")
    lfs.reset()
    scaled = client(lfs, "scale", "org/base", "--offline", "--from", run, "--factor", "1.5", "-o", out, "--json")
    assert scaled.code == 0, scaled.err
    assert not lfs.log
    document = json.loads((out / "mathneuro/manifest.json").read_bytes())
    assert document["left_out"] == ["original/", "pytorch_model.bin"]
    assert document["source"]["revision"] == base.head().oid
    card = (out / "README.md").read_text()
    assert "base_model: org/base" in card
    assert f"org/base@{base.head().oid}" in card
    assert "license: mit" in card
    for cached in ([], ["--offline"]):
        proved = client(lfs, "verify", out, "--base", f"org/base@{base.head().oid}", *cached)
        assert proved.code == 0, proved.out + proved.err
    other = client(lfs, "inspect", "org/base", "--offline", "--cache-dir", tmp_path / "other")
    refused(other, 1, "org/base", "not in the cache")


def test_a_branch_a_commit_and_none(lfs, base, client):
    base.refs["v1"] = base.head().oid
    commit = base.commit("main", "later", dict(list(base.head().files.items()))).oid
    for arguments, oid in (
        (["org/base@v1"], base.refs["v1"]),
        (["org/base", "--revision", "v1"], base.refs["v1"]),
        ([f"org/base@{commit}"], commit),
        (["org/base"], commit),
    ):
        seen = client(lfs, "inspect", *arguments, "--json")
        assert seen.code == 0, seen.err
        assert json.loads(seen.out)["revision"] == oid
    refused(client(lfs, "inspect", "org/base@v2"), 1, "org/base@v2", "no such revision")
    refused(client(lfs, "inspect", "org/none"), 1, "org/none", "no such directory", "no such repository")
    refused(client(lfs, "inspect", "org/base@v1", "--revision", "v2"), 2, "--revision", "v2")


def test_runs_and_outs_by_name(hub, client, identified, made, repository, tmp_path):
    hub.state.add("org/run", identified("llama"))
    hub.state.add("org/out", made())
    for name, kind in (("org/run", "run"), ("org/out", "output")):
        seen = client(hub, "inspect", name, "--json")
        assert seen.code == 0, seen.err
        document = json.loads(seen.out)
        assert (document["kind"], document["id"], document["missing"]) == (kind, name, [])
    hub.reset()
    compared = client(hub, "diff", "org/run", "org/out", "--json")
    assert compared.code == 0, compared.err
    assert json.loads(compared.out)["overall"]["jaccard"] == 1
    assert not got(hub, "model-")
    for name in ("org/run", "org/out"):
        verified = client(hub, "verify", name)
        assert verified.code == 0, verified.out + verified.err
    applied = client(hub, "apply", "org/out", repository, "--factor", "1.5", "-o", tmp_path / "again")
    assert applied.code == 0, applied.err
    assert all((tmp_path / "again" / shard).read_bytes() == (made() / shard).read_bytes() for shard in SHARDS)
    hub.state.create("org/empty")
    refused(client(hub, "verify", "org/empty"), 1, "org/empty", "neither a RUN nor an OUT")


def test_verify_sees_a_file_that_was_changed_on_the_hub(lfs, client, made):
    repository = lfs.state.add("org/out", made())
    files = dict(repository.head().files)
    data = bytearray((made() / SHARDS[0]).read_bytes())
    data[-1] ^= 1
    repository.commit("main", "changed", {**files, SHARDS[0]: lfs.state.store(bytes(data), True)})
    done = client(lfs, "verify", "org/out")
    assert done.code == 3
    assert SHARDS[0] in done.out


class TestFaults:
    def fetch(self, client, hub, identified, tmp_path, **changes):
        arguments = ["org/base", "--from", identified("llama"), "--factor", "1.5", "-o", tmp_path / "out"]
        return client(hub, "scale", *arguments, **changes)

    @pytest.fixture
    def fetching(self, client, lfs, base, identified, tmp_path):
        return lambda **changes: self.fetch(client, lfs, identified, tmp_path, **changes)

    def works(self, fetching, tmp_path):
        done = fetching()
        assert done.code == 0, done.err
        assert (tmp_path / "out/config.json").exists()

    def test_the_connection_is_cut(self, lfs, fetching, tmp_path):
        lfs.fail(rf"GET .*/resolve/.*{SHARDS[1]}", cut_after=20_000, skip=1)
        self.works(fetching, tmp_path)

    @pytest.mark.parametrize("status", [500, 429])
    def test_an_error_that_passes_by(self, lfs, fetching, tmp_path, status):
        for pattern in ("GET /api/models/org/base", rf"GET .*/resolve/.*{SHARDS[0]}"):
            lfs.fail(pattern, status, headers={"Retry-After": "1"})
        self.works(fetching, tmp_path)

    def test_what_was_fetched_is_not_fetched_again(self, lfs, fetching, tmp_path):
        lfs.fail(rf"GET .*/resolve/.*{SHARDS[2]}", 400, skip=1, message="no")
        refused(fetching(), 1, "org/base", "400")
        assert not (tmp_path / "out").exists()
        fetched = [shard for shard in SHARDS if any(request.sent > 65_536 for request in got(lfs, shard))]
        lfs.reset()
        self.works(fetching, tmp_path)
        assert not any(request.sent > 65_536 for shard in fetched for request in got(lfs, shard))

    def test_gated(self, base, fetching, tmp_path):
        base.gated = True
        refused(fetching(), 1, "org/base", "gated", "accept its terms")
        base.gated = False
        self.works(fetching, tmp_path)

    def test_private_without_a_token(self, base, fetching, tmp_path):
        base.private = True
        refused(fetching(HF_TOKEN=None), 1, "org/base", "without a token", "HF_TOKEN")
        refused(fetching(HF_TOKEN="hf_bad"), 1, "org/base", "401")
        self.works(fetching, tmp_path)

    def test_a_server_that_never_answers(self, lfs, fetching, tmp_path):
        lfs.fail("GET /api/models/org/base", delay=20, times=9)
        refused(fetching(MATHNEURO_HUB_TIMEOUT="0.5"), 1, "org/base", "no answer within 0.5 s")
        lfs.reset()
        self.works(fetching, tmp_path)

    def test_a_full_disk(self, lfs, base, client, identified, fetching, tmp_path):
        small = tmp_path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", small], check=False)
        if mounted.returncode:
            pytest.skip("needs the right to mount")
        try:
            refused(fetching(HF_HUB_CACHE=str(small)), 4, "disk", "free")
            blind = tmp_path / "blind"
            blind.mkdir()
            (blind / "sitecustomize.py").write_text(
                "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)\n"
            )
            path = os.pathsep.join([str(blind), client.environment(lfs)["PYTHONPATH"]])
            refused(fetching(HF_HUB_CACHE=str(small), PYTHONPATH=path), 4, "org/base", "no space left")
        finally:
            subprocess.run(["umount", small], check=True)
        assert not (tmp_path / "out").exists()
        self.works(fetching, tmp_path)

    def test_hostile_names(self, lfs, base, client):
        files = base.head().files
        base.commit("main", "hostile", {**files, "../../escaped.txt": files["notes.txt"]})
        refused(client(lfs, "inspect", "org/base"), 1, "org/base", "escaped.txt", "do not use")

    def test_a_config_without_end(self, lfs, base, client):
        files = dict(base.head().files)
        base.commit("main", "x", {**files, "config.json": dataclasses.replace(files["config.json"], size=10**12)})
        refused(client(lfs, "inspect", "org/base"), 1, "config.json", "expected at most")

    def test_quantised_is_told_without_fetching(self, lfs, base, client, identified, tmp_path):
        config = json.loads(lfs.content("org/base", "config.json"))
        config["quantization_config"] = {"quant_method": "gptq"}
        stored = lfs.state.store(json.dumps(config).encode(), False)
        base.commit("main", "quantised", {**base.head().files, "config.json": stored})
        refused(self.fetch(client, lfs, identified, tmp_path), 1, "gptq", "dequantize")
        assert all(request.sent <= 65_536 for shard in SHARDS for request in got(lfs, shard))
        seen = client(lfs, "inspect", "org/base", "--json")
        assert json.loads(seen.out)["quantization"] == "gptq"


def test_local_folders_need_no_hub(lfs, client, repository):
    before = snapshot(repository)
    assert client(lfs, "inspect", repository).code == 0
    refused(client(lfs, "inspect", repository, "--revision", "main"), 2, "--revision", "local path")
    assert not lfs.log
    assert snapshot(repository) == before
