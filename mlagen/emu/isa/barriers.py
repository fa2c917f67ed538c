"""Named barriers, the cluster barrier, warp barriers and fences (PTX ISA 9.7.13)."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlagen.emu import ordering
from mlagen.emu.cta import NamedBarrier, Warp
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    UnknownInstructionError,
    Wait,
    instruction,
)
from mlagen.emu.lanes import lane_bits

# ------------------------------------------------------------------ bar, barrier


def _uniform(value: Array, lanes: Array, what: str) -> int:
    found = np.unique(value[lanes])
    if len(found) != 1:
        raise EmulatorError(f"{what} differs between the lanes of a warp: {found.tolist()}")
    return int(found[0])


def _join(warp: Warp, lanes: Array, number: int, threads: int | None) -> tuple[NamedBarrier, int]:
    """Arrive at a named barrier; a warp counts when all its live lanes have arrived. Gives the barrier and
    the phase before.
    """
    cta, name = warp.cta, warp.machine.names.named_barrier(number)
    if not 0 <= number < 16:
        raise EmulatorError(f"named barrier {number}, 0..15 exist")
    if threads is not None and (threads % 32 or not 0 < threads <= 32 * len(cta.warps)):
        raise EmulatorError(f"{name} for {threads} threads: a multiple of 32 up to the block is needed")
    barrier = cta.named.setdefault(number, NamedBarrier())
    if barrier.arrived and barrier.threads != threads:
        raise EmulatorError(f"{name} is used with {barrier.threads} and {threads} threads in one phase")
    barrier.threads = threads
    phase = barrier.phase
    seen = barrier.lanes.get(warp.id)
    gathered = lanes if seen is None else seen | lanes
    stamp = warp.actor.release()
    barrier.stamp = stamp.joined(barrier.stamp)
    if (gathered | ~warp.live_mask()).all():
        barrier.lanes.pop(warp.id, None)
        barrier.arrived += 32
    else:
        barrier.lanes[warp.id] = gathered
    cta.settle_named(barrier)
    warp.machine.progress += 1
    return barrier, phase


def run_arrive(warp: Warp, lanes: Array, number: Array, threads: Array) -> None:
    """bar.arrive: does not wait."""
    _join(warp, lanes, _uniform(number, lanes, "barrier number"), _uniform(threads, lanes, "thread count"))


def run_sync(has_count: bool, warp: Warp, lanes: Array, number: Array, threads: Array) -> Wait:
    """bar.sync: waits until all threads have arrived."""
    which = _uniform(number, lanes, "barrier number")
    count = _uniform(threads, lanes, "thread count") if has_count else None
    barrier, phase = _join(warp, lanes, which, count)

    def describe() -> str:
        need = barrier.threads if barrier.threads is not None else warp.cta.live_threads()
        name = warp.machine.names.named_barrier(which)
        return f"waits at {name} of CTA {warp.cta.index}: {barrier.arrived} of {need} threads arrived"

    return Wait(lambda: barrier.phase != phase, lambda: warp.actor.acquire(barrier.released), describe)


@instruction(
    "bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", section="9.7.13.1 bar, barrier"
)
def bar_arrive(ins: Instruction, bind: Binder) -> Bound:
    """Arrive at a named barrier without waiting."""
    return Bound(run_arrive, (bind.value(ins.operands[0], "u32"), bind.value(ins.operands[1], "u32")))


@instruction(
    "bar.sync",
    "bar.cta.sync",
    "barrier.sync",
    "barrier.cta.sync",
    section="9.7.13.1 bar, barrier",
    blocking=True,
)
def bar_sync(ins: Instruction, bind: Binder) -> Bound:
    """Arrive at a named barrier and wait."""
    has_count = len(ins.operands) > 1
    count = bind.value(ins.operands[1], "u32") if has_count else bind.constant(0, "u32")
    return Bound(partial(run_sync, has_count), (bind.value(ins.operands[0], "u32"), count))


def run_reduce(
    operation: str, has_count: bool, warp: Warp, lanes: Array, number: Array, threads: Array, predicate: Array
) -> Wait:
    """bar.red: a barrier that also reduces a predicate over all threads."""
    which = _uniform(number, lanes, "barrier number")
    sums = warp.cta.scratch.setdefault("bar.red", {})
    barrier = warp.cta.named.setdefault(which, NamedBarrier())
    key = (which, barrier.phase)
    counts = sums.setdefault(key, [0, 0])
    counts[0] += int((predicate & lanes).sum())
    counts[1] += int(lanes.sum())
    wait = run_sync(has_count, warp, lanes, number, threads)

    def finish() -> Array:
        warp.actor.acquire(barrier.released)
        if operation == "popc":
            return np.full(32, counts[0], np.uint32)
        return np.full(32, counts[0] == counts[1] if operation == "and" else counts[0] > 0)

    return Wait(wait.ready, finish, wait.describe)


@instruction(
    "bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", section="9.7.13.1 bar.red", blocking=True
)
def bar_red(ins: Instruction, bind: Binder) -> Bound:
    """Barrier with a reduction of a predicate."""
    operation = next(m for m in ins.modifiers if m in ("popc", "and", "or"))
    has_count = len(ins.operands) > 3
    count = bind.value(ins.operands[2], "u32") if has_count else bind.constant(0, "u32")
    reads = (bind.value(ins.operands[1], "u32"), count, bind.value(ins.operands[-1], "pred"))
    kind = "u32" if operation == "popc" else "pred"
    return Bound(partial(run_reduce, operation, has_count), reads, ((ins.operands[0], kind),))


def run_warp_sync(warp: Warp, lanes: Array, mask: Array) -> Wait:
    """bar.warp.sync: waits until the lanes of the mask have arrived (here or at another one)."""
    members = int(mask[int(np.nonzero(lanes)[0][0])])
    need = np.array([bool(members >> i & 1) for i in range(32)]) & warp.live_mask()
    state = warp.scratch.setdefault("warp_sync", {})
    entry = state.setdefault(members, {"phase": 0, "arrived": np.zeros(32, np.bool_)})
    phase = entry["phase"]
    entry["arrived"] = entry["arrived"] | lanes
    if not (need & ~entry["arrived"]).any():
        entry["arrived"] = np.zeros(32, np.bool_)
        entry["phase"] += 1

    def describe() -> str:
        missing = np.nonzero(need & ~entry["arrived"])[0].tolist()
        return f"waits at __syncwarp for lanes {missing}"

    return Wait(lambda: entry["phase"] != phase, warp.actor.sync_lanes, describe)


@instruction("bar.warp.sync", section="9.7.13.2 bar.warp.sync", blocking=True)
def bar_warp_sync(ins: Instruction, bind: Binder) -> Bound:
    """Synchronise lanes of a warp."""
    return Bound(run_warp_sync, (bind.value(ins.operands[0], "u32"),))


# ------------------------------------------------------------------ cluster barrier


def run_cluster_arrive(relaxed: bool, warp: Warp, lanes: Array) -> None:
    """barrier.cluster.arrive."""
    group = warp.cta.group
    if warp.cluster_phase is not None and lanes.all():
        raise EmulatorError("barrier.cluster.arrive twice without a wait")
    warp.cluster_phase = group.phase
    stamp = warp.fence_stamp if relaxed else warp.actor.release()
    group.arrive(int(lanes.sum()), stamp)
    warp.machine.progress += 1


@instruction("barrier.cluster.arrive", section="9.7.13.3 barrier.cluster")
def barrier_cluster_arrive(ins: Instruction, bind: Binder) -> Bound:
    """Arrive at the barrier of the cluster."""
    return Bound(partial(run_cluster_arrive, "relaxed" in ins.modifiers))


def run_cluster_wait(warp: Warp, lanes: Array) -> Wait:
    """barrier.cluster.wait."""
    group, phase = warp.cta.group, warp.cluster_phase
    if phase is None:
        raise EmulatorError("barrier.cluster.wait without an arrive")

    def finish() -> None:
        warp.cluster_phase = None
        warp.actor.acquire(group.released)

    def describe() -> str:
        return f"waits at the cluster barrier: {group.arrived} of {group.live_lanes()} threads arrived"

    return Wait(lambda: group.phase != phase, finish, describe)


@instruction("barrier.cluster.wait", section="9.7.13.3 barrier.cluster", blocking=True)
def barrier_cluster_wait(ins: Instruction, bind: Binder) -> Bound:
    """Wait at the barrier of the cluster."""
    return Bound(run_cluster_wait)


# ------------------------------------------------------------------ fences


def run_fence(scope: str, warp: Warp, lanes: Array) -> None:
    """fence.acq_rel, fence.sc, membar."""
    ordering.fence(warp, scope, lane_bits(lanes))


def run_fence_mbarrier_init(warp: Warp, lanes: Array) -> None:
    """fence.mbarrier_init: this warp's initialisations are visible to the cluster and the async proxy."""
    for barrier in warp.scratch.pop("unfenced_mbarriers", ()):
        barrier.fenced = True
    warp.fence_stamp, warp.fence_scope = warp.actor.release(lane_bits(lanes)), "cluster"


def run_fence_proxy(warp: Warp, lanes: Array) -> None:
    """fence.proxy.async: ordinary writes before it, and initialisations of mbarriers, are visible to the
    async proxy after it.
    """
    for barrier in warp.scratch.pop("unfenced_mbarriers", ()):
        barrier.fenced = True
    warp.machine.checks.proxy_fence(warp.cta.cluster, warp.actor)


@instruction(
    "membar", "fence.acq_rel", "fence.sc", "fence.acquire", "fence.release", section="9.7.13.4 membar, fence"
)
def fence(ins: Instruction, bind: Binder) -> Bound:
    """Memory fence."""
    if "proxy" in ins.modifiers:
        raise UnknownInstructionError(ins.name)
    return Bound(partial(run_fence, ordering.scope_of(ins.modifiers)))


@instruction("fence.mbarrier_init", section="9.7.13.4 fence.mbarrier_init")
def fence_mbarrier_init(ins: Instruction, bind: Binder) -> Bound:
    """Fence after mbarrier.init."""
    return Bound(run_fence_mbarrier_init)


@instruction("fence.proxy.async", section="9.7.13.4 fence.proxy")
def fence_proxy_async(ins: Instruction, bind: Binder) -> Bound:
    """Proxy fence between ordinary accesses and the async proxy."""
    return Bound(run_fence_proxy)


@instruction("fence.proxy.tensormap", "fence.proxy.alias", section="9.7.13.4 fence.proxy")
def fence_proxy_other(ins: Instruction, bind: Binder) -> None:
    """Proxy fences without effect here: tensor maps are read when a copy runs, aliases do not exist."""
