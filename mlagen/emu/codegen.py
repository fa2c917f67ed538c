"""Basic blocks of a kernel as Python functions, made when a block first runs.

A block has two forms: one for all 32 lanes, and one with a mask. Control instructions and instructions that
can block are blocks of
their own, executed by the machine.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlagen.emu.binder import Binder, Slots, Symbols
from mlagen.emu.helpers import ENVIRONMENT
from mlagen.emu.interfaces import (
    INSTRUCTIONS,
    Array,
    Bound,
    EmulatorError,
    Entry,
    Inline,
    Instruction,
    Reg,
    Sym,
    UnknownInstructionError,
    Vec,
)
from mlagen.emu.isa import load_all
from mlagen.emu.ptx import Function, Module
from mlagen.emu.specials import special_value
from mlagen.emu.taint import Flow, flow_of
from mlagen.emu.types import NUMPY, UNSIGNED

CONTROL = frozenset({"bra", "brx", "ret", "exit", "trap", "call", "brkpt"})


def describe(ins: Instruction) -> str:
    """`wgmma.fence.sync.aligned (PTX line 12, kernel.cu:34)`."""
    source = f", {ins.source[0]}:{ins.source[1]}" if ins.source else ""
    return f"{ins.name} (PTX line {ins.line}{source})"


def lookup(name: str) -> Entry | None:
    """The registered instruction with the longest prefix of a PTX name."""
    load_all()
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        found = INSTRUCTIONS.get(".".join(parts[:n]))
        if found is not None:
            return found
    return None


def _empty_register(size: int) -> Array:
    """A zero of a register of `size` bytes (0: a predicate) for all lanes."""
    if size == 16:
        return np.zeros((32, 2), np.uint64)
    return np.zeros(32, NUMPY[UNSIGNED[size]] if size else np.bool_)


@dataclasses.dataclass(slots=True)
class Block:
    """A basic block. `end`: index of the next instruction. control: the instruction when the machine executes
    it itself.

    run[masked](warp, mask): the code; for a blocking instruction it gives the result, and finish[masked]
    stores it.
    touched: slots that ordinary instructions of the block read or write; stored: slots that they write.
    accumulators: slots of wgmma accumulators that they read.
    """

    start: int
    end: int
    control: Instruction | None = None
    blocking: Instruction | None = None
    predicate: int = -1
    negated: bool = False
    target: int = -1
    run: list[Callable[..., Any] | None] = dataclasses.field(default_factory=lambda: [None, None])
    finish: Callable[..., Any] | None = None
    touched: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    accumulators: frozenset[int] = frozenset()

    def code(self, warp: Any, lanes: Array) -> Any:
        """Run a blocking instruction."""
        run = self.run[0]
        return run(warp, lanes) if run is not None else None


class Program:
    """A kernel ready to run: blocks by start index, register slots, symbols."""

    def __init__(self, module: Module, function: Function, symbols: Symbols, local_size: int) -> None:
        load_all()
        self.module = module
        self.function = function
        self.instructions = function.instructions
        self.local_size = local_size
        self.slots = Slots(function)
        self.binder = Binder(self.slots, symbols)
        self.environment: dict[str, Any] = dict(ENVIRONMENT)
        self.environment.update(C=self.binder.constants, F=self.binder.functions)
        self.entries: list[Entry | None] = []
        names: dict[str, Entry | None] = {}
        for ins in self.instructions:
            if ins.name not in names:
                names[ins.name] = lookup(ins.name)
            self.entries.append(names[ins.name])
        self._allocate_slots()
        self._templates = [_empty_register(size) for size in self.slots.bytes]
        self.accumulators = self._accumulators()
        self.leaders = self._leaders()
        self.blocks: dict[int, Block] = {}
        self.codes: dict[tuple[int, str], types.CodeType] = {}
        self.stored_codes = 0
        self._flows: dict[int, Flow | None] = {}

    def patched(self, changes: Mapping[int, Instruction]) -> Program:
        """This program with other instructions at some indices. Blocks without any of them are shared.

        An instruction that blocks can only replace one that does.
        """
        twin = copy.copy(self)
        twin.instructions, twin.entries = list(self.instructions), list(self.entries)
        for pc, ins in changes.items():
            twin.instructions[pc], twin.entries[pc] = ins, lookup(ins.name)
        twin.blocks = {
            pc: block for pc, block in self.blocks.items() if not any(pc <= c < block.end for c in changes)
        }
        twin.codes = dict(self.codes)
        twin._flows = {pc: flow for pc, flow in self._flows.items() if pc not in changes}
        return twin

    # ---- registers

    def _allocate_slots(self) -> None:
        for ins in self.instructions:
            if ins.predicate:
                self.slots.get(ins.predicate)
            if ins.op != "call":
                for operand in ins.operands:
                    self._touch(operand)

    def _touch(self, operand: Any) -> None:
        if isinstance(operand, Reg):
            if operand.name != "_" and not operand.name.startswith(("%clock", "%globaltimer")):
                self.slots.get(operand.name)
            return
        for name in ("items", "rest"):
            for inner in getattr(operand, name, ()):
                self._touch(inner)
        for name in ("base", "first", "second", "operand"):
            if hasattr(operand, name):
                self._touch(getattr(operand, name))

    def new_registers(self, warp: Any) -> list[Array]:
        """Registers of a warp: zeros, and the special registers."""
        registers = list(self._templates)
        for slot, name in self.slots.specials:
            registers[slot] = special_value(name, warp)
        return registers

    # ---- blocks

    def _accumulators(self) -> set[int]:
        """Slots that some wgmma accumulates in."""
        found: set[int] = set()
        for ins in self.instructions:
            if ins.name.startswith("wgmma.mma_async") and isinstance(ins.operands[0], Vec):
                found |= {self.slots.get(r.name) for r in ins.operands[0].items if isinstance(r, Reg)}
        return found

    def _leaders(self) -> list[bool]:
        count = len(self.instructions)
        leaders = [False] * (count + 1)
        for target in self.function.labels.values():
            leaders[target] = True
        for pc, ins in enumerate(self.instructions):
            entry = self.entries[pc]
            alone = ins.op in CONTROL or ins.name.startswith("wgmma.fence")
            if alone or (entry is not None and entry.blocking):
                leaders[pc] = leaders[pc + 1] = True
        leaders[0] = leaders[count] = True
        return leaders

    def block(self, pc: int) -> Block:
        """The block that starts at an instruction."""
        found = self.blocks.get(pc)
        if found is None:
            found = self.blocks[pc] = self._make(pc)
        return found

    def _make(self, pc: int) -> Block:
        ins = self.instructions[pc]
        entry = self.entries[pc]
        end = pc + 1
        if ins.op in CONTROL:
            block = Block(pc, end, control=ins)
            if ins.op == "bra" and isinstance(ins.operands[0], Sym):
                block.target = self.label(ins.operands[0].name, ins)
        elif entry is not None and entry.blocking:
            block = Block(pc, end, blocking=ins)
            self._compile_blocking(block, ins)
        else:
            while not self.leaders[end]:
                end += 1
            block = Block(pc, end)
        if ins.predicate and (block.control or block.blocking):
            block.predicate = self.slots.get(ins.predicate)
            block.negated = ins.predicate_negated
        return block

    def label(self, name: str, ins: Instruction) -> int:
        """Where a label is."""
        try:
            return self.function.labels[name]
        except KeyError:
            raise EmulatorError(f"unknown label {name} in {describe(ins)}") from None

    def compile(self, block: Block, masked: bool) -> Callable[..., Any]:
        """Generate and compile the code of an ordinary block."""
        self.binder.touched, self.binder.stored, self.binder.loaded = set(), set(), set()
        lines = ["def block(w,M):", " R=w.registers"]
        for pc in range(block.start, block.end):
            lines += self._lines(self.instructions[pc], masked)
        run = self._execute(lines, block, "masked" if masked else "full")
        block.run[masked] = run
        block.touched, block.stored = frozenset(self.binder.touched), frozenset(self.binder.stored)
        block.accumulators = frozenset(self.binder.loaded & self.accumulators)
        return run

    def _execute(self, lines: list[str], block: Block, form: str) -> Callable[..., Any]:
        """The function of generated lines. form: "full", "masked" or "finish"."""
        name = f"<{self.function.name} pc {block.start} {form}>"
        self.codes[block.start, form] = compile("\n".join(lines), name, "exec")
        return self._function(block, form)

    def _function(self, block: Block, form: str) -> Callable[..., Any]:
        scope: dict[str, Any] = {}
        exec(self.codes[block.start, form], self.environment, scope)
        run: Callable[..., Any] = scope["block"]
        return run

    def attach(self, block: Block) -> None:
        """Give a block the functions of its stored code."""
        for masked, form in enumerate(("full", "masked")):
            if (block.start, form) in self.codes:
                block.run[masked] = self._function(block, form)
        if (block.start, "finish") in self.codes:
            block.finish = self._function(block, "finish")

    def bind(self, ins: Instruction) -> tuple[Bound | Inline, ...]:
        """Call the binding function of an instruction; errors name the instruction."""
        entry = self.entries[ins.pc]
        if entry is None:
            raise UnknownInstructionError(f"unknown instruction {describe(ins)}")
        try:
            bound = entry.bind(ins, self.binder)
        except UnknownInstructionError:
            raise UnknownInstructionError(f"unknown form of {describe(ins)}") from None
        except EmulatorError as error:
            raise EmulatorError(f"{describe(ins)}: {error}") from None
        except (IndexError, AttributeError, KeyError, StopIteration) as error:
            raise UnknownInstructionError(f"unknown form of {describe(ins)}: {error!r}") from error
        if bound is None:
            return ()
        return bound if isinstance(bound, tuple) else (bound,)

    def flow(self, pc: int) -> Flow | None:
        """How taint flows through an instruction; None when it has no effect."""
        if pc not in self._flows:
            ins = self.instructions[pc]
            bound = self.bind(ins)
            inline = bool(bound) and all(isinstance(b, Inline) for b in bound)
            self._flows[pc] = flow_of(ins, self.slots.index.get, inline) if bound else None
        return self._flows[pc]

    def _lines(self, ins: Instruction, masked: bool) -> list[str]:
        """The code of one instruction of an ordinary block."""
        predicated = ins.predicate is not None
        inner: list[str] = []
        for bound in self.bind(ins):
            inner += self._bound_lines(ins, bound, masked or predicated)
        if not inner:
            return []
        if ins.predicate is None:
            return [" " + line for line in inner]
        slot = self.slots.get(ins.predicate)
        self.binder.touched.add(slot)
        lines = [
            f" P={'~' if ins.predicate_negated else ''}R[{slot}]" + ("&M" if masked else ""),
            " if 1 in P.tobytes():",
        ]
        if masked:
            return [*lines, "  S=M;M=P", *("  " + line for line in inner), "  M=S"]
        return [*lines, "  M=P", *("  " + line for line in inner), "  M=ALL"]

    def _bound_lines(self, ins: Instruction, bound: Bound | Inline, masked: bool) -> list[str]:
        binder = self.binder
        if isinstance(bound, Inline):
            return [binder.store(bound.target, bound.code, bound.type, masked)]
        call = f"{binder.function(bound.run)}({','.join(['w', 'M', *(r.code for r in bound.reads)])})"
        lines = [f"w.at={ins.pc}"]
        if not bound.writes:
            return [*lines, call]
        names = [f"v{i}" for i in range(len(bound.writes))]
        lines.append(f"{','.join(names)}={call}")
        stores = [binder.store(t, n, ty, masked) for n, (t, ty) in zip(names, bound.writes, strict=True)]
        return lines + [s for s in stores if "=" in s]

    def _compile_blocking(self, block: Block, ins: Instruction) -> None:
        """Two functions: one runs the instruction, one stores its result."""
        self.binder.touched, self.binder.stored = set(), set()
        (bound,) = self.bind(ins)
        if not isinstance(bound, Bound):
            raise EmulatorError(f"{describe(ins)} is registered as blocking, but is an expression")
        call = f"{self.binder.function(bound.run)}({','.join(['w', 'M', *(r.code for r in bound.reads)])})"
        lines = ["def block(w,M):", " R=w.registers", f" w.at={block.start}", f" return {call}"]
        block.run = [self._execute(lines, block, "full"), None]
        lines = ["def block(w,M,result):", " R=w.registers"]
        names = [f"v{i}" for i in range(len(bound.writes))]
        if names:
            lines.append(f" {','.join(names)}=result")
            lines += [
                " " + self.binder.store(t, n, ty, True)
                for n, (t, ty) in zip(names, bound.writes, strict=True)
            ]
        block.finish = self._execute([*lines, " return"], block, "finish")
        block.touched, block.stored = frozenset(self.binder.touched), frozenset(self.binder.stored)
