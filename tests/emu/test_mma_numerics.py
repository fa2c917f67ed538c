"""The accumulation model: against a slow rational implementation, its special values, its speed."""

from __future__ import annotations

import time
from fractions import Fraction
from math import floor, log2, trunc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlagen.emu import mma_numerics as mma
from mlagen.emu import numerics


def exponent(x: float) -> int:
    """floor(log2 |x|) of a nonzero fp32 value."""
    return max(int(np.frexp(np.float64(x))[1]) - 1, -126)


def truncate_to_f32(value: Fraction, bits: int = 23) -> float:
    """The model's last step in rational arithmetic."""
    if value == 0:
        return 0.0
    size = abs(value)
    e = floor(log2(size)) if 2**-1000 < size < 2**1000 else 0
    while Fraction(2) ** e > size:
        e -= 1
    while Fraction(2) ** (e + 1) <= size:
        e += 1
    unit = Fraction(2) ** max(e - bits, -149)
    return float(trunc(value / unit) * unit)


def slow_dot(a: np.ndarray, b: np.ndarray, c: float, model: mma.Accumulation) -> float:
    """One output element of the model, term by term, in rational arithmetic."""
    acc = float(c)
    for k in range(0, len(a), model.block):
        pairs = [
            (float(x), float(y)) for x, y in zip(a[k : k + model.block], b[k : k + model.block], strict=True)
        ]
        tops = [exponent(x) + exponent(y) for x, y in pairs if x and y]
        tops += [exponent(acc)] if acc else []
        if not tops:
            continue
        unit = Fraction(2) ** (max(tops) - model.fraction_bits)
        terms = [Fraction(x) * Fraction(y) for x, y in pairs] + [Fraction(acc)]
        acc = truncate_to_f32(sum(trunc(t / unit) for t in terms) * unit, model.mantissa_bits)
    return acc


def random_bf16(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """bf16 values with exponents in low..high, a tenth of them zero."""
    x = rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high + 1, shape)) * rng.choice([-1, 1], shape)
    x[rng.random(shape) < 0.1] = 0
    return numerics.bf16_to_f32(numerics.f32_to_bf16(x.astype(np.float32)))


@pytest.mark.parametrize("low, high", [(-8, 8), (-40, 20), (-126, -60), (-100, 100), (-133, -100)])
@pytest.mark.parametrize("model", [mma.SM90_16BIT, mma.SM90_8BIT], ids=["16bit", "8bit"])
def test_model_agrees_with_rational_arithmetic(low: int, high: int, model: mma.Accumulation) -> None:
    rng = np.random.default_rng(abs(low) * 1000 + high)
    a, b = random_bf16(rng, (5, 48), low, high), random_bf16(rng, (7, 48), low, min(high, 20))
    c = rng.standard_normal((5, 7)).astype(np.float32) * np.float32(2.0 ** max(2 * low, -140))
    c[0] = 0
    got = mma.multiply_accumulate(a, b, c, model)
    want = [[slow_dot(a[i], b[j], c[i, j], model) for j in range(7)] for i in range(5)]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 0x7F7F), min_size=32, max_size=32), st.integers(0, 2**31))
def test_model_on_arbitrary_bits(codes: list[int], seed: int) -> None:
    signs = np.random.default_rng(seed).integers(0, 2, 32).astype(np.uint16) << np.uint16(15)
    values = numerics.bf16_to_f32(np.array(codes, np.uint16) | signs)
    a, b = values[None, :16], np.clip(values[None, 16:], -(2.0**20), 2.0**20)
    got = mma.multiply_accumulate(a, b, np.zeros((1, 1), np.float32), mma.SM90_16BIT)
    want = slow_dot(a[0], b[0], 0.0, mma.SM90_16BIT)
    np.testing.assert_array_equal(
        got[0, 0], np.float32(want) if abs(want) < 2.0**128 else np.sign(want) * np.inf
    )


def test_truncation_is_toward_zero_and_not_rounding() -> None:
    """1 + 2**-26 loses the small term on both sides of zero; 24 bits of mantissa survive in the sum."""
    a, b = np.array([[1.0, 1.0]], np.float32), np.array([[1.0, 2.0**-26]], np.float32)
    for sign in (1, -1):
        got = mma.multiply_accumulate(a * np.float32(sign), b, np.zeros((1, 1), np.float32), mma.SM90_16BIT)
        assert got[0, 0] == sign
    # two terms of 2**-25 are kept by the alignment and only lost by the final truncation
    a3, b3 = np.ones((1, 3), np.float32), np.array([[1.0, 2.0**-24, 2.0**-24]], np.float32)
    assert mma.multiply_accumulate(a3, b3, np.zeros((1, 1), np.float32), mma.SM90_16BIT)[0, 0] == 1 + 2.0**-23


def test_infinity_and_nan_follow_ieee() -> None:
    a = np.array([[np.inf, 1], [np.inf, 1], [0, 3], [np.nan, 0]], np.float32)
    b = np.array([[1, 1], [0, 1], [-1, 1]], np.float32)
    c = np.array([[0, 0, np.inf], [1, 1, 1], [1, np.inf, 1], [1, 1, 1]], np.float32)
    got = mma.multiply_accumulate(a, b, c, mma.SM90_16BIT)
    want = np.array(
        [[np.inf, np.nan, np.nan], [np.inf, np.nan, -np.inf], [4, np.inf, 4], [np.nan] * 3], np.float32
    )
    np.testing.assert_array_equal(got, want)
    assert set(got.view(np.uint32)[np.isnan(got)]) == {numerics.F32_NAN_BITS}


def test_fast_mode_and_exact_mode_are_within_the_documented_error() -> None:
    rng = np.random.default_rng(3)
    a, b = random_bf16(rng, (128, 576), -6, 2), random_bf16(rng, (64, 576), -6, 2)
    c = rng.standard_normal((128, 64)).astype(np.float32)
    exact = c + a.astype(np.float64) @ b.astype(np.float64).T
    bound = mma.accumulation_error(a, b, c)
    for model in (mma.SM90_16BIT, None):
        assert (np.abs(mma.multiply_accumulate(a, b, c, model) - exact) <= bound).all()
    assert bound.max() < 1e-2 * np.abs(exact).max()


def test_one_decode_step_of_128_heads_and_256_keys_stays_under_a_second() -> None:
    rng = np.random.default_rng(4)
    a, b = random_bf16(rng, (64, 16), -6, 2), random_bf16(rng, (256, 16), -6, 2)
    c = rng.standard_normal((64, 256)).astype(np.float32)
    steps = 2 * (576 + 512) // 16  # of m64n256k16
    start = time.process_time()
    for _ in range(steps):
        mma.multiply_accumulate(a, b, c, mma.SM90_16BIT)
    assert time.process_time() - start < 1.0
