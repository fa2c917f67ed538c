"""Carry chains against Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emu.small_kernels import kernel, run

BODY = """
  ld.param.u64 %rd1, [given]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x;
  mad.wide.u32 %rd3, %r1, 16, %rd1; mad.wide.u32 %rd4, %r1, 16, %rd2;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3];
  CODE
  st.global.v4.u32 [%rd4], {%r10, %r11, %r12, %r13};"""

ADD = """add.cc.u32 %r10, %r4, %r6; addc.cc.u32 %r11, %r5, %r7; addc.u32 %r12, 0, 0; mov.u32 %r13, 0;"""
SUB = """sub.cc.u32 %r10, %r4, %r6; subc.cc.u32 %r11, %r5, %r7; subc.u32 %r12, 0, 0; mov.u32 %r13, 0;"""
MUL = """
  mul.lo.u32 %r10, %r4, %r6; mul.hi.u32 %r11, %r4, %r6;
  mad.lo.cc.u32 %r11, %r5, %r6, %r11; madc.hi.u32 %r12, %r5, %r6, 0;
  mad.lo.cc.u32 %r11, %r4, %r7, %r11; madc.hi.cc.u32 %r12, %r4, %r7, %r12; addc.u32 %r13, 0, 0;
  mad.lo.cc.u32 %r12, %r5, %r7, %r12; madc.hi.u32 %r13, %r5, %r7, %r13;"""


@pytest.mark.parametrize("code", [ADD, SUB, MUL], ids=["add", "sub", "mul"])
def test_wide_arithmetic(code: str) -> None:
    rng = np.random.default_rng(0)
    given = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    given[:8] = rng.choice(np.array([0, 1, 2**32 - 1, 2**31], np.uint32), (8, 4))
    out = np.zeros_like(given)
    run(kernel(BODY.replace("CODE", code), (".u64 given", ".u64 out")), [given, out], block=32)
    for row, got in zip(given.tolist(), out.tolist(), strict=True):
        a, b = row[0] | row[1] << 32, row[2] | row[3] << 32
        want = {ADD: a + b, SUB: (a - b) % 2**96, MUL: a * b}[code]
        assert [want >> 32 * i & 0xFFFFFFFF for i in range(4)] == got


def test_each_lane_has_its_own_carry() -> None:
    code = "setp.lt.u32 %p1, %r1, 16; @%p1 add.cc.u32 %r10, -1, 1; addc.u32 %r11, 0, 0; mov.u32 %r10, 0;"
    code += " mov.u32 %r12, 0; mov.u32 %r13, 0;"
    out = np.zeros((32, 4), np.uint32)
    run(kernel(BODY.replace("CODE", code), (".u64 given", ".u64 out")), [out.copy(), out], block=32)
    np.testing.assert_array_equal(out[:, 1], np.arange(32) < 16)


@pytest.mark.parametrize(
    "mode, bytes_of",
    [
        ("f4e", lambda c: [c, c + 1, c + 2, c + 3]),
        ("b4e", lambda c: [(c - k) % 8 for k in range(4)]),
        ("rc8", lambda c: [c] * 4),
        ("ecl", lambda c: [max(k, c) for k in range(4)]),
        ("ecr", lambda c: [min(k, c) for k in range(4)]),
        ("rc16", lambda c: [2 * (c % 2), 2 * (c % 2) + 1] * 2),
    ],
)
def test_modes_of_prmt(mode: str, bytes_of: object) -> None:
    """The PTX ISA's tables as formulas: extract forwards, backwards, replicate, clamp at an edge."""
    given = np.zeros((32, 4), np.uint32)
    given[:, 0], given[:, 1], given[:, 2] = 0x13121110, 0x17161514, np.arange(32)
    out = np.zeros_like(given)
    code = f"prmt.b32.{mode} %r10, %r4, %r5, %r6; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0;"
    run(kernel(BODY.replace("CODE", code), (".u64 given", ".u64 out")), [given, out], block=32)
    for control, word in zip(given[:, 2].tolist(), out[:, 0].tolist(), strict=True):
        assert [b - 0x10 for b in int(word).to_bytes(4, "little")] == bytes_of(control % 4)  # type: ignore[operator]


def test_saturated_sums() -> None:
    given = np.array([[0x7FFFFFFF, 1, 0, 0], [0x80000000, 1, 0, 0], [5, 0xFFFFFFFA, 0, 0]] * 10, np.uint32)
    given = np.concatenate([given, given[:2]])
    out = np.zeros_like(given)
    code = "add.sat.s32 %r10, %r4, %r5; sub.sat.s32 %r11, %r4, %r5; mov.u32 %r12, 0; mov.u32 %r13, 0;"
    run(kernel(BODY.replace("CODE", code), (".u64 given", ".u64 out")), [given, out], block=32)
    a, b = (given[:, i].view(np.int32).astype(np.int64) for i in (0, 1))
    low, high = -(2**31), 2**31 - 1
    np.testing.assert_array_equal(out[:, 0].view(np.int32), np.clip(a + b, low, high))
    np.testing.assert_array_equal(out[:, 1].view(np.int32), np.clip(a - b, low, high))
