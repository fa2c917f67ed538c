"""What an instruction of the emulator looks like, and what it may use of the machine.

An instruction is a *binding function*, registered under its PTX name::

    @instruction("mbarrier.arrive", section="9.7.13.15.13 mbarrier.arrive")
    def mbarrier_arrive(ins: Instruction, bind: Binder) -> Bound:
        count = bind.value(ins.operands[2], "u32") if len(ins.operands) > 2 else bind.constant(1, "u32")
        return Bound(run=run_arrive, reads=(bind.shared_address(ins.operands[1]), count), writes=())

It runs once per place in the kernel, when the code of its basic block is generated. It decodes and validates
the modifiers
(`ins.modifiers`), says which operands are read and written, and returns either

* `Inline`: a Python expression, for cheap ALU instructions, or
* `Bound`: a function that is called each time the instruction executes.

`Bound.run(warp, lanes, *reads)`:

* `warp`  : the executing `Warp`.
* `lanes` : bool (32,), the lanes that execute (active and predicate true); at least one is set. Never write
  to it.
* reads   : one array (32,) per entry of `Bound.reads`, in the dtype of the PTX type asked for. Values in
  lanes that do not
  execute are meaningless. Never write to them. b128 values are uint64 (32, 2).
* result  : None, one array, or a tuple of arrays, one per entry of `Bound.writes`; the generated code stores
  only `lanes`.
  Signed and float results are fine, the generated code converts bits, not values.
* run must be a module-level function or a `functools.partial` of one over picklable arguments (bound code is
  cached on disk).

Blocking: an instruction that can block is registered with `blocking=True` (it then is a basic block of its
own; its binding function
returns exactly one `Bound`), and `run` may return a `Wait`. The warp sleeps until
`Wait.ready()`; then `Wait.finish()` gives what `run` would have given. `run` is not called again. `ready` has
no side effects.

Asynchronous work: `warp.machine.post(AsyncOp(...))`. The schedule decides when it runs: at once (eager), as
late as possible (lazy),
in a random order. Ops with the same `queue` key run in order; ops with queue None run in any order. Nothing
may run before its `ready()`.

Who did it (happens-before): each warp has `warp.actor`. An asynchronous operation has an actor of its own:
`machine.checks.operation(warp.actor, name)` for one that completes on an mbarrier (TMA), or a pipe actor that
executes in order
(`warp.warpgroup.actor` for wgmma, `cta.tensor_actor` for tcgen05) that first does
`actor.acquire(warp.actor.release())`.
Memory accesses are declared **at issue** with `machine.checks.shared_read / shared_write / tmem_read /
tmem_write`; these do the
race check, the proxy check (actor.proxy is "generic" or "async") and, for reads, nothing else. When the data
really moves
(inside `AsyncOp.run`) use the memory objects; reads of never-written bytes are found there.
Completion hands over the actor's time: `mbarrier.complete_tx(n, actor.release())`, `mbarrier.arrive(n,
actor.release())`.

Errors: raise `EmulatorError` for what hardware would fault on or what is undefined (the machine adds CTA,
warp, role, PTX line and source
line of `warp.at`); call `warp.report(kind, message)` for findings that do not stop the run. Illegal modifier
or descriptor combinations
that are visible in the PTX text: raise `EmulatorError` in the binding function.

Addresses: a shared address is uint32, `cta_rank << 24 | offset`; `warp.shared(address)` -> (Cta, offset). A
generic address is uint64:
global addresses are themselves, shared memory is at SHARED_WINDOW + shared address, local memory below
LOCAL_LIMIT. Kernel parameters
live in global memory, so a tensor map is 128 bytes at a generic address: `machine.memory.read(address, 128)`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

from mlagen.emu.protocols import (
    Actor,
    Checks,
    Cta,
    GlobalMemory,
    Machine,
    Mbarrier,
    SharedMemory,
    Stamp,
    TensorMemory,
    Warp,
    Warpgroup,
)
from mlagen.errors import MlagenError

Array: TypeAlias = npt.NDArray[Any]

WARP = 32
GLOBAL_BASE = 0x0000_7000_0000_0000
SHARED_WINDOW = 0x0000_6000_0000_0000
LOCAL_LIMIT = 1 << 24
SHARED_OFFSET_BITS = 24


class EmulatorError(MlagenError, RuntimeError):
    """The kernel did something undefined, or used something that the emulator does not know."""


class UnknownInstructionError(EmulatorError):
    """The emulator has no semantics for an instruction; the message names it, its PTX line and its source
    line.
    """


# ------------------------------------------------------------------ operands as the parser gives them


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, or a special register (`%tid.x`); `_` is the sink."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate. kind: "int", "float" (decimal literal), "f32" / "f64" (value holds the bits)."""

    value: int | float
    kind: Literal["int", "float", "f32", "f64"] = "int"


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, parameter, function or label name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vec:
    """`{a, b, ...}`"""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Mem:
    """`[base + offset]`; `rest` holds what follows a comma inside the brackets (TMA coordinates: one Vec)."""

    base: Operand
    offset: int = 0
    rest: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`"""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """`!p`"""

    operand: Operand


Operand: TypeAlias = Reg | Imm | Sym | Vec | Mem | Pair | Not


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction.

    name: the opcode with all modifiers, "mbarrier.try_wait.parity.shared::cta.b64". modifiers: the parts
    after the first dot.
    pc: index in the function. line: PTX line, 1-based. source: (file, line) from `.loc`, or None.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    pc: int
    line: int
    source: tuple[str, int] | None = None
    predicate: str | None = None
    predicate_negated: bool = False

    @property
    def op(self) -> str:
        """The opcode without modifiers."""
        return self.name.split(".", 1)[0]

    def has(self, *modifiers: str) -> bool:
        """Whether all of these modifiers are there."""
        return all(m in self.modifiers for m in modifiers)


# ------------------------------------------------------------------ binding


@dataclass(frozen=True, slots=True)
class Expr:
    """Python source of an array (32,), and the PTX type of its dtype."""

    code: str
    type: str


class Binder(Protocol):
    """Turns operands into expressions of the generated code."""

    def value(self, operand: Operand, type: str) -> Expr:
        """The operand as an array (32,) of the numpy type of a PTX type ("u32", "f32", "pred", ...)."""

    def constant(self, value: int | float, type: str) -> Expr:
        """A constant array (32,)."""

    def address(self, operand: Operand, space: str) -> Expr:
        """The address of `[...]`: uint32 for "shared" and "tmem" (any `shared::x` too), uint64 for every
        other space.
        """

    def shared_address(self, operand: Operand) -> Expr:
        """`address(operand, "shared")`; a 64-bit register is narrowed."""

    def slot(self, operand: Operand) -> int:
        """The index in `warp.registers` of a register operand."""

    def immediate(self, operand: Operand) -> int:
        """The value of an integer immediate; an EmulatorError otherwise."""

    def param_offset(self, name: str) -> int | None:
        """Byte offset of a kernel parameter; None for a parameter of a call; else an EmulatorError."""

    def size(self, operand: Operand) -> int:
        """Bytes of a register operand as declared (0 for a predicate)."""


Result: TypeAlias = "Array | tuple[Array, ...] | Wait | None"


@dataclass(frozen=True, slots=True)
class Inline:
    """result = Python expression over numpy arrays; `type` is the PTX type of the expression's dtype."""

    code: str
    type: str
    target: Operand


@dataclass(frozen=True, slots=True)
class Bound:
    """An instruction that calls `run`. writes: (operand, PTX type) of each result."""

    run: Callable[..., Result]
    reads: tuple[Expr, ...] = ()
    writes: tuple[tuple[Operand, str], ...] = ()


@dataclass(slots=True)
class Wait:
    """Why a warp sleeps. describe() is for the deadlock report; give_up(), if set, is the result on a time-
    out (try_wait).
    """

    ready: Callable[[], bool]
    finish: Callable[[], Array | tuple[Array, ...] | None]
    describe: Callable[[], str]
    give_up: Callable[[], Array | tuple[Array, ...] | None] | None = None


@dataclass(slots=True)
class AsyncOp:
    """Work that the asynchronous engine does later."""

    name: str
    run: Callable[[], None]
    queue: Hashable | None = None
    ready: Callable[[], bool] | None = None


BindingFunction: TypeAlias = Callable[
    [Instruction, Binder], "Bound | Inline | tuple[Bound | Inline, ...] | None"
]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered instruction: the PTX name prefix it handles, the PTX ISA section, the binding function,
    whether it can block.
    """

    name: str
    section: str
    bind: BindingFunction
    blocking: bool = False


INSTRUCTIONS: dict[str, Entry] = {}


def instruction(
    *names: str, section: str, blocking: bool = False
) -> Callable[[BindingFunction], BindingFunction]:
    """Register a binding function under PTX names. blocking: `run` may return a `Wait` (the instruction is a
    basic block of its own).

    A name is a dotted prefix ("cp.async.bulk.tensor"); the longest registered prefix of an instruction's name
    wins. A binding function
    that returns None says that the instruction has no effect on the emulated state (prefetch, hints).
    """

    def register(function: BindingFunction) -> BindingFunction:
        for name in names:
            if name in INSTRUCTIONS:
                raise ValueError(f"{name} is registered twice")
            INSTRUCTIONS[name] = Entry(name, section, function, blocking)
        return function

    return register


__all__ = [
    "Actor",
    "Array",
    "AsyncOp",
    "Binder",
    "BindingFunction",
    "Bound",
    "Checks",
    "Cta",
    "EmulatorError",
    "Entry",
    "Expr",
    "GlobalMemory",
    "Imm",
    "Inline",
    "Instruction",
    "Machine",
    "Mbarrier",
    "Mem",
    "Not",
    "Operand",
    "Pair",
    "Reg",
    "Result",
    "SharedMemory",
    "Stamp",
    "Sym",
    "TensorMemory",
    "UnknownInstructionError",
    "Vec",
    "Wait",
    "Warp",
    "Warpgroup",
    "instruction",
]
