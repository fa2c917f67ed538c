"""How tensor cores add: an exact model of Hopper, and a tolerance for tensor cores not known to the bit.

Model (`Accumulation`): the products of one block along K are exact. Every product, and the accumulator, is
aligned to the largest exponent among them (a product counts with the sum of its operands' exponents, before
normalisation), keeps `fraction_bits` bits below that exponent, and loses the rest (truncation toward zero).
The aligned terms are added exactly; the sum is truncated to `mantissa_bits` of mantissa and becomes the
accumulator of the next block.

With 16 products and 25 bits this reproduces an H200's `wgmma` and `mma.sync` with bf16 and fp16 operands bit
for bit, and with 32 products and 13 bits those with e4m3 and e5m2 (`tests/emu/recorded`). A bf16 subnormal
counts with the exponent -126, and a zero takes part in no maximum.

sm_100: the rounding is not known. `multiply_accumulate` uses fp32 matrix products there (accumulation None),
and `accumulation_error` bounds the difference between any two tensor cores that keep at least `fraction_bits`
bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.numerics import F32_NAN_BITS, Float32, Float64

_ZERO_EXPONENT = -10_000  # sums of two stay inside int16
_NOT_FINITE = 128
_ROWS = 64  # rows handled at a time: the work arrays of 64 x 256 stay in the second-level cache


@dataclass(frozen=True, slots=True)
class Accumulation:
    """block: products added at once. fraction_bits: below the top exponent. mantissa_bits: of the sum."""

    block: int
    fraction_bits: int
    mantissa_bits: int = 23


SM90_16BIT = Accumulation(block=16, fraction_bits=25)
SM90_8BIT = Accumulation(block=32, fraction_bits=13, mantissa_bits=13)


@dataclass(slots=True)
class _Work:
    """Work arrays of one block shape, reused between calls (the emulator is single-threaded)."""

    product: npt.NDArray[Any]
    whole: npt.NDArray[Any]
    total: npt.NDArray[Any]
    exponent: npt.NDArray[np.int16]
    top: npt.NDArray[np.int16]


@lru_cache(maxsize=64)
def _work(k: int, m: int, n: int, wide: bool) -> _Work:
    real, integer = (np.float64, np.int64) if wide else (np.float32, np.int32)
    shape = (k, m, n)
    exponent, top = np.empty(shape, np.int16), np.empty((m, n), np.int16)
    return _Work(np.empty(shape, real), np.empty(shape, integer), np.empty((m, n), integer), exponent, top)


def _exponents(x: Float32) -> npt.NDArray[np.int16]:
    """floor(log2 |x|); -126 for subnormals, -10000 for zero, 128 for infinity and NaN."""
    x = np.ascontiguousarray(x)
    high = x.view(np.int16)[..., 1::2]  # sign, exponent and 7 bits of mantissa (little endian)
    biased = (high >> np.int16(7)) & np.int16(0xFF)
    out = biased - np.int16(127)
    if not biased.all():
        out[biased == 0] = -126
        out[x == 0] = _ZERO_EXPONENT
    return out


def multiply_accumulate(a: Float32, b: Float32, c: Float32, model: Accumulation | None) -> Float32:
    """c + a @ b.T as a tensor core adds it. a: (M, K), b: (N, K), c and result: (M, N), all fp32 (decoded
    operands).

    `model` None is the fast mode: one fp32 matrix product. K may be any length; the last block may be
    shorter.
    """
    if model is None:
        with np.errstate(all="ignore"):
            return np.asarray(c + a @ b.T, dtype=np.float32)
    out = np.empty(c.shape, np.float32)
    b_exponents = np.ascontiguousarray(_exponents(b).T)
    b_columns = np.ascontiguousarray(b.T)
    for first in range(0, a.shape[0], _ROWS):
        rows = slice(first, first + _ROWS)
        a_columns = np.ascontiguousarray(a[rows].T)
        a_exponents = _exponents(a_columns)
        acc = np.ascontiguousarray(c[rows])
        for k in range(0, a.shape[1], model.block):
            ks = slice(k, k + model.block)
            acc = _add_block(a_columns[ks], b_columns[ks], a_exponents[ks], b_exponents[ks], acc, model)
        out[rows] = acc
    return out


def _add_block(
    a: Float32,
    b: Float32,
    ea: npt.NDArray[np.int16],
    eb: npt.NDArray[np.int16],
    acc: Float32,
    model: Accumulation,
) -> Float32:
    """One block: a (k, M), b (k, N) and their exponents; acc (M, N)."""
    acc_exponent = _exponents(acc)
    tops = int(ea.max()), int(eb.max()), int(acc_exponent.max())
    if max(tops) == _NOT_FINITE:
        return _add_block_not_finite(a, b, acc, model)
    shape = (a.shape[0], *acc.shape)
    work = _work(*shape, False)
    top = work.top
    np.add(ea[:, :, None], eb[:, None, :], out=work.exponent)
    np.maximum.reduce(work.exponent, axis=0, out=top)
    np.maximum(top, acc_exponent, out=top)
    lowest = int(top.min())
    if lowest < _ZERO_EXPONENT // 2:
        top[top < _ZERO_EXPONENT // 2] = 0
        lowest = int(top.min())
    # fp32 holds every aligned term if it holds 2**(fraction_bits - top); what underflows truncates to zero
    # anyway
    wide = lowest < model.fraction_bits - 120 or tops[0] + tops[1] > 125
    if wide:
        work = _work(*shape, True)
    real = work.product.dtype
    scale = _power_of_two(model.fraction_bits - top.astype(np.int32), real)
    a_real, b_real = a.astype(real, copy=False), b.astype(real, copy=False)
    np.multiply(a_real[:, :, None], b_real[:, None, :], out=work.product)
    np.multiply(work.product, scale, out=work.product)
    work.whole[...] = work.product  # conversion to integer truncates
    np.add.reduce(work.whole, axis=0, out=work.total, dtype=work.total.dtype)
    # |products| sum to less than 2**31 for 16 products and 25 bits; the accumulator may exceed it
    value = work.total.astype(np.float64)
    value += np.trunc(acc.astype(real, copy=False) * scale)
    return _truncate(value, top, model, subnormal=wide)


def _power_of_two(exponent: npt.NDArray[np.int32], real: Any) -> npt.NDArray[Any]:
    """2**exponent by its bits; exponents are in the normal range of `real`."""
    if real == np.float32:
        return ((exponent + 127) << 23).view(np.float32)
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def _truncate(value: Float64, top: npt.NDArray[np.int16], model: Accumulation, subnormal: bool) -> Float32:
    """value * 2**(top - fraction_bits) as fp32, toward zero; beyond fp32 it becomes infinity. Changes
    `value`.
    """
    bits = value.view(np.int64)
    bits &= np.int64(-1) << np.int64(52 - model.mantissa_bits)
    exponent = top.astype(np.int32) - model.fraction_bits
    with np.errstate(over="ignore"):
        if not subnormal:
            result: Float32 = value.astype(np.float32) * _power_of_two(exponent, np.dtype(np.float32))
            return result
        value *= _power_of_two(exponent, np.dtype(np.float64))
        tiny = np.abs(value) < 2.0**-126
        if tiny.any():
            value = np.where(tiny, np.trunc(value * 2.0**149) * 2.0**-149, value)
        return value.astype(np.float32)


def _add_block_not_finite(a: Float32, b: Float32, acc: Float32, model: Accumulation) -> Float32:
    """A block with infinities or NaN: those results follow IEEE (canonical NaN), the others the model."""
    with np.errstate(all="ignore"):
        ieee = acc + a.T.astype(np.float64) @ b.astype(np.float64)
    finite_a, finite_b, finite_acc = (np.where(np.isfinite(x), x, np.float32(0)) for x in (a, b, acc))
    modelled = _add_block(finite_a, finite_b, _exponents(finite_a), _exponents(finite_b), finite_acc, model)
    special = np.isnan(ieee) | np.isinf(ieee)
    nan = np.uint32(F32_NAN_BITS).view(np.float32)
    with np.errstate(over="ignore"):
        return np.where(special, np.where(np.isnan(ieee), nan, ieee.astype(np.float32)), modelled)


def accumulation_error(
    a: Float32, b: Float32, c: Float32, block: int = 16, fraction_bits: int = 23
) -> Float64:
    """Largest |difference| from the exact c + a @ b.T of a tensor core of the `Accumulation` kind, per
    element (M, N).

    Each block loses less than 2**(top - fraction_bits) per term and one rounding of the sum, and every
    partial sum is at most |c| + sum |a b|. Two such tensor cores differ by at most twice this. Units: those
    of the result.
    """
    size = np.abs(c).astype(np.float64) + np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    blocks = -(-a.shape[1] // block)
    bound: Float64 = size * (blocks * (block + 2) * 2.0**-fraction_bits)
    return bound
