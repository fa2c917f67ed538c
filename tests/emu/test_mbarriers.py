"""mbarrier objects, in small kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import MBARRIER, SCHEDULES, WAIT, words


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrivals_complete_a_phase(schedule: str) -> None:
    body = (
        MBARRIER.format(count=64)
        + """
  st.shared.u32 [%r7], %r1;
  mbarrier.arrive.shared::cta.b64 _, [%r20];
"""
        + WAIT.format(n=0, parity=0)
        + """
  xor.b32 %r8, %r7, 252;
  ld.shared.u32 %r9, [%r8];
  mbarrier.arrive.shared::cta.b64 %rd9, [%r20];
  cvt.u32.u64 %r11, %rd9;
WAITSTATE:
  mbarrier.test_wait.shared::cta.b64 %p21, [%r20], %rd9;
  @!%p21 bra WAITSTATE;
  mad.lo.u32 %r9, %r11, 100, %r9;
  st.global.u32 [%rd3], %r9;
"""
    )
    assert (words(body, schedule=schedule) == np.arange(64)[::-1] + 100).all()


def test_counts_and_bytes() -> None:
    body = (
        MBARRIER.format(count=3)
        + """
  @%p20 bra DONE;
  mbarrier.arrive.shared::cta.b64 _, [%r20], 2;
  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 16;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 16;
  mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r20], 0;
  mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 32;
  mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r20], 0;
  selp.u32 %r8, 1, 0, %p1;
  selp.u32 %r9, 2, 0, %p2;
  add.u32 %r8, %r8, %r9;
  st.global.u32 [%rd3], %r8;
DONE:
"""
    )
    assert words(body)[0] == 2


def test_drop_lowers_later_phases() -> None:
    body = (
        MBARRIER.format(count=64)
        + """
  setp.lt.u32 %p1, %r1, 32;
  @%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r20];
  @!%p1 mbarrier.arrive.shared::cta.b64 _, [%r20];
"""
        + WAIT.format(n=0, parity=0)
        + """
  @!%p1 mbarrier.arrive.shared::cta.b64 _, [%r20];
"""
        + WAIT.format(n=1, parity=1)
        + "  st.global.u32 [%rd3], %r1;\n"
    )
    assert (words(body, fail_on_findings=False) == np.arange(64)).all()


def test_over_arrival_and_uninitialised_use() -> None:
    with pytest.raises(EmulatorError, match="over-arrival"):
        words(MBARRIER.format(count=10) + "  mbarrier.arrive.shared::cta.b64 _, [%r20], 11;\n")
    with pytest.raises(EmulatorError, match="never initialised"):
        words("  mbarrier.arrive.shared::cta.b64 _, [%r5];\n")
    with pytest.raises(EmulatorError, match="live mbarrier"):
        words(MBARRIER.format(count=1) + "  st.shared.u32 [%r20], %r1;\n")


def test_deadlock_says_what_is_missing() -> None:
    body = (
        MBARRIER.format(count=2)
        + "  @!%p20 mbarrier.arrive.shared::cta.b64 _, [%r20];\n"
        + WAIT.format(n=0, parity=0)
    )
    with pytest.raises(
        DeadlockError, match=r"waits for shared\+0x800 phase 0 of CTA 0; 1 of 2 arrivals missing"
    ):
        words(body)


def test_invalidated_memory_is_memory_again() -> None:
    body = (
        MBARRIER.format(count=1)
        + """
  @%p20 bra DONE;
  mbarrier.inval.shared::cta.b64 [%r20];
  st.shared.u32 [%r20], 5;
  ld.shared.u32 %r9, [%r20];
  st.global.u32 [%rd3], %r9;
DONE:
"""
    )
    assert words(body)[0] == 5
