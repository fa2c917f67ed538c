"""Integer arithmetic (PTX ISA 9.7.1) and extended-precision-free bit counting."""

from __future__ import annotations

import numpy as np

from mlagen.emu.helpers import helper
from mlagen.emu.interfaces import (
    Array,
    Binder,
    EmulatorError,
    Inline,
    Instruction,
    UnknownInstructionError,
    instruction,
)
from mlagen.emu.types import is_signed, short_name, size_of, wider


def _refuse(ins: Instruction, *modifiers: str) -> None:
    for modifier in modifiers:
        if modifier in ins.modifiers:
            raise UnknownInstructionError(modifier)


def integer_sum(ins: Instruction, bind: Binder, sign: str) -> Inline:
    """add or sub of integers; wraps."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    if "sat" in ins.modifiers:
        return Inline(f"saturated_sum({a},{b},{sign == '-'})", kind, ins.operands[0])
    return Inline(f"({a}{sign}{b})", kind, ins.operands[0])


@helper
def saturated_sum(a: Array, b: Array, subtract: bool) -> Array:
    """a + b or a - b of s32, at the nearest end of the range where it leaves it."""
    wide = a.astype(np.int64) - b if subtract else a.astype(np.int64) + b
    clipped: Array = np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)
    return clipped


@helper
def times_wide(a: Array, b: Array, kind: type) -> Array:
    """A product in the type of twice the width."""
    product: Array = a.astype(kind) * b.astype(kind)
    return product


def integer_product(ins: Instruction, bind: Binder) -> tuple[str, str]:
    """The product of the first two sources and its type: .lo, .hi or .wide."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    if "wide" in ins.modifiers:
        return f"times_wide({a},{b},{short_name(wider(kind))})", wider(kind)
    if "hi" in ins.modifiers:
        return f"multiply_high({a},{b})", kind
    if "lo" in ins.modifiers:
        return f"({a}*{b})", kind
    raise UnknownInstructionError(ins.name)


@instruction("mul.lo", "mul.hi", "mul.wide", section="9.7.1.3 mul")
def mul_integer(ins: Instruction, bind: Binder) -> Inline:
    """Integer product."""
    code, kind = integer_product(ins, bind)
    return Inline(code, kind, ins.operands[0])


@instruction("mad.lo", "mad.hi", "mad.wide", section="9.7.1.4 mad")
def mad_integer(ins: Instruction, bind: Binder) -> Inline:
    """Integer product plus a third source."""
    _refuse(ins, "sat", "cc")
    code, kind = integer_product(ins, bind)
    return Inline(f"({code}+{bind.value(ins.operands[3], kind).code})", kind, ins.operands[0])


@helper
def product24(a: Array, b: Array, high: bool) -> Array:
    """Product of the lower 24 bits; bits 16..47 with high, else 0..31."""
    shift = np.int64(40)
    wide_a = (a.astype(np.int64) << shift) >> shift if a.dtype.kind == "i" else a.astype(np.int64) & 0xFFFFFF
    wide_b = (b.astype(np.int64) << shift) >> shift if b.dtype.kind == "i" else b.astype(np.int64) & 0xFFFFFF
    product = wide_a * wide_b
    result: Array = (product >> 16 if high else product).astype(a.dtype)
    return result


@instruction("mul24", section="9.7.1.5 mul24")
def mul24(ins: Instruction, bind: Binder) -> Inline:
    """Product of 24-bit integers."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"product24({a},{b},{'hi' in ins.modifiers})", kind, ins.operands[0])


@instruction("mad24.lo", section="9.7.1.6 mad24")
def mad24(ins: Instruction, bind: Binder) -> Inline:
    """Product of 24-bit integers plus a third source."""
    kind = ins.modifiers[-1]
    a, b, c = (bind.value(o, kind).code for o in ins.operands[1:4])
    return Inline(f"(product24({a},{b},False)+{c})", kind, ins.operands[0])


@instruction("rem", section="9.7.1.9 rem")
def rem(ins: Instruction, bind: Binder) -> Inline:
    """Integer remainder."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"remainder({a},{b})", kind, ins.operands[0])


@helper
def sum_of_absolute_differences(a: Array, b: Array, c: Array) -> Array:
    """c + |a - b|."""
    total: Array = c + np.where(a < b, b - a, a - b).astype(c.dtype)
    return total


@instruction("sad", section="9.7.1.7 sad")
def sad(ins: Instruction, bind: Binder) -> Inline:
    """Sum of absolute differences."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    c = bind.value(ins.operands[3], kind.replace("s", "u")).code
    return Inline(f"sum_of_absolute_differences({a},{b},{c})", kind.replace("s", "u"), ins.operands[0])


@helper
def highest_bit(x: Array) -> Array:
    """Position of the most significant one bit, int64; -1 for zero."""
    value = x.astype(np.uint64)
    position = np.zeros(x.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        upper = value >> np.uint64(step)
        big = upper != 0
        position += np.where(big, step, 0)
        value = np.where(big, upper, value)
    return np.where(value == 0, np.int64(-1), position)


@instruction("popc", section="9.7.1.12 popc")
def popc(ins: Instruction, bind: Binder) -> Inline:
    """Number of one bits."""
    return Inline(
        f"np.bitwise_count({bind.value(ins.operands[1], ins.modifiers[-1]).code}).astype(u32)",
        "u32",
        ins.operands[0],
    )


@instruction("clz", section="9.7.1.13 clz")
def clz(ins: Instruction, bind: Binder) -> Inline:
    """Number of leading zero bits."""
    kind = ins.modifiers[-1]
    top = size_of(kind) * 8 - 1
    return Inline(
        f"({top}-highest_bit({bind.value(ins.operands[1], kind).code})).astype(u32)", "u32", ins.operands[0]
    )


@helper
def find_bit(x: Array, shift_amount: bool) -> Array:
    """`bfind`: for signed values the highest bit that differs from the sign; all ones if there is none."""
    bits = x.dtype.itemsize * 8
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    value = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
    position = highest_bit(value.view(unsigned))
    result = np.where(position < 0, -1, bits - 1 - position if shift_amount else position)
    return result.astype(np.int32).view(np.uint32)


@instruction("bfind", section="9.7.1.14 bfind")
def bfind(ins: Instruction, bind: Binder) -> Inline:
    """Position of the most significant non-sign bit."""
    shift = "shiftamt" in ins.modifiers
    return Inline(
        f"find_bit({bind.value(ins.operands[1], ins.modifiers[-1]).code},{shift})", "u32", ins.operands[0]
    )


@helper
def reverse_bits(x: Array) -> Array:
    """Bits in reverse order."""
    count = x.dtype.itemsize
    by_byte = np.ascontiguousarray(x).view(np.uint8).reshape(-1, count)[:, ::-1]
    flipped = np.packbits(
        np.unpackbits(by_byte, axis=1, bitorder="little").reshape(-1, count, 8), axis=2, bitorder="big"
    )
    result: Array = np.ascontiguousarray(flipped.reshape(-1, count)).view(x.dtype).reshape(x.shape)
    return result


@instruction("brev", section="9.7.1.16 brev")
def brev(ins: Instruction, bind: Binder) -> Inline:
    """Bit reverse."""
    kind = ins.modifiers[-1]
    return Inline(f"reverse_bits({bind.value(ins.operands[1], kind).code})", kind, ins.operands[0])


@helper
def extract_field(a: Array, position: Array, length: Array) -> Array:
    """`bfe`: the field a[position +: length], sign-extended for signed types."""
    bits = a.dtype.itemsize * 8
    start, count = (position & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
    out = []
    for value, s, n in zip(a, start, count, strict=True):
        raw = int(value) & ((1 << bits) - 1)
        field = (raw >> int(s)) & ((1 << int(n)) - 1)
        if a.dtype.kind == "i" and n:
            sign = raw >> min(int(s) + int(n) - 1, bits - 1) & 1
            width = min(int(n), max(bits - int(s), 0))
            field = field & ((1 << width) - 1)
            if sign:
                field |= ((1 << bits) - 1) ^ ((1 << width) - 1)
        out.append(field & ((1 << bits) - 1))
    result: Array = np.array(out, f"u{a.dtype.itemsize}").view(a.dtype)
    return result


@instruction("bfe", section="9.7.1.17 bfe")
def bfe(ins: Instruction, bind: Binder) -> Inline:
    """Bit field extract."""
    kind = ins.modifiers[-1]
    a = bind.value(ins.operands[1], kind).code
    b, c = (bind.value(o, "u32").code for o in ins.operands[2:4])
    return Inline(f"extract_field({a},{b},{c})", kind, ins.operands[0])


@helper
def insert_field(a: Array, b: Array, position: Array, length: Array) -> Array:
    """`bfi`: b with the low bits of a put at [position +: length]."""
    bits = b.dtype.itemsize * 8
    one = b.dtype.type(1)
    start = np.minimum(position & np.uint32(255), bits).astype(b.dtype)
    count = np.minimum(length & np.uint32(255), bits).astype(b.dtype)
    field = np.where(
        count >= bits, ~b.dtype.type(0), (one << np.minimum(count, bits - 1).astype(b.dtype)) - one
    )
    within = np.minimum(start, bits - 1).astype(b.dtype)
    mask = np.where(start >= bits, b.dtype.type(0), field << within)
    result: Array = (b & ~mask) | ((a << within) & mask)
    return result


@instruction("bfi", section="9.7.1.18 bfi")
def bfi(ins: Instruction, bind: Binder) -> Inline:
    """Bit field insert."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    c, d = (bind.value(o, "u32").code for o in ins.operands[3:5])
    return Inline(f"insert_field({a},{b},{c},{d})", kind, ins.operands[0])


@helper
def bit_mask(position: Array, length: Array, clamp: bool) -> Array:
    """`bmsk`: length ones from a position."""
    start, count = position.astype(np.uint64), length.astype(np.uint64)
    if not clamp:
        start, count = start & np.uint64(31), count & np.uint64(31)
    start, count = np.minimum(start, np.uint64(32)), np.minimum(count, np.uint64(32))
    mask = ((np.uint64(1) << count) - np.uint64(1)) << start
    result: Array = mask.astype(np.uint32)
    return result


@instruction("bmsk", section="9.7.1.20 bmsk")
def bmsk(ins: Instruction, bind: Binder) -> Inline:
    """Bit field mask."""
    a, b = (bind.value(o, "u32").code for o in ins.operands[1:3])
    return Inline(f"bit_mask({a},{b},{'clamp' in ins.modifiers})", "u32", ins.operands[0])


@helper
def find_nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """`fns`: the position of the n-th one bit counted from base."""
    out = []
    for m, b, n in zip(mask, base, offset, strict=True):
        ones = [i for i in range(32) if int(m) >> i & 1]
        if n == 0:
            found = [int(b)] if int(m) >> (int(b) & 31) & 1 else []
        elif n > 0:
            found = [i for i in ones if i >= int(b)][int(n) - 1 : int(n)]
        else:
            found = [i for i in reversed(ones) if i <= int(b)][-int(n) - 1 : -int(n)]
        out.append(found[0] if found else 0xFFFFFFFF)
    return np.array(out, np.uint32)


@instruction("fns", section="9.7.1.15 fns")
def fns(ins: Instruction, bind: Binder) -> Inline:
    """Find the n-th set bit."""
    a, b = (bind.value(o, "u32").code for o in ins.operands[1:3])
    return Inline(f"find_nth_set({a},{b},{bind.value(ins.operands[3], 's32').code})", "u32", ins.operands[0])


@helper
def dot4(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool) -> Array:
    """`dp4a`: c plus the dot product of four bytes."""
    x = np.ascontiguousarray(a).view(np.int8 if a_signed else np.uint8).reshape(32, 4).astype(np.int64)
    y = np.ascontiguousarray(b).view(np.int8 if b_signed else np.uint8).reshape(32, 4).astype(np.int64)
    total: Array = (c.astype(np.int64) + (x * y).sum(1)).astype(np.uint32)
    return total


@instruction("dp4a", section="9.7.1.23 dp4a")
def dp4a(ins: Instruction, bind: Binder) -> Inline:
    """Four-way dot product of bytes with accumulate."""
    first, second = ins.modifiers
    a, b, c = (bind.value(o, "u32").code for o in ins.operands[1:4])
    return Inline(f"dot4({a},{b},{c},{is_signed(first)},{is_signed(second)})", "u32", ins.operands[0])


def integer_division(ins: Instruction, bind: Binder) -> Inline:
    """div of integers."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"divide({a},{b})", kind, ins.operands[0])


def check_integer(kind: str) -> None:
    """EmulatorError unless a type is an integer that arithmetic takes."""
    if kind[0] not in "us" or size_of(kind) < 2:
        raise EmulatorError(f"integer arithmetic on .{kind}")
