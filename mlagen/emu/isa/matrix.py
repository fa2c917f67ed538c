"""ldmatrix and stmatrix (PTX ISA 9.7.14.5.15, 9.7.14.5.16)."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    UnknownInstructionError,
    Vec,
    instruction,
)
from mlagen.emu.isa.load_store import shared_parts
from mlagen.emu.lanes import TOGETHER, all_true

_WORDS = np.arange(4, dtype=np.uint32) * np.uint32(4)


def _rows(address: Array, count: int) -> Array:
    """Byte addresses of the words of all rows, (8 * count, 4): lane 8 i + r holds row r of matrix i."""
    rows = address[: 8 * count]
    if (rows & np.uint32(15)).any():
        raise EmulatorError("ldmatrix/stmatrix row address is not 16-byte aligned")
    words: Array = rows[:, None] + _WORDS
    return words


def _transpose(matrix: Array) -> Array:
    """8x8 16-bit elements of (8, 4) words, transposed."""
    turned: Array = np.ascontiguousarray(np.ascontiguousarray(matrix).view(np.uint16).reshape(8, 8).T).view(
        np.uint32
    )
    return turned


def run_load(
    count: int, transposed: bool, warp: Warp, lanes: Array, address: Array
) -> Array | tuple[Array, ...]:
    """One register per matrix: lane l gets row l / 4, elements 2 (l % 4) and the next."""
    if not all_true(lanes):
        raise EmulatorError("ldmatrix under divergence")
    (cta, offsets, _), *more = shared_parts(warp, lanes, _rows(address, count).reshape(-1))
    if more:
        raise EmulatorError("ldmatrix from another CTA")
    words = cta.shared.load(offsets, 4)[0].reshape(count, 8, 4)
    warp.machine.checks.shared_read(cta, offsets, 4, warp.actor, "ldmatrix", TOGETHER)
    parts = tuple((_transpose(m) if transposed else m).reshape(32).copy() for m in words)
    return parts if count > 1 else parts[0]


def _shape(ins: Instruction) -> tuple[int, bool]:
    if "m8n8" not in ins.modifiers or ins.modifiers[-1] != "b16":
        raise UnknownInstructionError(ins.name)
    count = next(int(m[1:]) for m in ins.modifiers if m in ("x1", "x2", "x4"))
    return count, "trans" in ins.modifiers


@instruction("ldmatrix", section="9.7.14.5.15 ldmatrix")
def ldmatrix(ins: Instruction, bind: Binder) -> Bound:
    """Load 8x8 matrices of 16-bit elements."""
    count, transposed = _shape(ins)
    targets = ins.operands[0].items if isinstance(ins.operands[0], Vec) else (ins.operands[0],)
    return Bound(
        partial(run_load, count, transposed),
        (bind.shared_address(ins.operands[1]),),
        tuple((t, "b32") for t in targets),
    )


def run_store(transposed: bool, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """The inverse of `run_load`."""
    if not all_true(lanes):
        raise EmulatorError("stmatrix under divergence")
    (cta, offsets, _), *more = shared_parts(warp, lanes, _rows(address, len(values)).reshape(-1))
    if more:
        raise EmulatorError("stmatrix to another CTA")
    words = [v.reshape(8, 4) for v in values]
    data = np.stack([_transpose(m) if transposed else m for m in words])
    cta.shared.store(offsets, 4, [data.reshape(-1)])
    warp.machine.checks.shared_write(cta, offsets, 4, warp.actor, "stmatrix", TOGETHER)
    warp.machine.progress += 1


@instruction("stmatrix", section="9.7.14.5.16 stmatrix")
def stmatrix(ins: Instruction, bind: Binder) -> Bound:
    """Store 8x8 matrices of 16-bit elements."""
    _, transposed = _shape(ins)
    values = ins.operands[1].items if isinstance(ins.operands[1], Vec) else (ins.operands[1],)
    reads = (bind.shared_address(ins.operands[0]), *(bind.value(v, "b32") for v in values))
    return Bound(partial(run_store, transposed), reads)
