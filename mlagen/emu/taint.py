"""Values that come from never-written memory, followed through registers until they matter.

Compilers load memory early and throw the value away when a branch goes the other way, so that reading never-
written bytes is no fault by
itself. It is one when a branch, an address, a store or any other effect depends on the value. `TaintTracker`
follows such values through a
warp's registers; it costs nothing while there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlagen.emu.interfaces import Array, Instruction, Mem, Operand, Reg, Vec

if TYPE_CHECKING:
    from mlagen.emu.codegen import Program
    from mlagen.emu.cta import Warp

_MIXES_LANES = ("shfl", "vote", "match", "redux")
_LOADS = ("ld", "ldu", "ldmatrix", "atom")


@dataclass(frozen=True, slots=True)
class Flow:
    """How taint flows through an instruction.

    kind: "alu" (any source taints the result), "mix" (the same over all lanes), "select", "load" (only the
    address counts) or
    "effect" (a tainted source is a finding). reads: slots; for select (a, b, predicate), -1 for a constant.
    elements: for loads of vectors, the slot of each element, -1
    for one that goes nowhere.
    """

    kind: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    predicate: int = -1
    negated: bool = False
    local_store: bool = False
    elements: tuple[int, ...] = ()


def registers_of(operand: Operand, slot: Callable[[str], int | None]) -> list[int]:
    """Slots of all registers in an operand."""
    if isinstance(operand, Reg):
        found = slot(operand.name)
        return [] if found is None else [found]
    out: list[int] = []
    for name in ("items", "rest"):
        for inner in getattr(operand, name, ()):
            out += registers_of(inner, slot)
    for name in ("base", "first", "second", "operand"):
        if hasattr(operand, name):
            out += registers_of(getattr(operand, name), slot)
    return out


def flow_of(ins: Instruction, slot: Callable[[str], int | None], inline: bool) -> Flow:
    """The flow of an instruction. inline: it is an ALU instruction."""
    predicate = slot(ins.predicate) if ins.predicate else None
    guard = -1 if predicate is None else predicate

    def slots(operands: tuple[Operand, ...]) -> tuple[int, ...]:
        return tuple(s for o in operands for s in registers_of(o, slot))

    if ins.op == "selp":
        sources = tuple((registers_of(o, slot) or [-1])[0] for o in ins.operands[1:4])
        return Flow("select", sources, slots(ins.operands[:1]), guard, ins.predicate_negated)
    if inline:
        return Flow("alu", slots(ins.operands[1:]), slots(ins.operands[:1]), guard, ins.predicate_negated)
    if ins.op in _MIXES_LANES:
        return Flow("mix", slots(ins.operands[1:]), slots(ins.operands[:1]), guard, ins.predicate_negated)
    if ins.op in _LOADS:
        vector = ins.operands[0].items if ins.operands and isinstance(ins.operands[0], Vec) else ()
        elements = tuple((registers_of(o, slot) or [-1])[0] for o in vector)
        writes = slots(ins.operands[:1])
        return Flow("load", slots(ins.operands[1:]), writes, guard, ins.predicate_negated, elements=elements)
    if ins.op == "wgmma":
        return Flow("effect", slots(ins.operands[1:]), (), guard, ins.predicate_negated)
    targets = ins.operands[:1] if ins.operands and not isinstance(ins.operands[0], Mem | Vec) else ()
    sources_of = ins.operands[len(targets) :] if ins.op in ("mapa", "mbarrier", "elect") else ins.operands
    local = ins.op == "st" and "local" in ins.modifiers
    return Flow("effect", slots(sources_of), (), guard, ins.predicate_negated, local)


class TaintTracker:
    """The tainted registers of a warp: slot -> (lanes, where the value came from)."""

    def __init__(self, warp: Warp) -> None:
        self.warp = warp
        self.slots: dict[int, tuple[Array, str]] = {}
        self.events: list[tuple[int, Array, str, tuple[int, int]]] = []

    def loaded(self, lanes: Array, origin: str, element: tuple[int, int] = (0, 1)) -> None:
        """Lanes of the executing load read never-written bytes, in this element of so many."""
        self.events.append((self.warp.at, lanes, origin, element))

    def check_slot(self, slot: int, lanes: Array, what: str) -> None:
        """Report if a register that matters is tainted in some of the lanes."""
        found = self.slots.get(slot)
        if found is not None and (found[0] & lanes).any():
            self._report(what, found[1])
            self.slots[slot] = (found[0] & ~lanes, found[1])

    def after_block(self, program: Program, start: int, end: int, mask: Array) -> None:
        """Move taint through the instructions of a block that ran."""
        events = self.events
        self.events = []
        for pc in range(start, end):
            flow = program.flow(pc)
            if flow is None:
                continue
            lanes = mask
            if flow.predicate >= 0:
                value = self.warp.registers[flow.predicate]
                lanes = mask & (~value if flow.negated else value)
            self._step(flow, pc, lanes)
            while events and events[0][0] == pc:
                _, hit, origin, (which, count) = events.pop(0)
                writes = flow.elements or flow.writes
                if count > 1 and count % len(writes) == 0:
                    writes = (writes[which * len(writes) // count],)
                for slot in writes:
                    if slot >= 0:
                        self._add(slot, hit, origin)

    def _step(self, flow: Flow, pc: int, lanes: Array) -> None:
        tainted = [self.slots[s] for s in flow.reads if s in self.slots]
        result: tuple[Array, str] | None = None
        if tainted:
            if flow.kind == "alu":
                mask = tainted[0][0]
                for other, _ in tainted[1:]:
                    mask = mask | other
                result = (mask & lanes, tainted[0][1])
            elif flow.kind == "mix":
                if any((m & lanes).any() for m, _ in tainted):
                    result = (lanes, tainted[0][1])
            elif flow.kind == "select":
                result = self._select(flow, lanes)
            elif not flow.local_store:
                bad = [(m, o) for m, o in tainted if (m & lanes).any()]
                if bad:
                    self.warp.at = pc
                    self._report("an address" if flow.kind == "load" else "an effect", bad[0][1])
        for slot in flow.writes:
            self._clear(slot, lanes)
            if result is not None:
                self._add(slot, *result)

    def _select(self, flow: Flow, lanes: Array) -> tuple[Array, str] | None:
        """`selp`: only the chosen source counts, and the predicate."""
        nothing = (np.zeros(32, np.bool_), "")
        a, b, p = (self.slots.get(s, nothing) for s in flow.reads)
        chosen = self.warp.registers[flow.reads[2]] if flow.reads[2] >= 0 else np.ones(32, np.bool_)
        mask = (np.where(chosen, a[0], b[0]) | p[0]) & lanes
        origin = a[1] or b[1] or p[1]
        return (mask, origin) if mask.any() else None

    def _add(self, slot: int, lanes: Array, origin: str) -> None:
        old = self.slots.get(slot)
        mask = lanes if old is None else old[0] | lanes
        if mask.any():
            self.slots[slot] = (mask, origin)

    def _clear(self, slot: int, lanes: Array) -> None:
        old = self.slots.get(slot)
        if old is not None:
            left = old[0] & ~lanes
            if left.any():
                self.slots[slot] = (left, old[1])
            else:
                del self.slots[slot]

    def _report(self, what: str, origin: str) -> None:
        self.warp.report("unwritten", f"{what} depends on {origin}, which nobody has written")
