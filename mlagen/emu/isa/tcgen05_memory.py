"""tcgen05 without the multiplication: alloc, dealloc, relinquish_alloc_permit, ld, st, wait, fence, cp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk, tensor_fences, tensor_memory, tmem_layouts
from mlagen.emu.descriptors import MatrixDescriptor, decode_sm100, operand_addresses, touched_words
from mlagen.emu.interfaces import (
    Array,
    AsyncOp,
    Binder,
    Bound,
    Cta,
    EmulatorError,
    Instruction,
    Operand,
    Vec,
    Wait,
    Warp,
    instruction,
)
from mlagen.emu.tmem_layouts import COLUMNS, CopyShape

WORD = 4


# ---------------------------------------------------------------- allocation
@instruction("tcgen05.alloc", section="9.7.16.7.1 tcgen05.alloc", blocking=True)
def alloc(ins: Instruction, bind: Binder) -> Bound:
    """Allocate columns; their first address is stored to shared memory. Blocks until there are enough."""
    group = tensor_memory.cta_group(ins)
    reads = (bind.shared_address(ins.operands[0]), bind.value(ins.operands[1], "u32"))
    return Bound(run=partial(run_alloc, group), reads=reads)


def run_alloc(group: int, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array, count: Array) -> Wait:
    """Wait for free columns, and with two CTAs for the same request of the peer."""
    tensor_memory.check_aligned(warp, lanes, "tcgen05.alloc")
    tensor_memory.use_group(warp.machine, group, "tcgen05.alloc")
    n = tensor_memory.uniform(count, "the column count of tcgen05.alloc")
    cta, offset = warp.shared(tensor_memory.uniform(address, "the address of tcgen05.alloc"))
    states = [tensor_memory.allocations(c, warp.machine) for c in tensor_memory.group_ctas(warp, group)]
    own = tensor_memory.allocations(warp.cta, warp.machine)
    _check_alloc(own, n)
    own.requests += 1
    own.last = n
    number = own.requests

    def ready() -> bool:
        return all(s.requests >= number for s in states) and _free_columns(warp.cta, n) is not None

    def finish() -> None:
        first = _free_columns(warp.cta, n) or 0
        warp.cta.tmem.owned[first : first + n] = True
        own.live[first] = n
        warp.machine.checks.shared_write(cta, np.array([offset]), WORD, warp.actor, "tcgen05.alloc")
        cta.shared.scatter(np.array([offset], np.uint64), np.array([first], np.uint32), WORD)

    def describe() -> str:
        if not all(s.requests >= number for s in states):
            return "tcgen05.alloc waits for the tcgen05.alloc of the peer CTA"
        return f"tcgen05.alloc of {n} columns: {int(warp.cta.tmem.owned.sum())} of {COLUMNS} are taken"

    return Wait(ready, finish, describe)


def _check_alloc(own: tensor_memory.Allocations, n: int) -> None:
    if n & (n - 1) or not tensor_memory.MIN_COLUMNS <= n <= COLUMNS:
        raise EmulatorError(f"tcgen05.alloc of {n} columns; a power of two from 32 to {COLUMNS} is allowed")
    if own.relinquished:
        raise EmulatorError("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
    if n > own.last:
        raise EmulatorError(f"tcgen05.alloc of {n} columns after one of {own.last}; counts may not increase")


def _free_columns(cta: Cta, n: int) -> int | None:
    """The first aligned run of free columns."""
    taken = cta.tmem.owned
    return next(
        (c for c in range(0, COLUMNS - n + 1, tensor_memory.MIN_COLUMNS) if not taken[c : c + n].any()), None
    )


@instruction("tcgen05.dealloc", section="9.7.16.7.1 tcgen05.dealloc")
def dealloc(ins: Instruction, bind: Binder) -> Bound:
    """Free columns of an earlier alloc."""
    reads = tuple(bind.value(x, "u32") for x in ins.operands)
    return Bound(run=partial(run_dealloc, tensor_memory.cta_group(ins)), reads=reads)


def run_dealloc(group: int, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array, count: Array) -> None:
    """Free, and make what is left in the columns unreadable."""
    tensor_memory.check_aligned(warp, lanes, "tcgen05.dealloc")
    tensor_memory.use_group(warp.machine, group, "tcgen05.dealloc")
    first, n = (
        tensor_memory.uniform(address, "the address of tcgen05.dealloc"),
        tensor_memory.uniform(count, "the column count"),
    )
    own = tensor_memory.allocations(warp.cta, warp.machine)
    if own.live.get(first) != n:
        live = ", ".join(f"{n} at {c}" for c, n in own.live.items()) or "none"
        raise EmulatorError(f"tcgen05.dealloc of {n} columns at {first:#x}; allocated are: {live}")
    del own.live[first]
    rows, columns = np.arange(0, tmem_layouts.LANES, tmem_layouts.GRANULE), np.arange(first, first + n)
    warp.machine.checks.tmem_write(
        warp.cta, np.repeat(rows, n), np.tile(columns, rows.size), warp.actor, "tcgen05.dealloc"
    )
    warp.cta.tmem.owned[first : first + n] = False
    warp.cta.tmem.written[:, first : first + n] = False


@instruction("tcgen05.relinquish_alloc_permit", section="9.7.16.7.1 tcgen05.relinquish_alloc_permit")
def relinquish_alloc_permit(ins: Instruction, bind: Binder) -> Bound:
    """The CTA allocates no more."""
    return Bound(run=partial(run_relinquish, tensor_memory.cta_group(ins)))


def run_relinquish(group: int, warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """Remember it."""
    tensor_memory.check_aligned(warp, lanes, "tcgen05.relinquish_alloc_permit")
    tensor_memory.use_group(warp.machine, group, "tcgen05.relinquish_alloc_permit")
    tensor_memory.allocations(warp.cta, warp.machine).relinquished = True


# ---------------------------------------------------------------- ld and st
@dataclass(frozen=True, slots=True)
class TransferForm:
    """split: of 16x32bx2. packed: .pack::16b or .unpack::16b, two columns of 16 bits in each register."""

    name: str
    shape: str
    slots: tuple[int, ...]
    split: int = 0
    packed: bool = False


def _transfer_form(
    ins: Instruction, bind: Binder, vector: Operand, extra: tuple[Operand, ...], packing: str
) -> TransferForm:
    shape = next((m for m in ins.modifiers if m in tmem_layouts.SHAPES), "")
    repeats = next((int(m[1:]) for m in ins.modifiers if m[:1] == "x" and m[1:].isdigit()), 0)
    wanted = tmem_layouts.register_count(shape or str(ins.modifiers), repeats)
    items = vector.items if isinstance(vector, Vec) else (vector,)
    if len(items) != wanted:
        raise EmulatorError(f"{ins.name}: {len(items)} registers given; .{shape}.x{repeats} takes {wanted}")
    if (shape == "16x32bx2") != (len(extra) == 1) or ins.has("red"):
        raise EmulatorError(
            f"{ins.name}: operands {extra} after the address; 16x32bx2 alone takes one, the half split"
        )
    split = bind.immediate(extra[0]) if extra else 0
    return TransferForm(
        f"{ins.op}.{ins.modifiers[0]} (line {ins.line})",
        shape,
        tuple(bind.slot(r) for r in items),
        split,
        ins.has(packing),
    )


# blocking: a basic block of its own, so that the touch check also sees what follows it directly
@instruction("tcgen05.ld", section="9.7.16.8.3 tcgen05.ld", blocking=True)
def load(ins: Instruction, bind: Binder) -> Bound:
    """Tensor memory to registers; the registers may be used after `tcgen05.wait::ld`."""
    form = _transfer_form(ins, bind, ins.operands[0], ins.operands[2:], "pack::16b")
    return Bound(run=partial(run_load, form), reads=(bind.address(ins.operands[1], "tmem"),))


@instruction("tcgen05.st", section="9.7.16.8.4 tcgen05.st", blocking=True)
def store(ins: Instruction, bind: Binder) -> Bound:
    """Registers to tensor memory; others see it after `tcgen05.wait::st`."""
    form = _transfer_form(ins, bind, ins.operands[-1], ins.operands[1:-1], "unpack::16b")
    items = ins.operands[-1].items if isinstance(ins.operands[-1], Vec) else (ins.operands[-1],)
    reads = (bind.address(ins.operands[0], "tmem"), *(bind.value(r, "b32") for r in items))
    return Bound(run=partial(run_store, form), reads=reads)


def _places(form: TransferForm, warp: Warp, address: Array) -> tuple[Array, Array]:
    """(lanes, columns) of every register of every thread; (registers, 32), doubled when packed."""
    lane, column = tmem_layouts.split_address(tensor_memory.uniform(address, f"the address of {form.name}"))
    base, aliased = tmem_layouts.warp_lane(warp.id, lane)
    if aliased:
        warp.report(
            "note", f"{form.name}: lane {lane} names another quarter than the warp's; hardware ignores that"
        )
    places = tmem_layouts.packed_places if form.packed else tmem_layouts.transfer_places
    lanes, columns = places(form.shape, len(form.slots), form.split)
    if base % 32 + int(lanes.max()) >= 32:
        raise EmulatorError(
            f"{form.name}: lane {lane} with .{form.shape} leaves the warp's quarter of the lanes"
        )
    tensor_memory.check_owned(warp.cta, column, int(columns.max()) + 1, form.name)
    return lanes + base, columns + column


def run_load(form: TransferForm, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array) -> None:
    """Read now, but hand the values over at the wait."""
    tensor_memory.check_aligned(warp, lanes, form.name)
    rows, columns = _places(form, warp, address)
    reused = warp.inflight.intersection(form.slots)
    if reused:
        report_touch(warp, frozenset(reused))
    tensor_memory.check_written(warp, warp.cta, rows, columns, form.name)
    _issue(warp, form, rows, columns, "ld", write=False)
    values = warp.cta.tmem.data[rows, columns]
    if form.packed:
        values = (values[0::2] & np.uint32(0xFFFF)) | values[1::2] << np.uint32(16)
    for slot, value in zip(form.slots, values, strict=True):
        warp.registers[slot] = value
    warp.inflight |= set(form.slots)
    warp.on_touch = report_touch


def run_store(
    form: TransferForm, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array, *values: Array
) -> None:
    """Write now; the race check knows that nobody else may look before the wait."""
    tensor_memory.check_aligned(warp, lanes, form.name)
    rows, columns = _places(form, warp, address)
    _issue(warp, form, rows, columns, "st", write=True)
    data = np.stack(values)
    if form.packed:
        data = np.stack([data & np.uint32(0xFFFF), data >> np.uint32(16)], 1).reshape(-1, 32)
    warp.cta.tmem.data[rows, columns] = data
    warp.cta.tmem.written[rows, columns] = True


def _issue(warp: Warp, form: TransferForm, rows: Array, columns: Array, kind: str, *, write: bool) -> None:
    """Declare the access by a pipe of the warp, which the warp comes after only at the wait."""
    actor = tensor_fences.pipe(warp, kind)
    actor.acquire(warp.actor.release())
    touched = tmem_layouts.transfer_columns(form.shape, len(columns), form.split) + int(columns[0, 0])
    # a warp's loads and stores are ordered by its waits, without fences between threads
    own = (tensor_fences.pipe(warp, "ld"), tensor_fences.pipe(warp, "st"))
    tensor_memory.declare(warp, warp.cta, rows[0], touched, actor, form.name, write=write, own=own)
    warp.scratch[f"unfinished tcgen05.{kind}"] = True


def report_touch(warp: Warp, slots: frozenset[int]) -> None:
    """A block uses registers of a tcgen05.ld without the wait: against the ISA text, though hardware stalls
    for them.

    From here on the loads count as done, as on hardware.
    """
    warp.report("strict", f"{len(slots)} registers of a tcgen05.ld are used before tcgen05.wait::ld")
    _finish_loads(warp)


def _finish_loads(warp: Warp) -> None:
    _finish(warp, "ld")
    warp.inflight = set()


# blocking: so that the touch check of what follows is made after it
@instruction("tcgen05.wait::ld", section="9.7.16.8.5 tcgen05.wait", blocking=True)
def wait_ld(ins: Instruction, bind: Binder) -> Bound:
    """The loads of the warp are done."""
    return Bound(run=run_wait_ld)


def run_wait_ld(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """The warp comes after its loads."""
    tensor_memory.check_aligned(warp, lanes, "tcgen05.wait::ld")
    _finish_loads(warp)


@instruction("tcgen05.wait::st", section="9.7.16.8.5 tcgen05.wait")
def wait_st(ins: Instruction, bind: Binder) -> Bound:
    """The stores of the warp are done."""
    return Bound(run=run_wait_st)


def run_wait_st(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """The warp comes after its stores."""
    tensor_memory.check_aligned(warp, lanes, "tcgen05.wait::st")
    _finish(warp, "st")


def _finish(warp: Warp, kind: str) -> None:
    """The warp comes after what its pipe did."""
    if warp.scratch.pop(f"unfinished tcgen05.{kind}", False):
        warp.actor.acquire(tensor_fences.pipe(warp, kind).release())


@instruction("tcgen05.fence::before_thread_sync", section="9.7.16.11.1 tcgen05.fence")
def fence_before(ins: Instruction, bind: Binder) -> Bound:
    """Hands the tcgen05 accesses so far over to a synchronisation."""
    return Bound(run=run_fence_before)


def run_fence_before(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """See `tensor_fences`."""
    tensor_fences.fence_before(warp)


@instruction("tcgen05.fence::after_thread_sync", section="9.7.16.11.1 tcgen05.fence")
def fence_after(ins: Instruction, bind: Binder) -> Bound:
    """Puts the tcgen05 accesses that follow behind a synchronisation."""
    return Bound(run=run_fence_after)


def run_fence_after(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """See `tensor_fences`."""
    tensor_fences.fence_after(warp)


# ---------------------------------------------------------------- cp
@instruction("tcgen05.cp", section="9.7.16.9.2 tcgen05.cp")
def copy(ins: Instruction, bind: Binder) -> Bound:
    """Shared memory, as a matrix descriptor says, to tensor memory of the CTA or of both CTAs of the pair."""
    group = tensor_memory.cta_group(ins)
    known = ("warpx4", "warpx2::02_13", "warpx2::01_23")
    parts = [m for m in ins.modifiers if m in known or (m.endswith("b") and m[0].isdigit())]
    shape = tmem_layouts.COPY_SHAPES.get(".".join(parts))
    if shape is None or any("x16p" in m or m.startswith("b8x") for m in ins.modifiers):
        raise EmulatorError(f"{ins.name} has no emulation; shapes {', '.join(tmem_layouts.COPY_SHAPES)} have")
    reads = (bind.address(ins.operands[0], "tmem"), bind.value(ins.operands[1], "b64"))
    return Bound(run=partial(run_copy, f"tcgen05.cp (line {ins.line})", shape, group), reads=reads)


def run_copy(
    name: str,
    shape: CopyShape,
    group: int,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    address: Array,
    descriptor: Array,
) -> None:
    """Queue one copy per executing lane behind the earlier tcgen05 operations of the CTA."""
    machine, actor, own = warp.machine, warp.cta.tensor_actor, tensor_memory.tensor_pipe(warp)
    tensor_memory.use_group(machine, group, name)
    for thread in bulk.lanes_of(lanes):
        lane, column = tmem_layouts.split_address(int(address[thread]))
        if lane:
            raise EmulatorError(f"{name}: lane {lane} as the start of a copy; 0 is emulated")
        matrix = decode_sm100(int(descriptor[thread]))
        actor.acquire(warp.actor.release())
        for cta in tensor_memory.group_ctas(warp, group):
            tensor_memory.check_owned(cta, column, shape.columns, name)
            words = touched_words(matrix, shape.rows, shape.columns, WORD, False)
            machine.checks.shared_read(cta, words, WORD, actor, name)
            columns = range(column, column + shape.columns)
            for copy_lanes in shape.copies:
                rows = np.array(copy_lanes)
                tensor_memory.declare(warp, cta, rows, columns, actor, name, write=True, own=own)
            work = partial(_copy, cta, shape, matrix, column)
            machine.post(AsyncOp(f"{name} of CTA {warp.cta.index}", work, tensor_memory.queue_of(warp.cta)))


def _copy(cta: Cta, shape: CopyShape, matrix: MatrixDescriptor, column: int) -> None:
    """Move the words."""
    words = cta.shared.gather(operand_addresses(matrix, shape.rows, shape.columns, WORD, False), WORD)
    for copy_lanes in shape.copies:
        lanes = np.array(copy_lanes)
        cta.tmem.data[lanes, column : column + shape.columns] = words
        cta.tmem.written[lanes, column : column + shape.columns] = True
