"""Order between lanes of a warp, what one lane's release covers, scopes, and parts of wgmmas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.emu.checks import CheckOptions
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import MBARRIER, THREAD, WAIT, kernel, run
from tests.emu.test_sanitizers import kinds

# ------------------------------------------------------------------ lanes of one warp


def neighbours(between: str) -> str:
    """Every lane stores its word and reads its neighbour's."""
    return f"""
  st.shared.u32 [%r7], %r1;
  {between}
  xor.b32 %r8, %r7, 4;
  ld.shared.u32 %r9, [%r8];
  st.global.u32 [%rd3], %r9;
"""


def test_a_lane_reads_what_another_lane_wrote() -> None:
    assert kinds(neighbours(""), threads=32) == {"race"}
    assert kinds(neighbours("bar.warp.sync -1;"), threads=32) == set()
    assert kinds(neighbours("bar.sync 0;"), threads=32) == set()


def test_a_lane_overwrites_what_another_lane_read() -> None:
    body = """
  st.shared.u32 [%r7], %r1;
  bar.warp.sync -1;
  ld.shared.u32 %r9, [%r5];
  {}
  setp.eq.u32 %p1, %r1, 0;
  @%p1 st.shared.u32 [%r5], 7;
  st.global.u32 [%rd3], %r9;
"""
    assert kinds(body.format(""), threads=32) == {"race"}
    assert kinds(body.format("bar.warp.sync -1;"), threads=32) == set()


def test_lanes_may_use_their_own_words_without_a_barrier() -> None:
    body = """
  st.shared.u32 [%r7], %r1;
  ld.shared.u32 %r9, [%r7];
  st.shared.u32 [%r7], %r9;
  st.global.u32 [%rd3], %r9;
"""
    assert kinds(body, threads=64) == set()


@pytest.mark.parametrize("missing", ["", "first", "second"])
def test_matrix_loads_read_what_all_lanes_wrote(missing: str) -> None:
    first, second = ("" if missing == which else "bar.warp.sync -1;" for which in ("first", "second"))
    body = f"""
  st.shared.u32 [%r7], %r1;
  {first}
  and.b32 %r8, %r1, 7;
  shl.b32 %r8, %r8, 4;
  add.s32 %r8, %r8, %r5;
  ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r9, [%r8];
  {second}
  st.shared.u32 [%r7], %r9;
"""
    assert kinds(body, threads=32) == ({"race"} if missing else set())


def handed_over(sync: str, arrivals: str = "@!%p20 ", count: int = 1) -> str:
    """Warp 0 stores, arrives on an mbarrier (one lane, or all); warp 1 waits and reads."""
    return (
        MBARRIER.format(count=count)
        + f"""
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra READER;
  st.shared.u32 [%r7], %r1;
  {sync}
  {arrivals}mbarrier.arrive.shared::cta.b64 _, [%r20];
  bra END;
READER:
"""
        + WAIT.format(n=0, parity=0)
        + """
  ld.shared.u32 %r9, [%r7+-128];
  st.global.u32 [%rd3], %r9;
END:
"""
    )


def test_an_arrival_of_one_lane_covers_its_warp_only_behind_a_warp_barrier() -> None:
    assert kinds(handed_over("")) == {"race"}
    assert kinds(handed_over("bar.warp.sync -1;")) == set()


def test_arrivals_of_all_lanes_cover_all_lanes() -> None:
    assert kinds(handed_over("", arrivals="", count=32)) == set()


def test_a_lane_that_wrote_alone_may_arrive_alone() -> None:
    body = handed_over("").replace("  st.shared.u32 [%r7], %r1;", "  @!%p20 st.shared.u32 [%r7], %r1;")
    body = body.replace("ld.shared.u32 %r9, [%r7+-128];", "ld.shared.u32 %r9, [%r5];")
    assert kinds(body) == set()


# ------------------------------------------------------------------ scopes


def flagged(store: str, load: str) -> str:
    """CTA 0 stores data and sets a flag; CTA 1 waits for the flag and reads."""
    return f"""
  ld.param.u64 %rd4, [in0];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra END;
  setp.ne.u32 %p2, %r2, 0;
  @%p2 bra READER;
  st.global.u32 [%rd1], 5;
  {store}
  bra END;
READER:
  {load}
  setp.eq.u32 %p3, %r9, 0;
  @%p3 bra READER;
  ld.global.u32 %r10, [%rd1];
END:
"""


@pytest.mark.parametrize(
    ("store", "load", "found"),
    [
        ("st.release.gpu.global.u32 [%rd4], 1;", "ld.acquire.gpu.global.u32 %r9, [%rd4];", set()),
        ("st.release.cta.global.u32 [%rd4], 1;", "ld.acquire.gpu.global.u32 %r9, [%rd4];", {"race"}),
        ("st.release.gpu.global.u32 [%rd4], 1;", "ld.acquire.cta.global.u32 %r9, [%rd4];", {"race"}),
        (
            "membar.gl;\n  st.relaxed.gpu.global.u32 [%rd4], 1;",
            "ld.relaxed.gpu.global.u32 %r9, [%rd4];\n  fence.acq_rel.gpu;",
            set(),
        ),
        (
            "membar.cta;\n  st.relaxed.gpu.global.u32 [%rd4], 1;",
            "ld.relaxed.gpu.global.u32 %r9, [%rd4];\n  fence.acq_rel.gpu;",
            {"race"},
        ),
        (
            "red.release.gpu.global.add.u32 [%rd4], 1;",
            "ld.acquire.gpu.global.u32 %r9, [%rd4];",
            set(),
        ),
        (
            "red.release.cta.global.add.u32 [%rd4], 1;",
            "ld.acquire.gpu.global.u32 %r9, [%rd4];",
            {"race"},
        ),
    ],
)
def test_scopes_must_reach_the_other_cta(store: str, load: str, found: set[str]) -> None:
    out, flag = np.zeros(64, np.uint32), np.zeros(1, np.uint32)
    text = kernel(THREAD + flagged(store, load), [".u64 out", ".u64 in0"])
    result = run(text, [out, flag], block=32, grid=2, fail_on_findings=False)
    assert result.findings.kinds() == found


def test_cluster_scope_reaches_the_cluster() -> None:
    body = flagged("st.release.cluster.global.u32 [%rd4], 1;", "ld.acquire.cluster.global.u32 %r9, [%rd4];")
    text = kernel(THREAD + body, [".u64 out", ".u64 in0"])
    for cluster, found in ((2, set()), (1, {"race"})):
        arrays: list[Any] = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
        result = run(text, arrays, block=32, grid=2, cluster=cluster, fail_on_findings=False)
        assert result.findings.kinds() == found


# ------------------------------------------------------------------ wgmma: a warp's own part


def reused_operand(barrier: str) -> str:
    """A wgmma of four warps; when warp 0 has waited it overwrites B."""
    registers = ", ".join(f"%f{i}" for i in range(4))
    return f"""
  shl.b32 %r8, %r1, 4;
  add.s32 %r9, %r5, %r8;
  st.shared.v4.u32 [%r9], {{0, 0, 0, 0}};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  cvt.u64.u32 %rd8, %r5;
  and.b64 %rd8, %rd8, 262143;
  shr.u64 %rd8, %rd8, 4;
  or.b64 %rd8, %rd8, 0x0000001000080000;
  setp.ne.u32 %p9, 1, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{registers}}}, %rd8, %rd8, %p9, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  {barrier}
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra END;
  st.shared.u32 [%r7], 1;
END:
"""


@pytest.mark.parametrize("own_part", [False, True])
def test_a_wait_covers_the_warp_or_the_warpgroup(own_part: bool) -> None:
    checks = CheckOptions(own_part=own_part)
    assert kinds(reused_operand(""), threads=128, checks=checks) == ({"race"} if own_part else set())
    assert kinds(reused_operand("bar.sync 0;"), threads=128, checks=checks) == set()


# ------------------------------------------------------------------ schedules


def order_of_two_warps(schedule: str) -> list[int]:
    """Which of 64 tickets each of two warps draws."""
    body = """
  ld.param.u64 %rd4, [in0];
  mov.u32 %r10, 0;
LOOP:
  atom.add.relaxed.gpu.global.u32 %r9, [%rd4], 1;
  add.u32 %r10, %r10, 1;
  setp.lt.u32 %p1, %r10, 60;
  @%p1 bra LOOP;
  st.global.u32 [%rd3], %r9;
"""
    out, counter = np.zeros(64, np.uint32), np.zeros(1, np.uint32)
    run(kernel(THREAD + body, [".u64 out", ".u64 in0"]), [out, counter], block=64, schedule=schedule)
    assert counter[0] == 64 * 60
    return [int(out[31]), int(out[63])]


def test_pauses_let_the_other_warp_finish_first() -> None:
    ends = [order_of_two_warps(f"pause:{seed}") for seed in range(8)]
    assert any(a < b for a, b in ends) and any(a > b for a, b in ends)
    assert ends[0] == order_of_two_warps("pause:0")


def test_a_cta_can_be_starved() -> None:
    body = "  ld.param.u64 %rd4, [in0];\n  atom.add.relaxed.gpu.global.u32 %r9, [%rd4], 1;\n"
    body += "  st.global.u32 [%rd3], %r9;\n"
    text = kernel(THREAD + body, [".u64 out", ".u64 in0"])
    for starved in (0, 1):
        out, counter = np.zeros(64, np.uint32), np.zeros(1, np.uint32)
        run(text, [out, counter], block=32, grid=2, schedule=f"starve:cta{starved}")
        assert (out[32 * starved : 32 * starved + 32] >= 32).all()
    with pytest.raises(EmulatorError, match="no such role"):
        run(text, [np.zeros(64, np.uint32), np.zeros(1, np.uint32)], block=32, schedule="starve:cta7")
