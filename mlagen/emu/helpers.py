"""Functions and names that generated code uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlagen.emu.cta import ALL_LANES
from mlagen.emu.interfaces import Array
from mlagen.emu.lanes import any_true
from mlagen.emu.types import NUMPY


def _fma_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 in float64, inexact sums rounded to odd: a later rounding to float32 is then the
    only one that counts.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total: Array = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    if any_true(inexact):
        away = (error > 0) == (total > 0)
        total = np.where(inexact, np.where(away, bits + 1, bits - 1), bits).view(np.float64)
    return total


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32, rounded once, to nearest even."""
    rounded: Array = _fma_odd(a, b, c).astype(np.float32)
    return rounded


def fma32_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a * b + c of float32, rounded toward zero (rz), minus (rm) or plus infinity (rp)."""
    exact = _fma_odd(a, b, c)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    high, low = back > exact, back < exact
    down = high & ((exact > 0) | (mode == "rm")) & (mode != "rp")
    up = low & ((exact < 0) | (mode == "rp")) & (mode != "rm")
    infinity = np.float32(np.inf)
    return np.where(down, np.nextafter(near, -infinity), np.where(up, np.nextafter(near, infinity), near))


def shift_left(a: Array, amount: Array, bits: int) -> Array:
    """`shl`: amounts are clamped to the width."""
    clamped = np.minimum(amount, bits - 1).astype(a.dtype)
    shifted: Array = np.where(amount >= bits, a.dtype.type(0), a << clamped)
    return shifted


def shift_right(a: Array, amount: Array, bits: int) -> Array:
    """`shr`: amounts are clamped to the width; signed values keep their sign."""
    shifted: Array = a >> np.minimum(amount, bits - 1).astype(a.dtype)
    if a.dtype.kind == "u":
        shifted = np.where(amount >= bits, a.dtype.type(0), shifted)
    return shifted


def divide(a: Array, b: Array) -> Array:
    """Integer division that truncates; by zero it gives all ones, as NVIDIA GPUs do."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        with np.errstate(over="ignore"):
            quotient = a // safe
            remainder = a - quotient * safe
            quotient = quotient + ((remainder != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    ones = np.array(-1).astype(a.dtype)
    result: Array = np.where(zero, ones, quotient).astype(a.dtype)
    return result


def remainder(a: Array, b: Array) -> Array:
    """The remainder of `divide`, with the sign of a."""
    result: Array = (a - divide(a, b) * b).astype(a.dtype)
    return np.where(b == 0, a, result)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of a product of 16-, 32- or 64-bit integers."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        result: Array = ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
        return result
    values = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    return np.array([v & (2**64 - 1) for v in values], np.uint64).view(a.dtype)


def pack(parts: list[Array], kind: Any) -> Array:
    """Arrays side by side, the first in the low bits, as one wider unsigned type."""
    joined = np.stack(parts, 1)
    result: Array = joined.reshape(-1).view(kind)
    return result


def unpack(value: Array, kind: Any, count: int) -> Array:
    """The inverse of `pack`: (count, 32)."""
    parts: Array = np.ascontiguousarray(np.ascontiguousarray(value).view(kind).reshape(32, count).T)
    return parts


def flush(x: Array) -> Array:
    """`.ftz`: float32 subnormals become zeros of the same sign."""
    small = np.abs(x) < np.float32(2.0**-126)
    if any_true(small):
        return np.where(small, np.copysign(np.float32(0), x), x)
    return x


ENVIRONMENT: dict[str, Any] = {
    "ONE": np.full(32, 1, np.float32),
    "MINUS_ZERO": np.full(32, -0.0, np.float32),
    "np": np,
    "ALL": ALL_LANES,
    "where": np.where,
    "isnan": np.isnan,
    "fma32": fma32,
    "fma32_directed": fma32_directed,
    "shift_left": shift_left,
    "shift_right": shift_right,
    "divide": divide,
    "remainder": remainder,
    "multiply_high": multiply_high,
    "pack": pack,
    "unpack": unpack,
    "flush": flush,
    **NUMPY,
}
"""Names that generated code may use; isa modules add their own with `helper`."""


def helper(function: Any) -> Any:
    """Make a function usable in `Inline` expressions under its own name."""
    if function.__name__ in ENVIRONMENT:
        raise ValueError(f"helper {function.__name__} exists")
    ENVIRONMENT[function.__name__] = function
    return function
