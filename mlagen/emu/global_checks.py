"""Races on global memory: between warps of all CTAs, in allocations that the kernel writes.

Ordering comes from barriers inside a CTA or cluster, and from release and acquire through memory between CTAs
(`mlagen.emu.ordering`).
Strong accesses (atomics, acquire, release, relaxed, volatile) do not race.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mlagen.emu.clocks import Actor, Shadow
from mlagen.emu.interfaces import Array
from mlagen.emu.lanes import lane_bits

if TYPE_CHECKING:
    from mlagen.emu.machine import Machine

LARGEST = 1 << 26
"""Bytes of the largest allocation that is watched."""


class GlobalChecks:
    """Shadows of the allocations that were written, made at the first write."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.starts: list[int] = []
        self.regions: list[tuple[int, int, str]] = []
        self.shadows: dict[int, Shadow] = {}

    def _region(self, offset: int) -> int:
        """Index of the allocation that an offset is in."""
        if len(self.regions) != len(self.machine.memory.names):
            self.regions = list(self.machine.memory.names)
            self.starts = [start for start, _, _ in self.regions]
        return bisect_right(self.starts, offset) - 1

    def _granules(self, offsets: Array, width: int, start: int) -> Array:
        words = (offsets.astype(np.int64) - start) >> 2
        if width <= 4:
            return words
        return (words[:, None] + np.arange(width // 4)).reshape(-1)

    def read(self, offsets: Array, width: int, actor: Actor, lanes: Array) -> None:
        """A weak load of `width` bytes at each offset of the arena, one for each of the lanes."""
        if not self.shadows:
            return
        index = self._region(int(offsets[0]))
        shadow = self.shadows.get(index)
        if shadow is None:
            return
        actor.touched |= lane_bits(lanes)
        start, size, name = self.regions[index]
        inside = (offsets >= start) & (offsets < start + size)
        at = self._granules(offsets[inside], width, start)
        writer = shadow.read(actor, at)
        if writer is not None:
            self._report("read", "write", writer, actor, name, at)

    def write(self, offsets: Array, width: int, actor: Actor, same: Callable[[], bool], lanes: Array) -> None:
        """A weak store of `width` bytes at each offset of the arena, one for each of the lanes, before it is
        done.

        same() says whether the bytes are there already: two writers of one value are only noted.
        """
        actor.touched |= lane_bits(lanes)
        index = self._region(int(offsets[0]))
        start, size, name = self.regions[index]
        shadow = self.shadows.get(index)
        if shadow is None:
            if size > LARGEST:
                return
            shadow = self.shadows[index] = Shadow(-(-size // 4))
        inside = (offsets >= start) & (offsets < start + size)
        at = self._granules(offsets[inside], width, start)
        found = shadow.write(actor, at)
        if found is not None:
            benign = found[0] == "write" and same()
            self._report("write", found[0], found[1], actor, name, at, "note" if benign else "race")

    def _report(
        self, kind: str, other: str, who: int, actor: Actor, name: str, at: Array, finding: str = "race"
    ) -> None:
        self.machine.report(
            finding,
            f"global {name}+0x{4 * int(at[0]):x}: {kind} by {actor.name} is not ordered after a {other} by "
            f"{self.machine.domain.name_of(who)}",
        )
