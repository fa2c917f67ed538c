"""Release and acquire through memory: strong accesses and fences (PTX ISA 8, memory consistency model)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mlagen.emu.clocks import Stamp

if TYPE_CHECKING:
    from mlagen.emu.cta import Warp

STRONG = frozenset({"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio", "sc"})
"""Modifiers that make an access strong; an `atom` or `red` without any is relaxed."""


def semantics(modifiers: Iterable[str]) -> str:
    """The strong modifier of an access, or an empty string."""
    for modifier in modifiers:
        if modifier in STRONG:
            return modifier
    return ""


def strong_store(warp: Warp, keys: Iterable[Any], kind: str) -> None:
    """Hand this warp's time over at locations (keys): all of it for a release, what the last fence covered
    for a relaxed access.
    """
    if kind in ("release", "acq_rel", "sc"):
        stamp: Stamp | None = warp.actor.release()
    else:
        stamp = warp.fence_stamp
    if stamp is None:
        return
    stamps: dict[Any, Stamp] = warp.machine.scratch.setdefault("stamps", {})
    for key in keys:
        stamps[key] = stamp.joined(stamps.get(key))


def strong_load(warp: Warp, keys: Iterable[Any], kind: str) -> None:
    """Take over time from locations: at once for an acquire, at the next fence for a relaxed access."""
    stamps: dict[Any, Stamp] | None = warp.machine.scratch.get("stamps")
    if not stamps:
        return
    found = [stamps[key] for key in keys if key in stamps]
    if kind in ("acquire", "acq_rel", "sc"):
        for stamp in found:
            warp.actor.acquire(stamp)
    elif found:
        warp.scratch.setdefault("seen", []).extend(found)


def fence(warp: Warp) -> None:
    """fence.acq_rel, fence.sc, membar: later relaxed stores release, earlier relaxed loads have acquired."""
    for stamp in warp.scratch.pop("seen", ()):
        warp.actor.acquire(stamp)
    warp.fence_stamp = warp.actor.release()
