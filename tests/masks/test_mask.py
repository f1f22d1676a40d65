"""Masks: the layout of torch.sparse_csr, the digest, and what is refused."""

import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathneuro_export.errors import Error
from mathneuro_export.masks.mask import Mask, digest_of, join_masks, rows_cols


def random_mask(rows: int, cols: int, share: float, seed: int = 0) -> Mask:
    flat = np.flatnonzero(np.random.default_rng(seed).random(rows * cols) < share)
    return Mask.from_flat((rows, cols), flat)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_flat_indices_come_back(rows: int, cols: int, data: st.DataObject) -> None:
    flat = sorted(data.draw(st.sets(st.integers(0, rows * cols - 1))))
    for dtype in (np.int64, np.uint32):
        mask = Mask.from_flat((rows, cols), np.array(flat, dtype))
        mask.check()
        assert mask.flat().tolist() == flat
        assert mask.flat().dtype == np.int64
        assert mask.nnz == len(flat)
        assert mask.col.dtype == np.uint16


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_layout_is_that_of_torch() -> None:
    mask = random_mask(37, 53, 0.1)
    dense = torch.zeros(37 * 53)
    dense[torch.from_numpy(mask.flat())] = 1
    csr = dense.reshape(37, 53).to_sparse_csr()
    assert csr.crow_indices().tolist() == mask.crow.tolist()
    assert csr.col_indices().tolist() == mask.col.tolist()
    assert mask.row_columns(3).tolist() == dense.reshape(37, 53)[3].nonzero().flatten().tolist()


def test_digest_is_of_the_little_endian_bytes() -> None:
    mask = Mask.from_flat((2, 3), np.array([0, 2, 4]))
    by_hand = hashlib.sha256(struct.pack("<3q", 0, 2, 3) + struct.pack("<3H", 0, 2, 1)).hexdigest()
    assert mask.digest == by_hand
    assert digest_of(mask.crow.astype(">i8"), mask.col.astype(">u2")) == by_hand


def test_columns_beyond_uint16() -> None:
    assert Mask.empty(1, 65536).col.dtype == np.uint16
    mask = Mask.from_flat((2, 65537), np.array([65536, 65537 + 65535]))
    mask.check()
    assert mask.col.dtype == np.uint32
    assert mask.col.tolist() == [65536, 65535]
    assert mask.digest == hashlib.sha256(struct.pack("<3q2I", 0, 1, 2, 65536, 65535)).hexdigest()


def test_empty_masks() -> None:
    mask = Mask.empty(3, 4)
    mask.check()
    assert mask == Mask.from_flat((3, 4), np.empty(0, np.int64))
    assert mask.digest == hashlib.sha256(bytes(32)).hexdigest()
    Mask.from_flat((0, 4), np.empty(0, np.int64)).check()


def test_shapes_of_one_two_and_three_dimensions() -> None:
    assert rows_cols((5, 7)) == (5, 7)
    assert rows_cols((3, 5, 7)) == (15, 7)
    assert rows_cols((7,)) == (1, 7)


def test_masks_of_experts_are_joined_in_order() -> None:
    parts = [random_mask(4, 9, 0.3, 1), Mask.empty(4, 9), random_mask(4, 9, 0.9, 2)]
    joined = join_masks(parts)
    joined.check()
    assert joined.flat().tolist() == [i + 36 * e for e, part in enumerate(parts) for i in part.flat().tolist()]
    with pytest.raises(ValueError, match="columns"):
        join_masks([Mask.empty(4, 9), Mask.empty(4, 8)])


def test_equality() -> None:
    mask = random_mask(5, 6, 0.4)
    assert mask == random_mask(5, 6, 0.4)
    assert mask != random_mask(5, 6, 0.4, seed=1)
    assert Mask.empty(5, 6) != Mask.empty(5, 7)
    assert mask != "mask"


@pytest.mark.parametrize(("crow", "col", "said"), [
    ([0, 2], [0, 2], "expected int64"), ([1, 2, 3], [0, 2, 1], "from 1 to 3"), ([0, 2, 4], [0, 2, 1], "from 0 to 4"),
    ([0, 4, 3], [0, 2, 1], "falls from 4 to 3 at row 1"), ([0, -1, 3], [0, 2, 1], "falls from 0 to -1 at row 0"),
    ([0, 2, 3], [0, 3, 1], "holds 3"), ([0, 2, 3], [2, 0, 1], "row 0"), ([0, 1, 3], [0, 1, 1], "row 1"),
    ([0, 0, 3], [0, 2, 2], "row 1"), ([0, 3, 3], [2, 2, 1], "row 0"),
])  # fmt: skip
def test_damaged_indices_are_refused(crow: list[int], col: list[int], said: str) -> None:
    with pytest.raises(Error, match=said) as error:
        Mask(2, 3, np.array(crow, np.int64), np.array(col, np.uint16)).check("the.name")
    assert str(error.value).startswith("the.name: ")
    assert "\n" not in str(error.value)


def test_wrong_dtypes_are_refused() -> None:
    crow, col = np.array([0, 1]), np.array([0], np.uint16)
    with pytest.raises(Error, match="expected uint16"):
        Mask(1, 3, crow, col.astype(np.uint32)).check()
    with pytest.raises(Error, match="expected int64"):
        Mask(1, 3, crow.astype(np.int32), col).check()
    with pytest.raises(Error, match="shape"):
        Mask(1, 1 << 33, crow, col).check()
