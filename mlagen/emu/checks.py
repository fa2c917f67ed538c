"""The sanitizers of memory accesses: races, missing proxy fences, never-written bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from mlagen.emu import interfaces
from mlagen.emu.clocks import Actor, ClockDomain, Shadow, Stamp
from mlagen.emu.global_checks import GlobalChecks
from mlagen.emu.interfaces import Array
from mlagen.emu.lanes import ALL_BITS, ALL_LANES, TOGETHER, any_true, lane_bits

if TYPE_CHECKING:
    from mlagen.emu.cta import Cta
    from mlagen.emu.machine import Machine


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Which sanitizers run. Bounds, alignment, mbarrier misuse and deadlocks are always found.

    race: unordered accesses of shared memory and TMEM. proxy: generic writes that the async proxy reads
    without a fence.
    unwritten: reads of bytes that nobody wrote. strict: rules of the ISA text that hardware is known not to
    need. own_part: a warp's wgmma.wait_group covers what its own part of the products read, as the ISA text
    has it; otherwise what the whole warpgroup's products read, as hardware is known to do.
    """

    race: bool = True
    proxy: bool = True
    unwritten: bool = True
    strict: bool = True
    own_part: bool = False


class CtaShadow:
    """What the checks know of one CTA: shadows of shared memory (4-byte granules) and TMEM, and unfenced
    generic writes.
    """

    def __init__(self, shared_size: int) -> None:
        self.shared = Shadow(-(-shared_size // 4), readers=32)
        self.tmem: Shadow | None = None
        self.dirty_writer = np.zeros(-(-shared_size // 4), np.int32)
        self.dirty_time = np.zeros(-(-shared_size // 4), np.int32)
        self.any_dirty = False


def granules(offsets: Array | slice | range, width: int) -> Array | slice:
    """4-byte granules that accesses of `width` bytes touch; a range or slice of byte offsets is a whole
    region.
    """
    if isinstance(offsets, slice | range):
        return slice(offsets.start >> 2, -(-offsets.stop // 4))
    words = (np.asarray(offsets) >> 2).astype(np.int64)
    if width <= 4:
        return words.reshape(-1)
    return (words.reshape(-1)[:, None] + np.arange(width // 4)).reshape(-1)


_LANES = np.arange(32, dtype=np.int8)
WHOLE_WARP = 32
"""In the place of a lane's number."""


def _lane(number: int) -> str:
    return "all lanes" if number == WHOLE_WARP else f"lane {number}"


def lane_numbers(lanes: Array, at: Array | slice, width: int) -> Array | None:
    """The lane that accesses each granule, `WHOLE_WARP` for accesses that lanes make together; None for parts
    of granules.
    """
    if width < 4 or isinstance(at, slice):
        return None
    if lanes is TOGETHER:
        return np.full(len(at), WHOLE_WARP, np.int8)
    numbers = _LANES if lanes is ALL_LANES else _LANES[lanes]
    each = width // 4
    if len(at) != len(numbers) * each:
        return None
    return numbers if each == 1 else np.repeat(numbers, each)


class Checks:
    """The checks of one launch. Accesses are declared when they are issued."""

    def __init__(self, machine: Machine, options: CheckOptions, domain: ClockDomain) -> None:
        self.machine = machine
        self.options = options
        self.domain = domain
        self.shadows: dict[int, CtaShadow] = {}
        self.on = options.race or options.proxy
        self.copied = 0
        self.memory = GlobalChecks(machine)

    def shadow(self, cta: interfaces.Cta) -> CtaShadow:
        """The shadow of a CTA."""
        found = self.shadows.get(cta.index)
        if found is None:
            found = self.shadows[cta.index] = CtaShadow(cta.shared.size)
        return found

    def operation(self, issuer: interfaces.Actor, name: str, lanes: int = ALL_BITS) -> Actor:
        """The actor of one asynchronous operation that starts from the time of the issuer's lanes (bits)."""
        return self.domain.operation(cast(Actor, issuer), name, lanes)

    def shared_read(
        self,
        cta: interfaces.Cta,
        offsets: Array | slice | range,
        width: int,
        actor: interfaces.Actor,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """A read of shared memory is issued; by lanes of a warp if these are given."""
        if not self.on:
            return
        actor = cast(Actor, actor)
        shadow, at = self.shadow(cta), granules(offsets, width)
        if self.options.race:
            if lanes is not None:
                self._lanes(cta, shadow.shared, at, width, actor, what, lanes, write=False)
            writer = shadow.shared.read(actor, at)
            if writer is not None:
                self._race(cta, what, actor, "read", "write", writer, at, shadow.shared)
        if actor.proxy == "async" and self.options.proxy and shadow.any_dirty:
            self._proxy(cta, shadow, at, actor, what, "reads")

    def shared_write(
        self,
        cta: interfaces.Cta,
        offsets: Array | slice | range,
        width: int,
        actor: interfaces.Actor,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """A write of shared memory is issued; by lanes of a warp if these are given."""
        if not self.on:
            return
        actor = cast(Actor, actor)
        if actor.proxy == "async":
            self.copied += 4 * self._count(offsets, width)
        shadow, at = self.shadow(cta), granules(offsets, width)
        if self.options.race:
            who = None
            if lanes is not None:
                who = self._lanes(cta, shadow.shared, at, width, actor, what, lanes, write=True)
            found = shadow.shared.write(actor, at)
            if who is not None:
                shadow.shared.lane[at] = who
            if found is not None:
                self._race(cta, what, actor, "write", found[0], found[1], at, shadow.shared)
        if self.options.proxy:
            if actor.proxy == "generic":
                shadow.dirty_writer[at] = actor.index
                shadow.dirty_time[at] = actor.clock[actor.index]
                shadow.any_dirty = True
            elif shadow.any_dirty:
                self._proxy(cta, shadow, at, actor, what, "overwrites")
                shadow.dirty_time[at] = 0

    def _lanes(
        self,
        cta: interfaces.Cta,
        shadow: Shadow,
        at: Array | slice,
        width: int,
        actor: Actor,
        what: str,
        lanes: Array,
        *,
        write: bool,
    ) -> Array | None:
        """An access by lanes of a warp: report another lane's access that the warp has not synchronised
        since; the lane of each granule, None where accesses cannot be told apart.
        """
        who = lane_numbers(lanes, at, width)
        if who is not None and not isinstance(at, slice):
            found = shadow.lane_conflict(actor, at, who, write)
            if found is not None:
                kind, theirs, mine, granule = found
                self.machine.report(
                    "race",
                    f"{self.machine.names.shared(granule * 4)} of CTA {cta.index}: "
                    f"{'write' if write else 'read'} by {_lane(mine)} of {actor.name} [{what}] is not "
                    f"ordered after a {kind} by {_lane(theirs)}: there is no bar.warp.sync in between",
                )
            if not write:
                shadow.read_by_lanes(actor, at, who)
        actor.touched |= lane_bits(lanes)
        return who

    @staticmethod
    def _count(offsets: Array | slice | range, width: int) -> int:
        """Granules of an access."""
        if isinstance(offsets, slice | range):
            return -(-(offsets.stop - offsets.start) // 4)
        return int(np.asarray(offsets).size) * max(width // 4, 1)

    def product_done(self, warp: interfaces.Warp, stamp: interfaces.Stamp | None) -> interfaces.Stamp | None:
        """What a warp knows when a product of its warpgroup is done (see `CheckOptions.own_part`)."""
        if not self.options.own_part or not isinstance(stamp, Stamp):
            return stamp
        clock = stamp.clock.copy()
        clock[[cast(Actor, w.actor).index for w in warp.warpgroup.warps if w is not warp]] = 0
        return Stamp(clock)

    def proxy_fence(self, ctas: list[Cta], actor: Actor) -> None:
        """A fence.proxy.async: every generic write that the fencing warp comes after is now visible to the
        async proxy.
        """
        if not self.options.proxy:
            return
        for cta in ctas:
            shadow = self.shadows.get(cta.index)
            if shadow is None or not shadow.any_dirty:
                continue
            dirty = np.nonzero(shadow.dirty_time)[0]
            known = actor.clock[shadow.dirty_writer[dirty]] >= shadow.dirty_time[dirty]
            shadow.dirty_time[dirty[known]] = 0
            shadow.any_dirty = not bool(known.all())

    def tmem_read(
        self, cta: interfaces.Cta, rows: Array, columns: Array, actor: interfaces.Actor, what: str
    ) -> None:
        """A read of tensor memory is issued."""
        self._tmem(cta, rows, columns, actor, what, write=False)

    def tmem_write(
        self, cta: interfaces.Cta, rows: Array, columns: Array, actor: interfaces.Actor, what: str
    ) -> None:
        """A write of tensor memory is issued."""
        self._tmem(cta, rows, columns, actor, what, write=True)

    def _tmem(
        self,
        cta: interfaces.Cta,
        rows: Array,
        columns: Array,
        actor: interfaces.Actor,
        what: str,
        write: bool,
    ) -> None:
        if not self.options.race:
            return
        actor = cast(Actor, actor)
        whole = self.shadow(cta)
        if whole.tmem is None:
            whole.tmem = Shadow(128 * 512)
        at = (np.asarray(rows, np.int64) * 512 + np.asarray(columns, np.int64)).reshape(-1)
        if write:
            found = whole.tmem.write(actor, at)
        else:
            writer = whole.tmem.read(actor, at)
            found = None if writer is None else ("write", writer)
        if found is not None:
            place = f"TMEM of CTA {cta.index}, lane {int(at[0]) // 512} column {int(at[0]) % 512}"
            self._report_race(what, actor, "write" if write else "read", found[0], found[1], place)

    def _race(
        self,
        cta: interfaces.Cta,
        what: str,
        actor: Actor,
        kind: str,
        other: str,
        who: int,
        at: Array | slice,
        shadow: Shadow,
    ) -> None:
        where = np.arange(shadow.granules)[at]
        mine = where[shadow.writer[where] == who] if other == "write" and kind == "read" else where
        place = self.machine.names.shared(int((mine if len(mine) else where)[0]) * 4)
        self._report_race(what, actor, kind, other, who, f"{place} of CTA {cta.index}")

    def _report_race(self, what: str, actor: Actor, kind: str, other: str, who: int, place: str) -> None:
        self.machine.report(
            "race",
            f"{place}: {kind} by {actor.name} [{what}] is not ordered after a {other} by "
            f"{self.domain.name_of(who)}",
        )

    def _proxy(
        self, cta: interfaces.Cta, shadow: CtaShadow, at: Array | slice, actor: Actor, what: str, verb: str
    ) -> None:
        dirty = shadow.dirty_time[at] > 0
        if any_true(dirty):
            where = np.arange(len(shadow.dirty_time))[at][dirty]
            writer = self.domain.name_of(int(shadow.dirty_writer[where[0]]))
            place = self.machine.names.shared(int(where[0]) * 4)
            self.machine.report(
                "proxy",
                f"{place} of CTA {cta.index}: {actor.name} [{what}] {verb} through the async proxy what "
                f"{writer} stored "
                "with ordinary stores, without a fence.proxy.async in between",
            )
