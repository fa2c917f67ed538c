"""From a KernelSpec to a Plan: the family of the architecture does the arithmetic."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from mlagen.errors import SpecError
from mlagen.plan.model import Plan
from mlagen.spec import KernelSpec

# One line a family: its module has SUPPORTED and make_plan(spec).
FAMILIES = {
    "sm90_wgmma": "mlagen.plan.sm90_wgmma",
    "sm100_tcgen05": "mlagen.plan.sm100_tcgen05",
    "sm103_tcgen05": "mlagen.plan.sm100_tcgen05",
}


def make_plan(spec: KernelSpec) -> Plan:
    """All build-time numbers of one kernel. Pure: no device, environment or clock.

    Raises:
        SpecError: the family does not exist yet, or does not build this spec.
        BudgetError: the plan does not fit the hardware.
    """
    if spec.family not in FAMILIES:
        raise SpecError(
            f"{spec.name}: family {spec.family} ({spec.arch}) is not in this version. "
            f"Families: {', '.join(FAMILIES)}"
        )
    return cast(Plan, import_module(FAMILIES[spec.family]).make_plan(spec))
