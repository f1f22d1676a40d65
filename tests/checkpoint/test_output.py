import os

import pytest

from mathneuro_export.checkpoint.output import check_output, files_below, require_folders
from mathneuro_export.errors import Error, UsageError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "above" / "model"
    folder.mkdir(parents=True)
    (folder / "sub").mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "up").symlink_to(tmp_path / "above")
    return folder


REFUSED = {
    "above/model": "is the source itself",
    "above/model/": "is the source itself",
    "above/model/sub/..": "is the source itself",
    "link": "is the source itself",
    "up/model": "is the source itself",
    "above/model/out": "lies inside the source",
    "above/model/sub": "lies inside the source",
    "above/model/sub/a/b": "lies inside the source",
    "link/out": "lies inside the source",
    "above": "holds the source",
    "up": "holds the source",
    "above/model/..": "holds the source",
    "file": "is a file",
    "file/out": "parent is a file",
    "none/out": "parent does not exist",
    "broken": "broken link",
    "loop": "cannot be used|broken link",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, source, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = files_below(tmp_path)
    path = type(source)(os.path.join(tmp_path, name))  # noqa: PTH118
    with pytest.raises(UsageError, match=REFUSED[name]) as caught:
        check_output(path, source)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == before


def test_the_source_through_a_link(source, tmp_path):
    for name in ("above", "above/model", "above/model/x"):
        with pytest.raises(UsageError):
            check_output(tmp_path / name, tmp_path / "link")


def test_names_that_the_file_system_takes_for_equal(source, tmp_path, monkeypatch):
    """On a file system that ignores case two names are one folder; here a stand-in for `samefile` says so."""
    other = tmp_path / "ABOVE" / "MODEL"
    other.mkdir(parents=True)
    lower = lambda path: str(path).lower()  # noqa: E731
    monkeypatch.setattr(type(other), "samefile", lambda a, b: lower(a) == lower(b))
    for path, words in ((other, "itself"), (other / "out", "inside"), (other.parent, "holds")):
        with pytest.raises(UsageError, match=words):
            check_output(path, source)


@pytest.mark.parametrize("name", ["out", "above/model-2", "above/mode", "exists"])
def test_allowed(name, source, tmp_path):
    (tmp_path / "exists").mkdir()
    check_output(tmp_path / name, source)
    check_output(tmp_path / name, None)


def test_not_writable(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="its parent is not writable"):
        check_output(tmp_path / "out", source)
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="it is not writable"):
        check_output(tmp_path / "out", source)


def test_files_below(source, tmp_path):
    (source / "sub" / "x").write_text("x")
    os.mkfifo(source / "sub" / "fifo")
    assert files_below(tmp_path) == [
        "above/model/config.json",
        "above/model/sub/fifo",
        "above/model/sub/x",
        "link",
        "up",
    ]
    with pytest.raises(Error, match="none: cannot be listed"):
        files_below(tmp_path / "none")


def test_require_folders(tmp_path):
    assert not require_folders(tmp_path, "a/b")
    (tmp_path / "a").mkdir()
    assert not require_folders(tmp_path, "a/b")
    (tmp_path / "a" / "b").mkdir()
    assert require_folders(tmp_path, "a/b")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "file").write_text("x")
    for name, words in (("link/b", "is a link"), ("link", "is a link"), ("file/b", "is no folder")):
        with pytest.raises(UsageError, match=words):
            require_folders(tmp_path, name)
