"""Integer arithmetic with the carry bit of each thread: add, sub and mad with `.cc`, addc, subc, madc."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import Array, Binder, Bound, Instruction, instruction
from mlagen.emu.types import size_of


def _carry(warp: Warp) -> Array:
    """The carry bits of a warp, (32,) bool; false at first."""
    found: Array = warp.scratch.setdefault("carry", np.zeros(32, np.bool_))
    return found


def _set_carry(warp: Warp, lanes: Array, carry: Array) -> None:
    warp.scratch["carry"] = np.where(lanes, carry, _carry(warp))


def run_sum(subtract: bool, reads: bool, sets: bool, warp: Warp, lanes: Array, a: Array, b: Array) -> Array:
    """a + b + carry, or a - b - borrow; unsigned."""
    old = _carry(warp).astype(a.dtype) if reads else np.zeros_like(a)
    if subtract:
        result: Array = a - b - old
        out = (a < b) | ((a == b) & (old != 0))
    else:
        result = a + b + old
        out = (result < a) | ((result == a) & (old != 0))
    if sets:
        _set_carry(warp, lanes, out)
    return result


@instruction("add.cc", "addc", section="9.7.2.1 add.cc, 9.7.2.2 addc")
def add_carry(ins: Instruction, bind: Binder) -> Bound:
    """Sum that reads or writes the carry."""
    return _bind_sum(ins, bind, False)


@instruction("sub.cc", "subc", section="9.7.2.3 sub.cc, 9.7.2.4 subc")
def sub_carry(ins: Instruction, bind: Binder) -> Bound:
    """Difference that reads or writes the borrow."""
    return _bind_sum(ins, bind, True)


def _bind_sum(ins: Instruction, bind: Binder, subtract: bool) -> Bound:
    kind = f"u{8 * size_of(ins.modifiers[-1])}"
    reads = tuple(bind.value(o, kind) for o in ins.operands[1:3])
    run = partial(run_sum, subtract, ins.op in ("addc", "subc"), ins.has("cc"))
    return Bound(run, reads, ((ins.operands[0], kind),))


def run_product(
    high: bool, reads: bool, sets: bool, warp: Warp, lanes: Array, a: Array, b: Array, c: Array
) -> Array:
    """One half of a b, plus c, plus the carry."""
    bits = 8 * a.dtype.itemsize
    mask = (1 << bits) - 1
    old = _carry(warp) if reads else np.zeros(32, np.bool_)
    result, out = np.zeros_like(c), np.zeros(32, np.bool_)
    for lane in np.flatnonzero(lanes):
        product = int(a[lane]) * int(b[lane])
        part = (product >> bits if high else product) & mask
        total = part + int(c[lane]) + int(old[lane])
        result[lane], out[lane] = total & mask, total > mask
    if sets:
        _set_carry(warp, lanes, out)
    return result


@instruction("mad.lo.cc", "mad.hi.cc", "madc.lo", "madc.hi", section="9.7.2.5 mad.cc, 9.7.2.6 madc")
def mad_carry(ins: Instruction, bind: Binder) -> Bound:
    """Product and sum that read or write the carry."""
    kind = ins.modifiers[-1]
    size = 8 * size_of(kind)
    reads = (*(bind.value(o, kind) for o in ins.operands[1:3]), bind.value(ins.operands[3], f"u{size}"))
    run = partial(run_product, ins.has("hi"), ins.op == "madc", ins.has("cc"))
    return Bound(run, reads, ((ins.operands[0], f"u{size}"),))
