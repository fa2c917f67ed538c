"""mma.sync against a matrix product; fragments laid out element by element from the PTX ISA text."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu import numerics
from mlagen.emu.fragments import to_float
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import bf16, kernel, run

PARAMS = (".u64 a", ".u64 b", ".u64 c", ".u64 d")


def text(k: int, types: str, a_registers: int, d_registers: int) -> str:
    def load(first: int, count: int, pointer: int, name: str) -> str:
        lines = f"  ld.param.u64 %rd{pointer}, [{name}];\n"
        lines += f"  mad.wide.u32 %rd{pointer}, %r1, {4 * count}, %rd{pointer};\n"
        return lines + "".join(
            f"  ld.global.u32 %r{first + i}, [%rd{pointer}+{4 * i}];\n" for i in range(count)
        )

    def vector(first: int, count: int) -> str:
        return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"

    b_registers = a_registers // 2
    d, a, b, c = (
        vector(40, d_registers),
        vector(10, a_registers),
        vector(20, b_registers),
        vector(30, d_registers),
    )
    return kernel(
        f"""
  mov.u32 %r1, %tid.x;
{load(10, a_registers, 1, "a")}{load(20, b_registers, 2, "b")}{load(30, d_registers, 3, "c")}
  mma.sync.aligned.m16n8k{k}.row.col.{types} {d}, {a}, {b}, {c};
  ld.param.u64 %rd4, [d];
  mad.wide.u32 %rd4, %r1, {4 * d_registers}, %rd4;
"""
        + "".join(f"  st.global.u32 [%rd4+{4 * i}], %r{40 + i};\n" for i in range(d_registers)),
        PARAMS,
    )


def a_registers(a: np.ndarray) -> np.ndarray:
    """(32, registers) of A (16, k): register i holds row q + 8 (i % 2) and K half i / 2."""
    per = 4 // a.itemsize
    count = 16 * a.shape[1] * a.itemsize // 128
    out = np.zeros((32, count, per), a.dtype)
    for lane in range(32):
        for i in range(count):
            first = per * (lane % 4) + 4 * per * (i // 2)
            out[lane, i] = a[lane // 4 + 8 * (i % 2), first : first + per]
    return np.ascontiguousarray(out).view(np.uint32).reshape(32, count)


def b_registers(b: np.ndarray) -> np.ndarray:
    """(32, registers) of B as (8, k)."""
    per = 4 // b.itemsize
    count = 8 * b.shape[1] * b.itemsize // 128
    out = np.zeros((32, count, per), b.dtype)
    for lane in range(32):
        for i in range(count):
            first = per * (lane % 4) + 4 * per * i
            out[lane, i] = b[lane // 4, first : first + per]
    return np.ascontiguousarray(out).view(np.uint32).reshape(32, count)


def c_registers(c: np.ndarray) -> np.ndarray:
    """(32, 4) elements of C (16, 8)."""
    out = np.zeros((32, 4), c.dtype)
    for lane in range(32):
        for i in range(4):
            out[lane, i] = c[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]
    return out


CASES = [
    ("bf16", 16),
    ("bf16", 8),
    ("f16", 16),
    ("f16", 8),
    ("tf32", 8),
    ("tf32", 4),
    ("e4m3", 32),
    ("e5m2", 32),
]


def operand(rng: np.random.Generator, kind: str, rows: int, k: int) -> np.ndarray:
    if kind == "bf16":
        return bf16(rng, rows, k)
    values = rng.standard_normal((rows, k)).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return values.view(np.uint32) if kind == "tf32" else getattr(numerics, f"f32_to_{kind}")(values)


@pytest.mark.parametrize("kind, k", CASES)
def test_f32_accumulators(kind: str, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = operand(rng, kind, 16, k), operand(rng, kind, 8, k)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    out = np.zeros((32, 4), np.float32)
    registers = a_registers(a)
    source = text(k, f"f32.{kind}.{kind}.f32", registers.shape[1], 4)
    run(source, [registers, b_registers(b), c_registers(c), out], block=32)
    want = c + to_float(a, kind).astype(np.float64) @ to_float(b, kind).astype(np.float64).T
    tolerance = 2.0**-10 if kind.startswith("e") else 2.0**-20
    np.testing.assert_allclose(out, c_registers(want), rtol=tolerance, atol=32 * tolerance)


@pytest.mark.parametrize("k", [8, 16])
def test_f16_accumulators(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = operand(rng, "f16", 16, k), operand(rng, "f16", 8, k)
    c = rng.standard_normal((16, 8)).astype(np.float16)
    out = np.zeros((32, 4), np.float16)
    registers = a_registers(a)
    run(
        text(k, "f16.f16.f16.f16", registers.shape[1], 2),
        [registers, b_registers(b), c_registers(c), out],
        block=32,
    )
    want = c + to_float(a, "f16") @ to_float(b, "f16").T
    np.testing.assert_array_equal(out, c_registers(want.astype(np.float16)))


@pytest.mark.parametrize(
    "change, message",
    [
        (("f32.bf16.bf16.f32", "f16.bf16.bf16.f16"), "f32 accumulators only"),
        (("k16", "k32"), "no such combination"),
        (("row.col", "col.col"), "no emulation"),
        (("f32.bf16.bf16.f32", "f32.bf16.f16.f32"), "no such combination"),
        (("{%r10, %r11, %r12, %r13}", "{%r10, %r11}"), "registers"),
    ],
)
def test_illegal_text_is_refused(change: tuple[str, str], message: str) -> None:
    source = text(16, "f32.bf16.bf16.f32", 4, 4).replace(*change)
    zeros = np.zeros((32, 4), np.uint32)
    with pytest.raises(EmulatorError, match=message):
        run(source, [zeros, zeros, zeros, zeros.copy()], block=32)
