import os

import pytest

from mathneuro_export.checkpoint.strictjson import MAX_DEPTH, canonical, parse_json, read_json
from mathneuro_export.errors import Error

BAD = {
    "duplicate key": (b'{"a": 1, "a": 2}', "stands twice"),
    "duplicate deep": (b'[{"b": {"a": 1, "a": 1}}]', "stands twice"),
    "nan": (b'{"a": NaN}', "NaN"),
    "infinity": (b"[-Infinity]", "Infinity"),
    "overflow": (b"[1e999]", "out of range"),
    "huge integer": (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    "byte order mark": (b'\xef\xbb\xbf{"a": 1}', "BOM"),
    "invalid utf-8": (b'{"a": "\xff"}', "not UTF-8"),
    "half surrogate": (b'{"a": "\\ud800"}', "surrogate"),
    "half surrogate key": (b'{"\\ud800": 1}', "surrogate"),
    "empty": (b"", "not valid JSON"),
    "trailing": (b"{} x", "not valid JSON"),
    "control character": (b'{"a": "\n"}', "not valid JSON"),
    "deep list": (b"[" * 100_000, "deeper"),
    "deep object": (b'{"a":' * 100_000, "deeper"),
    "just too deep": (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "deeper"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_json_is_one_line_that_names_the_file(name):
    data, words = BAD[name]
    with pytest.raises(Error, match=words) as caught:
        parse_json(data, "folder/file.json")
    message = str(caught.value)
    assert message.startswith("folder/file.json: ")
    assert message.isprintable()
    assert len(message) < 400


def test_good_json():
    assert parse_json(b' {"a": [1, 2.5, "\\u00e9", null, true]} ', "x") == {"a": [1, 2.5, "\xe9", None, True]}
    depth = MAX_DEPTH
    assert parse_json(b"[" * depth + b"]" * depth, "x") is not None


def test_canonical():
    assert canonical({"b": [1, 2], "a": "\xe9"}) == '{"a":"\xe9","b":[1,2]}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_read_json(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": 1}')
    assert read_json(path) == {"a": 1}
    with pytest.raises(Error, match="longer than 7 bytes"):
        read_json(path, limit=7)
    with pytest.raises(Error, match="no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(Error, match="is a folder"):
        read_json(tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(Error, match="git lfs pull"):
        read_json(path)


@pytest.mark.timeout(10)
def test_a_fifo_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    with pytest.raises(Error, match="special file"):
        read_json(tmp_path / "fifo.json")
