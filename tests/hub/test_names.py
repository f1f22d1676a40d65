import pytest

from mathneuro_export.checkpoint.hub_names import Reference, is_repository_id, reference
from mathneuro_export.errors import UsageError
from mathneuro_export.export.licences import licence_warnings
from mathneuro_export.export.push_check import stale_patterns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", Reference("org/name", None)),
        ("org/name@v1.0", Reference("org/name", "v1.0")),
        ("org/name@refs/pr/3", Reference("org/name", "refs/pr/3")),
        ("org/Llama-3.1_8B", Reference("org/Llama-3.1_8B", None)),
        ("name", None),
        ("./org/name", None),
        ("/org/name", None),
        ("org/name/more", None),
        ("../name", None),
        ("org\\name", None),
        ("", None),
    ],
)
def test_what_is_a_name(text, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reference(text) == expected


def test_a_folder_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert reference("org/name") is None
    with pytest.raises(UsageError, match="local path"):
        reference("org/name", "main")


@pytest.mark.parametrize("text", ["org/name@", "org/name@a b", "org/name@../x", "org/name@-x"])
def test_what_is_no_revision(text):
    with pytest.raises(UsageError, match="no revision"):
        reference(text)


def test_two_revisions():
    assert reference("org/name@v1", "v1") == reference("org/name", "v1")
    with pytest.raises(UsageError, match="another revision"):
        reference("org/name@v1", "v2")


def test_ids():
    assert not any(map(is_repository_id, ["a", "a/b.git", "a/b--c", "a/b..c", "a/-b", "a/" + "b" * 95, "a/é", "a/b/c"]))


def test_stale_patterns():
    there = [
        "model-1.safetensors",
        "a[1].safetensors",
        "notes.md",
        ".gitattributes",
        "mathneuro/x",
        "old.json",
        "x/y.bin",
    ]
    stale = stale_patterns(there, {"old.json", ".gitattributes"}, {"model-1.safetensors"})
    assert stale == ["a[[]1].safetensors", "mathneuro/x", "old.json"]


@pytest.mark.parametrize(
    ("metadata", "files", "name", "count"),
    [
        ({"license": "apache-2.0"}, [], "a/b", 0),
        ({"license": "llama3.1"}, ["LICENSE"], "a/Llama-3.1-math", 0),
        ({"license": "llama3.1"}, ["LICENSE"], "a/math", 1),
        ({"license": "llama3"}, ["USE_POLICY.md", "LICENSE.txt"], "a/Meta-Llama-3-8B", 1),
        ({"license": "llama3"}, ["LICENSE"], "a/llama_3-math", 0),
        ({"license": "other", "license_name": "llama-3.3-community-license"}, [], "a/math", 2),
        ({"license": "gemma"}, [], "a/math", 1),
        ({"license": ["llama2"]}, ["NOTICE"], "a/math", 0),
    ],
)
def test_licence_warnings(metadata, files, name, count):
    assert len(licence_warnings(metadata, files, name)) == count
