"""The dtypes of safetensors: their sizes, their raw NumPy form, and exact conversion of the editable ones."""

from typing import Any

import numpy as np

ITEMBITS: dict[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element, as the safetensors format defines them."""

_NATIVE = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
    "BF16": "<u2",
}

RAW: dict[str, np.dtype[Any]] = {name: np.dtype(_NATIVE.get(name, "u1")) for name in ITEMBITS}
"""NumPy dtype of the stored bytes: BF16 is uint16, F8, F6 and F4 are bytes."""

EDITABLE = frozenset({"F32", "F16", "BF16"})
"""The dtypes a target may have."""


def widen(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The values of raw elements (any shape) in float32, exactly, always as a new array.

    Raises:
        ValueError: `dtype` is not editable.
    """
    _check_editable(dtype)
    out = np.empty(raw.shape, np.float32)
    if dtype == "BF16":
        np.left_shift(raw.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[...] = raw
    return out


def narrow(values: np.ndarray[Any, np.dtype[np.float32]], dtype: str) -> np.ndarray[Any, Any]:
    """Raw elements of float32 values (any shape), rounded to nearest even, always as a new array.

    What is too large becomes an infinity, NaN stays a quiet NaN.

    Raises:
        ValueError: `dtype` is not editable.
    """
    _check_editable(dtype)
    values = np.asarray(values, np.float32)
    if dtype == "BF16":
        return _narrow_bf16(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(values.astype(RAW[dtype]))


def _narrow_bf16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, Any]:
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32(0x7FFF)
    rounded >>= np.uint32(16)
    raw = np.asarray(rounded.astype(np.uint16))
    nan = np.isnan(values).reshape(-1)
    if nan.any():
        raw[nan] = (bits[nan] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return np.asarray(raw.reshape(values.shape))


def _check_editable(dtype: str) -> None:
    if dtype not in EDITABLE:
        raise ValueError(f"dtype {dtype} is not one of {', '.join(sorted(EDITABLE))}")
