"""Exchange between the lanes of a warp, and ranks of a cluster (PTX ISA 9.7.9.6 shfl, 9.7.13.9 vote ...)."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu.cta import LANES, Warp
from mlagen.emu.interfaces import (
    SHARED_OFFSET_BITS,
    SHARED_WINDOW,
    Array,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    Pair,
    UnknownInstructionError,
    instruction,
)
from mlagen.emu.lanes import all_true, any_true
from mlagen.emu.types import NUMPY, is_signed, short_name

_BITS = np.uint32(1) << LANES


def check_members(warp: Warp, lanes: Array, mask: Array, what: str) -> None:
    """The membermask must name exactly the lanes that execute together; all else is undefined."""
    members = mask[lanes]
    if any_true(members != members[0]):
        raise EmulatorError(f"{what}: lanes name different member masks")
    named = (np.uint32(members[0]) & _BITS) != 0
    absent = named & ~lanes & warp.live_mask()
    if any_true(absent):
        warp.report(
            "divergence",
            f"{what} names lanes {np.nonzero(absent)[0].tolist()} that do not execute it together with the "
            "others",
        )
    if any_true(lanes & ~named):
        raise EmulatorError(
            f"{what}: lane {int(np.nonzero(lanes & ~named)[0][0])} executes it but is not in its member mask"
        )


def run_shuffle(
    mode: str, warp: Warp, lanes: Array, value: Array, b: Array, c: Array, mask: Array
) -> tuple[Array, Array]:
    """shfl.sync: the value of another lane, and whether that lane was in range."""
    check_members(warp, lanes, mask, "shfl.sync")
    lane = LANES.astype(np.int64)
    distance, clamp = (b & np.uint32(31)).astype(np.int64), c.astype(np.int64)
    segment = (clamp >> 8) & 31
    limit = (lane & segment) | (clamp & 31 & ~segment)
    low = lane & segment
    if mode == "up":
        source, inside = lane - distance, lane - distance >= limit
    elif mode == "down":
        source, inside = lane + distance, lane + distance <= limit
    elif mode == "bfly":
        source, inside = lane ^ distance, (lane ^ distance) <= limit
    else:
        source = low | (distance & ~segment & 31)
        inside = source <= limit
    source = np.where(inside, source, lane)
    if not all_true(lanes[source[lanes]]):
        warp.report("divergence", "shfl.sync reads a lane that does not execute it")
    return value[source], inside


@instruction("shfl.sync", section="9.7.9.6 shfl.sync")
def shfl(ins: Instruction, bind: Binder) -> Bound:
    """Exchange registers between lanes."""
    reads = tuple(bind.value(o, "b32") for o in ins.operands[1:5])
    target = ins.operands[0]
    mode = ins.modifiers[1]
    if isinstance(target, Pair):
        return Bound(partial(run_shuffle, mode), reads, ((target.first, "b32"), (target.second, "pred")))
    return Bound(partial(_value_only, mode), reads, ((target, "b32"),))


def _value_only(mode: str, warp: Warp, lanes: Array, value: Array, b: Array, c: Array, mask: Array) -> Array:
    return run_shuffle(mode, warp, lanes, value, b, c, mask)[0]


def run_vote(mode: str, warp: Warp, lanes: Array, predicate: Array, mask: Array) -> Array:
    """vote.sync: all, any, uni or the ballot of a predicate."""
    check_members(warp, lanes, mask, "vote.sync")
    votes = predicate & lanes
    if mode == "ballot":
        return np.full(32, int(_BITS[votes].sum()), np.uint32)
    if mode == "any":
        return np.full(32, bool(votes.any()))
    if mode == "all":
        return np.full(32, bool(predicate[lanes].all()))
    if mode == "uni":
        return np.full(32, bool((predicate[lanes] == predicate[lanes][0]).all()))
    raise UnknownInstructionError(f"vote.sync.{mode}")


@instruction("vote.sync", section="9.7.13.9 vote.sync")
def vote(ins: Instruction, bind: Binder) -> Bound:
    """Vote over a warp."""
    mode = ins.modifiers[1]
    reads = (bind.value(ins.operands[1], "pred"), bind.value(ins.operands[2], "b32"))
    return Bound(partial(run_vote, mode), reads, ((ins.operands[0], "b32" if mode == "ballot" else "pred"),))


def run_match(mode: str, warp: Warp, lanes: Array, value: Array, mask: Array) -> tuple[Array, Array]:
    """match.sync: lanes with the same value."""
    check_members(warp, lanes, mask, "match.sync")
    result: Array = np.zeros(32, np.uint32)
    same: Array = np.zeros(32, np.bool_)
    for lane in np.nonzero(lanes)[0]:
        equal = lanes & (value == value[lane])
        everyone = bool((equal == lanes).all())
        same[lane] = everyone
        result[lane] = int(_BITS[equal].sum()) if mode == "any" or everyone else 0
    return result, same


@instruction("match", section="9.7.13.10 match.sync")
def match(ins: Instruction, bind: Binder) -> Bound:
    """Find lanes that hold the same value."""
    mode, kind = ins.modifiers[0], ins.modifiers[-1]
    reads = (bind.value(ins.operands[1], kind), bind.value(ins.operands[2], "b32"))
    target = ins.operands[0]
    if isinstance(target, Pair):
        return Bound(partial(run_match, mode), reads, ((target.first, "b32"), (target.second, "pred")))
    return Bound(partial(_match_only, mode), reads, ((target, "b32"),))


def _match_only(mode: str, warp: Warp, lanes: Array, value: Array, mask: Array) -> Array:
    return run_match(mode, warp, lanes, value, mask)[0]


def run_active_mask(warp: Warp, lanes: Array) -> Array:
    """activemask: the lanes that execute it."""
    return np.full(32, int(_BITS[lanes].sum()), np.uint32)


@instruction("activemask", section="9.7.13.11 activemask")
def activemask(ins: Instruction, bind: Binder) -> Bound:
    """Executing lanes as a mask."""
    return Bound(run_active_mask, (), ((ins.operands[0], "b32"),))


def run_reduce(operation: str, kind: str, warp: Warp, lanes: Array, value: Array, mask: Array) -> Array:
    """redux.sync: a reduction over lanes."""
    check_members(warp, lanes, mask, "redux.sync")
    chosen = value[lanes]
    functions = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    if kind == "f32":
        functions = {"min": np.fmin, "max": np.fmax}
    if operation not in functions:
        raise UnknownInstructionError(f"redux.sync.{operation}.{kind}")
    total = functions[operation].reduce(np.abs(chosen) if operation.endswith("abs") else chosen)
    return np.full(32, total, NUMPY[short_name(kind)])


@instruction("redux.sync", section="9.7.13.12 redux.sync")
def redux(ins: Instruction, bind: Binder) -> Bound:
    """Reduce over a warp."""
    kind = ins.modifiers[-1]
    if is_signed(kind) and ins.modifiers[1] in ("and", "or", "xor"):
        raise UnknownInstructionError(ins.name)
    if "abs" in ins.modifiers or "NaN" in ins.modifiers:
        raise UnknownInstructionError(ins.name)
    reads = (bind.value(ins.operands[1], kind), bind.value(ins.operands[2], "b32"))
    return Bound(partial(run_reduce, ins.modifiers[1], kind), reads, ((ins.operands[0], kind),))


def run_elect(warp: Warp, lanes: Array, mask: Array) -> tuple[Array, Array]:
    """elect.sync: picks the lowest lane of the mask (any choice is legal)."""
    check_members(warp, lanes, mask, "elect.sync")
    leader = int(np.nonzero(lanes)[0][0])
    chosen: Array = np.zeros(32, np.bool_)
    chosen[leader] = True
    return np.full(32, leader, np.uint32), chosen


@instruction("elect.sync", section="9.7.13.14 elect.sync")
def elect(ins: Instruction, bind: Binder) -> Bound:
    """Elect one lane."""
    target = ins.operands[0]
    if not isinstance(target, Pair):
        raise UnknownInstructionError(ins.name)
    return Bound(
        run_elect, (bind.value(ins.operands[1], "b32"),), ((target.first, "b32"), (target.second, "pred"))
    )


def run_mapa(generic: bool, warp: Warp, lanes: Array, address: Array, rank: Array) -> Array:
    """mapa: the address of the same variable in another CTA of the cluster."""
    if int(rank[lanes].max()) >= len(warp.cta.cluster):
        raise EmulatorError(f"mapa to CTA {int(rank[lanes].max())} of a cluster of {len(warp.cta.cluster)}")
    kind = address.dtype.type
    window = kind(SHARED_WINDOW) if generic else kind(0)
    inside = (address - window) & kind((1 << SHARED_OFFSET_BITS) - 1)
    result: Array = window + (inside | (rank.astype(kind) << kind(SHARED_OFFSET_BITS)))
    return result


@instruction("mapa", section="9.7.9.23 mapa")
def mapa(ins: Instruction, bind: Binder) -> Bound:
    """Map a shared address to another CTA."""
    kind = ins.modifiers[-1]
    generic = "shared::cluster" not in ins.modifiers
    reads = (bind.value(ins.operands[1], kind), bind.value(ins.operands[2], "u32"))
    return Bound(partial(run_mapa, generic), reads, ((ins.operands[0], kind),))


def run_getctarank(generic: bool, warp: Warp, lanes: Array, address: Array) -> Array:
    """getctarank: whose shared memory an address is in."""
    kind = address.dtype.type
    window = kind(SHARED_WINDOW) if generic else kind(0)
    rank: Array = ((address - window) >> kind(SHARED_OFFSET_BITS)).astype(np.uint32)
    return rank


@instruction("getctarank", section="9.7.9.24 getctarank")
def getctarank(ins: Instruction, bind: Binder) -> Bound:
    """The rank of the CTA that an address belongs to."""
    kind = ins.modifiers[-1]
    generic = "shared::cluster" not in ins.modifiers
    return Bound(
        partial(run_getctarank, generic), (bind.value(ins.operands[1], kind),), ((ins.operands[0], "u32"),)
    )
