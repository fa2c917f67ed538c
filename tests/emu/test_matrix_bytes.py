"""ldmatrix and stmatrix of bytes against the bit layouts of CuTe's copy traits, and movmatrix."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import kernel, run

HEAD = """
  ld.param.u64 %rd1, [given]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
  cvt.u64.u32 %rd3, %r3; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4]; mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0;
  mov.u32 %r23, 0;
"""
FILL = "st.shared.v4.u32 [%r4], {%r10, %r11, %r12, %r13}; bar.warp.sync -1;\n"
SHOW = "bar.warp.sync -1; ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r4];\n"
DUMP = "st.global.v4.u32 [%rd5], {%r20, %r21, %r22, %r23};"


def outcome(text: str) -> tuple[np.ndarray, np.ndarray]:
    """(bytes given, bytes given back), both (32, 16)."""
    given = np.random.default_rng(0).integers(0, 256, (32, 16)).astype(np.uint8)
    out = np.zeros_like(given)
    run(kernel(HEAD + text + DUMP, (".u64 given", ".u64 out"), arch="sm_100a"), [given, out], block=32)
    return given, out


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_store(count: int) -> None:
    """CuTe: bit 256 (t % 4) + 8 (t / 4) + 128 (j % 2) + 64 (j / 2) + 1024 i of the rows of all matrices."""
    clear = FILL.replace("%r10, %r11, %r12, %r13", "%r20, %r20, %r20, %r20")
    text = f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r4], {registers(10, count)};\n"
    given, out = outcome(clear + text + SHOW)
    want = np.zeros(512, np.uint8)
    for t in range(32):
        for i in range(count):
            for j in range(4):
                bit = 256 * (t % 4) + 8 * (t // 4) + 128 * (j % 2) + 64 * (j // 2) + 1024 * i
                want[bit // 8] = given[t, 4 * i + j]
    np.testing.assert_array_equal(out.reshape(-1), want)


@pytest.mark.parametrize("count", [1, 2])
def test_load(count: int) -> None:
    """CuTe names rows so that lane l has row l % 2 + 8 (l / 2 % 2) + 2 (l / 4 % 4); swaps middle bytes."""
    text = f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {registers(20, 2 * count)}, [%r4];\n"
    given, out = outcome(FILL + text)
    for t in range(32):
        for i in range(count):
            raw = out[t, 8 * i : 8 * i + 8]
            cute = [*raw[0:2], *raw[4:6], *raw[2:4], *raw[6:8]]
            for v in range(8):
                k, j = divmod(v, 4)
                bit = 256 * (t % 4) + 8 * (t // 4) + 128 * (j % 2) + 64 * (j // 2) + 1024 * k
                row = bit // 128
                lane = row % 2 + 2 * (row // 8) + 4 * (row % 8 // 2) + 16 * i
                assert cute[v] == given[lane, bit % 128 // 8]


def test_movmatrix_transposes() -> None:
    given, out = outcome("movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10;\n")
    matrix = np.ascontiguousarray(given[:, :4]).view(np.uint16).reshape(8, 8)
    np.testing.assert_array_equal(np.ascontiguousarray(out[:, :4]).view(np.uint16).reshape(8, 8), matrix.T)


@pytest.mark.parametrize(
    "text, message",
    [
        ("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r20, %r21}, [%r4];", "one of x1, x2"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r20}, [%r4];", "2 are needed"),
        ("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r4+8], {%r10};", "multiple of 16"),
    ],
)
def test_misuse_is_refused(text: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        outcome(FILL + text)
