"""Every shipped kernel, compiled: no spills, numbers as planned, and the instructions that were promised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from machine_code import count, functions

from mlagen.build import Artifact, build, load_artifact
from mlagen.plan import make_plan
from mlagen.report import Report
from mlagen.shipped import shipped_specs
from mlagen.spec import Arch, KernelSpec

SHIPPED = shipped_specs()


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[Report]:
    """All of them through the cache, at once."""
    done = build(SHIPPED)
    assert [row.error for row in done.failed] == []
    yield done


@cache
def artifact(spec: KernelSpec) -> Artifact:
    return load_artifact(spec)


@cache
def sass(spec: KernelSpec) -> dict[str, str]:
    """SASS by function."""
    return functions(artifact(spec).cubin)


def test_the_report_has_a_row_for_each_in_order(report: Report) -> None:
    assert [row.name for row in report.rows] == [spec.name for spec in SHIPPED]
    for row in report.rows:
        assert row.digest and row.cubin_bytes and row.seconds["cpu"] > 0


@pytest.mark.parametrize("spec", SHIPPED, ids=str)
def test_no_spills_no_local_memory_no_warnings(spec: KernelSpec) -> None:
    info = artifact(spec).manifest
    assert (info["spill_stores"], info["spill_loads"], info["stack"]) == (0, 0, 0)
    warnings = [line for line in artifact(spec).log.splitlines() if "warning" in line.lower()]
    assert warnings == []


@pytest.mark.parametrize("spec", SHIPPED, ids=str)
def test_registers_and_shared_memory_are_as_planned(spec: KernelSpec) -> None:
    plan, info = make_plan(spec), artifact(spec).manifest
    assert info["registers"] == plan.launch.registers
    assert info["smem_bytes"] == plan.smem_bytes
    assert info["static_smem"] == 0, "all shared memory is in the plan's dynamic part"
    assert [row["name"] for row in info["functions"] if row["entry"]]
    assert {row["name"] for row in info["functions"]} == {spec.name + entry.suffix for entry in plan.entries}


@pytest.mark.parametrize("spec", SHIPPED, ids=str)
def test_sass_holds_the_promised_products_and_tma_and_no_trap(spec: KernelSpec) -> None:
    found = sass(spec)
    main = found[spec.name]
    rank = make_plan(spec).tensor_maps[0].rank
    tma = rf"UTMALDG\.{rank}D"
    assert count(main, tma + r"\S*") > 0
    if spec.arch == Arch.SM_90A:
        assert count(main, r"HGMMA\.64x\S*") > 0
        assert f"F32{'.BF16' if spec.q_dtype.value == 'bf16' else ''}" in main
        assert (count(main, tma + r"\S*MULTICAST\S*") > 0) == (spec.cta_group == 2)
    else:
        pair = make_plan(spec).constant["kPairForm"] == 1  # few heads of a 2SM kernel split keys instead
        assert count(main, r"UTCHMMA\S*") > 0
        assert (count(main, r"UTCHMMA\S*2CTA\S*") > 0) == pair
        assert (count(main, tma + r"\S*2CTA\S*") > 0) == pair
        assert (count(main, r"UTCBAR\S*2CTA\S*") > 0) == pair
        assert count(main, r"LDTM\S*") > 0 and count(main, r"STTM\S*") > 0
    assert count(main, r"USETMAXREG\S*") >= 2
    assert count(main, r"SYNCS\S*") > 0
    for name, text in found.items():
        # ptxas guards the allocation of tensor memory by itself, with a function for each reason to trap
        guards = re.findall(
            r"^\$__internal_\d+_\$__cuda_sm10x_tcgen05_guardrail_trap_\w+:", text, re.MULTILINE
        )
        assert count(text, r"BPT\S*") == len(guards), f"{name} holds a trap"
        assert count(text, r"(?:LDL|STL)\S*") == 0, f"{name} uses local memory"


@pytest.mark.parametrize("spec", SHIPPED, ids=str)
def test_barrier_arrivals_of_the_plan_are_in_the_ptx(spec: KernelSpec) -> None:
    """Each ring is set up once a stage, with the arrivals of its row."""
    ptx = artifact(spec).ptx.decode()
    found = [int(value) for value in re.findall(r"mbarrier\.init\.shared\S*\s+\[[^\]]+\],\s*(\d+)", ptx)]
    registers = len(re.findall(r"mbarrier\.init\.shared\S*\s+\[[^\]]+\],\s*%", ptx))
    wanted = {ring.arrivals for ring in make_plan(spec).mbarriers}
    assert found or registers
    assert set(found) <= wanted
    if not registers:
        assert set(found) == wanted
