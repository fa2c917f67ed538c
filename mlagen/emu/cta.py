"""Clusters, CTAs, warpgroups and warps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mlagen.emu.clocks import Actor, Stamp
from mlagen.emu.interfaces import SHARED_OFFSET_BITS, WARP, Array, EmulatorError, Wait
from mlagen.emu.lanes import ALL_LANES as ALL_LANES
from mlagen.emu.lanes import all_true
from mlagen.emu.mbarrier import Mbarrier
from mlagen.emu.memory import LocalMemory, SharedMemory, TensorMemory
from mlagen.emu.taint import TaintTracker

if TYPE_CHECKING:
    from mlagen.emu.machine import Machine

LANES = np.arange(WARP, dtype=np.uint32)
OFFSET_MASK = (1 << SHARED_OFFSET_BITS) - 1


class NamedBarrier:
    """A hardware barrier of a CTA. lanes: threads of each warp that arrived in this phase; threads: expected,
    0 for all.
    """

    __slots__ = ("arrived", "lanes", "phase", "released", "stamp", "threads")

    def __init__(self) -> None:
        self.arrived = 0
        self.threads: int | None = None
        self.phase = 0
        self.lanes: dict[int, Array] = {}
        self.stamp: Stamp | None = None
        self.released: Stamp | None = None


class Cluster:
    """CTAs that share a cluster barrier and can reach each other's shared memory."""

    def __init__(self, ctas: list[Cta]) -> None:
        self.ctas = ctas
        self.arrived = 0
        self.phase = 0
        self.stamp: Stamp | None = None
        self.released: Stamp | None = None

    def live_lanes(self) -> int:
        """Threads that have not exited."""
        return sum(int(g.mask.sum()) for cta in self.ctas for w in cta.warps for g in w.groups)

    def arrive(self, lanes: int, stamp: Stamp | None) -> None:
        """Threads arrive at the cluster barrier."""
        self.arrived += lanes
        if stamp is not None:
            self.stamp = stamp.joined(self.stamp)
        self.settle()

    def settle(self) -> None:
        """Complete the phase if every live thread has arrived."""
        if self.arrived and self.arrived >= self.live_lanes():
            self.arrived = 0
            self.phase += 1
            self.released, self.stamp = self.stamp, None


class Cta:
    """One CTA. rank: in its cluster. index: linear index in the grid. position: blockIdx."""

    def __init__(self, machine: Machine, index: int, rank: int, position: tuple[int, int, int]) -> None:
        self.machine = machine
        self.index = index
        self.rank = rank
        self.position = position
        self.cluster: list[Cta] = []
        self.group: Cluster
        self.shared = SharedMemory(machine.shared_size, machine.reserved_shared, f"shared of CTA {index}")
        self.shared.where = self._where  # type: ignore[method-assign]
        if machine.checks.options.unwritten:
            self.shared.on_unwritten = self._unwritten
        self._tmem: TensorMemory | None = None
        self.warps: list[Warp] = []
        self.warpgroups: list[Warpgroup] = []
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.tensor_actor = machine.domain.actor(f"tcgen05 pipe of CTA {index}", "async")
        self.scratch: dict[str, Any] = {}

    def _where(self, offset: int) -> str:
        return f"{self.machine.names.shared(offset)} of CTA {self.index}"

    def _unwritten(self, offset: int, places: Array) -> None:
        self.machine.unwritten(self._where(offset), places, self.shared.element)

    @property
    def tmem(self) -> TensorMemory:
        """Tensor memory, made when first used."""
        if self._tmem is None:
            self._tmem = TensorMemory()
        return self._tmem

    def mbarrier(self, offset: int) -> Mbarrier:
        """The mbarrier at this byte offset; an EmulatorError when none was initialised there."""
        found = self.mbarriers.get(offset)
        if found is None:
            raise EmulatorError(f"{self._where(offset)} is used as an mbarrier but was never initialised")
        return found

    def symbol(self, offset: int, kind: Any) -> Array:
        """The shared address of a variable of this CTA, (32,)."""
        return np.full(WARP, self.rank << SHARED_OFFSET_BITS | offset, kind)

    def live_threads(self) -> int:
        """32 for each warp that has not exited."""
        return WARP * sum(not w.done for w in self.warps)

    def settle_named(self, barrier: NamedBarrier) -> None:
        """Complete a named barrier's phase if all expected threads arrived."""
        need = barrier.threads if barrier.threads is not None else self.live_threads()
        if barrier.arrived and barrier.arrived >= need:
            if barrier.arrived > need:
                raise EmulatorError(f"{barrier.arrived} threads arrived at a named barrier for {need}")
            barrier.arrived = 0
            barrier.threads = None
            barrier.phase += 1
            barrier.released, barrier.stamp = barrier.stamp, None
            self.machine.progress += 1

    def warp_exited(self) -> None:
        """Barriers that count all threads expect fewer now."""
        for barrier in self.named.values():
            if barrier.threads is None:
                self.settle_named(barrier)
        self.group.settle()
        if self._tmem is not None and self._tmem.owned.any() and all(w.done for w in self.warps):
            left = int(self._tmem.owned.sum())
            self.machine.report(
                "tmem", f"CTA {self.index} exits with {left} columns of tensor memory allocated"
            )


class Warpgroup:
    """Four warps. scratch holds the state of wgmma."""

    def __init__(self, warps: list[Warp], actor: Actor) -> None:
        self.warps = warps
        self.actor = actor
        self.scratch: dict[str, Any] = {}


class Group:
    """Lanes of a warp that are at the same instruction. full: all 32 lanes. wait: why they sleep, or None."""

    __slots__ = ("full", "mask", "pc", "wait", "waiting_lanes")

    def __init__(self, pc: int, mask: npt.NDArray[np.bool_]) -> None:
        self.pc = pc
        self.mask = mask
        self.full = all_true(mask)
        self.wait: Wait | None = None
        self.waiting_lanes = mask


class Warp:
    """One warp: its registers, the groups of its diverged lanes, its place in happens-before time.

    inflight: slots that unfinished wgmmas write (any touch is wrong) and `inflight_read` slots that they read
    (a write is wrong);
    unfenced: accumulators that were read since the last wgmma.fence.
    on_touch(slots) is called before a block that does so runs.
    """

    def __init__(self, machine: Machine, cta: Cta, number: int, threads: int) -> None:
        self.machine = machine
        self.cta = cta
        self.id = number
        self.tid = (number * WARP + LANES).astype(np.uint32)
        self.alive = self.tid < threads
        self.groups = [Group(0, self.alive.copy())]
        self.registers = machine.program.new_registers(self)
        self.done = False
        self.at = 0
        self.scratch: dict[str, Any] = {}
        self.warpgroup: Warpgroup
        self.actor = machine.domain.warp(machine.names.warp(cta.index, number))
        self.bulk_actor = machine.domain.actor(f"bulk stores of {self.actor.name}", "async")
        self.fence_stamp: Stamp | None = None
        self.fence_scope = "gpu"
        self.inflight: set[int] = set()
        self.inflight_read: set[int] = set()
        self.on_touch: Any = None
        self.unfenced: set[int] = set()
        self.cluster_phase: int | None = None
        self.local: LocalMemory | None = None
        self.quantum = 0
        self.executed = 0
        self.block_counts: dict[int, int] = {}
        self.taint = TaintTracker(self)
        self.executing: Array | None = None

    def shared(self, address: int) -> tuple[Cta, int]:
        """(CTA, offset) of a shared address; an EmulatorError when it names no CTA of the cluster."""
        rank = int(address) >> SHARED_OFFSET_BITS
        if rank >= len(self.cta.cluster):
            raise EmulatorError(
                f"shared address 0x{int(address):x} names CTA {rank} of a cluster of {len(self.cta.cluster)}"
            )
        return self.cta.cluster[rank], int(address) & OFFSET_MASK

    def mbarrier(self, address: int, proxy: Literal["generic", "async"] = "generic") -> Mbarrier:
        """The mbarrier at a shared address, for an operation issued now.

        Checks that the initialisation is ordered before, and fenced if the other CTA or the async proxy uses
        it.
        """
        cta, offset = self.shared(address)
        found = cta.mbarrier(offset)
        checks = self.machine.checks
        if checks.options.race:
            checks.shared_read(cta, slice(offset, offset + 8), 8, self.actor, "mbarrier operation")
        if not found.fenced and (proxy == "async" or cta is not self.cta):
            user = "the async proxy" if proxy == "async" else "another CTA"
            self.report(
                "fence",
                f"{found.name} is used by {user}, but no fence.mbarrier_init followed its mbarrier.init",
            )
            found.fenced = True
        return found

    def report(self, kind: str, message: str) -> None:
        """A finding of a sanitizer at the executing instruction."""
        self.machine.report(kind, message, self)

    def local_memory(self) -> LocalMemory:
        """Local memory, made when first used."""
        if self.local is None:
            self.local = LocalMemory(self.machine.program.local_size)
        return self.local

    def live_mask(self) -> Array:
        """Lanes that have not exited."""
        mask: Array = np.zeros(WARP, np.bool_)
        for group in self.groups:
            mask = mask | group.mask
        return mask

    def ready(self) -> bool:
        """Whether some group can run."""
        return any(g.wait is None or g.wait.ready() for g in self.groups) or not self.groups
