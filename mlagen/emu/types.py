"""PTX types as numpy types."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlagen.emu.interfaces import EmulatorError

SIZES = {
    "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2, "ue8m0x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "u16x2": 4, "s16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8,
    "b128": 16, "pred": 0,
}  # fmt: skip
"""Bytes of each PTX type; a predicate has none."""

NAMES = {
    "b8": "u8", "u8": "u8", "s8": "i8", "e4m3": "u8", "e5m2": "u8",
    "b16": "u16", "u16": "u16", "s16": "i16", "f16": "f16", "bf16": "u16",
    "e4m3x2": "u16", "e5m2x2": "u16", "ue8m0x2": "u16",
    "b32": "u32", "u32": "u32", "s32": "i32", "f32": "f32", "f16x2": "u32", "bf16x2": "u32",
    "u16x2": "u32", "s16x2": "u32", "tf32": "u32",
    "b64": "u64", "u64": "u64", "s64": "i64", "f64": "f64", "f32x2": "u64",
    "b128": "u64", "pred": "boolean",
}  # fmt: skip
"""Short name of the numpy type that holds a PTX type, as generated code spells it."""

NUMPY: dict[str, Any] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "boolean": np.bool_,
}  # fmt: skip
"""Short name -> numpy type."""

UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Bytes -> short name of the unsigned type of that width."""


def size_of(ptx_type: str) -> int:
    """Bytes of a PTX type; EmulatorError for a type that the emulator does not know."""
    try:
        return SIZES[ptx_type]
    except KeyError:
        raise EmulatorError(f"unknown PTX type .{ptx_type}") from None


def short_name(ptx_type: str) -> str:
    """`u32` for `b32`, `i32` for `s32` and so on."""
    size_of(ptx_type)
    return NAMES[ptx_type]


def is_float(ptx_type: str) -> bool:
    """Whether numpy computes with this type as a float."""
    return NAMES.get(ptx_type, "")[:1] == "f"


def is_signed(ptx_type: str) -> bool:
    """Whether the type is a signed integer."""
    return NAMES.get(ptx_type, "")[:1] == "i"


def wider(ptx_type: str) -> str:
    """The type of a `.wide` result."""
    try:
        return {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}[ptx_type]
    except KeyError:
        raise EmulatorError(f".wide of .{ptx_type}") from None
