"""Bulk asynchronous copies: what happens between their issue and their completion.

Loads complete on mbarriers (complete_tx). Stores and reductions to global memory belong to bulk groups of the
issuing thread: first they read shared memory, later their result is visible; `wait_group.read` waits for the
first only. PTX ISA 9.7.9.27: "Data Movement and Conversion Instructions: Bulk copy" and "completion
mechanisms".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import (
    SHARED_OFFSET_BITS,
    Array,
    AsyncOp,
    Cta,
    EmulatorError,
    Mbarrier,
    Stamp,
    Warp,
)
from mlagen.emu.tensormap import SWIZZLE_SPAN, Swizzle
from mlagen.emu.tma_boxes import shared_chunks

Bytes = npt.NDArray[np.uint8]
CHUNK = 16


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes in the shared memory of a CTA, in the order of 16-byte chunks given by a swizzle. row: bytes of a
    row of a tensor-map box, see `shared_chunks`; 0 without gaps.
    """

    cta: Cta
    offset: int
    size: int
    swizzle: Swizzle = Swizzle.NONE
    row: int = 0

    def footprint(self) -> Array | slice:
        """What the checks are told: a whole range where the swizzle stays inside of it."""
        gaps = 0 < self.row < SWIZZLE_SPAN.get(self.swizzle, 0)
        if self.swizzle == Swizzle.NONE or (self.size % 128 == 0 and not gaps):
            return slice(self.offset, self.offset + self.size)
        return self.chunks()

    def chunks(self) -> Array:
        """Byte offset of every chunk."""
        if self.swizzle == Swizzle.NONE:
            return np.arange(self.offset, self.offset + self.size, CHUNK, dtype=np.uint64)
        return shared_chunks(self.offset, self.size, self.swizzle, self.row)

    def write(self, data: Bytes) -> None:
        """Store `size` bytes."""
        self.cta.shared.scatter(self.chunks(), data.reshape(-1).view(np.uint64).reshape(-1, 2), CHUNK)

    def read(self) -> Bytes:
        """Load `size` bytes."""
        values = self.cta.shared.gather(self.chunks(), CHUNK)
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def lanes_of(lanes: npt.NDArray[np.bool_]) -> list[int]:
    """Numbers of the lanes that execute."""
    found: list[int] = np.nonzero(lanes)[0].tolist()
    return found


# ---------------------------------------------------------------- loads
@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes, and the mbarrier that counts it."""

    region: Region
    mbarrier: Mbarrier


def load_targets(
    warp: Warp, region: Region, barrier_address: int, cta_mask: int | None, pair: bool
) -> list[Target]:
    """Targets of a load to shared memory.

    cta_mask: CTAs of a multicast, or None. pair: `.cta_group::2`, which lets the mbarrier be in either CTA of
    the pair. EmulatorError for an mbarrier that the instruction may not signal or a mask that names CTAs
    outside of the cluster.
    """
    barrier_cta, barrier_offset = warp.shared(barrier_address)
    cluster = warp.cta.cluster
    if cta_mask is None:
        same = barrier_cta.rank == region.cta.rank
        if not same and not (pair and barrier_cta.rank >> 1 == region.cta.rank >> 1):
            raise EmulatorError(
                f"data goes to CTA {region.cta.rank}, the mbarrier is in CTA {barrier_cta.rank}; "
                + ("the two must be of one pair" if pair else "without .cta_group::2 they must be in one CTA")
            )
        return [Target(region, warp.mbarrier(barrier_address, "async"))]
    if cta_mask == 0 or cta_mask >> len(cluster):
        raise EmulatorError(f"multicast mask {cta_mask:#x} for a cluster of {len(cluster)} CTAs")
    targets = []
    for rank in range(len(cluster)):
        if cta_mask >> rank & 1:
            signalled = (rank & ~1) | (barrier_cta.rank & 1) if pair else rank
            address = signalled << SHARED_OFFSET_BITS | barrier_offset
            target = replace(region, cta=cluster[rank])
            targets.append(Target(target, warp.mbarrier(address, "async")))
    return targets


def post_load(warp: Warp, name: str, targets: Sequence[Target], fetch: Callable[[], Bytes]) -> None:
    """Issue a load: `fetch` gives its bytes when it runs; every target then counts them."""
    machine = warp.machine
    actor = machine.checks.operation(warp.actor, f"{name} of {warp.actor.name}")
    for target in targets:
        machine.checks.shared_write(target.region.cta, target.region.footprint(), CHUNK, actor, name)

    def run() -> None:
        data = fetch()
        for target in targets:
            target.region.write(data)
            target.mbarrier.complete_tx(target.region.size, actor.release())

    machine.post(AsyncOp(f"{name} of {warp.actor.name}", run))


# ---------------------------------------------------------------- stores and their groups
@dataclass(slots=True)
class _Store:
    """One store of a group: has it read its source, has it written its destination."""

    read: bool = False
    written: bool = False


@dataclass(slots=True)
class _Group:
    stores: list[_Store]
    stamp: Stamp | None

    def done(self, read_only: bool) -> bool:
        return all(s.read if read_only else s.written for s in self.stores)


@dataclass(slots=True)
class LaneGroups:
    """Bulk groups of one thread: what is not yet committed, and the committed groups, oldest first."""

    open: list[_Store] = field(default_factory=list)
    committed: list[_Group] = field(default_factory=list)

    def commit(self, stamp: Stamp | None) -> None:
        """Close the current group."""
        self.committed = [g for g in self.committed if not g.done(False)]
        self.committed.append(_Group(self.open, stamp))
        self.open = []

    def older_than(self, newest: int) -> list[_Group]:
        """The committed groups without the `newest` last ones."""
        return self.committed[: len(self.committed) - newest] if newest else list(self.committed)


def lane_groups(warp: Warp, lane: int) -> LaneGroups:
    """The bulk groups of a thread."""
    groups: dict[int, LaneGroups] = warp.scratch.setdefault("bulk groups", {})
    return groups.setdefault(lane, LaneGroups())


def post_store(warp: Warp, lane: int, name: str, source: Region, write: Callable[[Bytes], None]) -> None:
    """Issue a store: its source is read when it first runs, `write` gets the bytes some time later."""
    machine, store = warp.machine, _Store()
    lane_groups(warp, lane).open.append(store)
    warp.bulk_actor.acquire(warp.actor.release())
    machine.checks.shared_read(source.cta, source.footprint(), CHUNK, warp.bulk_actor, name)
    full_name = f"{name} of {warp.actor.name}"

    def read() -> None:
        if all(w.done for w in source.cta.warps):
            warp.report(
                "bulk", f"{full_name} reads shared memory after its CTA has exited: a wait_group is missing"
            )
        data = source.read()
        store.read = True
        machine.post(AsyncOp(f"{full_name} (write)", lambda: finish(data)))

    def finish(data: Bytes) -> None:
        write(data)
        store.written = True

    machine.post(AsyncOp(full_name, read))
