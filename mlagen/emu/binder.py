"""Operands -> Python expressions of the generated code, and results -> assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlagen.emu.interfaces import Array, EmulatorError, Expr, Imm, Mem, Not, Operand, Reg, Sym
from mlagen.emu.ptx import Function
from mlagen.emu.types import NUMPY, SIZES, UNSIGNED, is_float, short_name, size_of

DYNAMIC_SPECIALS = {
    "%clock": "u32",
    "%clock64": "u64",
    "%globaltimer": "u64",
    "%globaltimer_lo": "u32",
    "%clock_hi": "u32",
}
"""Special registers that change while a warp runs."""

_REGISTER_BYTES = {1: 2}


def is_special(name: str) -> bool:
    """Whether a register name is a special register that is fixed for a warp."""
    return name.startswith("%") and ("." in name or name in FIXED_SPECIALS)


FIXED_SPECIALS = {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%lanemask_eq", "%lanemask_lt",
    "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%cluster_ctarank", "%cluster_nctarank",
    "%is_explicit_cluster", "%dynamic_smem_size", "%total_smem_size",
}  # fmt: skip


def constant_array(value: int | float, kind: str, ptx_type: str) -> Array:
    """A constant (32,) of a PTX type; kind as in `Imm`."""
    if ptx_type == "pred":
        return np.full(32, bool(value))
    name = short_name(ptx_type)
    size = size_of(ptx_type)
    if ptx_type == "b128":
        halves = np.array([int(value) & (2**64 - 1), int(value) >> 64 & (2**64 - 1)], np.uint64)
        return np.broadcast_to(halves, (32, 2)).copy()
    if is_float(ptx_type) and kind in ("int", "float"):
        return np.full(32, value, NUMPY[name])
    if kind == "float":
        raise EmulatorError(f"floating-point literal {value} as .{ptx_type}")
    if kind == "f64" and size == 4:
        value = int(np.array([int(value)], np.uint64).view(np.float64).astype(np.float32).view(np.uint32)[0])
    if kind == "f32" and size == 8:
        value = int(np.array([int(value)], np.uint32).view(np.float32).astype(np.float64).view(np.uint64)[0])
    unsigned = NUMPY[UNSIGNED[size]]
    return np.full(32, int(value) & ((1 << 8 * size) - 1), unsigned).view(NUMPY[name])


class Symbols:
    """Where the variables of a kernel are: offsets of shared, local and parameter variables, addresses of
    global ones.
    """

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self.local: dict[str, int] = {}
        self.params: dict[str, int] = {}
        self.globals: dict[str, int] = {}
        self.call_params: dict[str, int] = {}


class Slots:
    """Register slots of a kernel: name -> index, and the bytes of each."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.index: dict[str, int] = {}
        self.bytes: list[int] = []
        self.specials: list[tuple[int, str]] = []

    def get(self, name: str) -> int:
        """The slot of a register, new when first used."""
        found = self.index.get(name)
        if found is not None:
            return found
        special = is_special(name)
        size = 4 if special else size_of(self.function.register_type(name))
        slot = self.index[name] = len(self.bytes)
        self.bytes.append(_REGISTER_BYTES.get(size, size))
        if special:
            self.specials.append((slot, name))
        return slot


class Binder:
    """The binder of one kernel; `touched` and `stored` collect the slots that the instruction being bound
    reads or writes.
    """

    def __init__(self, slots: Slots, symbols: Symbols) -> None:
        self.slots = slots
        self.symbols = symbols
        self.constants: list[Array] = []
        self.constant_index: dict[tuple[Any, ...], int] = {}
        self.functions: list[Callable[..., Any]] = []
        self.touched: set[int] = set()
        self.loaded: set[int] = set()
        self.stored: set[int] = set()

    # ---- reading

    def constant(self, value: int | float, type: str, kind: str = "int") -> Expr:
        """A constant array (32,)."""
        if isinstance(value, float):
            kind = "float"
        key = (repr(value), kind, type)
        index = self.constant_index.get(key)
        if index is None:
            index = self.constant_index[key] = len(self.constants)
            self.constants.append(constant_array(value, kind, type))
        return Expr(f"C[{index}]", type)

    def slot(self, operand: Operand) -> int:
        """The slot of a register operand."""
        if not isinstance(operand, Reg):
            raise EmulatorError(f"a register is needed, not {operand}")
        return self.slots.get(operand.name)

    def size(self, operand: Operand) -> int:
        """Bytes of a register operand (0 for a predicate)."""
        return self.slots.bytes[self.slot(operand)]

    def immediate(self, operand: Operand) -> int:
        """The value of an integer immediate."""
        if isinstance(operand, Imm) and isinstance(operand.value, int):
            return operand.value
        raise EmulatorError(f"an integer immediate is needed, not {operand}")

    def value(self, operand: Operand, type: str) -> Expr:
        """The operand as an array (32,) of the numpy type of a PTX type."""
        if isinstance(operand, Imm):
            return self.constant(operand.value, type, operand.kind)
        if isinstance(operand, Not):
            return Expr(f"~{self.value(operand.operand, 'pred').code}", "pred")
        if isinstance(operand, Reg):
            return self._register(operand, type)
        if isinstance(operand, Sym):
            return self._symbol(operand.name, operand.offset, type)
        if isinstance(operand, Mem) and not operand.rest:
            base = self.value(operand.base, type)
            return Expr(f"({base.code}+{self.constant(operand.offset, type).code})", type)
        raise EmulatorError(f"operand {operand} cannot be read as .{type}")

    def _register(self, operand: Reg, type: str) -> Expr:
        if operand.name in DYNAMIC_SPECIALS:
            return Expr(f"w.machine.clock({short_name(type)})", type)
        slot = self.slots.get(operand.name)
        self.touched.add(slot)
        self.loaded.add(slot)
        have, want = self.slots.bytes[slot], SIZES.get(type, 4)
        code = f"R[{slot}]"
        if type == "pred" or have == 16:
            return Expr(code, type)
        if want > have:
            raise EmulatorError(f"{operand.name} has {have} bytes and is read as .{type}")
        if want < have:
            code = f"{code}.astype({UNSIGNED[want]})"
        if short_name(type) != UNSIGNED[want]:
            code = f"{code}.view({short_name(type)})"
        return Expr(code, type)

    def _symbol(self, name: str, offset: int, type: str) -> Expr:
        symbols = self.symbols
        if name in symbols.shared:
            return Expr(f"w.cta.symbol({symbols.shared[name] + offset},{short_name(type)})", type)
        if name in symbols.params:
            return Expr(f"w.machine.param_address({symbols.params[name] + offset},{short_name(type)})", type)
        if name in symbols.local:
            return self.constant(symbols.local[name] + offset, type)
        if name in symbols.globals:
            return self.constant(symbols.globals[name] + offset, type)
        raise EmulatorError(f"unknown name {name}")

    def address(self, operand: Operand, space: str) -> Expr:
        """The address of `[...]`: uint32 for shared and tmem, uint64 for every other space."""
        narrow = space.startswith(("shared", "tmem"))
        type = "u32" if narrow else "u64"
        if not isinstance(operand, Mem):
            raise EmulatorError(f"a memory operand is needed, not {operand}")
        base, offset = operand.base, operand.offset
        if isinstance(base, Sym):
            return self._symbol(base.name, base.offset + offset, type)
        if isinstance(base, Imm):
            return self.constant(int(base.value) + offset, type)
        size = self.size(base)
        if size == 4 and not narrow:
            code = f"{self.value(base, 'u32').code}.astype(u64)"
        else:
            code = self.value(base, type).code
        if offset:
            code = f"({code}+{self.constant(offset, type).code})"
        return Expr(code, type)

    def param_offset(self, name: str) -> int | None:
        """Byte offset of a kernel parameter; None for a parameter of a call."""
        if name in self.symbols.params:
            return self.symbols.params[name]
        if name in self.symbols.call_params:
            return None
        raise EmulatorError(f"unknown parameter {name}")

    def shared_address(self, operand: Operand) -> Expr:
        """The uint32 shared address of `[...]`."""
        return self.address(operand, "shared")

    def function(self, run: Callable[..., Any]) -> str:
        """The name of a run function in generated code."""
        self.functions.append(run)
        return f"F[{len(self.functions) - 1}]"

    # ---- writing

    def store(self, target: Operand, code: str, type: str, masked: bool) -> str:
        """The assignment of an expression of a PTX type to a register."""
        if isinstance(target, Reg) and target.name == "_":
            return f"{code}"
        slot = self.slot(target)
        self.touched.add(slot)
        self.stored.add(slot)
        size = self.slots.bytes[slot]
        value = code if type == "pred" or size == 16 else self._widened(code, type, size)
        if not masked:
            return f"R[{slot}]={value}"
        mask = "M[:,None]" if size == 16 else "M"
        return f"R[{slot}]=where({mask},{value},R[{slot}])"

    def _widened(self, code: str, type: str, size: int) -> str:
        """The expression as the unsigned type of a register of `size` bytes; narrow signed values are sign-
        extended.
        """
        have, name, native = size_of(type), short_name(type), UNSIGNED[size]
        if have > size:
            raise EmulatorError(f"a result of .{type} does not fit a register of {size} bytes")
        if have == size:
            return code if name == native else f"({code}).view({native})"
        if name[0] == "i":
            return f"({code}).astype(i{8 * size}).view({native})"
        if name[0] == "u":
            return f"({code}).astype({native})"
        return f"({code}).view({UNSIGNED[have]}).astype({native})"
