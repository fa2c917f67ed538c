"""cp.async, ldmatrix and stmatrix, in small kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emu.small_kernels import MBARRIER, SCHEDULES, WAIT, words


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async_groups(schedule: str) -> None:
    source = np.arange(64 * 8, dtype=np.uint32)
    body = """
  ld.param.u64 %rd4, [in0];
  mul.wide.u32 %rd5, %r1, 32;
  add.s64 %rd6, %rd4, %rd5;
  shl.b32 %r8, %r1, 5;
  add.s32 %r9, %r5, %r8;
  cp.async.cg.shared.global [%r9], [%rd6], 16;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r9+16], [%rd6+16], 8, 4;
  cp.async.commit_group;
  cp.async.wait_group 1;
  ld.shared.u32 %r10, [%r9+12];
  cp.async.wait_all;
  ld.shared.u32 %r11, [%r9+16];
  ld.shared.u32 %r12, [%r9+20];
  add.u32 %r10, %r10, %r11;
  add.u32 %r10, %r10, %r12;
  st.global.u32 [%rd3], %r10;
"""
    got = words(body, inputs=[source], schedule=schedule)
    assert (got == 16 * np.arange(64) + 7).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async_arrives_on_an_mbarrier(schedule: str) -> None:
    source = np.arange(64, dtype=np.uint32)
    body = (
        MBARRIER.format(count=64)
        + """
  ld.param.u64 %rd4, [in0];
  mul.wide.u32 %rd5, %r1, 4;
  add.s64 %rd6, %rd4, %rd5;
  cp.async.ca.shared.global [%r7], [%rd6], 4;
  cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r20];
"""
        + WAIT.format(n=0, parity=0)
        + """
  xor.b32 %r8, %r7, 252;
  ld.shared.u32 %r9, [%r8];
  st.global.u32 [%rd3], %r9;
"""
    )
    assert (words(body, inputs=[source], schedule=schedule) == np.arange(64)[::-1]).all()


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrix_loads_and_stores(trans: str) -> None:
    """stmatrix of fragments, then ldmatrix: matrices come back, transposed once if one of both transposes."""
    body = f"""
  shl.b32 %r8, %r1, 4;
  add.s32 %r9, %r5, %r8;
  mul.lo.u32 %r10, %r1, 0x00020002;
  add.u32 %r11, %r10, 0x00010000;
  stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9], {{%r11}};
  bar.warp.sync -1;
  ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%r12}}, [%r9];
  st.global.u32 [%rd3], %r12;
"""
    got = words(body, threads=32).view(np.uint16).reshape(8, 8)
    matrix = np.arange(64).reshape(8, 8)
    assert (got == (matrix.T if trans else matrix)).all()


def test_four_matrices() -> None:
    body = """
  shl.b32 %r8, %r1, 4;
  add.s32 %r9, %r5, %r8;
  add.u32 %r11, %r1, 1000;
  add.u32 %r12, %r1, 2000;
  add.u32 %r13, %r1, 3000;
  stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9], {%r1, %r11, %r12, %r13};
  bar.warp.sync -1;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r14, %r15, %r16, %r17}, [%r9];
  ld.shared.u32 %r18, [%r5+256];
  sub.u32 %r19, %r17, %r15;
  add.u32 %r19, %r19, %r14;
  add.u32 %r19, %r19, %r18;
  st.global.u32 [%rd3], %r19;
"""
    assert (words(body, threads=32) == 4000 + np.arange(32)).all()
