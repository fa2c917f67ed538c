"""Named and cluster barriers, remote shared memory, the register pool, in small kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import SCHEDULES, WAIT, words


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync 3, 64;", "bar.cta.sync 1;"])
def test_exchange_through_a_barrier(barrier: str, schedule: str) -> None:
    body = f"""
  st.shared.u32 [%r7], %r1;
  {barrier}
  xor.b32 %r8, %r7, 252;
  ld.shared.u32 %r9, [%r8];
  st.global.u32 [%rd3], %r9;
"""
    assert (words(body, schedule=schedule) == np.arange(64)[::-1]).all()


def test_arrive_does_not_wait_and_sync_does() -> None:
    body = """
  setp.lt.u32 %p1, %r1, 32;
  @%p1 bra FIRST;
  st.shared.u32 [%r7], %r1;
  bar.arrive 2, 64;
  bra END;
FIRST:
  bar.sync 2, 64;
  ld.shared.u32 %r9, [%r7+128];
  st.global.u32 [%rd3], %r9;
END:
"""
    for schedule in SCHEDULES:
        assert (words(body, schedule=schedule)[:32] == np.arange(32, 64)).all()


def test_barrier_reduction() -> None:
    body = """
  and.b32 %r8, %r1, 3;
  setp.eq.u32 %p1, %r8, 0;
  bar.red.popc.u32 %r9, 1, 64, %p1;
  bar.red.or.pred %p2, 1, 64, %p1;
  bar.red.and.pred %p3, 1, 64, %p1;
  selp.u32 %r10, 100, 0, %p2;
  selp.u32 %r11, 1000, 0, %p3;
  add.u32 %r9, %r9, %r10;
  add.u32 %r9, %r9, %r11;
  st.global.u32 [%rd3], %r9;
"""
    assert (words(body) == 116).all()


def test_missing_thread_is_a_deadlock_that_names_the_barrier() -> None:
    body = "  setp.lt.u32 %p1, %r1, 32;\n  @%p1 bar.sync 5, 64;\n"
    with pytest.raises(DeadlockError, match="named barrier 5 of CTA 0: 32 of 64 threads arrived"):
        words(body)


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(EmulatorError, match="multiple of 32"):
        words("  bar.sync 1, 48;\n")
    body = "  setp.lt.u32 %p1, %r1, 32;\n  @%p1 bar.arrive 1, 64;\n  @!%p1 bar.sync 1, 32;\n"
    with pytest.raises(EmulatorError, match="in one phase"):
        words(body)


def test_divergent_lanes_meet_at_a_warp_barrier() -> None:
    body = """
  setp.lt.u32 %p1, %r1, 7;
  @%p1 bra LOW;
  st.shared.u32 [%r7], %r1;
  bar.warp.sync -1;
  bra JOIN;
LOW:
  bar.warp.sync -1;
  ld.shared.u32 %r9, [%r7+64];
  st.global.u32 [%rd3], %r9;
JOIN:
"""
    assert (words(body, threads=32)[:7] == np.arange(16, 23)).all()


# ------------------------------------------------------------------ clusters


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cluster_barrier_and_remote_shared_memory(schedule: str) -> None:
    body = """
  mov.u32 %r10, %cluster_ctarank;
  xor.b32 %r11, %r10, 1;
  mapa.shared::cluster.u32 %r12, %r7, %r11;
  st.shared::cluster.u32 [%r12], %r4;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  ld.shared.u32 %r9, [%r7];
  ld.shared::cluster.u32 %r13, [%r12];
  shl.b32 %r13, %r13, 8;
  or.b32 %r9, %r9, %r13;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  st.global.u32 [%rd3], %r9;
"""
    own = np.arange(64)
    peer = np.concatenate([own[32:], own[:32]])
    got = words(body, threads=32, ctas=2, cluster=2, schedule=schedule)
    assert (got == (peer | own << 8)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_remote_arrive_and_st_async(schedule: str) -> None:
    body = (
        """
  add.s32 %r20, %r5, 1024;
  setp.ne.u32 %p20, %r1, 0;
  @%p20 bra READY;
  mbarrier.init.shared::cta.b64 [%r20], 2;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 128;
READY:
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  mov.u32 %r10, %cluster_ctarank;
  xor.b32 %r11, %r10, 1;
  mapa.shared::cluster.u32 %r12, %r7, %r11;
  mapa.shared::cluster.u32 %r21, %r20, %r11;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r12], %r4, [%r21];
  @!%p20 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r21];
"""
        + WAIT.format(n=0, parity=0)
        + """
  ld.shared.u32 %r9, [%r7];
  st.global.u32 [%rd3], %r9;
"""
    )
    got = words(body, threads=32, ctas=2, cluster=2, schedule=schedule)
    assert (got == np.concatenate([np.arange(32, 64), np.arange(32)])).all()


def test_generic_addresses_reach_every_space() -> None:
    body = """
  cvt.u64.u32 %rd4, %r7;
  cvta.shared.u64 %rd5, %rd4;
  st.u32 [%rd5], %r1;
  isspacep.shared %p1, %rd5;
  isspacep.global %p2, %rd3;
  isspacep.shared %p3, %rd3;
  ld.u32 %r9, [%rd5];
  selp.u32 %r10, 100, 0, %p1;
  selp.u32 %r11, 1000, 0, %p2;
  selp.u32 %r12, 10000, 0, %p3;
  add.u32 %r9, %r9, %r10;
  add.u32 %r9, %r9, %r11;
  add.u32 %r9, %r9, %r12;
  st.u32 [%rd3], %r9;
"""
    assert (words(body) == np.arange(64) + 1100).all()


def test_cluster_coordinates() -> None:
    body = """
  mov.u32 %r8, %cluster_ctarank;
  mov.u32 %r9, %clusterid.x;
  mov.u32 %r10, %cluster_nctaid.x;
  mov.u32 %r11, %nclusterid.x;
  mad.lo.u32 %r8, %r9, 10, %r8;
  mad.lo.u32 %r8, %r10, 100, %r8;
  mad.lo.u32 %r8, %r11, 1000, %r8;
  st.global.u32 [%rd3], %r8;
"""
    got = words(body, threads=32, ctas=4, cluster=2)
    assert got[::32].tolist() == [2200, 2201, 2210, 2211]


# ------------------------------------------------------------------ registers


def _hand_over(dec: int, inc: int) -> str:
    return f"""
  .reg .pred %q;
  setp.lt.u32 %q, %r1, 128;
  @%q bra TAKE;
  setmaxnreg.dec.sync.aligned.u32 {dec};
  bra DONE;
TAKE:
  setmaxnreg.inc.sync.aligned.u32 {inc};
DONE:
  st.global.u32 [%rd3], %r1;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_registers_come_from_the_pool_of_the_launch(schedule: str) -> None:
    """384 threads start with 168 registers each: 184 + 2 x 160 fit, 176 + 2 x 168 wait for ever."""
    assert (words(_hand_over(160, 184), threads=384, schedule=schedule) == np.arange(384)).all()
    with pytest.raises(EmulatorError, match=r"setmaxnreg.inc 176: .* at most 168 registers a thread"):
        words(_hand_over(168, 176), threads=384, schedule=schedule)


def test_register_counts() -> None:
    assert (
        words("  setmaxnreg.inc.sync.aligned.u32 184;\n  st.global.u32 [%rd3], %r1;\n", threads=128) < 128
    ).all()
    with pytest.raises(EmulatorError, match="multiple of 8"):
        words("  setmaxnreg.dec.sync.aligned.u32 25;\n", threads=128)
