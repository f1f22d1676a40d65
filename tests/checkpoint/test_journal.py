import json

import pytest

from mathneuro_export.checkpoint.journal import Journal, read_fingerprint
from mathneuro_export.errors import Error, UsageError

PRINT = {"model": {"a": 1}, "corpora": [1, 2.5], "options": "x"}


def filled(path):
    with Journal.open(path, PRINT, resume=True) as journal:
        journal.record("one", {"n": 1})
        journal.record("two", [2])
        journal.record("one", {"n": 3})


def test_resume(tmp_path):
    path = tmp_path / "journal"
    filled(path)
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {"journal": 1, "fingerprint": PRINT}
    with Journal.open(path, dict(reversed(PRINT.items())), resume=True) as journal:
        assert journal.entries == {"one": {"n": 3}, "two": [2]}
        assert journal.get("one") == {"n": 3}
        assert journal.get("none") is None
        journal.record("three", None)
    assert read_fingerprint(path) == PRINT
    assert len(path.read_text().splitlines()) == 5


def test_no_resume_begins_anew(tmp_path):
    path = tmp_path / "journal"
    filled(path)
    with Journal.open(path, {"other": 1}, resume=False) as journal:
        assert journal.entries == {}
    assert read_fingerprint(path) == {"other": 1}


def test_cut_anywhere(tmp_path):
    path = tmp_path / "journal"
    filled(path)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        assert read_fingerprint(path) == (PRINT if whole else None)
        with Journal.open(path, PRINT, resume=True) as journal:
            assert len(journal.entries) == (0, 0, 1, 2, 2)[whole]
            journal.record("new", 1)
        with Journal.open(path, PRINT, resume=True) as journal:
            assert journal.get("new") == 1


@pytest.mark.parametrize("garbage", [b"\0" * 50, b"\0" * 50 + b"\n", b'{"key": "a"}\n', b"[]\n", b'{"key": "a", "va'])
def test_garbage_at_the_end_is_dropped(tmp_path, garbage):
    path = tmp_path / "journal"
    filled(path)
    sound = path.read_bytes()
    path.write_bytes(sound + garbage)
    with Journal.open(path, PRINT, resume=True) as journal:
        assert journal.entries == {"one": {"n": 3}, "two": [2]}
    assert path.read_bytes() == sound


@pytest.mark.parametrize("number", [0, 1, 2])
def test_garbage_elsewhere_is_an_error(tmp_path, number):
    path = tmp_path / "journal"
    filled(path)
    lines = path.read_bytes().split(b"\n")
    lines[number] = b"garbage"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(Error, match=rf"journal: line {number + 1} is b'garbage'.*--overwrite"):
        Journal.open(path, PRINT, resume=True)


def test_another_version_and_another_file(tmp_path):
    path = tmp_path / "journal"
    for content in (b'{"journal":2,"fingerprint":{}}\n', b'{"a": 1}\n', b"my own notes\n"):
        path.write_bytes(content)
        with pytest.raises(Error, match="line 1"):
            Journal.open(path, PRINT, resume=True)
        assert path.read_bytes() == content


def test_another_fingerprint(tmp_path):
    path = tmp_path / "journal"
    filled(path)
    content = path.read_bytes()
    with pytest.raises(UsageError, match=r"\(corpora, extra, model differ\).*--overwrite or --no-resume") as caught:
        Journal.open(path, {"model": {"a": 2}, "corpora": [1], "options": "x", "extra": None}, resume=True)
    assert caught.value.exit_code == 2
    assert path.read_bytes() == content


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "journal"
    with Journal.open(path, PRINT, resume=True) as journal:
        journal.record("a", 1)
        for resume in (True, False):
            with pytest.raises(UsageError, match="another process"):
                Journal.open(path, PRINT, resume=resume)
    with Journal.open(path, PRINT, resume=True) as journal:
        assert journal.get("a") == 1
    journal.close()


def test_places_where_no_journal_can_be(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path in (tmp_path, tmp_path / "none" / "journal", tmp_path / "link"):
        with pytest.raises(Error, match="cannot be opened"):
            Journal.open(path, PRINT, resume=True)
    with pytest.raises(Error, match="no such file"):
        read_fingerprint(tmp_path / "journal")


def test_no_link_is_read(tmp_path):
    filled(tmp_path / "real")
    (tmp_path / "journal").symlink_to(tmp_path / "real")
    with pytest.raises(Error, match="is a link"):
        read_fingerprint(tmp_path / "journal")


def test_a_file_without_end_is_not_read(tmp_path):
    path = tmp_path / "journal"
    filled(path)
    with path.open("r+b") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(Error, match="longer than 67108864 bytes"):
        read_fingerprint(path)
