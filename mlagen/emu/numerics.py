"""Number formats: conversions between fp32 and the narrow types, with the rounding and NaN rules of PTX
`cvt`.

All functions are elementwise on arrays of any shape. Narrow values travel as raw bits: uint16 for bf16 and
fp16, uint8 for the 8-bit types. Rules: PTX ISA, "cvt" (rounding, saturation, canonical NaN) and "Alternate
Floating-Point Data Formats".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.lanes import any_true

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bits8 = npt.NDArray[np.uint8]
Bits16 = npt.NDArray[np.uint16]
Bits32 = npt.NDArray[np.uint32]
AnyArray = npt.NDArray[Any]

#: canonical NaN written by `cvt` for each destination type
BF16_NAN = 0x7FFF
FP16_NAN = 0x7FFF
E4M3_NAN = 0x7F
E5M2_NAN = 0x7F
UE8M0_NAN = 0xFF
F32_NAN_BITS = 0x7FFFFFFF

_U16 = np.uint32(16)
_ONE = np.uint32(1)
_HALF = np.uint32(0x7FFF)


# ---------------------------------------------------------------- bf16
def bf16_to_f32(bits: Bits16) -> Float32:
    """fp32 value of bf16 bits; exact."""
    widened: Bits32 = bits.astype(np.uint32) << _U16
    return widened.view(np.float32)


def f32_to_bf16(x: Float32, rounding: str = "rn", relu: bool = False) -> Bits16:
    """bf16 bits of fp32 values: `rn` ties to even, overflows to infinity; `rz` toward zero. NaN: 0x7FFF.

    With `relu` negative results become +0 and NaN stays NaN. Raises ValueError for another rounding.
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if rounding == "rn":
        rounded = (bits + (_HALF + ((bits >> _U16) & _ONE))) >> _U16
    elif rounding == "rz":
        rounded = bits >> _U16
    else:
        raise ValueError(f"cvt to bf16 has no rounding {rounding!r}; use 'rn' or 'rz'")
    out = rounded.astype(np.uint16)
    if relu:
        out = np.where(out >> np.uint16(15), np.uint16(0), out)
    nan = x != x
    return np.where(nan, np.uint16(BF16_NAN), out) if any_true(nan) else out


# ---------------------------------------------------------------- fp16
def fp16_to_f32(bits: Bits16) -> Float32:
    """fp32 value of fp16 bits; exact."""
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


def f32_to_fp16(x: Float32, rounding: str = "rn", relu: bool = False, satfinite: bool = False) -> Bits16:
    """fp16 bits of fp32 values, `rn` or `rz`; NaN gives 0x7FFF; `satfinite` clamps to +-65504."""
    values = np.asarray(x, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        half = values.astype(np.float16)
    if rounding == "rz":
        beyond = np.abs(half.astype(np.float64)) > np.abs(values.astype(np.float64))
        half = np.where(beyond, np.nextafter(half, np.float16(0)), half)
    elif rounding != "rn":
        raise ValueError(f"cvt to fp16 has no rounding {rounding!r}; use 'rn' or 'rz'")
    if satfinite:
        half = np.clip(half, np.float16(-65504), np.float16(65504))
    out = np.ascontiguousarray(half).view(np.uint16)
    if relu:
        out = np.where(out >> np.uint16(15), np.uint16(0), out)
    nan = values != values
    return np.where(nan, np.uint16(FP16_NAN), out) if any_true(nan) else out


# ---------------------------------------------------------------- 8-bit and narrower floats
@cache
def minifloat_table(exponent_bits: int, mantissa_bits: int, nonfinite: str = "none") -> Float32:
    """All values of a sign + exponent + mantissa format, indexed by its bits (array of 2**width fp32 values).

    `nonfinite`: "ieee" (top exponent is infinity and NaN, e5m2), "nan" (only the all-ones code is NaN, e4m3)
    or "none" (every code is finite: e3m2, e2m3, e2m1).
    """
    width = 1 + exponent_bits + mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    top = 2**exponent_bits - 1
    table = np.zeros(2**width, np.float64)
    for code in range(2 ** (width - 1)):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        if nonfinite == "ieee" and exponent == top:
            value = float("nan") if mantissa else float("inf")
        elif nonfinite == "nan" and code == 2 ** (width - 1) - 1:
            value = float("nan")
        elif exponent == 0:
            value = fraction * 2.0 ** (1 - bias)
        else:
            value = (1.0 + fraction) * 2.0 ** (exponent - bias)
        table[code], table[code + 2 ** (width - 1)] = value, -value
    out = table.astype(np.float32)
    out.setflags(write=False)
    return out


def e4m3_to_f32(bits: Bits8) -> Float32:
    """fp32 value of e4m3 bits; exact."""
    return minifloat_table(4, 3, "nan")[bits]


def e5m2_to_f32(bits: Bits8) -> Float32:
    """fp32 value of e5m2 bits; exact."""
    return minifloat_table(5, 2, "ieee")[bits]


def _encode_minifloat(x: Float32, table: Float32, last_finite: int, nan: int) -> Bits8:
    """Nearest finite code, ties to the even code, saturating at `last_finite` (`.rn.satfinite`)."""
    values = np.asarray(x, dtype=np.float32)
    positive = table[: last_finite + 1].astype(np.float64)
    magnitude = np.minimum(np.abs(values.astype(np.float64)), positive[-1])
    known = np.where(np.isnan(magnitude), 0.0, magnitude)
    above = np.clip(np.searchsorted(positive, known), 0, last_finite)
    below = np.maximum(above - 1, 0)
    to_below, to_above = known - positive[below], positive[above] - known
    nearer_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    code = np.where(nearer_below, below, above) | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), nan, code).astype(np.uint8)


def f32_to_e4m3(x: Float32) -> Bits8:
    """e4m3 bits, `.rn.satfinite`: ties to even, clamped to +-448, NaN gives 0x7F."""
    return _encode_minifloat(x, minifloat_table(4, 3, "nan"), 0x7E, E4M3_NAN)


def f32_to_e5m2(x: Float32) -> Bits8:
    """e5m2 bits, `.rn.satfinite`: ties to even, clamped to +-57344, NaN gives 0x7F."""
    return _encode_minifloat(x, minifloat_table(5, 2, "ieee"), 0x7B, E5M2_NAN)


def ue8m0_to_f32(bits: Bits8) -> Float32:
    """fp32 value of a ue8m0 scale, 2**(bits - 127); 0xFF is NaN."""
    codes = np.asarray(bits)
    values = np.ldexp(np.float32(1), np.minimum(codes, 254).astype(np.int32) - 127)
    return np.where(codes == UE8M0_NAN, np.float32("nan"), values)


def f32_to_ue8m0(x: Float32, rounding: str = "rz") -> Bits8:
    """ue8m0 bits of |x| (`cvt.rz` or `cvt.rp`, `.satfinite`): the exponent below or above; NaN gives 0xFF."""
    values = np.ascontiguousarray(np.abs(x), dtype=np.float32)
    bits = values.view(np.uint32)
    exponent, mantissa = (bits >> np.uint32(23)).astype(np.int32), bits & np.uint32(0x7FFFFF)
    if rounding == "rp":
        # below 2**-126 the two codes are 2**-127 (bits 0) and 2**-126
        step = np.where(exponent == 0, mantissa > np.uint32(0x400000), mantissa != 0)
        exponent = exponent + step
    elif rounding != "rz":
        raise ValueError(f"cvt to ue8m0 has no rounding {rounding!r}; use 'rz' or 'rp'")
    return np.where(values != values, UE8M0_NAN, np.minimum(exponent, 254)).astype(np.uint8)


# ---------------------------------------------------------------- packed forms
def pack16(high: Bits16, low: Bits16) -> Bits32:
    """Two 16-bit halves in one 32-bit register; `cvt.*x2.f32 d, a, b` puts a in the high half."""
    return (high.astype(np.uint32) << _U16) | low.astype(np.uint32)


def unpack16(bits: Bits32) -> tuple[Bits16, Bits16]:
    """(high, low) halves of 32-bit registers."""
    return (bits >> _U16).astype(np.uint16), (bits & np.uint32(0xFFFF)).astype(np.uint16)


def pack8(high: Bits8, low: Bits8) -> Bits16:
    """Two bytes in one 16-bit register, the first operand of `cvt.*x2` in the high byte."""
    return (high.astype(np.uint16) << np.uint16(8)) | low.astype(np.uint16)


# ---------------------------------------------------------------- fp32 helpers
def fma_f32(a: Float32, b: Float32, c: Float32) -> Float32:
    """fma.rn.f32 with a single rounding: the fp64 sum is rounded to odd before the rounding to fp32."""
    wide_c = c.astype(np.float64)
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        total = product + wide_c
        kept = total - product
        lost = (product - (total - kept)) + (wide_c - kept)
        bits = np.atleast_1d(total).view(np.int64)
        inexact = (np.atleast_1d(lost) != 0) & np.isfinite(np.atleast_1d(total)) & ((bits & 1) == 0)
        if any_true(inexact):
            outward = (np.atleast_1d(lost) > 0) == (np.atleast_1d(total) > 0)
            bits = np.where(inexact, np.where(outward, bits + 1, bits - 1), bits)
        return bits.view(np.float64).reshape(np.shape(total)).astype(np.float32)


def tf32_truncate(x: Float32) -> Float32:
    """fp32 with the low 13 mantissa bits dropped, which is how tensor cores read a tf32 operand."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)
