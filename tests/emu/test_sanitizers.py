"""Every sanitizer has a kernel that trips it and one, as close as possible, that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.emu.checks import CheckOptions
from mlagen.emu.findings import SanitizerError
from mlagen.emu.names import Names, Region
from tests.emu.small_kernels import MBARRIER, SCHEDULES, THREAD, WAIT, kernel, run


def kinds(body: str, threads: int = 64, inputs: Any = (), **options: Any) -> set[str]:
    """Kinds of findings of a body after THREAD."""
    params = [".u64 out", *(f".u64 in{i}" for i in range(len(inputs)))]
    out = np.zeros(1024, np.uint32)
    result = run(
        kernel(THREAD + body, params), [out, *inputs], block=threads, fail_on_findings=False, **options
    )
    return result.findings.kinds()


# ------------------------------------------------------------------ races


def exchange(between: str) -> str:
    return f"""
  st.shared.u32 [%r7], %r1;
  {between}
  xor.b32 %r8, %r7, 252;
  ld.shared.u32 %r9, [%r8];
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_race_without_a_barrier(schedule: str) -> None:
    assert "race" in kinds(exchange(""), schedule=schedule)
    assert kinds(exchange("bar.sync 0;"), schedule=schedule) == set()


def test_a_barrier_of_one_warp_does_not_order_two() -> None:
    assert "race" in kinds(exchange("bar.warp.sync -1;"))


def test_race_of_a_read_and_a_later_write() -> None:
    body = exchange("bar.sync 0;") + "{}  st.shared.u32 [%r7], 5;\n"
    assert kinds(body.format("")) == {"race"}
    assert kinds(body.format("  bar.sync 0;\n")) == set()


def test_neighbouring_words_do_not_race() -> None:
    assert kinds("  st.shared.u32 [%r7], %r1;\n  ld.shared.u32 %r8, [%r7];\n") == set()


def test_race_names_both_sides_and_the_place() -> None:
    names = Names(regions=(Region("probs", 0, 4096, 2, True),), roles=(("left", 0, 1), ("right", 1, 1)))
    out = np.zeros(64, np.uint32)
    with pytest.raises(SanitizerError, match=r"probs\+0x\w+ of CTA 0: .* by CTA 0 warp \d \((left|right)\)"):
        run(kernel(THREAD + exchange(""), [".u64 out"]), [out], block=64, names=names)


def test_acquire_and_release_through_memory_order_accesses() -> None:
    body = """
  ld.param.u64 %rd4, [in0];
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra READER;
  st.shared.u32 [%r7], %r1;
  bar.warp.sync -1;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 {store} [%rd4], 1;
  bra END;
READER:
  {load} %r9, [%rd4];
  setp.eq.u32 %p3, %r9, 0;
  @%p3 bra READER;
  {after}
  ld.shared.u32 %r10, [%r7+-128];
END:
"""
    good = {"store": "st.release.cta.global.u32", "load": "ld.acquire.cta.global.u32", "after": ""}
    assert kinds(body.format(**good), inputs=[np.zeros(1, np.uint32)]) == set()
    weak = {**good, "store": "st.relaxed.cta.global.u32"}
    assert kinds(body.format(**weak), inputs=[np.zeros(1, np.uint32)]) == {"race"}
    late = {**good, "load": "ld.relaxed.cta.global.u32"}
    assert kinds(body.format(**late), inputs=[np.zeros(1, np.uint32)]) == {"race"}
    fenced = {**late, "after": "fence.acq_rel.cta;"}
    assert kinds(body.format(**fenced), inputs=[np.zeros(1, np.uint32)]) == set()


def test_races_can_be_switched_off() -> None:
    assert kinds(exchange(""), schedule="lockstep", checks=CheckOptions(race=False)) <= {"unwritten"}


# ------------------------------------------------------------------ proxies


def bulk_store(fence: str) -> str:
    return f"""
  st.shared.u32 [%r7], %r1;
  {fence}
  bar.sync 0;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra END;
  cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r5], 256;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
END:
"""


def test_missing_proxy_fence() -> None:
    assert kinds(bulk_store("")) == {"proxy"}
    assert kinds(bulk_store("fence.proxy.async.shared::cta;")) == set()


def test_a_fence_before_the_store_does_not_help() -> None:
    body = bulk_store("").replace("  st.shared.u32", "  fence.proxy.async.shared::cta;\n  st.shared.u32", 1)
    assert kinds(body) == {"proxy"}


def test_a_fence_after_the_barrier_covers_all_threads() -> None:
    body = bulk_store("").replace("  setp.ne", "  fence.proxy.async.shared::cta;\n  setp.ne", 1)
    assert kinds(body) == set()


def overwritten(fence: str) -> str:
    """Ordinary stores, then a bulk load over them."""
    return (
        """
  ld.param.u64 %rd4, [in0];
  add.s32 %r20, %r5, 1024;
  st.shared.u32 [%r7], %r1;
"""
        + fence
        + """
  bar.sync 0;
  setp.ne.u32 %p20, %r1, 0;
  @%p20 bra END;
  mbarrier.init.shared::cta.b64 [%r20], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd4], 256, [%r20];
END:
"""
    )


def test_missing_proxy_fence_before_an_overwrite() -> None:
    source = [np.arange(64, dtype=np.uint32)]
    assert kinds(overwritten(""), inputs=source) == {"proxy"}
    assert kinds(overwritten("  fence.proxy.async.shared::cta;\n"), inputs=source) == set()


# ------------------------------------------------------------------ wgmma


def product(after: str, fence: str) -> str:
    """A wgmma over zeros, a wait, `after`, and a second wgmma behind `fence`."""
    registers = ", ".join(f"%f{i}" for i in range(4))
    mma = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{registers}}}, %rd8, %rd8, %p9, 1, 1, 0, 0;"
    done = "  wgmma.commit_group.sync.aligned;\n  wgmma.wait_group.sync.aligned 0;\n"
    return f"""
  shl.b32 %r8, %r1, 4;
  add.s32 %r9, %r5, %r8;
  st.shared.v4.u32 [%r9], {{0, 0, 0, 0}};
  fence.proxy.async.shared::cta;
  bar.sync 0;
  setp.ne.u32 %p9, 1, 0;
  cvt.u64.u32 %rd8, %r5;
  and.b64 %rd8, %rd8, 262143;
  shr.u64 %rd8, %rd8, 4;
  or.b64 %rd8, %rd8, 0x0000001000080000;
  wgmma.fence.sync.aligned;
  {mma}
{done}
  {after}
  {fence}
  {mma}
{done}
  st.global.f32 [%rd3], %f0;
"""


@pytest.mark.parametrize(
    ("after", "needed"),
    [
        ("", False),
        ("add.f32 %f9, %f1, %f2;", True),
        ("mov.f32 %f1, 0f00000000;", True),
        ("mov.f32 %f9, 0f0;", False),
    ],
)
def test_wgmma_fence_after_registers_are_used(after: str, needed: bool) -> None:
    after = after.replace("0f0;", "0f00000000;")
    assert kinds(product(after, "wgmma.fence.sync.aligned;"), threads=128) == set()
    assert kinds(product(after, ""), threads=128) == ({"wgmma"} if needed else set())


# ------------------------------------------------------------------ never-written memory


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("", set()),
        ("  add.u32 %r9, %r8, 1;\n", set()),
        ("  setp.eq.u32 %p1, %r1, 99;\n  selp.u32 %r9, %r8, 3, %p1;\n  st.global.u32 [%rd3], %r9;\n", set()),
        ("  st.global.u32 [%rd3], %r8;\n", {"unwritten"}),
        ("  add.u32 %r9, %r8, 1;\n  st.global.u32 [%rd3], %r9;\n", {"unwritten"}),
        ("  setp.eq.u32 %p1, %r8, 0;\n  @%p1 bra END;\n", {"unwritten"}),
        (
            "  and.b32 %r9, %r8, 124;\n  add.u32 %r9, %r5, %r9;\n  ld.shared.u32 %r10, [%r9+512];\n",
            {"unwritten"},
        ),
        ("  mov.u32 %r8, 5;\n  st.global.u32 [%rd3], %r8;\n", set()),
    ],
)
def test_never_written_values_count_when_they_matter(use: str, found: set[str]) -> None:
    assert kinds(f"  ld.shared.u32 %r8, [%r7];\n{use}END:\n", threads=32) == found
    assert (
        kinds(
            "  st.shared.u32 [%r7], 0;\n  st.shared.u32 [%r7+512], 0;\n  bar.warp.sync -1;\n"
            f"  ld.shared.u32 %r8, [%r7];\n{use}END:\n",
            threads=32,
        )
        == set()
    )


@pytest.mark.parametrize(("used", "found"), [(8, set()), (9, set()), (10, {"unwritten"}), (11, set())])
def test_only_never_written_elements_of_a_vector_count(used: int, found: set[str]) -> None:
    body = f"""
  mul.lo.u32 %r6, %r1, 16;
  add.s32 %r7, %r5, %r6;
  st.shared.v2.u32 [%r7], {{0, 0}};
  st.shared.u32 [%r7+12], 0;
  ld.shared.v4.u32 {{%r8, %r9, %r10, %r11}}, [%r7];
  st.global.u32 [%rd3], %r{used};
"""
    assert kinds(body, threads=32) == found


def test_never_written_global_memory() -> None:
    from mlagen.emu.emulator import Emulator

    for written in (True, False):
        emulator = Emulator(
            kernel(THREAD + "  ld.global.u32 %r8, [%rd3];\n  st.global.u32 [%rd3], %r8;\n", [".u64 out"])
        )
        array = emulator.array(np.zeros(64, np.uint32), "x", written=written)
        result = emulator.launch("k", block=64, args=[array], fail_on_findings=False)
        assert result.findings.kinds() == (set() if written else {"unwritten"})


# ------------------------------------------------------------------ mbarriers


def loads(fence: str = "fence.mbarrier_init.release.cluster;", barrier: str = "bar.sync 0;") -> str:
    return (
        f"""
  ld.param.u64 %rd4, [in0];
  add.s32 %r20, %r5, 1024;
  setp.ne.u32 %p20, %r1, 0;
  @%p20 bra READY;
  mbarrier.init.shared::cta.b64 [%r20], 1;
  {fence}
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd4], 256, [%r20];
READY:
  {barrier}
"""
        + WAIT.format(n=0, parity=0)
        + """
  ld.shared.u32 %r9, [%r7];
  st.global.u32 [%rd3], %r9;
"""
    )


def test_missing_mbarrier_fence() -> None:
    source = [np.arange(64, dtype=np.uint32)]
    assert kinds(loads(), inputs=source) == set()
    assert kinds(loads(fence=""), inputs=source) == {"fence"}


def test_mbarrier_used_before_its_initialisation_is_ordered() -> None:
    found = kinds(loads(barrier=""), threads=64, inputs=[np.arange(64, dtype=np.uint32)])
    assert found == {"race"}


def ring(consumer_wait: bool) -> str:
    """Warp 0 completes two phases; warp 1 waits for both; without the second barrier nothing keeps the phases
    apart.
    """
    hold = "  mbarrier.arrive.shared::cta.b64 _, [%r21];\n" if consumer_wait else ""
    wait = (
        WAIT.replace("%r20", "%r21").format(n=7, parity=0) if consumer_wait else "  bar.warp.sync -1;\n" * 20
    )
    return (
        MBARRIER.format(count=1)
        + f"""
  add.s32 %r21, %r20, 8;
  @!%p20 mbarrier.init.shared::cta.b64 [%r21], 32;
  bar.sync 0;
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra CONSUMER;
  @!%p20 mbarrier.arrive.shared::cta.b64 _, [%r20];
{wait}
  @!%p20 mbarrier.arrive.shared::cta.b64 _, [%r20];
  bra END;
CONSUMER:
"""
        + WAIT.format(n=0, parity=0)
        + hold
        + WAIT.format(n=1, parity=1)
        + "END:\n"
    )


def test_phases_that_can_run_around_a_waiter() -> None:
    assert kinds(ring(True), schedule="lockstep") == set()
    assert kinds(ring(False), schedule="lockstep") == {"phase"}


# ------------------------------------------------------------------ schedules


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_results_do_not_depend_on_the_schedule(schedule: str) -> None:
    source = np.arange(64, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    text = kernel(THREAD + loads(), [".u64 out", ".u64 in0"])
    run(text, [out, source], block=64, schedule=schedule)
    assert (out == source).all()


def test_findings_are_grouped_and_counted() -> None:
    out = np.zeros(64, np.uint32)
    text = kernel(THREAD + exchange(""), [".u64 out"])
    found = run(
        text, [out], block=256, dynamic_shared=2048, schedule="lockstep", fail_on_findings=False
    ).findings
    races = [f for f in found.counts if f.kind == "race"]
    assert 1 <= len(races) <= 4
    assert sum(found.counts[f] for f in races) >= 4
