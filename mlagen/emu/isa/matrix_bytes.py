"""ldmatrix and stmatrix of 8-bit elements, which transpose, and movmatrix.

A row of 16 bytes in shared memory is a column of the fragment: element (m, n) of a 16-row matrix is byte m of
the row that lane n names.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu.cta import Cta, Warp
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

ROW = 16
_LANE = np.arange(32)
_BYTE = np.arange(4)


def load_places(count: int) -> tuple[Array, Array]:
    """(rows, bytes) of the bytes of each register: both (2 count, 32, 4). Register 2 i + k has byte
    t / 4 + 8 k of rows 4 (t % 4) and on of matrix i.
    """
    register = np.arange(2 * count)[:, None, None]
    rows = 16 * (register // 2) + 4 * (_LANE % 4)[None, :, None] + _BYTE
    return rows, np.broadcast_to((_LANE // 4)[None, :, None] + 8 * (register % 2), rows.shape)


def store_places(count: int) -> tuple[Array, Array]:
    """The same for stores, (count, 32, 4): byte j of register i is byte t / 4 + 8 (j / 2) of row
    2 (t % 4) + j % 2 of matrix i.
    """
    register = np.arange(count)[:, None, None]
    rows = 8 * register + 2 * (_LANE % 4)[None, :, None] + _BYTE % 2
    return rows, np.broadcast_to((_LANE // 4)[None, :, None] + 8 * (_BYTE // 2), rows.shape)


def _words(warp: Warp, lanes: Array, address: Array, rows: int, name: str) -> tuple[Cta, Array]:
    """The CTA, and offsets of the four words of each row."""
    if not lanes.all():
        raise EmulatorError(f"{name} under divergence")
    used = address[:rows]
    if (used % ROW).any():
        raise EmulatorError(f"{name}: a row address is not a multiple of {ROW}")
    words = (used[:, None] + np.arange(0, ROW, 4, dtype=np.uint32)).reshape(-1)
    (cta, offsets, _), *more = shared_parts(warp, lanes, words)
    if more:
        raise EmulatorError(f"{name} reaches another CTA")
    return cta, offsets


def _count(ins: Instruction, shape: str, counts: tuple[str, ...]) -> int:
    if not ins.has(shape, "trans", "b8"):
        raise UnknownInstructionError(ins.name)
    found = [m for m in ins.modifiers if m in counts]
    if len(found) != 1:
        raise EmulatorError(f"{ins.name}: one of {', '.join(counts)} is needed")
    return int(found[0][1:])


@instruction("ldmatrix.sync.aligned.m16n16", section="9.7.14.5.15 ldmatrix")
def ldmatrix_bytes(ins: Instruction, bind: Binder) -> Bound:
    """Load 16x16 matrices of bytes, transposed."""
    count = _count(ins, "m16n16", ("x1", "x2"))
    targets = ins.operands[0].items if isinstance(ins.operands[0], Vec) else (ins.operands[0],)
    if len(targets) != 2 * count:
        raise EmulatorError(f"{ins.name}: {len(targets)} registers given, {2 * count} are needed")
    reads = (bind.shared_address(ins.operands[1]),)
    return Bound(partial(run_load, count), reads, tuple((t, "b32") for t in targets))


def run_load(count: int, warp: Warp, lanes: Array, address: Array) -> tuple[Array, ...]:
    """Two registers for each matrix."""
    cta, offsets = _words(warp, lanes, address, 16 * count, "ldmatrix")
    data = cta.shared.load(offsets, 4)[0]
    warp.machine.checks.shared_read(cta, offsets, 4, warp.actor, "ldmatrix")
    table = np.ascontiguousarray(data).view(np.uint8).reshape(16 * count, ROW)
    rows, columns = load_places(count)
    return tuple(np.ascontiguousarray(r).view(np.uint32).reshape(32) for r in table[rows, columns])


@instruction("stmatrix.sync.aligned.m16n8", section="9.7.14.5.16 stmatrix")
def stmatrix_bytes(ins: Instruction, bind: Binder) -> Bound:
    """Store 16x8 matrices of bytes, transposed."""
    count = _count(ins, "m16n8", ("x1", "x2", "x4"))
    values = ins.operands[1].items if isinstance(ins.operands[1], Vec) else (ins.operands[1],)
    if len(values) != count:
        raise EmulatorError(f"{ins.name}: {len(values)} registers given, {count} are needed")
    reads = (bind.shared_address(ins.operands[0]), *(bind.value(v, "b32") for v in values))
    return Bound(partial(run_store, count), reads)


def run_store(count: int, warp: Warp, lanes: Array, address: Array, *values: Array) -> None:
    """One register for each matrix."""
    cta, offsets = _words(warp, lanes, address, 8 * count, "stmatrix")
    table = np.zeros((8 * count, ROW), np.uint8)
    table[store_places(count)] = np.stack(
        [np.ascontiguousarray(v).view(np.uint8).reshape(32, 4) for v in values]
    )
    cta.shared.store(offsets, 4, [table.view(np.uint32).reshape(-1)])
    warp.machine.checks.shared_write(cta, offsets, 4, warp.actor, "stmatrix")
    warp.machine.progress += 1


@instruction("movmatrix", section="9.7.14.5.17 movmatrix")
def movmatrix(ins: Instruction, bind: Binder) -> Bound:
    """Transpose an 8x8 matrix of 16-bit elements across the warp."""
    if not ins.has("m8n8", "trans", "b16"):
        raise UnknownInstructionError(ins.name)
    return Bound(run_move, (bind.value(ins.operands[1], "b32"),), ((ins.operands[0], "b32"),))


def run_move(warp: Warp, lanes: Array, value: Array) -> Array:
    """Lane l holds row l / 4, elements 2 (l % 4) and the next."""
    if not lanes.all():
        raise EmulatorError("movmatrix under divergence")
    matrix = np.ascontiguousarray(value).view(np.uint16).reshape(8, 8)
    turned: Array = np.ascontiguousarray(matrix.T).view(np.uint32).reshape(32)
    return turned
