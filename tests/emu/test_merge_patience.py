"""Merging without waiting: early pieces leave their slices to the last one, and nothing is left behind."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mlagen.casework import Case, draw
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.launch_shape import COUNTERS_PER_CTA
from mlagen.nvrtc import compile_source
from mlagen.plan import make_plan
from mlagen.plan.sm90_wgmma import MERGE_PATIENCE
from mlagen.render import render
from mlagen.spec import KernelSpec
from mlagen.tolerance import compare
from mlagen.verify import references, run_poisoned

ONE = KernelSpec.from_name("mla_decode_sm90_wgmma_bf16_bf16_h20_p64_s8_1sm")
PAIR = KernelSpec.from_name("mla_decode_sm90_wgmma_bf16_bf16_h20_p64_s8_2sm")
pytestmark = pytest.mark.slow


@cache
def ptx_with_patience(spec: KernelSpec, polls: int) -> str:
    """The kernel, but with so many polls of the counter before a piece goes."""
    source = render(make_plan(spec))
    line = f"kMergePatience = {MERGE_PATIENCE};"
    assert source.count(line) == 1
    changed = source.replace(line, f"kMergePatience = {polls};")
    return compile_source(changed, spec.arch, name=spec.name).ptx.decode()


@pytest.mark.parametrize("schedule", ["eager", "random:1", "starve:accumulator"])
@pytest.mark.parametrize("polls", [0, 3])
@pytest.mark.parametrize("spec", [ONE, PAIR], ids=["1sm", "2sm"])
def test_any_patience_gives_the_same_bits(spec: KernelSpec, polls: int, schedule: str) -> None:
    call = draw(Case((200,), h_q=spec.h_q, page_size=64, dtype="bf16", splits=3), "cpu")
    answers = []
    for patience in (MERGE_PATIENCE, polls):
        launcher = EmulatorLauncher(
            EmulatorOptions(schedule=schedule), ptx=lambda _, n=patience: ptx_with_patience(spec, n)
        )
        # Twice through one launcher: the second launch finds what the first one left in the counters.
        answers += [run_poisoned(spec, call, launcher) for _ in range(2)]
        words = launcher._counters.reshape(-1, COUNTERS_PER_CTA)
        assert (words[:, 2:] == 0).all(), "a slice's flag was left"
        assert np.isin(words[:, :2], (0, 1 << 31)).all(), "a counter is not at the end of a round"
    for out, lse in answers:
        margin = compare(out, lse, *references(call))
        assert margin.ok, str(margin)
        assert bool((out == answers[0][0]).all()) and bool((lse == answers[0][1]).all())
