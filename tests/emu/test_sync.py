"""Barriers, mbarriers, warp-wide exchange, clusters, cp.async, atomics, memory spaces, in small kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import kernel, run

SCHEDULES = ("eager", "lazy", "random:1", "random:2", "lockstep", "starve:1")

THREAD = """
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mad.lo.s32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd2, %r4, 4;
  add.s64 %rd3, %rd1, %rd2;
  mov.u32 %r5, smem;
  shl.b32 %r6, %r1, 2;
  add.s32 %r7, %r5, %r6;
"""
"""%r1 thread, %r2 CTA, %r4 global thread, %rd3 its output word, %r5 shared memory, %r7 the thread's word in
it.
"""


def words(body: str, threads: int = 64, ctas: int = 1, inputs: Any = (), **options: Any) -> np.ndarray:
    """Run a body after THREAD; the output words."""
    params = [".u64 out", *(f".u64 in{i}" for i in range(len(inputs)))]
    out = np.full(threads * ctas, 0xFFFFFFFF, np.uint32)
    run(kernel(THREAD + body, params), [out, *inputs], block=threads, grid=ctas, **options)
    return out


# ------------------------------------------------------------------ named barriers


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


# ------------------------------------------------------------------ mbarriers

MBARRIER = """
  add.s32 %r20, %r5, 1024;
  setp.ne.u32 %p20, %r1, 0;
  @%p20 bra READY;
  mbarrier.init.shared::cta.b64 [%r20], {count};
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
"""
WAIT = """
WAIT{n}:
  mbarrier.try_wait.parity.shared::cta.b64 %p21, [%r20], {parity};
  @!%p21 bra WAIT{n};
"""


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
        DeadlockError, match=r"parity 0 of shared\+0x800 of CTA 0: phase 0, 1 of 2 arrivals missing"
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


# ------------------------------------------------------------------ warp-wide


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


# ------------------------------------------------------------------ memory


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


# ------------------------------------------------------------------ cp.async, ldmatrix, stmatrix


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
