"""tcgen05: allocation, waits, fences, and misuse that is refused or found."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mlagen.emu.findings import SanitizerError
from mlagen.emu.interfaces import EmulatorError
from tests.emu.tcgen05_products import (
    D64,
    Form,
    body,
    launch,
    operands,
)


@pytest.mark.parametrize(
    "change, message",
    [({"wait_st": ""}, "race"), ({"commit_wait": ""}, "race")],
)
def test_missing_waits_are_races(change: dict[str, str], message: str) -> None:
    form = replace(D64, a_tmem=True)
    with pytest.raises(SanitizerError, match=message):
        launch(form, body(form, **change), *operands(form))


def test_registers_used_before_wait_ld_are_a_lint() -> None:
    _, result = launch(D64, body(D64).replace("tcgen05.wait::ld.sync.aligned;", "", 1), *operands(D64))
    assert result.findings.kinds() == {"strict"}
    assert "before tcgen05.wait::ld" in result.findings.text()


@pytest.mark.parametrize(
    "fence, place, message",
    [
        (
            "after",
            0,
            "tcgen05.st of CTA 0 warp [0-3], but its own warp",
        ),  # between the stores and the product
        ("before", 0, "tcgen05.st of CTA 0 warp [0-3], but that one"),
        ("after", 1, "tcgen05 pipe of CTA 0, but its own warp"),  # between the commit and the loads
        ("before", 1, ""),  # nothing but the deallocation follows
    ],
)
def test_missing_tcgen05_fences_are_lints(fence: str, place: int, message: str) -> None:
    parts = body(D64).split(f"tcgen05.fence::{fence}_thread_sync;")
    assert len(parts) == 3
    text = parts[0] + ("" if place == 0 else f"tcgen05.fence::{fence}_thread_sync;") + parts[1]
    text += ("" if place == 1 else f"tcgen05.fence::{fence}_thread_sync;") + parts[2]
    _, result = launch(D64, text, *operands(D64))
    assert result.findings.kinds() == ({"strict"} if message else set())
    assert re.search(message, result.findings.text())


def test_overwriting_what_a_load_without_wait_reads_is_a_race() -> None:
    """The next product may not start before the load is known to be done."""
    extra = """
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r400}, [%r13];
  bar.sync 1;
  @%p4 bra AGAIN;
  tcgen05.mma.cta_group::1.kind::f16 [%r16], %rd10, %rd11, %r17, {%r90, %r90, %r90, %r90}, %p5;
AGAIN:
  bar.warp.sync 0xffffffff;
"""
    text = body(D64).replace("\n  @%p2 bra DONE;", extra + "\n  @%p2 bra DONE;")
    with pytest.raises(
        SanitizerError, match=r"write by tcgen05 pipe.*is not ordered after a read by tcgen05\.ld"
    ):
        launch(D64, text, *operands(D64))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"columns": "48"}, "power of two"),
        ({"columns": "16"}, "from 32"),
        ({"columns": "32"}, "not allocated"),
        ({"dealloc": "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 256;"}, "allocated are: 512 at 0"),
        ({"dealloc": "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r12, 512;"}, "one kernel uses one"),
        ({"modifier": ".block_scale"}, "no emulation"),
        ({"before_mma": "add.u32 %r16, %r16, 1048576;"}, "lane 16 as the start"),
        ({"before_mma": "xor.b32 %r17, %r17, 0x00800000;"}, "reserved"),
        ({"before_mma": "mov.u64 %rd10, 0;"}, "constant 1"),
        ({"before_mma": "add.u32 %r16, %r16, 480;"}, "columns 480 to 543"),
        ({"before_mma": "and.b32 %r17, %r17, 0xE0FFFFFF; or.b32 %r17, %r17, 0x10000000;"}, "M=256"),
        (
            {"after_mma": "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];"},
            "deadlock",
        ),
    ],
)
def test_misuse_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        launch(D64, body(D64, **change), *operands(D64))


def test_columns_left_at_exit_are_found() -> None:
    with pytest.raises(SanitizerError, match="exits with 512 columns"):
        launch(D64, body(D64, dealloc=""), *operands(D64))


def test_odd_cta_may_not_issue() -> None:
    form = Form(256, 64, "A", 2)
    text = body(form).replace("or.b32 %r5, %r1, %r3;", "xor.b32 %r6, %r3, 1; or.b32 %r5, %r1, %r6;")
    with pytest.raises(EmulatorError, match="issued by the even one"):
        launch(form, text, *operands(form))


def test_alloc_after_relinquish_and_missing_peer() -> None:
    text = body(D64).replace(
        "ALLOCATED:", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r31+16], 32;\nALLOCATED:", 1
    )
    with pytest.raises(EmulatorError, match=r"after tcgen05\.relinquish"):
        launch(D64, text, *operands(D64))
    form = Form(256, 64, "A", 2)
    text = body(form).replace(
        "  @%p2 bra ALLOCATED;", "  setp.ne.u32 %p9, %r3, 0;\n  @%p9 bra DONE;\n  @%p2 bra ALLOCATED;"
    )
    with pytest.raises(EmulatorError, match="alloc of the peer CTA"):
        launch(form, text, *operands(form))
