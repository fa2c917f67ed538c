"""Small kernels written with CuTe's wrappers, compiled by NVRTC: tensor maps, wgmma, tcgen05 together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlagen.emu.emulator import Emulator
from mlagen.emu.mma_numerics import SM90_16BIT, multiply_accumulate
from mlagen.emu.numerics import bf16_to_f32
from mlagen.emu.tensormap import ElementType, Swizzle, encode_tiled
from tests.emu.nvrtc_ptx import compile_to_ptx
from tests.emu.small_kernels import bf16

SOURCES = Path(__file__).parent / "cuda"
SCHEDULES = ["eager", "lazy", "random:1", "lockstep"]


def run(ptx: str, a: np.ndarray, b: np.ndarray, box_b: int, ctas: int, schedule: str) -> np.ndarray:
    """D of the kernel; no finding of any kind, lints included."""
    emulator, d = Emulator(ptx), np.zeros((a.shape[0], b.shape[0]), np.float32)
    maps = []
    for matrix, rows in ((a, a.shape[0] // ctas), (b, box_b)):
        address = emulator.array(matrix).address
        extents, box = (64, matrix.shape[0]), (64, rows)
        maps.append(encode_tiled(ElementType.BFLOAT16, address, extents, (128,), box, swizzle=Swizzle.B128))
    args = [*maps, emulator.array(d), b.shape[0]]
    result = emulator.launch("k", grid=ctas, block=128, dynamic_shared=49152, args=args, schedule=schedule)
    assert not result.findings.counts, result.findings.text()
    return d


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tma_and_wgmma(schedule: str) -> None:
    rng = np.random.default_rng(0)
    a, b = bf16(rng, 64, 64), bf16(rng, 64, 64)
    ptx = compile_to_ptx((SOURCES / "tma_wgmma.cu").read_text(), "compute_90a")
    d = run(ptx, a, b, 64, 1, schedule)
    want = multiply_accumulate(bf16_to_f32(a), bf16_to_f32(b), np.zeros((64, 64), np.float32), SM90_16BIT)
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tcgen05(ctas: int, schedule: str) -> None:
    rng = np.random.default_rng(ctas)
    a, b = bf16(rng, 128 * ctas, 64), bf16(rng, 128, 64)
    ptx = compile_to_ptx((SOURCES / "tcgen05.cu").read_text(), "compute_100a", f"-DCTAS={ctas}")
    d = run(ptx, a, b, 128 // ctas, ctas, schedule)
    want = bf16_to_f32(a).astype(np.float64) @ bf16_to_f32(b).astype(np.float64).T
    np.testing.assert_allclose(d, want, rtol=1e-5, atol=1e-3)
