"""Conversions against torch, exhaustive where the source is narrow; rounding and NaN corners of PTX cvt."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from mlagen.emu import numerics

RNG = np.random.default_rng(11)


def random_f32(n: int) -> np.ndarray:
    """fp32 values of random bits without NaN."""
    x = RNG.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    return x[~np.isnan(x)]


def test_bf16_rn_agrees_with_torch_and_has_the_canonical_nan() -> None:
    x = np.concatenate(
        [random_f32(20000), np.array([0, -0.0, np.inf, -np.inf, 3.4e38, 1e-40, 1e-45], np.float32)]
    )
    want = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(numerics.f32_to_bf16(x), want)
    nan = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert (numerics.f32_to_bf16(nan) == 0x7FFF).all()


@pytest.mark.parametrize(
    "bits, rn, rz",
    [
        (0x3F808000, 0x3F80, 0x3F80),
        (0x3F818000, 0x3F82, 0x3F81),
        (0x3F808001, 0x3F81, 0x3F80),
        (0xBF818000, 0xBF82, 0xBF81),
        (0x7F7FFFFF, 0x7F80, 0x7F7F),
    ],
)
def test_bf16_ties_and_overflow(bits: int, rn: int, rz: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    assert numerics.f32_to_bf16(x)[0] == rn
    assert numerics.f32_to_bf16(x, "rz")[0] == rz


def test_bf16_and_fp16_widen_exactly() -> None:
    codes = np.arange(65536, dtype=np.uint16)
    for kind, widen in ((torch.bfloat16, numerics.bf16_to_f32), (torch.float16, numerics.fp16_to_f32)):
        want = torch.from_numpy(codes.view(np.int16)).view(kind).to(torch.float32).numpy()
        np.testing.assert_array_equal(widen(codes), want)


def test_fp16_rounding() -> None:
    x = np.concatenate([random_f32(5000), np.exp2(RNG.uniform(-26, 17, 20000)).astype(np.float32)])
    want = torch.from_numpy(x).to(torch.float16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(numerics.f32_to_fp16(x), want)
    toward_zero = numerics.fp16_to_f32(numerics.f32_to_fp16(x, "rz"))
    assert (np.abs(toward_zero) <= np.abs(x)).all()
    next_up = np.abs(numerics.f32_to_fp16(x, "rz").view(np.float16).astype(np.float64))
    with np.errstate(over="ignore"):
        limit = np.nextafter(next_up.astype(np.float16), np.float16(np.inf)).astype(np.float64)
    finite = np.abs(x) < 65504
    assert (limit[finite] > np.abs(x[finite])).all()
    assert numerics.f32_to_fp16(np.float32([1e6, -1e6]), satfinite=True).tolist() == [0x7BFF, 0xFBFF]
    assert numerics.f32_to_fp16(np.float32([np.nan]))[0] == 0x7FFF


def test_relu_makes_negatives_zero_and_keeps_nan() -> None:
    x = np.array([-1.5, 2.0, -0.0, np.nan], np.float32)
    assert numerics.f32_to_bf16(x, relu=True).tolist() == [0, 0x4000, 0, 0x7FFF]
    assert numerics.f32_to_fp16(x, relu=True).tolist() == [0, 0x4000, 0, 0x7FFF]


@pytest.mark.parametrize(
    "kind, widen, narrow",
    [
        (torch.float8_e4m3fn, numerics.e4m3_to_f32, numerics.f32_to_e4m3),
        (torch.float8_e5m2, numerics.e5m2_to_f32, numerics.f32_to_e5m2),
    ],
)
def test_eight_bit_floats(kind: torch.dtype, widen, narrow) -> None:  # type: ignore[no-untyped-def]
    codes = np.arange(256, dtype=np.uint8)
    values = widen(codes)
    np.testing.assert_array_equal(values, torch.from_numpy(codes).view(kind).to(torch.float32).numpy())
    finite = np.isfinite(values)
    np.testing.assert_array_equal(narrow(values[finite]), codes[finite])
    largest = np.float32(values[finite].max())
    x = np.concatenate([np.exp2(RNG.uniform(-20, 8, 5000)), [0.0]]).astype(np.float32) * RNG.choice(
        [-1, 1], 5001
    )
    x = np.clip(x.astype(np.float32), -largest, largest)
    np.testing.assert_array_equal(narrow(x), torch.from_numpy(x).to(kind).view(torch.uint8).numpy())
    assert narrow(np.float32([np.inf, 1e9]))[0] == narrow(np.float32([largest]))[0]
    assert narrow(np.float32([-np.inf]))[0] == narrow(np.float32([-largest]))[0]
    assert narrow(np.float32([np.nan]))[0] == 0x7F


def test_six_and_four_bit_tables() -> None:
    assert numerics.minifloat_table(2, 1)[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert numerics.minifloat_table(2, 3).max() == 7.5
    assert numerics.minifloat_table(3, 2).max() == 28.0


def test_ue8m0() -> None:
    codes = np.arange(255, dtype=np.uint8)
    values = numerics.ue8m0_to_f32(codes)
    np.testing.assert_array_equal(values, np.exp2(codes.astype(np.float64) - 127).astype(np.float32))
    assert np.isnan(numerics.ue8m0_to_f32(np.uint8([255])))[0]
    for rounding in ("rz", "rp"):
        np.testing.assert_array_equal(numerics.f32_to_ue8m0(values, rounding), codes)
    assert numerics.f32_to_ue8m0(np.float32([1.5, 3.9, 1e-45, np.nan]), "rz").tolist() == [127, 128, 0, 255]
    assert numerics.f32_to_ue8m0(np.float32([1.5, 3.9, 1e-45, 1e-38]), "rp").tolist() == [128, 129, 0, 1]


def test_packing() -> None:
    high, low = np.uint16([0x1234]), np.uint16([0xABCD])
    assert numerics.pack16(high, low)[0] == 0x1234ABCD
    assert [int(x[0]) for x in numerics.unpack16(np.uint32([0x1234ABCD]))] == [0x1234, 0xABCD]
    assert numerics.pack8(np.uint8([0x12]), np.uint8([0x34]))[0] == 0x1234


def test_fma_rounds_once() -> None:
    a, b, c = (
        np.exp2(RNG.uniform(-30, 30, 4000)).astype(np.float32) * RNG.choice([-1, 1], 4000) for _ in range(3)
    )
    a, b, c = a.astype(np.float32), b.astype(np.float32), c.astype(np.float32)
    tie = np.float32([1 + 2**-12]), np.float32([1 + 2**-12]), np.float32([2.0**-60])
    a, b, c = (np.concatenate([x, y]) for x, y in zip((a, b, c), tie, strict=True))
    for x, y, z, got in zip(a, b, c, numerics.fma_f32(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(got)) - exact)
        for neighbour in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)
    assert numerics.fma_f32(np.float32([np.inf]), np.float32([1]), np.float32([1]))[0] == np.inf


def test_unknown_roundings_are_refused() -> None:
    x = np.zeros(1, np.float32)
    for convert in (numerics.f32_to_bf16, numerics.f32_to_fp16, numerics.f32_to_ue8m0):
        with pytest.raises(ValueError, match="rm"):
            convert(x, "rm")
