"""A spool is written and read only where it is a regular file of its own."""

import os

import numpy as np
import pytest

from mathneuro_export.errors import Error
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.spool import MaskSpool

MASK = Mask.from_flat((2, 3), np.array([0, 4]))


@pytest.mark.parametrize("kind", ["link", "broken link", "second name", "fifo", "folder"])
def test_nothing_is_written_elsewhere(kind, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    spool = MaskSpool(tmp_path)
    if kind == "second name":
        spool.path.hardlink_to(mine)
    elif kind == "fifo":
        os.mkfifo(spool.path)
    elif kind == "folder":
        spool.path.mkdir()
    else:
        spool.path.symlink_to(mine if kind == "link" else tmp_path / "none")
    with pytest.raises(Error, match=r"masks\.spool"):
        spool.add("a", MASK)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("key", ["offset", "rows", "nnz"])
def test_a_record_beyond_the_file_takes_no_memory(key, tmp_path):
    spool = MaskSpool(tmp_path)
    record = spool.add("a", MASK)
    assert spool.read(record) == MASK
    with pytest.raises(Error, match=r"holds .* bytes, expected"):
        spool.read({**record, key: 1 << 60})
