"""Shuffles, votes and reductions of a warp."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import words


def shuffled(mode: str, distance: int, clamp: int) -> np.ndarray:
    """value | (inside << 8) of every lane."""
    body = f"""
  shfl.sync.{mode}.b32 %r9|%p1, %r1, {distance}, {clamp}, -1;
  selp.u32 %r10, 256, 0, %p1;
  or.b32 %r9, %r9, %r10;
  st.global.u32 [%rd3], %r9;
"""
    return words(body, threads=32)


def test_shuffles() -> None:
    lane = np.arange(32)
    assert (shuffled("bfly", 5, 31) == (lane ^ 5 | 256)).all()
    assert (shuffled("idx", 9, 31) == (9 | 256)).all()
    up = np.where(lane >= 3, lane - 3 | 256, lane)
    assert (shuffled("up", 3, 0) == up).all()
    down = np.where(lane + 4 < 32, lane + 4 | 256, lane)
    assert (shuffled("down", 4, 31) == down).all()
    segments = np.where(lane % 8 + 2 < 8, lane + 2 | 256, lane)
    assert (shuffled("down", 2, 24 << 8 | 31) == segments).all()


def test_votes_and_reductions() -> None:
    body = """
  and.b32 %r8, %r1, 1;
  setp.eq.u32 %p1, %r8, 0;
  vote.sync.ballot.b32 %r9, %p1, -1;
  vote.sync.any.pred %p2, %p1, -1;
  vote.sync.all.pred %p3, %p1, -1;
  redux.sync.add.s32 %r10, %r1, -1;
  redux.sync.max.u32 %r11, %r1, -1;
  activemask.b32 %r12;
  match.any.sync.b32 %r13, %r8, -1;
  elect.sync %r14|%p4, -1;
  selp.u32 %r15, 1, 0, %p2;
  selp.u32 %r16, 1, 0, %p3;
  selp.u32 %r17, 1, 0, %p4;
  setp.eq.u32 %p5, %r1, 0;
  selp.u32 %r18, %r9, %r10, %p5;
  setp.eq.u32 %p5, %r1, 2;
  selp.u32 %r18, %r11, %r18, %p5;
  setp.eq.u32 %p5, %r1, 3;
  selp.u32 %r18, %r12, %r18, %p5;
  setp.eq.u32 %p5, %r1, 4;
  selp.u32 %r18, %r13, %r18, %p5;
  setp.eq.u32 %p5, %r1, 5;
  selp.u32 %r18, %r15, %r18, %p5;
  setp.eq.u32 %p5, %r1, 6;
  selp.u32 %r18, %r16, %r18, %p5;
  redux.sync.add.s32 %r19, %r17, -1;
  setp.eq.u32 %p5, %r1, 7;
  selp.u32 %r18, %r19, %r18, %p5;
  st.global.u32 [%rd3], %r18;
"""
    got = words(body, threads=32).tolist()
    assert got[0] == 0x55555555
    assert got[1] == sum(range(32))
    assert got[2:8] == [31, 0xFFFFFFFF, 0x55555555, 1, 0, 1]


def test_divergent_full_mask_is_reported() -> None:
    body = "  setp.lt.u32 %p1, %r1, 8;\n  @%p1 shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;\n"
    with pytest.raises(EmulatorError, match="do not execute it together"):
        words(body, threads=32)
