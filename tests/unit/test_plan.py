"""Plans: pure, within the hardware, and refusals that help."""

from __future__ import annotations

import ctypes
import struct

import pytest

from mlagen.errors import BudgetError, SpecError
from mlagen.hardware import limits
from mlagen.plan import make_plan
from mlagen.plan.budget import check_named_barriers, check_registers, lay_out_smem
from mlagen.plan.model import Mbarrier, NamedBarrier, ParamField, SmemRegion, WarpRole
from mlagen.plan.params import lay_out_params, pack
from mlagen.shipped import shipped_specs
from mlagen.spec import Arch, KernelSpec

SM90 = limits(Arch.SM_90A)


def spec(**changes: object) -> KernelSpec:
    values = dict(
        arch="sm_90a", q_dtype="bf16", kv_dtype="bf16", h_q=128, page_size=64, max_split=16, cta_group=1
    )
    return KernelSpec(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", shipped_specs(), ids=str)
def test_every_shipped_plan_fits_and_is_repeatable(kernel: KernelSpec) -> None:
    plan = make_plan(kernel)
    assert plan == make_plan(kernel)
    assert plan.spec == kernel
    assert 0 < plan.smem_bytes <= plan.smem_limit == SM90.smem_opt_in
    assert plan.launch.smem_bytes == plan.smem_bytes
    assert plan.launch.cluster == kernel.cta_group
    assert plan.launch.threads == sum(role.threads for role in plan.roles)
    ends = [0]
    for region in plan.smem:
        assert region.offset % region.align == 0
        assert region.offset >= ends[-1]
        ends.append(region.end)
    assert ends[-1] <= plan.smem_bytes
    rings = {ring.name: ring.stages for ring in plan.mbarriers}
    assert {region.name: region.count for region in plan.smem if region.name in rings} == rings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"h_q": 0}, ("h_q=0", "1..128", "off by 1", "h_q=1")),
        ({"h_q": 131}, ("h_q=131", "1..128", "off by 3", "h_q=128")),
        ({"page_size": 48}, ("page_size=48", "16, 32, 64", "off by 16")),
        ({"page_size": 256}, ("page_size=256", "128", "off by 128")),
        ({"max_split": 0}, ("max_split=0", "1..256", "off by 1")),
        ({"max_split": 257}, ("max_split=257", "1..256", "off by 1")),
        ({"cta_group": 3}, ("cta_group=3", "1..2", "off by 1")),
        ({"kv_dtype": "fp16"}, ("kv_dtype", "bf16")),
        ({"arch": "sm_100a", "page_size": 256}, ("page_size=256", "128", "128")),
    ],
)
def test_an_impossible_spec_says_what_was_asked_the_limit_and_what_works(
    change: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(SpecError) as caught:
        make_plan(spec(**change))
    for word in words:
        assert word in str(caught.value)


def test_shared_memory_over_the_limit_names_need_limit_excess_region_and_knobs() -> None:
    regions = [SmemRegion("q", "char", 1000, 1, 16, ""), SmemRegion("kv", "char", 5000, 2, 1024, "")]
    ring = Mbarrier("kv_full", 2, 1, 0, "load", "mma", "")
    with pytest.raises(BudgetError) as caught:
        lay_out_smem(regions, [ring], 8192, "kv_stages=2")
    # q 0..1000, kv 1024..11024, ring 11024..11040, rounded up to the largest alignment
    for word in ("11264 B", "8192 B", "3072 B", "kv with 10000 B", "kv_stages=2"):
        assert word in str(caught.value)


def test_offsets_follow_alignment_and_barriers_come_last() -> None:
    regions = [SmemRegion("a", "char", 3, 1, 1, ""), SmemRegion("b", "float", 2, 4, 16, "")]
    ring = Mbarrier("full", 3, 1, 0, "load", "mma", "whole")
    placed, total = lay_out_smem(regions, [ring], 1000, "")
    assert [(row.name, row.offset, row.nbytes) for row in placed] == [
        ("a", 0, 3),
        ("b", 16, 8),
        ("full", 24, 24),
    ]
    assert total == 48


def test_registers_over_the_file_are_refused_by_how_much() -> None:
    roles = [WarpRole("load", 0, 4, 40, ""), WarpRole("mma", 4, 8, 240, "")]
    with pytest.raises(BudgetError, match=r"66560 needed, 64512 is the limit .*, 2048 too many"):
        check_registers(roles, SM90)
    assert check_registers([WarpRole("load", 0, 4, 40, ""), WarpRole("mma", 4, 8, 232, "")], SM90) == 168


@pytest.mark.parametrize(
    "roles",
    [
        [WarpRole("a", 0, 4, 0, ""), WarpRole("b", 5, 4, 0, "")],
        [WarpRole("a", 0, 4, 0, ""), WarpRole("b", 3, 4, 0, "")],
        [WarpRole("a", 0, 4, 100, "")],
        [WarpRole("a", 0, 4, 16, "")],
        [WarpRole("a", 0, 40, 0, "")],
        [],
    ],
)
def test_roles_with_gaps_or_impossible_counts_are_refused(roles: list[WarpRole]) -> None:
    with pytest.raises(BudgetError):
        check_registers(roles, SM90)


@pytest.mark.parametrize(
    "rows",
    [
        [NamedBarrier("a", 0, 128, "")],
        [NamedBarrier("a", 16, 128, "")],
        [NamedBarrier("a", 1, 128, ""), NamedBarrier("b", 1, 128, "")],
        [NamedBarrier("a", 1, 100, "")],
    ],
)
def test_named_barriers_are_checked(rows: list[NamedBarrier]) -> None:
    with pytest.raises(BudgetError):
        check_named_barriers(rows, SM90)


def test_the_packer_writes_each_field_at_its_planned_offset() -> None:
    """Every field of the real table, read back from the raw bytes with struct."""
    fields = make_plan(spec()).params
    values = {
        field.name: (index + 0.5 if field.ctype_code == "f" else index + 1)
        for index, field in enumerate(fields)
    }
    raw = bytes(pack(fields, values))
    assert len(raw) == make_plan(spec()).params_bytes
    for field in fields:
        code = {"P": "Q"}.get(field.ctype_code, field.ctype_code)
        assert struct.unpack_from(f"={code}", raw, field.offset) == (values[field.name],), field.name


def test_a_field_too_few_or_too_many_is_refused() -> None:
    fields, size = lay_out_params([ParamField("a", "int", "i", ""), ParamField("b", "long long", "q", "")])
    assert [field.offset for field in fields] == [0, 8]
    assert size == 16
    for values in ({"a": 1}, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(SpecError, match="missing"):
            pack(fields, values)
    assert ctypes.sizeof(pack(fields, {"a": 1, "b": 2})) == 16


def test_unknown_type_codes_and_double_names_are_refused() -> None:
    with pytest.raises(SpecError, match="type code"):
        lay_out_params([ParamField("a", "short", "h", "")])
    with pytest.raises(SpecError, match="twice"):
        lay_out_params([ParamField("a", "int", "i", ""), ParamField("a", "int", "i", "")])
