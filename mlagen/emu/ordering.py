"""Release and acquire through memory: strong accesses and fences (PTX ISA 8, memory consistency model)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mlagen.emu.clocks import Stamp
from mlagen.emu.lanes import ALL_BITS

if TYPE_CHECKING:
    from mlagen.emu.cta import Cta, Warp

    _Stamps = dict[tuple[str, Cta], Stamp]

STRONG = frozenset({"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio", "sc"})
"""Modifiers that make an access strong; an `atom` or `red` without any is relaxed."""


SCOPES = ("cta", "cluster", "gpu", "sys")


def scope_of(modifiers: Iterable[str]) -> str:
    """The scope of a strong access or a fence: "cta", "cluster" or "gpu" (for all that are wider)."""
    found = next((m for m in modifiers if m in SCOPES), "gpu")
    return "gpu" if found == "sys" else found


def semantics(modifiers: Sequence[str]) -> str:
    """The strong modifier of an access and its scope (`acquire@cta`), or an empty string."""
    for modifier in modifiers:
        if modifier in STRONG:
            return f"{modifier}@{scope_of(modifiers)}"
    return ""


def _reaches(scope: str, one: Cta, other: Cta) -> bool:
    """Whether a scope of a thread in one CTA includes the other CTA."""
    return one is other or scope == "gpu" or (scope == "cluster" and one.group is other.group)


def strong_store(warp: Warp, keys: Iterable[Any], kind: str, lanes: int = ALL_BITS) -> None:
    """Hand this warp's time over at locations (keys): all of it for a release, what the last fence covered
    for a relaxed access. lanes: bits of the lanes that do it.
    """
    name, _, scope = kind.partition("@")
    if name in ("release", "acq_rel", "sc"):
        stamp: Stamp | None = warp.actor.release(lanes)
    else:
        stamp = warp.fence_stamp
        scope = min(scope or "gpu", warp.fence_scope, key=SCOPES.index)
    if stamp is None:
        return
    stamps: dict[Any, _Stamps] = warp.machine.scratch.setdefault("stamps", {})
    for key in keys:
        held = stamps.setdefault(key, {})
        held[scope, warp.cta] = stamp.joined(held.get((scope, warp.cta)))


def strong_load(warp: Warp, keys: Iterable[Any], kind: str) -> None:
    """Take over time from locations: at once for an acquire, at the next fence for a relaxed access."""
    stamps: dict[Any, _Stamps] | None = warp.machine.scratch.get("stamps")
    if not stamps:
        return
    name, _, mine = kind.partition("@")
    found = [
        (stamp, cta)
        for key in keys
        for (scope, cta), stamp in stamps.get(key, {}).items()
        if _reaches(scope, cta, warp.cta) and _reaches(mine, warp.cta, cta)
    ]
    if name in ("acquire", "acq_rel", "sc"):
        for stamp, _ in found:
            warp.actor.acquire(stamp)
    elif found:
        warp.scratch.setdefault("seen", []).extend(found)


def fence(warp: Warp, scope: str, lanes: int = ALL_BITS) -> None:
    """fence.acq_rel, fence.sc, membar: later relaxed stores release, earlier relaxed loads have acquired, as
    far as the scope reaches.
    """
    seen = warp.scratch.pop("seen", [])
    for stamp, cta in seen:
        if _reaches(scope, warp.cta, cta):
            warp.actor.acquire(stamp)
    warp.fence_stamp, warp.fence_scope = warp.actor.release(lanes), scope
