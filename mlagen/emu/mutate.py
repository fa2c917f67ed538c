"""Mutation score: remove or weaken one synchronisation instruction of a kernel at a time; does the emulator
notice?

A mutant is caught when a run faults, deadlocks, has a finding, or gives other bits than the unchanged kernel.
What survives all schedules is
either equivalent (the instruction was not needed for this case) or a hole in the checks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlagen.emu.codegen import describe
from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.findings import SanitizerError
from mlagen.emu.interfaces import EmulatorError, Imm, Instruction, Operand, Reg
from mlagen.emu.machine import Machine
from mlagen.emu.ptx import Function, Module

SCHEDULES = ("eager", "lazy", "random:1", "lockstep")

_DELETED = (
    "mbarrier.init", "mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.try_wait", "bar.sync",
    "bar.arrive", "bar.cta", "barrier.sync", "barrier.arrive", "barrier.cta", "barrier.cluster",
    "fence", "membar", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", "tcgen05.wait",
    "tcgen05.fence", "tcgen05.commit", "cp.async.wait_group", "cp.async.wait_all",
    "cp.async.bulk.wait_group",
)  # fmt: skip
_STRONG = ("acquire", "release", "acq_rel", "sc")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. action: "delete" or "weaken"."""

    pc: int
    action: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant. by: what caught it ("deadlock", "fault", a kind of finding, "result"), empty
    if nothing did.
    """

    mutant: Mutant
    by: str
    schedule: str
    detail: str

    @property
    def caught(self) -> bool:
        """Whether something noticed."""
        return bool(self.by)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self.mutant), "by": self.by, "schedule": self.schedule, "detail": self.detail}


def _without(ins: Instruction) -> Instruction:
    """An instruction that does nothing, but gives the result of one that waits no longer."""
    targets: tuple[Operand, ...] = ins.operands[:1]
    first = targets[0] if targets else None
    if ins.name.startswith(("mbarrier.try_wait", "mbarrier.test_wait")) and first is not None:
        return replace(ins, name="mov.pred", modifiers=("pred",), operands=(first, Imm(1)))
    if ins.name.startswith("mbarrier.arrive") and isinstance(first, Reg) and first.name != "_":
        return replace(ins, name="mov.b64", modifiers=("b64",), operands=(first, Imm(0)))
    return replace(ins, name="nanosleep.u32", modifiers=("u32",), operands=(Imm(0),))


def _weakened(ins: Instruction) -> Instruction:
    """A strong access as a relaxed one."""
    parts = tuple("relaxed" if m in _STRONG else m for m in ins.modifiers)
    return replace(ins, name=".".join((ins.op, *parts)), modifiers=parts)


def mutants(function: Function, executed: set[int]) -> list[Mutant]:
    """All mutants of the instructions that a run executed."""
    found = []
    for ins in function.instructions:
        if ins.pc not in executed:
            continue
        if ins.name.startswith(_DELETED):
            found.append(Mutant(ins.pc, "delete", ins.name, describe(ins)))
        elif ins.op in ("ld", "st", "atom", "red") and any(m in _STRONG for m in ins.modifiers):
            found.append(Mutant(ins.pc, "weaken", ins.name, describe(ins)))
    return found


def mutate(module: Module, entry: str, mutant: Mutant) -> Module:
    """A copy of a module with one instruction changed."""
    function = module.entry(entry)
    instructions = list(function.instructions)
    ins = instructions[mutant.pc]
    instructions[mutant.pc] = _without(ins) if mutant.action == "delete" else _weakened(ins)
    changed = replace(function, instructions=instructions)
    return replace(module, functions={**module.functions, function.name: changed})


def executed_instructions(machine: Machine) -> set[int]:
    """Indices of the instructions that a launch ran."""
    blocks = machine.program.blocks
    starts = {pc for warp in machine.warps for pc in warp.block_counts}
    return {pc for start in starts for pc in range(start, blocks[start].end)}


Run = Callable[[Module, str], bytes]
"""Runs a module under a schedule, raises SanitizerError on findings, gives the bytes of all results."""


def try_mutant(
    run: Run, module: Module, entry: str, mutant: Mutant, expected: bytes, schedules: Sequence[str]
) -> Verdict:
    """Run a mutant under each schedule until something notices."""
    changed = mutate(module, entry, mutant)
    for schedule in schedules:
        try:
            result = run(changed, schedule)
        except SanitizerError as error:
            first = error.findings.errors[0]
            return Verdict(mutant, first.kind, schedule, first.message)
        except DeadlockError as error:
            return Verdict(mutant, "deadlock", schedule, str(error)[:300])
        except EmulatorError as error:
            return Verdict(mutant, "fault", schedule, str(error)[:300])
        if result != expected:
            return Verdict(mutant, "result", schedule, "other bits than the unchanged kernel")
    return Verdict(mutant, "", "", "")


def score(
    run: Run,
    module: Module,
    entry: str,
    executed: set[int],
    expected: bytes,
    *,
    schedules: Sequence[str] = SCHEDULES,
    sample: int | None = None,
    seed: int = 0,
) -> Iterator[Verdict]:
    """Verdicts of all mutants, or of a fixed random sample."""
    chosen = mutants(module.entry(entry), executed)
    if sample is not None and sample < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, sample), key=lambda m: m.pc)
    for mutant in chosen:
        yield try_mutant(run, module, entry, mutant, expected, schedules)
