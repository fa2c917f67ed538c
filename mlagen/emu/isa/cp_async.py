"""cp.async without TMA (PTX ISA 9.7.9.25.3): small copies from global to shared memory, in groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import (
    Array,
    AsyncOp,
    Binder,
    Bound,
    EmulatorError,
    Imm,
    Instruction,
    Reg,
    UnknownInstructionError,
    Wait,
    instruction,
)
from mlagen.emu.interfaces import (
    Stamp as ActorStamp,
)


class CopyGroup:
    """Copies of a warp that are committed together. left: copies that have not run. stamps: their times."""

    def __init__(self) -> None:
        self.left = 0
        self.stamps: list[ActorStamp] = []


def _state(warp: Warp) -> dict[str, Any]:
    """open: the group being filled; groups: committed ones, oldest first."""
    state: dict[str, Any] = warp.scratch.setdefault("cp.async", {"open": CopyGroup(), "groups": []})
    return state


def run_copy(
    size: int,
    has_source_size: bool,
    warp: Warp,
    lanes: Array,
    target: Array,
    source: Array,
    source_size: Array,
) -> None:
    """Copy `size` bytes per lane, of which `source_size` come from memory and the rest are zeros."""
    group: CopyGroup = _state(warp)["open"]
    active = np.nonzero(lanes)[0]
    actor = warp.machine.checks.operation(warp.actor, f"cp.async of {warp.actor.name}")
    actor.proxy = "generic"
    places = [warp.shared(int(a)) for a in target[active]]
    cta = warp.cta
    if any(c is not cta for c, _ in places):
        raise EmulatorError("cp.async to another CTA")
    offsets = np.array([o for _, o in places], np.uint64)
    if (offsets % np.uint64(size)).any() or (source[active] % np.uint64(size)).any():
        raise EmulatorError(f"cp.async of {size} bytes with a misaligned address")
    warp.machine.checks.shared_write(cta, offsets, size, actor, "cp.async")
    counts = np.minimum(source_size[active], size) if has_source_size else np.full(len(active), size)
    group.left += 1

    def run() -> None:
        data: Array = np.zeros((len(active), size), np.uint8)
        for count in np.unique(counts):
            chosen = counts == count
            if count:
                data[chosen, : int(count)] = warp.machine.memory.gather_rows(
                    source[active][chosen], int(count)
                )
        cta.shared.scatter(offsets[:, None] + np.arange(size, dtype=np.uint64), data, 1)
        group.left -= 1
        group.stamps.append(actor.release())

    warp.machine.post(AsyncOp(f"cp.async of {warp.actor.name}", run))


@instruction(
    "cp.async.ca.shared",
    "cp.async.cg.shared",
    "cp.async.ca.shared::cta",
    "cp.async.cg.shared::cta",
    section="9.7.9.25.3.1 cp.async",
)
def cp_async(ins: Instruction, bind: Binder) -> Bound:
    """Copy 4, 8 or 16 bytes per thread."""
    size = bind.immediate(ins.operands[2])
    if size not in (4, 8, 16) or ("cg" in ins.modifiers and size != 16):
        raise EmulatorError(f"cp.async of {size} bytes")
    extra = ins.operands[3:]
    if (
        extra
        and "L2::cache_hint" in ins.modifiers
        and len(extra) == 1
        and isinstance(extra[0], Reg)
        and bind.size(extra[0]) == 8
    ):
        extra = ()
    has_size = bool(extra) and (isinstance(extra[0], Imm) or bind.size(extra[0]) == 4)
    if extra and not has_size:
        raise UnknownInstructionError("ignore-src predicate")
    source_size = bind.value(extra[0], "u32") if has_size else bind.constant(size, "u32")
    reads = (bind.shared_address(ins.operands[0]), bind.address(ins.operands[1], "global"), source_size)
    return Bound(partial(run_copy, size, has_size), reads)


def run_commit(warp: Warp, lanes: Array) -> None:
    """Close the open group."""
    state = _state(warp)
    state["groups"].append(state["open"])
    state["open"] = CopyGroup()


@instruction("cp.async.commit_group", section="9.7.9.25.3.2 cp.async.commit_group")
def cp_async_commit_group(ins: Instruction, bind: Binder) -> Bound:
    """Commit the copies so far as a group."""
    return Bound(run_commit)


def run_wait(keep: int, warp: Warp, lanes: Array) -> Wait:
    """Wait until at most `keep` groups are unfinished; -1 waits for uncommitted copies too."""
    state = _state(warp)
    if keep < 0:
        run_commit(warp, lanes)
    groups: list[CopyGroup] = state["groups"]
    waited = groups[: len(groups) - max(keep, 0)] if keep > 0 else list(groups)

    def finish() -> None:
        for group in waited:
            for stamp in group.stamps:
                warp.actor.acquire(stamp)
            if group in groups:
                groups.remove(group)

    return Wait(
        lambda: all(g.left == 0 for g in waited), finish, lambda: f"waits for {len(waited)} cp.async groups"
    )


@instruction("cp.async.wait_group", section="9.7.9.25.3.3 cp.async.wait_group", blocking=True)
def cp_async_wait_group(ins: Instruction, bind: Binder) -> Bound:
    """Wait for all but the last n groups."""
    return Bound(partial(run_wait, bind.immediate(ins.operands[0])))


@instruction("cp.async.wait_all", section="9.7.9.25.3.3 cp.async.wait_all", blocking=True)
def cp_async_wait_all(ins: Instruction, bind: Binder) -> Bound:
    """Wait for all copies of this thread."""
    return Bound(partial(run_wait, -1))


def run_mbarrier_arrive(no_increment: bool, warp: Warp, lanes: Array, address: Array) -> None:
    """Arrive on an mbarrier when all earlier cp.async of the thread are done; counts an extra arrival unless
    `.noinc`.
    """
    state = _state(warp)
    before: list[CopyGroup] = [*state["groups"], state["open"]]
    waited = [g for g in before if g.left or g.stamps]
    targets = [warp.mbarrier(int(address[lane])) for lane in np.nonzero(lanes)[0]]
    for barrier in targets:
        if not no_increment:
            barrier.pending += 1
    issued = warp.actor.release()

    def run() -> None:
        stamp = issued
        for group in waited:
            for other in group.stamps:
                stamp = stamp.joined(other)
        for barrier in targets:
            barrier.arrive(1, stamp)

    name = f"cp.async.mbarrier.arrive of {warp.actor.name}"
    warp.machine.post(AsyncOp(name, run, ready=lambda: all(g.left == 0 for g in waited)))


@instruction("cp.async.mbarrier.arrive", section="9.7.13.15.15 cp.async.mbarrier.arrive")
def cp_async_mbarrier_arrive(ins: Instruction, bind: Binder) -> Bound:
    """Make an mbarrier track cp.async copies."""
    return Bound(
        partial(run_mbarrier_arrive, "noinc" in ins.modifiers), (bind.shared_address(ins.operands[0]),)
    )
