"""An output folder or source prepared to lead the tool outside is refused; nothing outside is read or written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mathneuro_export
from mathneuro_export.checkpoint import carry
from mathneuro_export.export import shards
from mathneuro_export.export.manifest import digest_of
from tests.conftest import snapshot
from tests.tiny import tiny_checkpoint

WORK = ".cache/mathneuro-export"
JOURNAL = f"{WORK}/journal.jsonl"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("source") / "model", shards=3, num_hidden_layers=1)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    return folder


@pytest.fixture(scope="module")
def run(source, corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return mathneuro_export.identify(source, folder, math=corpora[0], general=corpora[1], proportion=0.2).output


@pytest.fixture
def scale(source, run):
    return ["scale", source, "--from", run]


@pytest.fixture
def mine(tmp_path):
    """A folder outside, whose files must stay as they are."""
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "thesis.txt").write_text("thesis")
    (folder / "sub" / "masks-0.spool").write_text("spool")
    (folder / "masks-0.spool").write_text("spool")
    (folder / "mathneuro-export").mkdir()
    (folder / "mathneuro-export" / "photo").write_text("photo")
    return folder


@pytest.fixture
def unfinished(scale, tmp_path, monkeypatch):
    """An OUT whose `scale` was interrupted after its first shard."""
    out = tmp_path / "unfinished"
    rewrite, done = shards.rewrite_shard, []

    def interrupted(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(arguments)
        return rewrite(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "rewrite_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mathneuro_export.scale(scale[1], out, from_run=scale[3])
    assert len(list(out.glob("*.safetensors"))) == 1
    return out


def change_journal(out, key, value):
    lines = [json.loads(line) for line in (out / JOURNAL).read_text().splitlines()]
    lines = [{"key": key, "value": value} if line.get("key") == key else line for line in lines]
    if not any(line.get("key") == key for line in lines):
        lines.append({"key": key, "value": value})
    (out / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))


def refused(outcome, code, *words):
    assert outcome.code == code, outcome.err
    assert outcome.last.startswith("Error: ")
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.last


@pytest.mark.parametrize("further", [[], ["--overwrite"], ["--no-resume"]])
@pytest.mark.parametrize("place", [WORK, ".cache"])
def test_a_linked_work_folder(place, further, scale, mine, cli, tmp_path):
    out = tmp_path / "out"
    (out / place).parent.mkdir(parents=True)
    (out / place).symlink_to(mine)
    before = snapshot(mine)
    refused(cli(*scale, "-o", out, *further), 2, place, "is a link")
    assert snapshot(mine) == before
    assert [path.name for path in out.iterdir()] == [".cache"]


@pytest.mark.parametrize("place", [WORK, ".cache"])
def test_a_linked_work_folder_of_a_finished_output(place, scale, mine, cli, tmp_path):
    out = tmp_path / "out"
    assert cli(*scale, "-o", out).code == 0
    (out / place).parent.mkdir(exist_ok=True)
    (out / place).symlink_to(mine)
    before, whole = snapshot(mine), snapshot(out)
    refused(cli(*scale, "-o", out, "--overwrite"), 2, "is a link")
    assert snapshot(mine) == before
    assert snapshot(out) == whole


def test_a_file_in_place_of_the_work_folder(scale, cli, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".cache").write_text("mine")
    refused(cli(*scale, "-o", out), 2, ".cache", "expected a folder")
    assert (out / ".cache").read_text() == "mine"


@pytest.mark.parametrize("further", [[], ["--overwrite"], ["--no-resume"]])
@pytest.mark.parametrize("name", ["notes.txt", "sub/x", "masks-0.spool/x"])
def test_foreign_files_in_the_work_folder(name, further, scale, unfinished, cli, tmp_path):
    for out in (tmp_path / "out", unfinished):
        path = out / WORK / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        before = snapshot(out)
        refused(cli(*scale, "-o", out, *further), 2, name.partition("/")[0], "not this tool's")
        assert snapshot(out) == before


@pytest.mark.parametrize("name", ["masks-0.spool", "config.json", "journal.jsonl", "model.safetensors.index.json"])
def test_links_in_the_work_folder(name, scale, mine, cli, tmp_path):
    before = snapshot(mine)
    out = tmp_path / "out"
    (out / WORK).mkdir(parents=True)
    (out / WORK / name).symlink_to(mine / "thesis.txt")
    for further in ([], ["--overwrite"]):
        refused(cli(*scale, "-o", out, *further), 2, name)
    assert snapshot(mine) == before


def test_foreign_files_that_come_during_work_stay(scale, cli, tmp_path, monkeypatch):
    out = tmp_path / "out"
    rewrite = shards.rewrite_shard

    def rewrite_beside(*arguments):
        (out / WORK / "notes.txt").write_text("mine")
        return rewrite(*arguments)

    monkeypatch.setattr(shards, "rewrite_shard", rewrite_beside)
    assert cli(*scale, "-o", out).code == 0
    assert [path.name for path in (out / WORK).iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("further", [[], ["--overwrite"]])
def test_a_journal_does_not_make_links_this_tools_own(further, scale, unfinished, mine, cli):
    """Its `planned` names a folder that the tool writes into; in its place is a link."""
    shutil.rmtree(unfinished / "mathneuro")
    (unfinished / "mathneuro").symlink_to(mine)
    lines = [json.loads(line) for line in (unfinished / JOURNAL).read_text().splitlines()]
    files = next(line["value"] for line in lines if line.get("key") == "files")
    change_journal(unfinished, "files", {**files, "planned": [*files["planned"], "mathneuro"]})
    before = snapshot(mine)
    refused(cli(*scale, "-o", unfinished, *further), 2, "mathneuro", "no regular file")
    assert snapshot(mine) == before


def test_a_source_file_swapped_for_a_link(source, run, cli, tmp_path, monkeypatch):
    model = Path(shutil.copytree(source, tmp_path / "model"))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    rewrite = shards.rewrite_shard

    def swap(*arguments):
        for name in swapped:
            (model / name).unlink(missing_ok=True)
            (model / name).symlink_to(secret)
        return rewrite(*arguments)

    monkeypatch.setattr(shards, "rewrite_shard", swap)
    for name in ("generation_config.json", "README.md", "model.safetensors.index.json"):
        swapped = [name]
        kept = (model / name).read_bytes()
        refused(cli("scale", model, "--from", run, "-o", tmp_path / "out"), 1, name, "changed in the source")
        assert not (tmp_path / "out").exists()
        (model / name).unlink()
        (model / name).write_bytes(kept)


def test_a_file_swapped_while_it_is_opened(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    opened = carry.open_regular
    monkeypatch.setattr(carry, "open_regular", lambda path: opened(tmp_path / "b"))
    with pytest.raises(mathneuro_export.errors.Error, match="was replaced"):
        carry.open_file(tmp_path, "a")


@pytest.mark.parametrize("value", ["!!bool foo", "!!timestamp foo", "!!int ''", "!!float ''", "!!binary é", "!!map x"])
def test_a_readme_that_crashes_the_parser(value, source, run, cli, tmp_path):
    model = Path(shutil.copytree(source, tmp_path / "model"))
    (model / "README.md").write_text(f"---\nlicense: {value}\n---\n# Base\n")
    assert cli("apply", run, model, "-o", tmp_path / "out", "--factor", 1.5).code == 0
    manifest = json.loads((tmp_path / "out" / "mathneuro" / "manifest.json").read_text())
    assert "base-card" in [warning["code"] for warning in manifest["warnings"]]
    assert "# Base" in (tmp_path / "out" / "README.md").read_text()
    assert mathneuro_export.verify(tmp_path / "out").ok


def test_a_readme_without_end(source, run, cli, tmp_path):
    model = Path(shutil.copytree(source, tmp_path / "model"))
    with (model / "README.md").open("wb") as file:
        file.truncate(carry.README_LIMIT + 1)
    refused(cli("scale", model, "--from", run, "-o", tmp_path / "out"), 1, "README.md", "at most", "shorten")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a\\b.txt", "a\nb.txt", "a\x1bb.txt", "sub\\x/a.txt"])
def test_file_names_that_no_manifest_holds(name, source, run, cli, tmp_path):
    model = Path(shutil.copytree(source, tmp_path / "model"))
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("x")
    refused(cli("scale", model, "--from", run, "-o", tmp_path / "out"), 1, "file name", "rename")
    assert not (tmp_path / "out").exists()


def test_a_finished_shard_is_known_by_its_bytes(scale, unfinished, cli, tmp_path):
    shard = next(unfinished.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert cli(*scale, "-o", unfinished).code == 0
    assert mathneuro_export.verify(unfinished).ok
    assert cli(*scale, "-o", tmp_path / "out").code == 0
    assert shard.read_bytes() == (tmp_path / "out" / shard.name).read_bytes()


DAMAGED = {
    "files is a number": ("files", 5),
    "files is null": ("files", None),
    "planned holds objects": ("files", {"planned": [{}], "clear": [], "existed": True}),
    "planned is text": ("files", {"planned": "config.json", "clear": [], "existed": True}),
    "clear is null": ("files", {"planned": [], "clear": None, "existed": True}),
    "existed is text": ("files", {"planned": [], "clear": [], "existed": "yes"}),
    "statistics is a list": ("statistics", []),
    "statistics without a file": ("statistics", {"file": None}),
    "a shard is a number": ("shard:*", 5),
    "a shard of another file": ("shard:*", {"file": "../x", "source": None, "written": None, "tensors": {}}),
    "a shard not written": ("shard:*", {"file": "x", "source": {"size": 1, "sha256": "a"}, "written": 3}),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_journal_with_other_records(what, scale, unfinished, cli):
    key, value = DAMAGED[what]
    if key == "shard:*":
        key = f"shard:{next(unfinished.glob('*.safetensors')).name}"
    change_journal(unfinished, key, value)
    before = snapshot(unfinished)
    refused(cli(*scale, "-o", unfinished), 1, "journal.jsonl", "--overwrite", "--no-resume")
    assert snapshot(unfinished) == before
    assert cli(*scale, "-o", unfinished, "--no-resume").code == 0
    assert mathneuro_export.verify(unfinished).ok


def test_a_shard_record_without_a_written_file(scale, unfinished, cli):
    """As a RUN's journal has it: in an OUT the shard is made again."""
    lines = [json.loads(line) for line in (unfinished / JOURNAL).read_text().splitlines()]
    record = next(line for line in lines if line.get("key", "").startswith("shard:"))
    change_journal(unfinished, record["key"], {**record["value"], "written": None})
    assert cli(*scale, "-o", unfinished).code == 0
    assert mathneuro_export.verify(unfinished).ok


def test_a_journal_without_end(scale, unfinished, cli):
    os.truncate(unfinished / JOURNAL, (64 << 20) + 1)
    refused(cli(*scale, "-o", unfinished), 1, "journal.jsonl", "longer", "--overwrite")


@pytest.mark.parametrize("output", [5, None, "x", ["config.json"]])
def test_a_manifest_with_no_list_of_files(output, scale, cli, tmp_path):
    out = tmp_path / "out"
    assert cli(*scale, "-o", out).code == 0
    path = out / "mathneuro" / "manifest.json"
    document = {**json.loads(path.read_text()), "output": output}
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    before = snapshot(out)
    refused(cli(*scale, "-o", out, "--overwrite"), 2, "another -o")
    assert snapshot(out) == before


def test_a_linked_empty_folder_in_the_output(scale, cli, tmp_path):
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    assert cli(*scale, "-o", out).code == 0
    (out / ".gitattributes").symlink_to(empty)
    assert cli(*scale, "-o", out, "--overwrite").code == 0
    assert (out / ".gitattributes").is_symlink()
    assert empty.is_dir()


@pytest.mark.parametrize("closed", ["2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_without_standard_streams(closed, scale, tmp_path):
    """Errors never go to stdout, and no file of the output gets descriptor 2."""
    command = " ".join(map(str, [sys.executable, "-m", "mathneuro_export", *scale]))
    for arguments, code in ((f"-o {tmp_path / 'out'}", 0), (f"-o {tmp_path / 'out'} --factor x", 2)):
        done = subprocess.run(["sh", "-c", f"{command} {arguments} {closed}"], capture_output=True, text=True)
        assert done.returncode == code
        assert "Error" not in done.stdout
    assert mathneuro_export.verify(tmp_path / "out").ok


@pytest.mark.parametrize("place", ["masks.npz", "sub/masks.npz", "manifest.json"])
def test_export_mask_into_the_run(place, run, cli, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "sub").mkdir()
    before = snapshot(copy)
    refused(cli("export-mask", copy, "-o", copy / place, "--format", "npz", "--overwrite"), 2, "run's own")
    assert snapshot(copy) == before


def test_export_mask_into_an_output(scale, cli, tmp_path):
    out = tmp_path / "out"
    assert cli(*scale, "-o", out).code == 0
    for place in ("masks.npz", "config.json", "mathneuro/x.npz"):
        refused(cli("export-mask", out, "-o", out / place, "--format", "npz", "--overwrite"), 2, "run's own")
    assert mathneuro_export.verify(out).ok


@pytest.mark.parametrize("kind", ["fifo", "link", "broken link"])
@pytest.mark.parametrize("form", ["npz", "bool-safetensors"])
def test_export_mask_over_what_is_no_file(kind, form, run, mine, cli, tmp_path):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(mine / ("thesis.txt" if kind == "link" else "none"))
    before = snapshot(mine)
    refused(cli("export-mask", run, "-o", path, "--format", form, "--overwrite"), 2, "link or a special file")
    assert snapshot(mine) == before
    assert path.is_symlink() or path.is_fifo()
