"""Loads and stores (PTX ISA 9.7.9.8 ld, 9.7.9.11 st)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mlagen.emu.cta import ALL_LANES, Warp
from mlagen.emu.interfaces import (
    LOCAL_LIMIT,
    SHARED_OFFSET_BITS,
    SHARED_WINDOW,
    Array,
    Binder,
    Bound,
    Expr,
    Inline,
    Instruction,
    Mem,
    Operand,
    Sym,
    UnknownInstructionError,
    Vec,
    instruction,
)
from mlagen.emu.lanes import any_nonzero, lane_bits
from mlagen.emu.ordering import semantics, strong_load, strong_store
from mlagen.emu.types import size_of

SPACES = ("shared", "global", "local", "param", "const")
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_RANK = np.uint32(SHARED_OFFSET_BITS)
_OFFSET = np.uint32((1 << SHARED_OFFSET_BITS) - 1)


def space_of(ins: Instruction) -> str:
    """shared, global, local, param, const or generic."""
    for modifier in ins.modifiers:
        name = modifier.split("::")[0]
        if name in SPACES:
            return name
    return "generic"


def vector_of(ins: Instruction) -> int:
    """Elements of the access: 1 without a `.v` modifier."""
    for modifier in ins.modifiers:
        if modifier in ("v2", "v4", "v8"):
            return int(modifier[1:])
    return 1


def spread(lanes: Array, value: Array) -> Array:
    """Values of the executing lanes as (32,)."""
    out: Array = np.zeros(32, value.dtype)
    out[lanes] = value
    return out


# ------------------------------------------------------------------ shared memory


def shared_parts(warp: Warp, lanes: Array, address: Array) -> list[tuple[Any, Array, Array | None]]:
    """(CTA, offsets, selection of the executing lanes) of shared addresses; one part unless lanes reach
    different CTAs.
    """
    rank = address >> _RANK
    own = np.uint32(warp.cta.rank)
    if not any_nonzero(rank ^ own):
        return [(warp.cta, address & _OFFSET, None)]
    parts: list[tuple[Any, Array, Array | None]] = []
    for number in np.unique(rank):
        cta, _ = warp.shared(int(number) << SHARED_OFFSET_BITS)
        chosen = rank == number
        parts.append((cta, address[chosen] & _OFFSET, chosen))
    return parts


def load_shared(
    width: int, vector: int, strong: str, warp: Warp, lanes: Array, address: Array
) -> tuple[Array, ...]:
    """ld.shared: one array per vector element."""
    full = lanes is ALL_LANES
    active = address if full else address[lanes]
    warp.executing = lanes
    checks = warp.machine.checks
    parts = shared_parts(warp, lanes, active)
    if len(parts) == 1:
        cta, offsets, _ = parts[0]
        values = cta.shared.load(offsets, width, vector)
        if strong:
            strong_load(warp, {(cta.index, int(o)) for o in offsets}, strong)
        else:
            checks.shared_read(cta, offsets, width * vector, warp.actor, "ld.shared", lanes)
        return tuple(values if full else [spread(lanes, v) for v in values])
    gathered: list[Array] = [np.zeros(len(active), _UNSIGNED[width]) for _ in range(vector)]
    for cta, offsets, chosen in parts:
        for out, value in zip(gathered, cta.shared.load(offsets, width, vector), strict=True):
            out[chosen] = value
        checks.shared_read(cta, offsets, width * vector, warp.actor, "ld.shared::cluster")
    return tuple(gathered if full else [spread(lanes, v) for v in gathered])


def store_shared(width: int, strong: str, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """st.shared, also to another CTA of the cluster."""
    full = lanes is ALL_LANES
    if not full:
        address, values = address[lanes], tuple(v[lanes] for v in values)
    machine = warp.machine
    machine.progress += 1
    for cta, offsets, chosen in shared_parts(warp, lanes, address):
        part = list(values) if chosen is None else [v[chosen] for v in values]
        cta.shared.store(offsets, width, part)
        if strong:
            strong_store(warp, {(cta.index, int(o)) for o in offsets}, strong, lane_bits(lanes))
        else:
            machine.checks.shared_write(cta, offsets, width * len(part), warp.actor, "st.shared", lanes)


# ------------------------------------------------------------------ global, parameter and local memory


def load_global(
    width: int, vector: int, strong: str, warp: Warp, lanes: Array, address: Array
) -> tuple[Array, ...]:
    """ld.global, ld.const and ld.param through an address."""
    full = lanes is ALL_LANES
    memory = warp.machine.memory
    active = address if full else address[lanes]
    warp.executing = lanes
    offsets = memory.offsets(active)
    values = memory.load(offsets, width, vector)
    if strong:
        strong_load(warp, {int(a) for a in active}, strong)
    elif warp.machine.checks.options.race:
        warp.machine.checks.memory.read(offsets, width * vector, warp.actor, lanes)
    return tuple(values if full else [spread(lanes, v) for v in values])


def store_global(width: int, strong: str, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """st.global."""
    if lanes is not ALL_LANES:
        address, values = address[lanes], tuple(v[lanes] for v in values)
    memory = warp.machine.memory
    offsets = memory.offsets(address)
    if not strong and warp.machine.checks.options.race:
        size = width * len(values)
        warp.machine.checks.memory.write(
            offsets, size, warp.actor, partial(_present, memory, offsets, values), lanes
        )
    memory.store(offsets, width, list(values))
    warp.machine.progress += 1
    if strong:
        strong_store(warp, {int(a) for a in address}, strong, lane_bits(lanes))


def _present(memory: Any, offsets: Array, values: tuple[Array, ...]) -> bool:
    """Whether memory holds these values already."""
    width = values[0].dtype.itemsize
    held = memory.load(offsets, width, len(values))
    return all(bool((h == v).all()) for h, v in zip(held, values, strict=True))


def load_local(
    width: int, vector: int, strong: str, warp: Warp, lanes: Array, address: Array
) -> tuple[Array, ...]:
    """ld.local."""
    numbers = np.nonzero(lanes)[0]
    return tuple(spread(lanes, v) for v in warp.local_memory().load(numbers, address[lanes], width, vector))


def store_local(width: int, strong: str, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """st.local."""
    numbers = np.nonzero(lanes)[0]
    warp.local_memory().store(numbers, address[lanes], width, [v[lanes] for v in values])


def load_param(offset: int, width: int, vector: int, warp: Warp, lanes: Array) -> tuple[Array, ...]:
    """ld.param of a kernel parameter: the same for all warps of a launch."""
    cache: dict[Any, tuple[Array, ...]] = warp.machine.scratch.setdefault("params", {})
    found = cache.get((offset, width, vector))
    if found is None:
        data = warp.machine.memory.read(warp.machine.param_base + offset, width * vector).view(
            _UNSIGNED[width]
        )
        found = cache[offset, width, vector] = tuple(np.full(32, v) for v in data)
    return found


# ------------------------------------------------------------------ generic addresses


def _split_generic(lanes: Array, address: Array) -> list[tuple[str, Array]]:
    """Which lanes go to which state space."""
    shared = (address >= np.uint64(SHARED_WINDOW)) & (address < np.uint64(SHARED_WINDOW + (1 << 32)))
    local = address < np.uint64(LOCAL_LIMIT)
    found = []
    for name, mask in (
        ("shared", shared & lanes),
        ("local", local & lanes),
        ("global", lanes & ~shared & ~local),
    ):
        if mask.any():
            found.append((name, ALL_LANES if mask.all() else mask))
    return found


_LOADS: dict[str, Any] = {"shared": load_shared, "global": load_global, "local": load_local}
_STORES: dict[str, Any] = {"shared": store_shared, "global": store_global, "local": store_local}


def narrow(space: str, address: Array) -> Array:
    """A generic address as an address of its space."""
    return (address - np.uint64(SHARED_WINDOW)).astype(np.uint32) if space == "shared" else address


def load_generic(
    width: int, vector: int, strong: str, warp: Warp, lanes: Array, address: Array
) -> tuple[Array, ...]:
    """ld without a state space: each lane's address says where."""
    parts = _split_generic(lanes, address)
    results = [_LOADS[s](width, vector, strong, warp, m, narrow(s, address)) for s, m in parts]
    if len(results) == 1:
        only: tuple[Array, ...] = results[0]
        return only
    out = []
    for i in range(vector):
        merged: Array = np.zeros(32, _UNSIGNED[width])
        for (_, mask), result in zip(parts, results, strict=True):
            merged[mask] = result[i][mask]
        out.append(merged)
    return tuple(out)


def store_generic(width: int, strong: str, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """st without a state space."""
    for space, mask in _split_generic(lanes, address):
        _STORES[space](width, strong, warp, mask, narrow(space, address), *values)


_LOADS.update({"generic": load_generic, "const": load_global, "param": load_global})
_STORES["generic"] = store_generic


# ------------------------------------------------------------------ binding


def _wide(run: Any, warp: Warp, lanes: Array, address: Array) -> Array | tuple[Array, ...]:
    """A .b128 load as one (32, 2) array per element."""
    halves = run(warp, lanes, address)
    pairs = tuple(np.stack(halves[i : i + 2], 1) for i in range(0, len(halves), 2))
    return pairs if len(pairs) > 1 else pairs[0]


def _first(run: Any, warp: Warp, lanes: Array, *reads: Array) -> Array:
    """The only result of a load of one element."""
    result: Array = run(warp, lanes, *reads)[0]
    return result


@instruction("ld", "ldu", section="9.7.9.8 ld")
def ld(ins: Instruction, bind: Binder) -> Bound | tuple[Inline, ...]:
    """Load one element or a vector."""
    space, vector, kind = space_of(ins), vector_of(ins), ins.modifiers[-1]
    targets = ins.operands[0].items if isinstance(ins.operands[0], Vec) else (ins.operands[0],)
    source = ins.operands[1]
    if space == "param" and isinstance(source, Mem) and isinstance(source.base, Sym):
        return _ld_param(source.base, source.offset, targets, kind, bind)
    width = size_of(kind)
    reads: tuple[Expr, ...] = (bind.address(source, space),)
    strong = semantics(ins.modifiers)
    if kind == "b128":
        return Bound(
            partial(_wide, partial(_LOADS[space], 8, 2 * vector, strong)),
            reads,
            tuple((t, kind) for t in targets),
        )
    run = partial(_LOADS[space], width, vector, strong)
    return _load_bound(run, reads, targets, kind)


def _load_bound(run: Any, reads: tuple[Expr, ...], targets: tuple[Operand, ...], kind: str) -> Bound:
    """Results arrive as bits; narrow signed values are sign-extended when they are stored."""
    writes = tuple((t, _bits(kind)) for t in targets)
    if kind[0] == "s" and size_of(kind) < 4:
        run = partial(_as_signed, run, np.int8 if size_of(kind) == 1 else np.int16)
        writes = tuple((t, kind) for t in targets)
    return Bound(run if len(targets) > 1 else partial(_first, run), reads, writes)


def _as_signed(run: Any, kind: Any, warp: Warp, lanes: Array, *reads: Array) -> tuple[Array, ...]:
    return tuple(v.view(kind) for v in run(warp, lanes, *reads))


def _bits(kind: str) -> str:
    return f"b{8 * size_of(kind)}"


def _ld_param(
    base: Sym, extra: int, targets: tuple[Operand, ...], kind: str, bind: Binder
) -> Bound | tuple[Inline, ...]:
    """ld.param: a kernel parameter, or the result of a call (zeros, since nothing that is called returns
    anything).
    """
    offset = bind.param_offset(base.name)
    if offset is None:
        return tuple(Inline(bind.constant(0, _bits(kind)).code, _bits(kind), t) for t in targets)
    place = offset + base.offset + extra
    return _load_bound(partial(load_param, place, size_of(kind), len(targets)), (), targets, kind)


@instruction("st", section="9.7.9.11 st")
def st(ins: Instruction, bind: Binder) -> Bound | None:
    """Store one element or a vector."""
    space, kind = space_of(ins), ins.modifiers[-1]
    if space == "param":
        return None
    if space == "const":
        raise UnknownInstructionError(ins.name)
    values = ins.operands[1].items if isinstance(ins.operands[1], Vec) else (ins.operands[1],)
    address, strong = bind.address(ins.operands[0], space), semantics(ins.modifiers)
    if kind == "b128":
        reads = tuple(
            Expr(f"{bind.value(v, kind).code}[:,{h}].copy()", "b64") for v in values for h in range(2)
        )
        return Bound(partial(_STORES[space], 8, strong), (address, *reads))
    width = size_of(kind)
    unsigned = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[width]
    reads = tuple(Expr(f"{bind.value(v, kind).code}.view({unsigned})", _bits(kind)) for v in values)
    return Bound(partial(_STORES[space], width, strong), (address, *reads))
