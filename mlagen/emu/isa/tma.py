"""Bulk copies through a tensor map: `cp.async.bulk.tensor`, its prefetch, and `cp.reduce.async.bulk.tensor`.

Tiles of 1 to 5 dimensions, gather4 and scatter4; multicast; `.cta_group::2`. im2col modes are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk, reductions, tensormap, tma_boxes
from mlagen.emu.bulk import Bytes, Region
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Expr,
    Instruction,
    Machine,
    Mem,
    Vec,
    Warp,
    instruction,
)
from mlagen.emu.tensormap import TensorMap
from mlagen.emu.tma_boxes import Box

MAP_ALIGNMENT = 64
_GATHER_COORDINATES = 5


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What the modifiers of an instruction say. rows: gather4 or scatter4. operation: of a reduction, or
    empty.
    """

    name: str
    rank: int
    rows: bool = False
    multicast: bool = False
    pair: bool = False
    operation: str = ""


def _form(ins: Instruction) -> TensorForm:
    """Decode modifiers; EmulatorError for modes without emulation."""
    modes = [m for m in ins.modifiers if m.startswith("im2col")]
    if modes:
        raise EmulatorError(f"{ins.name}: .{modes[0]} has no emulation; tiles, gather4 and scatter4 have")
    rank = int(next(m for m in ins.modifiers if m in ("1d", "2d", "3d", "4d", "5d"))[0])
    rows = ins.has("tile::gather4") or ins.has("tile::scatter4")
    if rows and rank != 2:
        raise EmulatorError(f"{ins.name}: gather4 and scatter4 exist for .2d only")
    operation = next((m for m in ins.modifiers if m in reductions.OPERATION_NAMES), "")
    kind = "TMA reduction" if operation else "TMA store" if "bulk_group" in ins.modifiers else "TMA load"
    return TensorForm(
        f"{kind} (line {ins.line})",
        rank,
        rows,
        ins.has("multicast::cluster"),
        ins.has("cta_group::2"),
        operation,
    )


def _map_operands(form: TensorForm, operand: object, bind: Binder) -> tuple[Expr, ...]:
    """Address of the map, then its coordinates, from `[map, {c0, ...}]`."""
    if not isinstance(operand, Mem) or len(operand.rest) != 1 or not isinstance(operand.rest[0], Vec):
        raise EmulatorError(f"{form.name}: the operand [tensorMap, {{coordinates}}] is needed, not {operand}")
    items = operand.rest[0].items
    want = _GATHER_COORDINATES if form.rows else form.rank
    if len(items) != want:
        raise EmulatorError(f"{form.name}: {len(items)} coordinates given; this form takes {want}")
    return (bind.address(operand, "generic"), *(bind.value(c, "s32") for c in items))


@instruction("cp.async.bulk.tensor", section="9.7.9.27.1.2 cp.async.bulk.tensor")
def copy_tensor(ins: Instruction, bind: Binder) -> Bound:
    """Load to shared memory, or store to global memory with `.bulk_group`."""
    form = _form(ins)
    if ins.has("bulk_group"):
        return _bind_store(form, ins, bind)
    if not ins.has("mbarrier::complete_tx::bytes"):
        raise EmulatorError(f"{ins.name}: neither .mbarrier::complete_tx::bytes nor .bulk_group")
    destination, source, barrier, *rest = ins.operands
    reads = [
        bind.shared_address(destination),
        bind.shared_address(barrier),
        *_map_operands(form, source, bind),
    ]
    if form.multicast:
        reads.append(bind.value(rest[0], "u16"))
    return Bound(run=partial(run_load, form), reads=tuple(reads))


@instruction("cp.reduce.async.bulk.tensor", section="9.7.9.27.1.3 cp.reduce.async.bulk.tensor")
def reduce_tensor(ins: Instruction, bind: Binder) -> Bound:
    """Combine a box in shared memory with the tensor."""
    form = _form(ins)
    if not form.operation:
        raise EmulatorError(
            f"{ins.name}: no reduction operation; known are {', '.join(reductions.OPERATION_NAMES)}"
        )
    return _bind_store(form, ins, bind)


@instruction("cp.async.bulk.prefetch.tensor", section="9.7.9.27.1.4 cp.async.bulk.prefetch.tensor")
def prefetch_tensor(ins: Instruction, bind: Binder) -> Bound:
    """Prefetch to L2: only the map and the coordinates are checked."""
    form = _form(ins)
    return Bound(run=partial(run_prefetch, form), reads=_map_operands(form, ins.operands[0], bind))


def _bind_store(form: TensorForm, ins: Instruction, bind: Binder) -> Bound:
    reads = (bind.shared_address(ins.operands[1]), *_map_operands(form, ins.operands[0], bind))
    return Bound(run=partial(run_store, form), reads=reads)


# ---------------------------------------------------------------- execution
@cache
def _decode(data: bytes) -> TensorMap:
    return tensormap.decode(data)


def tensor_map(machine: Machine, address: int) -> TensorMap:
    """The tensor map at a generic address."""
    if address % MAP_ALIGNMENT:
        raise EmulatorError(f"the tensor map at {address:#x} is not aligned to {MAP_ALIGNMENT} bytes")
    return _decode(machine.memory.read(address, tensormap.BYTES).tobytes())


def _box(form: TensorForm, t: TensorMap, coordinates: Sequence[int]) -> Box:
    if form.rows:
        return tma_boxes.gather_box(t, coordinates[0], coordinates[1:])
    return tma_boxes.tile_box(t, coordinates)


def run_load(
    form: TensorForm,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    destination: Array,
    barrier: Array,
    maps: Array,
    *rest: Array,
) -> None:
    """One load per executing lane."""
    coordinates, mask = (rest[:-1], rest[-1]) if form.multicast else (rest, None)
    for lane in bulk.lanes_of(lanes):
        t = tensor_map(warp.machine, int(maps[lane]))
        box = _box(form, t, [int(c[lane]) for c in coordinates])
        cta, offset = warp.shared(int(destination[lane]))
        region = Region(cta, offset, box.bytes, t.swizzle, box.row_bytes)
        cta_mask = None if mask is None else int(mask[lane])
        targets = bulk.load_targets(warp, region, int(barrier[lane]), cta_mask, form.pair)
        bulk.post_load(warp, form.name, targets, partial(read_box, warp.machine, t, box))


def run_store(
    form: TensorForm,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    source: Array,
    maps: Array,
    *coordinates: Array,
) -> None:
    """One store or reduction per executing lane."""
    for lane in bulk.lanes_of(lanes):
        t = tensor_map(warp.machine, int(maps[lane]))
        if form.operation:
            reductions.check_reduction(form.operation, reductions.TENSOR_TYPES[t.element])
        box = _box(form, t, [int(c[lane]) for c in coordinates])
        cta, offset = warp.shared(int(source[lane]))
        if cta is not warp.cta:
            raise EmulatorError(
                f"{form.name}: the source is in CTA {cta.rank} of the cluster; it must be the own CTA"
            )
        region = Region(cta, offset, box.bytes, t.swizzle, box.row_bytes)
        region.chunks()  # alignment is checked at issue
        bulk.post_store(
            warp, lane, form.name, region, partial(write_box, warp.machine, t, box, form.operation)
        )


def run_prefetch(
    form: TensorForm, warp: Warp, lanes: npt.NDArray[np.bool_], maps: Array, *coordinates: Array
) -> None:
    """Check what a prefetch names."""
    for lane in bulk.lanes_of(lanes):
        _box(form, tensor_map(warp.machine, int(maps[lane])), [int(c[lane]) for c in coordinates])


def read_box(machine: Machine, t: TensorMap, box: Box) -> Bytes:
    """The bytes of a box in shared-memory order before the swizzle; out-of-bounds elements are filled."""
    data = np.empty((box.rows.size, box.row_bytes), np.uint8)
    whole = box.first == 0 and box.last == box.row_bytes and bool(box.inside.all())
    if not whole:
        data[:] = np.tile(tma_boxes.fill_pattern(t), box.row_bytes // t.element_size)
    if box.last > box.first and box.inside.any():
        addresses = (box.rows[box.inside] + box.first).astype(np.uint64)
        data[box.inside, box.first : box.last] = machine.memory.gather_rows(addresses, box.last - box.first)
    return data.reshape(-1)


def write_box(machine: Machine, t: TensorMap, box: Box, operation: str, data: Bytes) -> None:
    """Write (or combine) the in-bounds elements of a box."""
    if box.last <= box.first or not box.inside.any():
        return
    addresses = (box.rows[box.inside] + box.first).astype(np.uint64)
    new = data.reshape(box.rows.size, box.row_bytes)[box.inside, box.first : box.last]
    if operation:
        old = machine.memory.gather_rows(addresses, box.last - box.first)
        new = reductions.reduce_bytes(operation, reductions.TENSOR_TYPES[t.element], old, new)
    machine.memory.scatter_rows(addresses, np.ascontiguousarray(new))
