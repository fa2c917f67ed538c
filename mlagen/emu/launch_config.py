"""How a kernel is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlagen.emu.checks import CheckOptions
from mlagen.emu.interfaces import Instruction
from mlagen.emu.names import Names

Dim3 = tuple[int, int, int]


@dataclass(slots=True)
class LaunchConfig:
    """How a kernel is launched.

    dynamic_shared: bytes. schedule: a name for `Schedule.parse`. fail_on_findings: raise SanitizerError at
    the end. exact: tensor-core
    products in the bit-exact model; otherwise float32 matmul. stop_at_finding: raise it at the first one.
    patch: instructions that replace those of the kernel, by index.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3 = (1, 1, 1)
    dynamic_shared: int = 0
    schedule: str = "eager"
    checks: CheckOptions = field(default_factory=CheckOptions)
    fail_on_findings: bool = True
    exact: bool = True
    names: Names = field(default_factory=Names)
    max_rounds: int = 0
    stop_at_finding: bool = False
    patch: Mapping[int, Instruction] = field(default_factory=dict)
