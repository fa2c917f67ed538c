"""Atomic operations (PTX ISA 9.7.13.4 atom, 9.7.13.5 red)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import Array, Binder, Bound, Instruction, UnknownInstructionError, Vec, instruction
from mlagen.emu.isa.load_store import narrow, space_of, vector_of
from mlagen.emu.numerics import bf16_to_f32, f32_to_bf16
from mlagen.emu.ordering import scope_of, semantics, strong_load, strong_store
from mlagen.emu.types import NUMPY, UNSIGNED, short_name, size_of

Operation = Callable[[Any, Any, Any], Any]


def _increment(old: Any, limit: Any, _: Any) -> Any:
    return type(old)(0) if old >= limit else old + type(old)(1)


def _decrement(old: Any, limit: Any, _: Any) -> Any:
    return limit if old == 0 or old > limit else old - type(old)(1)


OPERATIONS: dict[str, Operation] = {
    "add": lambda old, a, _: old + a,
    "max": lambda old, a, _: np.fmax(old, a) if isinstance(old, np.floating) else max(old, a),
    "min": lambda old, a, _: np.fmin(old, a) if isinstance(old, np.floating) else min(old, a),
    "and": lambda old, a, _: old & a,
    "or": lambda old, a, _: old | a,
    "xor": lambda old, a, _: old ^ a,
    "exch": lambda old, a, _: a,
    "cas": lambda old, a, b: b if old == a else old,
    "inc": _increment,
    "dec": _decrement,
}


def apply_scalar(operation: str, kind: str, old: Array, a: Array, b: Array | None) -> Array:
    """The new value of one location: arrays of one element in, raw bits out; `kind` may be a packed type."""
    if kind in ("f16x2", "bf16x2", "bf16", "f16"):
        if operation not in ("add", "max", "min"):
            raise UnknownInstructionError(f"atom.{operation}.{kind}")
        halves = [np.ascontiguousarray(v).view(np.uint16) for v in (old, a)]
        decode = bf16_to_f32 if kind.startswith("bf16") else lambda x: x.view(np.float16).astype(np.float32)
        values = OPERATIONS[operation](decode(halves[0]), decode(halves[1]), None)
        bits = f32_to_bf16(values) if kind.startswith("bf16") else values.astype(np.float16).view(np.uint16)
        packed: Array = np.ascontiguousarray(bits).view(old.dtype)
        return packed
    target = NUMPY[short_name(kind)]
    other = b.view(target)[0] if b is not None else None
    new = OPERATIONS[operation](old.view(target)[0], a.view(target)[0], other)
    result: Array = np.array([new], target).view(old.dtype)
    return result


def run_atomic(
    operation: str,
    kind: str,
    space: str,
    vector: int,
    strong: str,
    warp: Warp,
    lanes: Array,
    address: Array,
    *sources: Array,
) -> Array | tuple[Array, ...]:
    """Lane by lane, lowest first; the old values."""
    width = size_of(kind)
    unsigned = NUMPY[UNSIGNED[width]]
    old: list[Array] = [np.zeros(32, unsigned) for _ in range(vector)]
    bits = [np.ascontiguousarray(s).view(unsigned) for s in sources]
    machine = warp.machine
    for lane in np.nonzero(lanes)[0]:
        one = slice(int(lane), int(lane) + 1)
        store: Any
        if space == "shared":
            store, offset = warp.shared(int(address[lane]))
            key: Any = (store.index, offset)
            store, offsets = store.shared, np.array([offset], np.uint64)
        else:
            key, store = int(address[lane]), machine.memory
            offsets = machine.memory.offsets(address[one])
        strong_load(warp, (key,), strong)
        for i in range(vector):
            place = offsets + np.uint64(i * width)
            before = store.load(place, width)[0]
            second = bits[vector + i][one] if len(bits) > vector else None
            after = apply_scalar(operation, kind, before, bits[i][one], second)
            old[i][lane] = before[0]
            if after[0] != before[0]:
                machine.progress += 1
                store.store(place, width, [after])
        strong_store(warp, (key,), strong, 1 << int(lane))
    return tuple(old) if vector > 1 else old[0]


def run_generic(
    operation: str,
    kind: str,
    vector: int,
    strong: str,
    warp: Warp,
    lanes: Array,
    address: Array,
    *sources: Array,
) -> Array | tuple[Array, ...]:
    """An atomic on a generic address; all lanes must be in one state space."""
    space = "shared" if int(address[np.nonzero(lanes)[0][0]]) >> 44 == 6 else "global"
    return run_atomic(operation, kind, space, vector, strong, warp, lanes, narrow(space, address), *sources)


def _bind(ins: Instruction, bind: Binder, first: int) -> Any:
    """The run function and its reads; first: index of the address operand."""
    kind, space, vector = ins.modifiers[-1], space_of(ins), vector_of(ins)
    found = [m for m in ins.modifiers if m in OPERATIONS]
    if len(found) != 1 or kind == "b128":
        raise UnknownInstructionError(ins.name)
    strong = semantics(ins.modifiers) or f"relaxed@{scope_of(ins.modifiers)}"
    sources = []
    for operand in ins.operands[first + 1 :]:
        items = operand.items if isinstance(operand, Vec) else (operand,)
        sources += [bind.value(o, kind) for o in items]
    count = vector * (2 if found[0] == "cas" else 1)
    reads = (bind.address(ins.operands[first], space), *sources[:count])
    if space == "generic":
        return partial(run_generic, found[0], kind, vector, strong), reads
    return partial(run_atomic, found[0], kind, space, vector, strong), reads


@instruction("atom", section="9.7.13.4 atom")
def atom(ins: Instruction, bind: Binder) -> Bound:
    """Read, modify, write; gives the old value."""
    run, reads = _bind(ins, bind, 1)
    targets = ins.operands[0].items if isinstance(ins.operands[0], Vec) else (ins.operands[0],)
    bits = f"b{8 * size_of(ins.modifiers[-1])}"
    return Bound(run, reads, tuple((t, bits) for t in targets))


@instruction("red", section="9.7.13.5 red")
def red(ins: Instruction, bind: Binder) -> Bound:
    """Read, modify, write."""
    if "async" in ins.modifiers:
        raise UnknownInstructionError(ins.name)
    run, reads = _bind(ins, bind, 0)
    return Bound(run, reads)
