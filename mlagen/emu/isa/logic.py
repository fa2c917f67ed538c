"""Comparison, selection, logic, shifts and data movement between registers (PTX ISA 9.7.7 to 9.7.9)."""

from __future__ import annotations

import numpy as np

from mlagen.emu.helpers import helper
from mlagen.emu.interfaces import (
    SHARED_WINDOW,
    Array,
    Binder,
    Imm,
    Inline,
    Instruction,
    Operand,
    Pair,
    Reg,
    UnknownInstructionError,
    Vec,
    instruction,
)
from mlagen.emu.types import short_name, size_of

_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}


def _comparison(operator: str, a: str, b: str, is_float: bool) -> str:
    """The predicate of a comparison; ordered float comparisons are false for NaN, unordered ones true."""
    if operator in ("num", "nan"):
        unordered = f"(isnan({a})|isnan({b}))"
        return unordered if operator == "nan" else f"~{unordered}"
    if operator in _COMPARE:
        code = f"({a}{_COMPARE[operator]}{b})"
        return f"({code}&~isnan({a})&~isnan({b}))" if is_float and operator == "ne" else code
    if operator.endswith("u") and operator[:-1] in _COMPARE:
        return f"(({a}{_COMPARE[operator[:-1]]}{b})|isnan({a})|isnan({b}))"
    raise UnknownInstructionError(operator)


@instruction("setp", section="9.7.6.2, 9.7.7.2 setp")
def setp(ins: Instruction, bind: Binder) -> tuple[Inline, ...]:
    """Compare into one or two predicates."""
    kind = ins.modifiers[-1]
    a, b = (_comparable(bind.value(o, kind).code, ins, kind) for o in ins.operands[1:3])
    code = _comparison(ins.modifiers[0], a, b, kind[0] == "f" or kind == "bf16")
    combine = ins.modifiers[1] if ins.modifiers[1] in _LOGIC else None
    target = ins.operands[0]
    if combine is None:
        if not isinstance(target, Pair):
            return (Inline(code, "pred", target),)
        return Inline(code, "pred", target.first), Inline(f"~{code}", "pred", target.second)
    other = bind.value(ins.operands[3], "pred").code
    if not isinstance(target, Pair):
        return (Inline(f"({code}{_LOGIC[combine]}{other})", "pred", target),)
    both = f"({code}{_LOGIC[combine]}{other})", f"(~{code}{_LOGIC[combine]}{other})"
    return Inline(both[0], "pred", target.first), Inline(both[1], "pred", target.second)


def _comparable(code: str, ins: Instruction, kind: str) -> str:
    if kind == "bf16":
        return f"as_bf16({code})"
    return f"flush({code})" if kind == "f32" and "ftz" in ins.modifiers else code


@instruction("set", section="9.7.6.1 set")
def set_value(ins: Instruction, bind: Binder) -> Inline:
    """Compare into a value: all ones or 1.0 for true."""
    result, kind = ins.modifiers[-2], ins.modifiers[-1]
    a, b = (_comparable(bind.value(o, kind).code, ins, kind) for o in ins.operands[1:3])
    code = _comparison(ins.modifiers[0], a, b, kind[0] == "f" or kind == "bf16")
    true = (
        "f32(1)"
        if result == "f32"
        else f"{short_name(result)}({-1 if result[0] == 's' else (1 << 8 * size_of(result)) - 1})"
    )
    return Inline(f"where({code},{true},{short_name(result)}(0))", result, ins.operands[0])


@instruction("selp", section="9.7.6.3 selp")
def selp(ins: Instruction, bind: Binder) -> Inline:
    """a if the predicate is true, else b."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"where({bind.value(ins.operands[3], 'pred').code},{a},{b})", kind, ins.operands[0])


@instruction("slct", section="9.7.6.4 slct")
def slct(ins: Instruction, bind: Binder) -> Inline:
    """a if c >= 0, else b."""
    kind, test = ins.modifiers[-2], ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"where({bind.value(ins.operands[3], test).code}>=0,{a},{b})", kind, ins.operands[0])


@instruction("and", "or", "xor", section="9.7.8.1 and, or, xor")
def logic(ins: Instruction, bind: Binder) -> Inline:
    """Bitwise, or on predicates."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"({a}{_LOGIC[ins.op]}{b})", kind, ins.operands[0])


@instruction("not", section="9.7.8.4 not")
def invert(ins: Instruction, bind: Binder) -> Inline:
    """One's complement."""
    kind = ins.modifiers[-1]
    return Inline(f"~{bind.value(ins.operands[1], kind).code}", kind, ins.operands[0])


@instruction("cnot", section="9.7.8.5 cnot")
def cnot(ins: Instruction, bind: Binder) -> Inline:
    """1 if zero, else 0."""
    kind = ins.modifiers[-1]
    return Inline(
        f"({bind.value(ins.operands[1], kind).code}==0).astype({short_name(kind)})", kind, ins.operands[0]
    )


@helper
def three_input(a: Array, b: Array, c: Array, table: int) -> Array:
    """`lop3`: bit i of the table is the result for inputs a, b, c with i = 4a + 2b + c."""
    result: Array = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


@instruction("lop3", section="9.7.8.6 lop3")
def lop3(ins: Instruction, bind: Binder) -> Inline:
    """Any logic function of three inputs."""
    if len(ins.modifiers) != 1:
        raise UnknownInstructionError(ins.name)
    a, b, c = (bind.value(o, "b32").code for o in ins.operands[1:4])
    return Inline(f"three_input({a},{b},{c},{bind.immediate(ins.operands[4]) & 255})", "b32", ins.operands[0])


@instruction("shl", "shr", section="9.7.8.8 shl, shr")
def shift(ins: Instruction, bind: Binder) -> Inline:
    """Shift; amounts beyond the width are clamped."""
    kind = ins.modifiers[-1]
    bits = size_of(kind) * 8
    a, amount = bind.value(ins.operands[1], kind).code, ins.operands[2]
    name = short_name(kind)
    if isinstance(amount, Imm) and 0 <= int(amount.value) < bits:
        return Inline(
            f"({a}{'<<' if ins.op == 'shl' else '>>'}{name}({int(amount.value)}))", kind, ins.operands[0]
        )
    function = "shift_left" if ins.op == "shl" else "shift_right"
    return Inline(f"{function}({a},{bind.value(amount, 'u32').code},{bits})", kind, ins.operands[0])


@helper
def funnel(a: Array, b: Array, amount: Array, left: bool, clamp: bool) -> Array:
    """`shf`: 32 bits out of the 64-bit value b:a."""
    n = np.minimum(amount, np.uint32(32)) if clamp else amount & np.uint32(31)
    pair = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
    n = n.astype(np.uint64)
    result: Array = ((pair << n) >> np.uint64(32) if left else pair >> n).astype(np.uint32)
    return result


@instruction("shf", section="9.7.8.7 shf")
def shf(ins: Instruction, bind: Binder) -> Inline:
    """Funnel shift."""
    a, b, c = (bind.value(o, "u32").code for o in ins.operands[1:4])
    return Inline(f"funnel({a},{b},{c},{ins.has('l')},{ins.has('clamp')})", "u32", ins.operands[0])


@helper
def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """`prmt` in its default mode: each nibble picks one of 8 bytes, bit 3 replicates its sign."""
    pool = np.concatenate([np.ascontiguousarray(x).view(np.uint8).reshape(32, 4) for x in (a, b)], 1)
    nibbles = (selector[:, None] >> (np.arange(4, dtype=np.uint32) * np.uint32(4))) & np.uint32(15)
    chosen = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), 1)
    chosen = np.where(nibbles & 8, np.where(chosen & 128, np.uint8(255), np.uint8(0)), chosen)
    result: Array = np.ascontiguousarray(chosen).view(np.uint32).reshape(32)
    return result


_PRMT = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""The selectors that a mode of prmt stands for, by the low two bits of its third source."""


@helper
def permute_selector(value: Array, mode: str) -> Array:
    """The selectors of a mode of prmt."""
    chosen: Array = np.array(_PRMT[mode], np.uint32)[value & np.uint32(3)]
    return chosen


@instruction("prmt", section="9.7.9.7 prmt")
def prmt(ins: Instruction, bind: Binder) -> Inline:
    """Byte permute."""
    a, b, c = (bind.value(o, "u32").code for o in ins.operands[1:4])
    if len(ins.modifiers) > 1:
        if ins.modifiers[1] not in _PRMT:
            raise UnknownInstructionError(ins.name)
        c = f"permute_selector({c},{ins.modifiers[1]!r})"
    return Inline(f"permute_bytes({a},{b},{c})", "u32", ins.operands[0])


@instruction("mov", section="9.7.9.2 mov")
def mov(ins: Instruction, bind: Binder) -> tuple[Inline, ...]:
    """Copy, or pack and unpack with a vector operand."""
    target, source, kind = ins.operands[0], ins.operands[1], ins.modifiers[-1]
    if isinstance(target, Vec):
        return _unpack(target, source, bind)
    if isinstance(source, Vec):
        return (_pack(target, source, kind, bind),)
    if kind not in ("pred", "b128") and not isinstance(source, Imm):
        kind = f"b{8 * size_of(kind)}"
    return (Inline(bind.value(source, kind).code, kind, target),)


def _unpack(target: Vec, source: Operand, bind: Binder) -> tuple[Inline, ...]:
    count = len(target.items)
    size = bind.size(source) if isinstance(source, Reg) else sum(bind.size(t) for t in target.items)
    width = size // count
    code = bind.value(source, f"b{8 * size}").code
    if size == 16:
        parts = (
            [f"({code})[:,{i}].copy()" for i in range(2)]
            if count == 2
            else [f"unpack({code},u32,4)[{i}]" for i in range(count)]
        )
    else:
        parts = [f"{code}.view(u{8 * width})[{i}::{count}].copy()" for i in range(count)]
    return tuple(
        Inline(part, f"b{8 * width}", item)
        for part, item in zip(parts, target.items, strict=True)
        if not (isinstance(item, Reg) and item.name == "_")
    )


def _pack(target: Operand, source: Vec, kind: str, bind: Binder) -> Inline:
    count, size = len(source.items), size_of(kind)
    width = size // count
    parts = ",".join(bind.value(item, f"b{8 * width}").code for item in source.items)
    if size == 16:
        code = f"np.stack([{parts}],1)" + ("" if width == 8 else ".view(u64)")
        return Inline(code, "b128", target)
    return Inline(f"pack([{parts}],u{8 * size})", f"b{8 * size}", target)


@instruction("cvta", section="9.7.9.20 cvta")
def cvta(ins: Instruction, bind: Binder) -> Inline:
    """Convert between generic addresses and addresses of a state space."""
    kind = "u64"
    source = ins.operands[1]
    code = bind.value(source, kind).code
    if any(m.startswith("shared") for m in ins.modifiers):
        window = bind.constant(SHARED_WINDOW, kind).code
        code = f"({code}-{window})" if "to" in ins.modifiers else f"({code}+{window})"
    return Inline(code, kind, ins.operands[0])


@instruction("isspacep", section="9.7.9.19 isspacep")
def isspacep(ins: Instruction, bind: Binder) -> Inline:
    """Whether a generic address lies in a state space."""
    a = bind.value(ins.operands[1], "u64").code
    space = ins.modifiers[0].split("::")[0]
    window = bind.constant(SHARED_WINDOW, "u64").code
    end = bind.constant(SHARED_WINDOW + (1 << 32), "u64").code
    shared = f"(({a}>={window})&({a}<{end}))"
    if space == "shared":
        return Inline(shared, "pred", ins.operands[0])
    local = f"({a}<{bind.constant(1 << 24, 'u64').code})"
    if space == "local":
        return Inline(local, "pred", ins.operands[0])
    if space == "global":
        return Inline(f"~({shared}|{local})", "pred", ins.operands[0])
    raise UnknownInstructionError(space)
