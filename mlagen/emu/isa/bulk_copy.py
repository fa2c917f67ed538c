"""Bulk copies without a tensor map, and bulk groups: `cp.async.bulk`, `cp.reduce.async.bulk`, commit and
wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk, reductions
from mlagen.emu.bulk import Bytes, Region
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    Machine,
    Wait,
    Warp,
    instruction,
)

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class BulkForm:
    """multicast: a CTA mask follows. operation, type: of a reduction, or empty."""

    name: str
    multicast: bool = False
    operation: str = ""
    type: str = ""


def _form(ins: Instruction, kind: str) -> BulkForm:
    operation = next((m for m in ins.modifiers if m in reductions.OPERATION_NAMES), "")
    ptx_type = ins.modifiers[-1] if operation else ""
    if operation:
        reductions.check_reduction(operation, ptx_type)
    return BulkForm(f"{kind} (line {ins.line})", ins.has("multicast::cluster"), operation, ptx_type)


@instruction("cp.async.bulk", section="9.7.9.27.1.1 cp.async.bulk")
def copy_bulk(ins: Instruction, bind: Binder) -> Bound:
    """Copy contiguous bytes: global to shared, shared to the shared memory of another CTA, or shared to
    global.
    """
    spaces = [m for m in ins.modifiers if m in ("global", "shared::cta", "shared::cluster")]
    if len(spaces) != 2:
        raise EmulatorError(f"{ins.name}: a destination and a source space are needed")
    if spaces[0] == "global":
        return _bind_store(_form(ins, "bulk store"), ins, bind)
    if not ins.has("mbarrier::complete_tx::bytes"):
        raise EmulatorError(f"{ins.name}: loads complete with .mbarrier::complete_tx::bytes")
    return _bind_load(_form(ins, "bulk load"), ins, bind, spaces[1] == "global")


@instruction("cp.reduce.async.bulk", section="9.7.9.27.1.5 cp.reduce.async.bulk")
def reduce_bulk(ins: Instruction, bind: Binder) -> Bound:
    """Combine contiguous bytes in shared memory with global memory or with the shared memory of a CTA of the
    cluster.
    """
    form = _form(ins, "bulk reduction")
    if not form.operation:
        raise EmulatorError(
            f"{ins.name}: no reduction operation; known are {', '.join(reductions.OPERATION_NAMES)}"
        )
    if ins.has("bulk_group"):
        return _bind_store(form, ins, bind)
    return _bind_load(form, ins, bind, False)


@instruction("cp.async.bulk.prefetch", section="9.7.9.27.1.6 cp.async.bulk.prefetch")
def prefetch_bulk(ins: Instruction, bind: Binder) -> None:
    """Prefetch to L2: no effect."""


def _bind_load(form: BulkForm, ins: Instruction, bind: Binder, from_global: bool) -> Bound:
    destination, source, size, barrier, *rest = ins.operands
    reads = [
        bind.shared_address(destination),
        bind.address(source, "global" if from_global else "shared"),
        bind.value(size, "u32"),
        bind.shared_address(barrier),
    ]
    if form.multicast:
        reads.append(bind.value(rest[0], "u16"))
    return Bound(run=partial(run_load if from_global else run_shared_to_shared, form), reads=tuple(reads))


def _bind_store(form: BulkForm, ins: Instruction, bind: Binder) -> Bound:
    destination, source, size = ins.operands[:3]
    reads = (bind.address(destination, "global"), bind.shared_address(source), bind.value(size, "u32"))
    return Bound(run=partial(run_store, form), reads=reads)


# ---------------------------------------------------------------- execution
def check_bulk(name: str, size: int, *addresses: int) -> None:
    """Sizes and addresses of bulk copies are multiples of 16 bytes; EmulatorError otherwise."""
    if size % ALIGNMENT:
        raise EmulatorError(f"{name}: {size} bytes is not a multiple of {ALIGNMENT}")
    for address in addresses:
        if address % ALIGNMENT:
            raise EmulatorError(f"{name}: address {address:#x} is not a multiple of {ALIGNMENT}")


def run_load(
    form: BulkForm,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    destination: Array,
    source: Array,
    sizes: Array,
    barrier: Array,
    mask: Array | None = None,
) -> None:
    """Global to shared memory, one copy per executing lane."""
    for lane in bulk.lanes_of(lanes):
        address, size = int(source[lane]), int(sizes[lane])
        cta, offset = warp.shared(int(destination[lane]))
        check_bulk(form.name, size, address, offset)
        cta_mask = None if mask is None else int(mask[lane])
        targets = bulk.load_targets(warp, Region(cta, offset, size), int(barrier[lane]), cta_mask, False)
        bulk.post_load(warp, form.name, targets, partial(warp.machine.memory.read, address, size))


def run_shared_to_shared(
    form: BulkForm,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    destination: Array,
    source: Array,
    sizes: Array,
    barrier: Array,
) -> None:
    """Own shared memory to that of a CTA of the cluster; with an operation the destination is combined."""
    for lane in bulk.lanes_of(lanes):
        size = int(sizes[lane])
        cta, offset = warp.shared(int(destination[lane]))
        own, source_offset = warp.shared(int(source[lane]))
        check_bulk(form.name, size, source_offset, offset)
        target, origin = Region(cta, offset, size), Region(own, source_offset, size)
        targets = bulk.load_targets(warp, target, int(barrier[lane]), None, False)
        reader = warp.machine.checks.operation(warp.actor, f"{form.name} of {warp.actor.name}")
        warp.machine.checks.shared_read(own, origin.footprint(), ALIGNMENT, reader, form.name)
        bulk.post_load(warp, form.name, targets, partial(_combined, form, target, origin))


def _combined(form: BulkForm, target: Region, origin: Region) -> Bytes:
    data = origin.read()
    return reductions.reduce_bytes(form.operation, form.type, target.read(), data) if form.operation else data


def run_store(
    form: BulkForm, warp: Warp, lanes: npt.NDArray[np.bool_], destination: Array, source: Array, sizes: Array
) -> None:
    """Own shared memory to global memory, one copy per executing lane."""
    for lane in bulk.lanes_of(lanes):
        address, size = int(destination[lane]), int(sizes[lane])
        cta, offset = warp.shared(int(source[lane]))
        check_bulk(form.name, size, address, offset)
        write = partial(write_global, warp.machine, form, address)
        bulk.post_store(warp, lane, form.name, Region(cta, offset, size), write)


def write_global(machine: Machine, form: BulkForm, address: int, data: Bytes) -> None:
    """Write (or combine) bytes of global memory."""
    if form.operation:
        data = reductions.reduce_bytes(
            form.operation, form.type, machine.memory.read(address, data.size), data
        )
    machine.memory.write(address, data)


# ---------------------------------------------------------------- groups
@instruction("cp.async.bulk.commit_group", section="9.7.9.27.2.1 cp.async.bulk.commit_group")
def commit_group(ins: Instruction, bind: Binder) -> Bound:
    """The uncommitted stores of each executing thread become a group."""
    return Bound(run=run_commit)


def run_commit(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """Commit per lane."""
    stamp = warp.bulk_actor.release()
    for lane in bulk.lanes_of(lanes):
        bulk.lane_groups(warp, lane).commit(stamp)


@instruction("cp.async.bulk.wait_group", section="9.7.9.27.2.2 cp.async.bulk.wait_group", blocking=True)
def wait_group(ins: Instruction, bind: Binder) -> Bound:
    """Wait until at most N groups are pending; with `.read` only until their sources are read."""
    return Bound(run=partial(run_wait, ins.has("read"), bind.immediate(ins.operands[0])))


def run_wait(read_only: bool, newest: int, warp: Warp, lanes: npt.NDArray[np.bool_]) -> Wait:
    """Sleep until the groups of all executing lanes are far enough."""
    groups = [g for lane in bulk.lanes_of(lanes) for g in bulk.lane_groups(warp, lane).older_than(newest)]

    def ready() -> bool:
        return all(g.done(read_only) for g in groups)

    def finish() -> None:
        for group in groups:
            warp.actor.acquire(group.stamp)

    def describe() -> str:
        left = sum(not g.done(read_only) for g in groups)
        return f"cp.async.bulk.wait_group {newest}: {left} groups of stores are not done"

    return Wait(ready, finish, describe)
