import hashlib
import os

import pytest

from mathneuro_export.checkpoint import durable
from mathneuro_export.checkpoint.durable import (
    Digest,
    copy_file,
    free_space,
    is_temporary,
    make_folder,
    remove_temporaries,
    require_space,
    temporary,
    write_all,
    write_bytes,
)
from mathneuro_export.errors import Error, ResourceError

from .files import names


def test_write_bytes_replaces(tmp_path):
    path = tmp_path / "a"
    for data in (b"one", b"", b"three"):
        write_bytes(path, data)
        assert path.read_bytes() == data
        assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("size", [0, 5, durable.CHUNK, durable.CHUNK + 1])
def test_copy_file(tmp_path, size):
    data = os.urandom(size)
    src, dst = tmp_path / "src", tmp_path / "new" / "folder" / "dst"
    src.write_bytes(data)
    src.chmod(0o751)
    assert copy_file(src, dst) == Digest(size, hashlib.sha256(data).hexdigest())
    assert dst.read_bytes() == data
    assert dst.stat().st_mode & 0o7777 == 0o751
    assert names(dst.parent) == ["dst"]


def test_copy_file_drops_setuid(tmp_path):
    (tmp_path / "src").write_bytes(b"x")
    (tmp_path / "src").chmod(0o4755)
    copy_file(tmp_path / "src", tmp_path / "dst")
    assert (tmp_path / "dst").stat().st_mode & 0o7777 == 0o755


@pytest.mark.timeout(10)
def test_copy_file_refuses_special_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Error, match="special file"):
        copy_file(tmp_path / "fifo", tmp_path / "dst")
    with pytest.raises(Error, match="is a folder"):
        copy_file(tmp_path, tmp_path / "dst")
    assert names(tmp_path) == ["fifo"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(error), temporary(path, 1000) as work:  # noqa: PT012
        write_all(work.fd, b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_missing_folder(tmp_path):
    with pytest.raises(Error, match=r"none/a: cannot be written \(No such file or directory\)"):
        write_bytes(tmp_path / "none" / "a", b"x")


def test_a_name_as_long_as_may_be(tmp_path):
    path = tmp_path / ("n" * 255)
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


def test_write_all_writes_on_after_a_short_write(monkeypatch, tmp_path):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, view: write(fd, view[:3]))
    write_bytes(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_no_allocation_where_the_platform_has_none(monkeypatch, tmp_path):
    (tmp_path / "src").write_bytes(b"abc")
    monkeypatch.delattr(os, "posix_fallocate")
    copy_file(tmp_path / "src", tmp_path / "dst")
    assert (tmp_path / "dst").read_bytes() == b"abc"


def test_remove_temporaries(tmp_path):
    make_folder(tmp_path / "sub" / "deep")
    with temporary(tmp_path / "x") as work:
        name = work.path.name
    assert is_temporary(name)
    assert not is_temporary("x.tmp")
    for folder in (tmp_path, tmp_path / "sub" / "deep"):
        (folder / name).write_bytes(b"left by a killed process")
    remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x"]


def test_space(tmp_path):
    assert free_space(tmp_path / "not" / "yet") > 0
    require_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(ResourceError, match=r"needs 1\d+ bytes of disk, \d+ are free") as caught:
        require_space(tmp_path, 10**18)
    assert caught.value.exit_code == 4
