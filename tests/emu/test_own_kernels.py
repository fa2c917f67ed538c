"""Kernels of mlagen on the emulator: right, clean, and independent of the plan's tables."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from mlagen.casework import Case, draw
from mlagen.emu.codegen import Program
from mlagen.emu.emulator import load_module
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.emu.memory import GlobalMemory
from mlagen.emu.placement import layout
from mlagen.emu.profile import profile
from mlagen.emu.verify import run_emulated
from mlagen.plan import make_plan
from mlagen.spec import KernelSpec
from mlagen.verify import run_poisoned

ONE = KernelSpec.from_name("mla_decode_sm90_wgmma_bf16_bf16_h64_p64_s8_1sm")
TWO = KernelSpec.from_name("mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s8_2sm")
pytestmark = pytest.mark.slow


@cache
def text(spec: KernelSpec) -> str:
    """The PTX, built once."""
    from mlagen.build import load_artifact

    return load_artifact(spec).ptx.decode()


def case(spec: KernelSpec, lengths: tuple[int, ...] = (130, 5), **changes: Any) -> Case:
    return Case(lengths, h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value).but(**changes)


@pytest.mark.parametrize(
    "schedule", ["eager", "lazy", "random:1", "lockstep", "starve:scorer", "starve:accumulator"]
)
@pytest.mark.parametrize("spec", [ONE, TWO], ids=["1sm", "2sm"])
def test_right_and_clean_on_every_schedule(spec: KernelSpec, schedule: str) -> None:
    found = run_emulated(
        spec, schedule, case(spec), EmulatorOptions(schedule=schedule, sms=2 * spec.cta_group)
    )
    assert found.ok, (found.error, found.findings, found.result)


@pytest.mark.parametrize("spec", [ONE, TWO], ids=["1sm", "2sm"])
def test_every_instruction_has_semantics(spec: KernelSpec) -> None:
    _, module = load_module(text(spec))
    for function in module.functions.values():
        if function.entry:
            symbols, _, local = layout(module, function, GlobalMemory())
            program = Program(module, function, symbols, local)
            for ins in program.instructions:
                if ins.op not in ("bra", "ret", "exit", "trap", "call"):
                    program.bind(ins)


def test_profile_counts_tensor_work_and_bytes() -> None:
    runner = EmulatorLauncher(EmulatorOptions(sms=1))
    found = []
    for blocks in (2, 3):
        run_poisoned(ONE, draw(case(ONE, (64 * blocks,), splits=1), "cpu"), runner)
        found.append(profile(runner.results[-1].machine))
    more = found[1].minus(found[0])
    assert more.macs == 64 * 64 * (576 + 512)
    assert more.copied["shared"] == 64 * 576 * 2
    assert set(more.by_role) == {r.name for r in make_plan(ONE).roles}
    assert "limit:" in more.text(1)


def test_counters_serve_one_launch_after_another() -> None:
    runner = EmulatorLauncher(EmulatorOptions(sms=2))
    call = draw(case(ONE, (300,), splits=2), "cpu")
    outs = [run_poisoned(ONE, call, runner)[0].view(-1).float().numpy() for _ in range(3)]
    assert all(np.array_equal(outs[0], o) for o in outs[1:])


def test_the_schedule_reads_back() -> None:
    from mlagen import worklist
    from mlagen.problem import Problem

    call = draw(case(ONE, (130, 0, 70)), "cpu")
    problem = Problem.from_tensors(*call.args, **call.keywords, device_type="cpu")
    pieces = worklist.read_back(problem, ONE, EmulatorLauncher(EmulatorOptions(sms=2)))
    keys = {row: sum(p.last_key - p.first_key for p in pieces if p.row == row) for row in range(3)}
    assert keys == {0: 130, 1: 0, 2: 70}
