import errno
import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mathneuro_export.checkpoint import rewrite
from mathneuro_export.checkpoint.durable import Digest
from mathneuro_export.checkpoint.header import read_header
from mathneuro_export.checkpoint.rewrite import digest_file, rewrite_shard
from mathneuro_export.errors import Error, ResourceError

from .files import names, raw_file, read_plain, shard

ROOT = Path(__file__).resolve().parents[2]


def sha(data):
    return Digest(len(data), hashlib.sha256(data).hexdigest())


def random_shard(rng):
    return shard(
        {
            "norm": ("F32", (7,), rng.bytes(28)),
            "odd": ("U8", (3,), rng.bytes(3)),
            "w": ("BF16", (5, 6), rng.bytes(60)),
            "scalar": ("F32", (), rng.bytes(4)),
            "empty": ("F16", (0, 4), b""),
            "experts": ("F16", (2, 3, 4), rng.bytes(48)),
            "last": ("I64", (2,), rng.bytes(16)),
        },
        {"format": "pt"},
    )


FOREIGN = {
    "plain": shard({"a": ("F32", (2,), b"12345678")}),
    "no tensors": raw_file(b"{}"),
    "odd order and spaces": raw_file(
        b'{ "z" : {"shape":[2],"dtype":"U8","data_offsets":[4,6]},\n "__metadata__":{"b":"1","a":"2"}, '
        b'"a": {"data_offsets":[0,4],"dtype":"F32","shape":[1]}}       ',
        b"abcdef",
    ),
    "sub-byte": shard({"f4": ("F4", (2, 4), b"1234"), "f6": ("F6_E2M3", (4,), b"123"), "e": ("F8_E8M0", (1,), b"x")}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_unedited_is_identical(name, tmp_path):
    content = FOREIGN[name]
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    source.chmod(0o640)
    assert rewrite_shard(read_header(source), target, lambda info: None) == (sha(content), sha(content))
    assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o640
    assert digest_file(target) == sha(content)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("chunk", [4, 16, 24, 1 << 20])
def test_only_the_edited_element_changes(chunk, kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(rewrite, "CHUNK", chunk)
    if not kernel:
        monkeypatch.delattr(os, "copy_file_range")
    content = random_shard(np.random.default_rng(0))
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    header = read_header(source)
    for info in header.tensors:
        if info.dtype not in ("F32", "F16", "BF16") or not info.numel:
            continue
        cols = info.shape[-1] if info.shape else 1
        item = info.nbytes // info.numel
        for flat in range(info.numel):
            seen = []

            def edit(rows, first, flat=flat, cols=cols, seen=seen):
                assert rows.ndim == 2
                assert rows.shape[1] == cols
                seen.extend(range(first, first + len(rows)))
                row = flat // cols - first
                if 0 <= row < len(rows):
                    rows.view(np.uint16 if rows.itemsize == 2 else np.uint32)[row, flat % cols] ^= 0x5A

            read, written = rewrite_shard(
                header, target, lambda other, info=info, edit=edit: edit if other == info else None
            )
            expected = bytearray(content)
            expected[info.start + flat * item] ^= 0x5A
            assert target.read_bytes() == bytes(expected)
            assert (read, written) == (sha(content), sha(bytes(expected)))
            assert seen == list(range(info.numel // cols))
    assert source.read_bytes() == content


def test_editors_see_the_stored_values(tmp_path):
    content = random_shard(np.random.default_rng(1))
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    seen = {}

    def editor(info):
        if info.dtype == "U8" or info.dtype == "I64":
            return None
        return lambda rows, first: seen.setdefault(info.name, []).append((rows.copy(), first))

    rewrite_shard(read_header(source), target, editor)
    plain = read_plain(source)
    assert seen.keys() == {"norm", "w", "scalar", "experts"}
    assert {name: rows.shape for name, [(rows, _)] in seen.items()} == {
        "norm": (1, 7),
        "w": (5, 6),
        "scalar": (1, 1),
        "experts": (6, 4),
    }
    for name, [(rows, _)] in seen.items():
        assert rows.tobytes() == plain[name][2]
    assert target.read_bytes() == content


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_kernel_that_cannot_copy(code, tmp_path, monkeypatch):
    calls = []

    def refuse(*arguments):
        calls.append(arguments)
        raise OSError(code, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    content = random_shard(np.random.default_rng(0))
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    rewrite_shard(read_header(source), target, lambda info: None)
    assert target.read_bytes() == content
    assert len(calls) == 1


def test_a_kernel_that_copies_short(tmp_path, monkeypatch):
    copy = os.copy_file_range
    counts = iter([2, 1, 0])
    monkeypatch.setattr(
        os, "copy_file_range", lambda src, dst, count, offset: copy(src, dst, min(next(counts), count), offset)
    )
    content = random_shard(np.random.default_rng(0))
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    rewrite_shard(read_header(source), target, lambda info: None)
    assert target.read_bytes() == content


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failing_editor_leaves_nothing(error, tmp_path):
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(random_shard(np.random.default_rng(0)))

    def fail(rows, first):
        raise error

    with pytest.raises(error):
        rewrite_shard(read_header(source), target, lambda info: fail if info.name == "w" else None)
    assert names(tmp_path) == ["s.safetensors"]


def test_what_cannot_be_edited_is_refused(tmp_path):
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(random_shard(np.random.default_rng(0)))
    with pytest.raises(Error, match="'odd' is U8"):
        rewrite_shard(read_header(source), target, lambda info: lambda rows, first: None)
    assert names(tmp_path) == ["s.safetensors"]


def test_a_source_that_changed_is_refused(tmp_path):
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    content = random_shard(np.random.default_rng(0))
    source.write_bytes(content)
    header = read_header(source)
    source.write_bytes(content.replace(b'"norm"', b'"morn"'))
    with pytest.raises(Error, match="header changed"):
        rewrite_shard(header, target, lambda info: None)
    source.write_bytes(content[:-1])
    with pytest.raises(Error, match="changed its size"):
        rewrite_shard(header, target, lambda info: None)
    assert names(tmp_path) == ["s.safetensors"]


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mount.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("allocate", [True, False])
def test_a_full_disk(small_disk, tmp_path, monkeypatch, allocate):
    source = tmp_path / "s.safetensors"
    source.write_bytes(shard({"w": ("F32", (512, 512), bytes(1 << 20))}))
    calls = []
    if not allocate:
        monkeypatch.delattr(os, "posix_fallocate")
    with pytest.raises(ResourceError, match="disk is full"):
        rewrite_shard(read_header(source), small_disk / "t.safetensors", lambda info: lambda *a: calls.append(a))
    assert names(small_disk) == []
    if allocate:
        assert not calls


def test_a_file_size_limit_leaves_nothing(tmp_path):
    source = tmp_path / "s.safetensors"
    source.write_bytes(shard({"w": ("F32", (512, 512), bytes(1 << 20))}))
    code = """
        import resource, signal, sys
        from pathlib import Path
        from mathneuro_export.checkpoint.header import read_header
        from mathneuro_export.checkpoint.rewrite import rewrite_shard
        from mathneuro_export.errors import Error
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        source = Path(sys.argv[1])
        try:
            rewrite_shard(read_header(source), source.with_name("t.safetensors"), lambda info: None)
        except Error as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(source)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "cannot be written (File too large)" in done.stdout
    assert names(tmp_path) == ["s.safetensors"]


@pytest.mark.parametrize("shape", [(100, 1_000_000), (100_000_000,), (25_000, 4_000)])
def test_memory_does_not_grow_with_the_tensor(shape, tmp_path):
    """200 MB of bfloat16 in rows of 2 MB, 200 MB and 8 kB: anonymous memory stays below 64 MiB above the start."""
    source = tmp_path / "s.safetensors"
    header = raw_file({"w": {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, 200_000_000]}})
    with source.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 200_000_000)
    code = """
        import sys, threading
        from pathlib import Path
        from mathneuro_export.checkpoint.header import read_header
        from mathneuro_export.checkpoint.rewrite import rewrite_shard

        def anonymous():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

        source, peak, done = Path(sys.argv[1]), 0, threading.Event()

        def watch():
            global peak
            while not done.wait(0.002):
                peak = max(peak, anonymous())

        def edit(rows, first):
            rows[0, 0] = 0x3F80
            rows[-1, -1] = 0x4000

        start = anonymous()
        watcher = threading.Thread(target=watch)
        watcher.start()
        rewrite_shard(read_header(source), source.with_name("t.safetensors"), lambda info: edit)
        done.set()
        watcher.join()
        print(peak - start)
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(source)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 64 * 1024
    with (tmp_path / "t.safetensors").open("rb") as file:
        file.seek(-2, os.SEEK_END)
        assert file.read() == b"\x00\x40"
        assert file.tell() == len(header) + 200_000_000


def test_a_long_row_in_a_map(tmp_path):
    """One row of 20 MiB and 2 bytes, at an offset that is no multiple of anything, with neighbours."""
    rng = np.random.default_rng(0)
    n = (10 << 20) + 1
    content = shard(
        {"x": ("U8", (3,), b"abc"), "w": ("BF16", (2, n), rng.bytes(4 * n)), "y": ("U8", (5,), b"defgh")}, {"k": "v"}
    )
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    source.write_bytes(content)
    header = read_header(source)

    def edit(rows, first):
        assert rows.shape == (1, n)
        rows[0, first + 10] ^= 1

    read, written = rewrite_shard(header, target, lambda info: edit if info.name == "w" else None)
    expected = bytearray(content)
    start = header.tensors[1].start
    expected[start + 20] ^= 1
    expected[start + 2 * n + 22] ^= 1
    assert target.read_bytes() == bytes(expected)
    assert (read, written) == (sha(content), sha(bytes(expected)))
