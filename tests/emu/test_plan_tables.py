"""The plan gives the emulator names and the launch: nonsense in any of its tables changes no result.

Counts, bytes, swizzles and layouts come from the PTX, its descriptors and the tensor maps.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

from mlagen.casework import Case, draw
from mlagen.emu import launcher as launcher_module
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.plan import make_plan
from mlagen.plan.model import Plan
from mlagen.spec import KernelSpec
from mlagen.verify import run_poisoned

PAIR = KernelSpec.from_name("mla_decode_sm90_wgmma_bf16_bf16_h20_p64_s8_2sm")
pytestmark = pytest.mark.slow

TABLES = (
    "constants", "types", "roles", "mbarriers", "named_barriers", "smem", "tmem", "headers", "smem_limit",
)  # fmt: skip
"""What only names things, or is for the compiler."""

LABELS = {"params": ("meaning", "cpp_type"), "tensor_maps": ("meaning", "name")}
"""Tables of the launch itself, and the fields of them that are for people."""

LAUNCH = {*LABELS, "spec", "params_bytes", "smem_bytes", "launch", "entries"}


def nonsense(value: Any) -> Any:
    """Another value of the same type, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: nonsense(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(nonsense(item) for item in value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 7 * value + 3
    return f"wrong {value}" if isinstance(value, str) else value


def labels_changed(plan: Plan, table: str) -> Plan:
    rows = tuple(
        dataclasses.replace(row, **{f: nonsense(getattr(row, f)) for f in LABELS[table]})
        for row in getattr(plan, table)
    )
    return dataclasses.replace(plan, **{table: rows})


@cache
def text() -> str:
    """The PTX of the unchanged plan."""
    from mlagen.build import load_artifact

    return load_artifact(PAIR).ptx.decode()


def result(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes, int]:
    """Output, log-sum-exps and instructions of one call with a plan: one row in two pieces."""
    monkeypatch.setattr(launcher_module, "make_plan", lambda spec: plan)
    case = Case((130,), h_q=PAIR.h_q, page_size=64, dtype="bf16", splits=2)
    runner = EmulatorLauncher(EmulatorOptions(sms=4, exact=False), ptx=lambda _: text())
    out, lse = run_poisoned(PAIR, draw(case, "cpu"), runner)
    return out.view(-1).float().numpy().tobytes(), lse.numpy().tobytes(), runner.results[-1].instructions


def test_every_table_is_in_one_list() -> None:
    assert {f.name for f in dataclasses.fields(Plan)} == {*TABLES, *LAUNCH}


@pytest.fixture(scope="module")
def expected() -> tuple[bytes, bytes, int]:
    with pytest.MonkeyPatch.context() as patch:
        return result(make_plan(PAIR), patch)


@pytest.mark.parametrize("table", [t for t in TABLES if getattr(make_plan(PAIR), t)])
def test_tables_of_names_change_no_result(
    table: str, expected: tuple[bytes, bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(PAIR)
    wrong = dataclasses.replace(plan, **{table: nonsense(getattr(plan, table))})
    assert getattr(wrong, table) != getattr(plan, table)
    assert result(wrong, monkeypatch) == expected


@pytest.mark.parametrize("table", sorted(LABELS))
def test_labels_of_the_launch_change_no_result(
    table: str, expected: tuple[bytes, bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = labels_changed(make_plan(PAIR), table)
    assert wrong != make_plan(PAIR)
    assert result(wrong, monkeypatch) == expected


def first_map(plan: Plan, **changes: Any) -> Plan:
    first, *rest = plan.tensor_maps
    return dataclasses.replace(plan, tensor_maps=(dataclasses.replace(first, **changes), *rest))


def test_what_the_launch_takes_from_the_plan_is_noticed(
    expected: tuple[bytes, bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reverse: the emulator decodes the tensor maps and runs the launch that it is given."""
    plan = make_plan(PAIR)
    dims = tuple(dataclasses.replace(d, box=max(d.box // 2, 1)) for d in plan.tensor_maps[0].dims)
    wrong = {
        "swizzle": first_map(plan, swizzle=64),
        "box": first_map(plan, dims=dims),
        "shared memory": dataclasses.replace(
            plan, launch=dataclasses.replace(plan.launch, smem_bytes=plan.launch.smem_bytes // 2)
        ),
        "threads": dataclasses.replace(
            plan, entries=tuple(dataclasses.replace(e, threads=e.threads // 2) for e in plan.entries)
        ),
    }
    for what, changed in wrong.items():
        try:
            found: object = result(changed, monkeypatch)
        except EmulatorError:
            continue
        assert found != expected, f"a wrong {what} was not noticed"
