"""mbarrier objects (PTX ISA 9.7.13.15), and st.async / red.async, which complete on them."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import (
    Array,
    AsyncOp,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    Operand,
    Reg,
    UnknownInstructionError,
    Vec,
    Wait,
    instruction,
)
from mlagen.emu.lanes import any_nonzero, lane_bits
from mlagen.emu.mbarrier import Mbarrier
from mlagen.emu.types import size_of

_SINK = Reg("_")


def _lanes(lanes: Array) -> list[int]:
    found: list[int] = np.nonzero(lanes)[0].tolist()
    return found


# ------------------------------------------------------------------ init, inval


def run_init(warp: Warp, lanes: Array, address: Array, count: Array) -> None:
    """A new mbarrier: phase 0, `count` arrivals missing."""
    for lane in _lanes(lanes):
        cta, offset = warp.shared(int(address[lane]))
        if cta is not warp.cta:
            raise EmulatorError("mbarrier.init in another CTA's shared memory")
        cta.shared.mark_mbarrier(offset, live=True)
        cta.mbarriers[offset] = Mbarrier(cta, offset, int(count[lane]))
        warp.machine.checks.shared_write(cta, slice(offset, offset + 8), 8, warp.actor, "mbarrier.init")
        warp.scratch.setdefault("unfenced_mbarriers", []).append(cta.mbarriers[offset])
    warp.machine.progress += 1


@instruction("mbarrier.init", section="9.7.13.15.9 mbarrier.init")
def mbarrier_init(ins: Instruction, bind: Binder) -> Bound:
    """Initialise."""
    return Bound(run_init, (bind.shared_address(ins.operands[0]), bind.value(ins.operands[1], "u32")))


def run_inval(warp: Warp, lanes: Array, address: Array) -> None:
    """The 8 bytes are ordinary memory again."""
    for lane in _lanes(lanes):
        cta, offset = warp.shared(int(address[lane]))
        warp.mbarrier(int(address[lane]))
        del cta.mbarriers[offset]
        cta.shared.mark_mbarrier(offset, live=False)


@instruction("mbarrier.inval", section="9.7.13.15.10 mbarrier.inval")
def mbarrier_inval(ins: Instruction, bind: Binder) -> Bound:
    """Invalidate."""
    return Bound(run_inval, (bind.shared_address(ins.operands[0]),))


# ------------------------------------------------------------------ arrive, expect_tx, complete_tx


def run_arrive(mode: str, relaxed: bool, warp: Warp, lanes: Array, address: Array, count: Array) -> Array:
    """arrive (`count` arrivals), expect (expect_tx of `count` bytes, then one arrival) or drop; gives the
    phase before.
    """
    state: Array = np.zeros(32, np.uint64)
    stamp = warp.fence_stamp if relaxed else warp.actor.release(lane_bits(lanes))
    for lane in _lanes(lanes):
        barrier = warp.mbarrier(int(address[lane]))
        state[lane] = barrier.phase
        if mode == "expect":
            barrier.expect_tx(int(count[lane]))
            barrier.arrive(1, stamp)
        elif mode == "drop":
            barrier.drop(stamp)
        else:
            barrier.arrive(int(count[lane]), stamp)
    return state


def _arrive_operands(ins: Instruction, bind: Binder, mode: str) -> Bound:
    operands = ins.operands
    target: Operand = _SINK
    if len(operands) >= 2 and isinstance(operands[0], Reg):
        target, operands = operands[0], operands[1:]
    count = bind.value(operands[1], "u32") if len(operands) > 1 else bind.constant(1, "u32")
    writes = () if target == _SINK else ((target, "b64"),)
    if target == _SINK:
        return Bound(
            partial(run_arrive, mode, "relaxed" in ins.modifiers), (bind.shared_address(operands[0]), count)
        )
    return Bound(
        partial(run_arrive, mode, "relaxed" in ins.modifiers),
        (bind.shared_address(operands[0]), count),
        writes,
    )


@instruction("mbarrier.arrive", "mbarrier.arrive.expect_tx", section="9.7.13.15.13 mbarrier.arrive")
def mbarrier_arrive(ins: Instruction, bind: Binder) -> Bound:
    """Arrive, with `.expect_tx` after announcing bytes."""
    return _arrive_operands(ins, bind, "expect" if "expect_tx" in ins.modifiers else "arrive")


@instruction("mbarrier.arrive_drop", section="9.7.13.15.14 mbarrier.arrive_drop")
def mbarrier_arrive_drop(ins: Instruction, bind: Binder) -> Bound:
    """Arrive for this phase and leave the later ones."""
    if "expect_tx" in ins.modifiers or "noComplete" in ins.modifiers:
        raise UnknownInstructionError(ins.name)
    return _arrive_operands(ins, bind, "drop")


def run_expect(warp: Warp, lanes: Array, address: Array, count: Array) -> None:
    """Announce bytes without arriving."""
    for lane in _lanes(lanes):
        warp.mbarrier(int(address[lane])).expect_tx(int(count[lane]))


@instruction("mbarrier.expect_tx", section="9.7.13.15.11 mbarrier.expect_tx")
def mbarrier_expect_tx(ins: Instruction, bind: Binder) -> Bound:
    """Announce bytes."""
    return Bound(run_expect, (bind.shared_address(ins.operands[0]), bind.value(ins.operands[1], "u32")))


def run_complete(warp: Warp, lanes: Array, address: Array, count: Array) -> None:
    """Count bytes as arrived, as a copy would that the warp has waited for."""
    stamp = warp.actor.release()
    for lane in _lanes(lanes):
        warp.mbarrier(int(address[lane])).complete_tx(int(count[lane]), stamp)


@instruction("mbarrier.complete_tx", section="9.7.13.15.12 mbarrier.complete_tx")
def mbarrier_complete_tx(ins: Instruction, bind: Binder) -> Bound:
    """Simulate the completion of bytes."""
    return Bound(run_complete, (bind.shared_address(ins.operands[0]), bind.value(ins.operands[1], "u32")))


# ------------------------------------------------------------------ waiting


def _conditions(
    by_parity: bool, warp: Warp, lanes: Array, address: Array, phase: Array
) -> list[tuple[Mbarrier, int]]:
    """Each different (mbarrier, phase or parity) that the lanes ask about."""
    asked = {(int(address[lane]), int(phase[lane])) for lane in _lanes(lanes)}
    if by_parity and any(p > 1 for _, p in asked):
        raise EmulatorError(
            f"mbarrier wait with parity {max(p for _, p in asked)}, only 0 and 1 are parities"
        )
    return [(warp.mbarrier(a), p) for a, p in asked]


def _complete(by_parity: bool, barrier: Mbarrier, phase: int) -> bool:
    return barrier.passed(phase) if by_parity else barrier.phase > phase


def run_test(by_parity: bool, relaxed: bool, warp: Warp, lanes: Array, address: Array, phase: Array) -> Array:
    """test_wait: whether the phase is complete, without waiting."""
    done = {}
    for barrier, asked in _conditions(by_parity, warp, lanes, address, phase):
        done[barrier.cta.rank, barrier.offset, asked] = ready = _complete(by_parity, barrier, asked)
        if ready and not relaxed:
            barrier.saw(warp.actor)
    result: Array = np.zeros(32, np.bool_)
    for lane in _lanes(lanes):
        cta, offset = warp.shared(int(address[lane]))
        result[lane] = done[cta.rank, offset, int(phase[lane])]
    return result


def run_try(by_parity: bool, relaxed: bool, warp: Warp, lanes: Array, address: Array, phase: Array) -> Wait:
    """try_wait: sleeps until all lanes' phases are complete; may time out with false when nothing else can
    happen. A phase that completes wakes the warp for good, also if the next one completes before its turn.
    """
    asked = _conditions(by_parity, warp, lanes, address, phase)
    begun = [barrier.phase for barrier, _ in asked]

    def ready() -> bool:
        return all(
            _complete(by_parity, barrier, value) or barrier.phase > first
            for (barrier, value), first in zip(asked, begun, strict=True)
        )

    def finish() -> Array:
        if not relaxed:
            for barrier, _ in asked:
                barrier.saw(warp.actor)
        return np.ones(32, np.bool_)

    def describe() -> str:
        texts = []
        for barrier, value in asked:
            if _complete(by_parity, barrier, value):
                continue
            names, phase = warp.machine.names, barrier.phase if by_parity else value
            producer = names.producer(barrier.offset) or "somebody"
            missing = f"{barrier.pending} of {barrier.count} arrivals missing" if barrier.pending else ""
            if barrier.pending == barrier.count:
                missing = f"{producer} never arrived"
            bytes_left = f"{barrier.tx} bytes outstanding" if barrier.tx else ""
            state = ", ".join(filter(None, (missing, bytes_left)))
            texts.append(
                f"waits for {names.shared(barrier.offset)} phase {phase} of CTA {barrier.cta.index}; {state}"
            )
        return ", ".join(texts)

    return Wait(ready, finish, describe, lambda: np.zeros(32, np.bool_))


def _wait_reads(ins: Instruction, bind: Binder) -> tuple[bool, bool, tuple[object, ...]]:
    by_parity = "parity" in ins.modifiers
    phase = bind.value(ins.operands[2], "u32" if by_parity else "b64")
    return by_parity, "relaxed" in ins.modifiers, (bind.shared_address(ins.operands[1]), phase)


@instruction("mbarrier.test_wait", section="9.7.13.15.16 mbarrier.test_wait")
def mbarrier_test_wait(ins: Instruction, bind: Binder) -> Bound:
    """Ask whether a phase is complete."""
    by_parity, relaxed, reads = _wait_reads(ins, bind)
    return Bound(partial(run_test, by_parity, relaxed), reads, ((ins.operands[0], "pred"),))  # type: ignore[arg-type]


@instruction("mbarrier.try_wait", section="9.7.13.15.16 mbarrier.try_wait", blocking=True)
def mbarrier_try_wait(ins: Instruction, bind: Binder) -> Bound:
    """Wait for a phase."""
    by_parity, relaxed, reads = _wait_reads(ins, bind)
    return Bound(partial(run_try, by_parity, relaxed), reads, ((ins.operands[0], "pred"),))  # type: ignore[arg-type]


def run_pending(warp: Warp, lanes: Array, state: Array) -> Array:
    """mbarrier.pending_count: the emulator's state word does not hold it."""
    raise EmulatorError("mbarrier.pending_count is not modelled")


@instruction("mbarrier.pending_count", section="9.7.13.15.17 mbarrier.pending_count")
def mbarrier_pending_count(ins: Instruction, bind: Binder) -> Bound:
    """Query the pending count."""
    return Bound(run_pending, (bind.value(ins.operands[1], "b64"),), ((ins.operands[0], "u32"),))


# ------------------------------------------------------------------ st.async


def run_store_async(
    width: int, warp: Warp, lanes: Array, address: Array, barrier: Array, *values: Array
) -> None:
    """Stores to shared memory of the cluster, which complete their bytes on an mbarrier: one operation for
    all lanes that use the same mbarrier.
    """
    for which in sorted({int(barrier[lane]) for lane in _lanes(lanes)}):
        mine = lanes & (barrier == barrier.dtype.type(which))
        target = warp.mbarrier(which, "async")
        places = [warp.shared(int(a)) for a in address[mine]]
        if any(cta is not target.cta for cta, _ in places):
            raise EmulatorError("st.async: data and mbarrier are in different CTAs")
        offsets = np.array([offset for _, offset in places], np.uint64)
        data = [v[mine] for v in values]
        _post_stores(warp, lane_bits(mine), target, offsets, width, data)


def _post_stores(
    warp: Warp, lanes: int, target: Mbarrier, offsets: Array, width: int, data: list[Array]
) -> None:
    """Queue stores of `width` bytes for each array of `data`, side by side at the offsets."""
    cta, size, name = target.cta, width * len(data), f"st.async of {warp.actor.name}"
    if any_nonzero(offsets & np.uint64(size - 1)):
        bad = int(offsets[offsets & np.uint64(size - 1) != 0][0])
        raise EmulatorError(f"misaligned st.async of {size} bytes to {cta.shared.where(bad)}")
    actor = warp.machine.checks.operation(warp.actor, name, lanes)
    actor.proxy = "generic"
    warp.machine.checks.shared_write(cta, offsets, size, actor, "st.async")

    def run() -> None:
        cta.shared.store(offsets, width, data)
        target.complete_tx(size * len(offsets), actor.release())

    warp.machine.post(AsyncOp(name, run))


@instruction("st.async", section="9.7.9.12 st.async")
def st_async(ins: Instruction, bind: Binder) -> Bound:
    """Asynchronous store to shared memory of the cluster."""
    kind = ins.modifiers[-1]
    values = ins.operands[1].items if isinstance(ins.operands[1], Vec) else (ins.operands[1],)
    bits = f"b{8 * size_of(kind)}"
    reads = (
        bind.shared_address(ins.operands[0]),
        bind.shared_address(ins.operands[2]),
        *(bind.value(v, bits) for v in values),
    )
    return Bound(partial(run_store_async, size_of(kind)), reads)
