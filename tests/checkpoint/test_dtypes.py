import warnings

import numpy as np
import pytest
import torch

from mathneuro_export.checkpoint.dtypes import EDITABLE, ITEMBITS, RAW, narrow, widen

FACTORS = (0.0, 1.1, 1.003, 1.01, 0.5, -1.0, 2.0**-130, 3e38)


def torch_bf16(values):
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def same_but_nan(ours, theirs, nan):
    assert np.array_equal(ours[~nan], theirs[~nan])
    assert np.all((ours[nan] & 0x7FC0) == 0x7FC0)


@pytest.mark.parametrize("factor", FACTORS)
def test_bf16_of_every_pattern_times_a_factor_is_torchs(factor):
    raw = np.arange(65536, dtype=np.uint16)
    with np.errstate(all="ignore"):
        values = widen(raw, "BF16") * np.float32(factor)
    same_but_nan(narrow(values, "BF16"), torch_bf16(values), np.isnan(values))


def test_bf16_of_random_and_tied_bits_is_torchs():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 400_000, dtype=np.uint32)
    bits[:200_000] = (bits[:200_000] & 0xFFFF0000) | rng.choice([0x7FFF, 0x8000, 0x8001], 200_000).astype(np.uint32)
    values = bits.view(np.float32)
    same_but_nan(narrow(values, "BF16"), torch_bf16(values), np.isnan(values))


def test_bf16_round_trip_of_every_pattern():
    raw = np.arange(65536, dtype=np.uint16)
    wide = widen(raw, "BF16")
    assert np.array_equal(wide.view(np.uint32) >> 16, raw)
    finite = ~np.isnan(wide)
    assert np.array_equal(narrow(wide, "BF16")[finite], raw[finite])


def test_f16_is_torchs_without_a_warning():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, np.float32([65504, 65519.99, 65520, 1e9, -1e9, 2**-25, 2**-24, np.nan, np.inf])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = narrow(values, "F16")
    theirs = torch.from_numpy(values).half().numpy()
    nan = np.isnan(values)
    assert np.array_equal(ours.view(np.uint16)[~nan], theirs.view(np.uint16)[~nan])
    assert np.isnan(ours[nan]).all()


@pytest.mark.parametrize("dtype", sorted(EDITABLE))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3), (2, 3, 4)])
def test_shapes_and_new_arrays(dtype, shape):
    raw = np.ones(shape, RAW[dtype])
    raw.flags.writeable = False
    wide = widen(raw, dtype)
    assert wide.dtype == np.float32
    assert wide.shape == shape
    assert not np.shares_memory(wide, raw)
    wide[...] = 2.0
    back = narrow(wide, dtype)
    assert back.dtype == RAW[dtype]
    assert back.shape == shape
    assert not np.shares_memory(back, wide)


def test_strided_input():
    raw = np.arange(24, dtype=np.uint16).reshape(4, 6)[:, ::2]
    assert np.array_equal(narrow(widen(raw, "BF16"), "BF16"), raw)
    assert np.array_equal(narrow(widen(raw, "BF16").T, "BF16"), raw.T)


def test_a_scalar_nan_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw = narrow(np.array(0xFFFFFFFF, np.uint32).view(np.float32), "BF16")
    assert raw.shape == ()
    assert np.isnan(widen(raw, "BF16"))


def test_only_editable_dtypes():
    for dtype in sorted(set(ITEMBITS) - EDITABLE):
        with pytest.raises(ValueError, match=dtype):
            widen(np.zeros(1, RAW[dtype]), dtype)
        with pytest.raises(ValueError, match=dtype):
            narrow(np.zeros(1, np.float32), dtype)


def test_sizes():
    for dtype, bits in ITEMBITS.items():
        assert RAW[dtype].itemsize * 8 == max(bits, 8)
