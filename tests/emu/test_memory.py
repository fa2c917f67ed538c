"""Loads, stores and atomics in every space, in small kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import SCHEDULES, THREAD, kernel, run, words


def test_vectors_and_narrow_types() -> None:
    source = np.arange(256, dtype=np.uint32) * 0x01010101
    body = """
  ld.param.u64 %rd4, [in0];
  mul.wide.u32 %rd5, %r1, 16;
  add.s64 %rd6, %rd4, %rd5;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd6];
  ld.global.s8 %r14, [%rd6+1];
  ld.global.u16 %h1, [%rd6+4];
  ld.global.v2.b64 {%rd7, %rd8}, [%rd6];
  cvt.u32.u16 %r15, %h1;
  shl.b32 %r16, %r1, 4;
  add.s32 %r17, %r5, %r16;
  st.shared.v2.b64 [%r17], {%rd7, %rd8};
  ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r17];
  sub.u32 %r24, %r13, %r23;
  add.u32 %r9, %r10, %r24;
  add.u32 %r9, %r9, %r14;
  add.u32 %r9, %r9, %r15;
  st.global.u32 [%rd3], %r9;
"""
    got = words(body, threads=32, inputs=[source])
    for lane in range(32):
        byte = (4 * lane) % 256
        narrow = byte - 256 if byte > 127 else byte
        half = ((4 * lane + 1) % 256) * 0x0101
        assert int(got[lane]) == (4 * lane * 0x01010101 + narrow + half) % 2**32


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("[%rd1+4096]", "unallocated|no allocation|out of bounds"),
        ("[%rd1+2]", "misaligned"),
        ("[%rd1+-4]", "unallocated"),
    ],
)
def test_global_bounds(address: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        words(f"  st.global.u32 {address}, %r1;\n", threads=32)


def test_shared_bounds() -> None:
    with pytest.raises(EmulatorError, match="out of bounds"):
        words("  st.shared.u32 [%r5+1024], %r1;\n", dynamic_shared=1024)
    with pytest.raises(EmulatorError, match="misaligned"):
        words("  st.shared.v2.u32 [%r5+4], {%r1, %r1};\n")
    with pytest.raises(EmulatorError, match="unallocated"):
        words("  st.shared.u32 [%r5+-4], %r1;\n")


def test_local_memory_is_per_lane() -> None:
    text = kernel(
        THREAD
        + """
  .local .align 8 .b8 stack[64];
  mov.u64 %rd4, stack;
  cvta.local.u64 %rd5, %rd4;
  st.local.u32 [%rd4+8], %r1;
  st.u32 [%rd5+12], 7;
  ld.u32 %r8, [%rd5+8];
  ld.local.v2.u32 {%r9, %r10}, [%rd4+8];
  add.u32 %r8, %r8, %r9;
  add.u32 %r8, %r8, %r10;
  st.global.u32 [%rd3], %r8;
""",
        [".u64 out"],
    )
    out = np.zeros(32, np.uint32)
    run(text, [out], block=32)
    assert (out == 2 * np.arange(32) + 7).all()


ATOMICS = [
    ("add.u32", 10, [5], 15), ("add.s32", 2**32 - 1, [3], 2),
    ("min.s32", 5, [2**32 - 1], 2**32 - 1), ("max.u32", 5, [9], 9),
    ("and.b32", 12, [10], 8), ("or.b32", 12, [3], 15), ("xor.b32", 12, [10], 6), ("exch.b32", 1, [77], 77),
    ("cas.b32", 5, [5, 9], 9), ("cas.b32", 6, [5, 9], 6), ("inc.u32", 5, [5], 0), ("inc.u32", 4, [5], 5),
    ("dec.u32", 0, [5], 5), ("add.f32", 0x3F800000, [0x40000000], 0x40400000),
    ("add.noftz.f16x2", 0x3C003C00, [0x3C004000], 0x40004200),
]  # fmt: skip


@pytest.mark.parametrize(("op", "old", "sources", "new"), ATOMICS)
def test_atomics(op: str, old: int, sources: list[int], new: int) -> None:
    target = np.array([old], np.uint32)
    _, kind = op.split(".", 1)
    listed = ", ".join(f"%f{i}" if kind == "f32" else f"%r{20 + i}" for i in range(len(sources)))
    moves = "".join(
        f"  mov.b32 %r{20 + i}, {v};\n  mov.b32 %f{i}, %r{20 + i};\n" for i, v in enumerate(sources)
    )
    result = "%f9" if kind == "f32" else "%r9"
    body = f"""
  setp.ne.u32 %p1, %r1, 3;
  @%p1 bra DONE;
  ld.param.u64 %rd4, [in0];
  st.shared.u32 [%r5], {old};
{moves}
  atom.global.{op} {result}, [%rd4], {listed};
  mov.b32 %r9, {result};
  st.global.u32 [%rd1], %r9;
  atom.shared.{op} {result}, [%r5], {listed};
  ld.shared.u32 %r9, [%r5];
  st.global.u32 [%rd1+4], %r9;
DONE:
"""
    got = words(body, threads=32, inputs=[target])
    assert (int(got[0]), int(got[1]), int(target[0])) == (old, new, new)


def test_atomics_of_many_lanes_add_up() -> None:
    body = "  ld.param.u64 %rd4, [in0];\n  red.global.add.u32 [%rd4], %r4;\n"
    target = np.zeros(1, np.uint32)
    words(body, threads=64, ctas=3, inputs=[target])
    assert target[0] == sum(range(192))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_spinning_on_global_memory_ends(schedule: str) -> None:
    body = """
  ld.param.u64 %rd4, [in0];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra JOIN;
  atom.add.acq_rel.gpu.global.u32 %r8, [%rd4], 1;
SPIN:
  ld.acquire.gpu.global.u32 %r9, [%rd4];
  setp.lt.u32 %p2, %r9, 3;
  @%p2 bra SPIN;
JOIN:
  bar.sync 0;
  st.global.u32 [%rd3], %r4;
"""
    counter = np.zeros(1, np.uint32)
    got = words(body, threads=64, ctas=3, inputs=[counter], schedule=schedule)
    assert (got == np.arange(192)).all()


def test_spinning_forever_is_a_deadlock() -> None:
    body = """
  ld.param.u64 %rd4, [in0];
SPIN:
  ld.acquire.gpu.global.u32 %r9, [%rd4];
  setp.lt.u32 %p2, %r9, 3;
  @%p2 bra SPIN;
"""
    with pytest.raises(DeadlockError, match="runs in circles"):
        words(body, threads=32, inputs=[np.zeros(1, np.uint32)])
