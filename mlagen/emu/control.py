"""Control flow (PTX ISA 9.7.12): branches split and merge the lanes of a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.emu.cta import Group
from mlagen.emu.interfaces import Array, EmulatorError, Instruction, Reg, Sym
from mlagen.emu.lanes import all_true, any_true

if TYPE_CHECKING:
    from mlagen.emu.codegen import Block
    from mlagen.emu.cta import Warp
    from mlagen.emu.machine import Machine


def step_control(machine: Machine, warp: Warp, group: Group, block: Block, ins: Instruction) -> None:
    """Execute a control instruction for a group of lanes."""
    mask, taken = group.mask, group.mask
    if block.predicate >= 0:
        predicate = warp.registers[block.predicate]
        taken = mask & (~predicate if block.negated else predicate)
    warp.at = block.start
    op = ins.op
    if op == "bra":
        _branch(warp, group, taken, block.target, block.end)
    elif not any_true(taken):
        group.pc = block.end
    elif op in ("ret", "exit"):
        _leave(warp, group, taken, block.end)
    elif op in ("trap", "brkpt"):
        raise EmulatorError(f"the kernel executed {op}")
    elif op == "brx":
        _branch_indexed(machine, warp, group, ins)
    elif op == "call":
        _call(machine, warp, ins)
        group.pc = block.end


def _branch(warp: Warp, group: Group, taken: Array, target: int, after: int) -> None:
    if taken is group.mask or all_true(taken):
        group.pc = target
        return
    rest = group.mask & ~taken
    if not any_true(taken):
        group.pc = after
    elif not any_true(rest):
        group.pc = target
    else:
        group.pc, group.mask, group.full = after, rest, False
        warp.groups.append(Group(target, taken))


def _leave(warp: Warp, group: Group, taken: Array, after: int) -> None:
    """Lanes exit (there are no device functions to return from)."""
    rest = group.mask & ~taken
    if any_true(rest):
        group.pc, group.mask, group.full = after, rest, False
    else:
        warp.groups.remove(group)


def _branch_indexed(machine: Machine, warp: Warp, group: Group, ins: Instruction) -> None:
    """`brx.idx`: every lane picks a label of a table."""
    index, table = ins.operands[0], ins.operands[1]
    if (
        not isinstance(index, Reg)
        or not isinstance(table, Sym)
        or table.name not in machine.program.function.tables
    ):
        raise EmulatorError("brx without a .branchtargets table")
    labels = machine.program.function.tables[table.name]
    values = warp.registers[machine.program.slots.get(index.name)]
    chosen = np.unique(values[group.mask])
    if int(chosen.max()) >= len(labels):
        raise EmulatorError(f"brx index {int(chosen.max())} of a table of {len(labels)}")
    warp.groups.remove(group)
    for value in chosen:
        lanes = group.mask & (values == value)
        warp.groups.append(Group(machine.program.label(labels[int(value)], ins), lanes))


def _call(machine: Machine, warp: Warp, ins: Instruction) -> None:
    """Only functions without a body can be called: printing is ignored, failed asserts are errors."""
    names = [o.name for o in ins.operands if isinstance(o, Sym)]
    name = names[0] if names else "?"
    if name == "vprintf":
        machine.progress += 1  # who prints does not spin
        return
    if name in ("__assertfail", "__assert_fail"):
        raise EmulatorError("a device-side assert failed")
    raise EmulatorError(f"call of {name}: only vprintf and __assertfail are known")
