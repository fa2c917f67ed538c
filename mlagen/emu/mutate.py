"""Mutants of a kernel: one synchronisation instruction removed or weakened at a time.

A mutant is caught when a run faults, deadlocks, has a finding, or gives other bits than the unchanged kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mlagen.emu.codegen import describe
from mlagen.emu.deadlock import DeadlockError
from mlagen.emu.findings import SanitizerError
from mlagen.emu.interfaces import EmulatorError, Imm, Instruction, Operand, Reg
from mlagen.emu.machine import Machine
from mlagen.emu.ptx import Function

_DELETED = (
    "mbarrier.init", "mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.try_wait", "mbarrier.test_wait",
    "bar.sync", "bar.arrive", "bar.cta", "bar.warp", "barrier.sync", "barrier.arrive", "barrier.cta",
    "barrier.cluster", "fence", "membar", "setmaxnreg", "wgmma.fence", "wgmma.commit_group",
    "wgmma.wait_group", "tcgen05.wait", "tcgen05.fence", "tcgen05.commit", "cp.async.wait_group",
    "cp.async.wait_all", "cp.async.commit_group", "cp.async.mbarrier", "cp.async.bulk.wait_group",
    "cp.async.bulk.commit_group",
)  # fmt: skip
_STRONG = ("acquire", "release", "acq_rel", "sc")
_WIDE = ("gpu", "sys", "cluster", "gl")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of the instruction at `pc`.

    action: "delete"; "relax" (a strong access becomes a relaxed one); "narrow" (the scope of an access or
    fence becomes its CTA).
    """

    pc: int
    action: str
    name: str
    where: str

    @property
    def key(self) -> str:
        """Its name within one PTX text."""
        return f"{self.action} {self.pc}"


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


def _without(ins: Instruction) -> Instruction:
    """An instruction that does nothing, but gives the result of one that waits no longer."""
    targets: tuple[Operand, ...] = ins.operands[:1]
    first = targets[0] if targets else None
    if ins.name.startswith(("mbarrier.try_wait", "mbarrier.test_wait")) and first is not None:
        return replace(ins, name="mov.pred", modifiers=("pred",), operands=(first, Imm(1)))
    if ins.name.startswith("mbarrier.arrive") and isinstance(first, Reg) and first.name != "_":
        return replace(ins, name="mov.b64", modifiers=("b64",), operands=(first, Imm(0)))
    return replace(ins, name="nanosleep.u32", modifiers=("u32",), operands=(Imm(0),))


def _renamed(ins: Instruction, change: Callable[[str], str]) -> Instruction:
    parts = tuple(change(m) for m in ins.modifiers)
    return replace(ins, name=".".join((ins.op, *parts)), modifiers=parts)


def changed(ins: Instruction, action: str) -> Instruction:
    """The instruction that a mutant has in the place of another."""
    if action == "delete":
        return _without(ins)
    if action == "relax":
        return _renamed(ins, lambda m: "relaxed" if m in _STRONG else m)
    return _renamed(ins, lambda m: "cta" if m in _WIDE else m)


def actions(ins: Instruction) -> list[str]:
    """What can be done to an instruction."""
    found = []
    if ins.name.startswith(_DELETED):
        found.append("delete")
    access = ins.op in ("ld", "st", "atom", "red")
    if access and any(m in _STRONG for m in ins.modifiers):
        found.append("relax")
    fence = ins.op == "membar" or ins.name.startswith(("fence.acq_rel", "fence.sc"))
    if any(m in _WIDE for m in ins.modifiers) and (fence or "relax" in found):
        found.append("narrow")
    return found


def mutants(function: Function, executed: Iterable[int]) -> list[Mutant]:
    """All mutants of the instructions that a run executed."""
    return [
        Mutant(pc, action, ins.name, describe(ins))
        for pc in sorted(executed)
        for ins in (function.instructions[pc],)
        for action in actions(ins)
    ]


def patch_of(function: Function, mutant: Mutant) -> dict[int, Instruction]:
    """What a launch has to replace."""
    return {mutant.pc: changed(function.instructions[mutant.pc], mutant.action)}


def executed_instructions(machine: Machine) -> set[int]:
    """Indices of the instructions that a launch ran."""
    blocks = machine.program.blocks
    starts = {pc for warp in machine.warps for pc in warp.block_counts}
    return {pc for start in starts for pc in range(start, blocks[start].end)}


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run a kernel. run(patch) gives the bytes of all results and raises SanitizerError on
    findings; expected: those of the unchanged kernel; executed: the instructions that this one runs.
    """

    name: str
    run: Callable[[dict[int, Instruction]], bytes]
    expected: bytes
    executed: frozenset[int]


def try_mutant(function: Function, mutant: Mutant, trials: Iterable[Trial]) -> Verdict:
    """Run a mutant in each way that comes to its instruction, until something notices."""
    patch = patch_of(function, mutant)
    for trial in trials:
        if mutant.pc not in trial.executed:
            continue
        try:
            result = trial.run(patch)
        except SanitizerError as error:
            first = error.findings.errors[0]
            return Verdict(mutant, first.kind, trial.name, first.message)
        except DeadlockError as error:
            return Verdict(mutant, "deadlock", trial.name, str(error)[:300])
        except EmulatorError as error:
            return Verdict(mutant, "fault", trial.name, str(error)[:300])
        if result != trial.expected:
            return Verdict(mutant, "result", trial.name, "other bits than the unchanged kernel")
    return Verdict(mutant, "", "", "")
