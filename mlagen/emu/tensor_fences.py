"""The pairing of tcgen05 fences, and the pipes whose accesses they order.

Between threads, an access of tensor memory is ordered by: the access, its completion (`wait::ld`, `wait::st`
or a commit), `tcgen05.fence::before_thread_sync` (a commit includes it), the synchronisation,
`tcgen05.fence::after_thread_sync`, the next access. The race check sees completion and synchronisation; this
one looks for the fences. Kernels without them are known to run right, so that a missing one is a lint. PTX
ISA 9.7.16.6.2: "tcgen05 memory consistency model".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlagen.emu.checks import Checks
from mlagen.emu.clocks import Actor
from mlagen.emu.interfaces import Array, Cta, Machine, Warp

Clock = npt.NDArray[np.int32]
_ALWAYS = np.iinfo(np.int32).max


@dataclass(slots=True)
class Fences:
    """after: what a warp knew at its last fence::after_thread_sync, by warp actor. before: for every pipe the
    time up to which its accesses are followed by a fence::before_thread_sync (without limit for pipes that
    complete by commit).
    """

    before: Clock
    after: dict[int, Clock] = field(default_factory=dict)


def _fences(machine: Machine, checks: Checks) -> Fences:
    found: Fences | None = machine.scratch.get("tensor fences")
    if found is None:
        found = machine.scratch["tensor fences"] = Fences(np.full(checks.domain.width, _ALWAYS, np.int32))
    return found


def pipe(warp: Warp, kind: str) -> Actor:
    """The actor of a warp's tcgen05.ld ("ld") or tcgen05.st ("st"); the warp comes after it at the wait."""
    found: Actor | None = warp.scratch.get(f"tcgen05.{kind}")
    if found is None:
        checks = _concrete(warp.machine)
        found = checks.domain.actor(f"tcgen05.{kind} of {warp.actor.name}", "async")
        warp.scratch[f"tcgen05.{kind}"] = found
        _fences(warp.machine, checks).before[found.index] = 0
    return found


def _concrete(machine: Machine) -> Checks:
    checks = machine.checks
    if not isinstance(checks, Checks):
        raise TypeError(f"{type(checks).__name__} has no clocks")
    return checks


def fence_before(warp: Warp) -> None:
    """tcgen05.fence::before_thread_sync: the warp's accesses so far are handed over by what follows."""
    fences = _fences(warp.machine, _concrete(warp.machine))
    for kind in ("ld", "st"):
        own = warp.scratch.get(f"tcgen05.{kind}")
        if own is not None:
            fences.before[own.index] = own.clock[own.index]


def fence_after(warp: Warp) -> None:
    """tcgen05.fence::after_thread_sync: the warp's later accesses come after all that it knows now."""
    actor = warp.actor
    if isinstance(actor, Actor):
        _fences(warp.machine, _concrete(warp.machine)).after[actor.index] = actor.clock.copy()


def check(
    warp: Warp, cta: Cta, rows: Array, columns: Array, own: tuple[Actor, ...], what: str, *, write: bool
) -> None:
    """Report accesses of others that this one follows without the fences. Call it before the access is
    declared.

    own: actors whose accesses need no fence (the pipe of the instruction itself).
    """
    checks = _concrete(warp.machine)
    shadow = checks.shadow(cta).tmem
    if (
        not (checks.options.strict and checks.options.race)
        or shadow is None
        or not isinstance(warp.actor, Actor)
    ):
        return
    fences = _fences(warp.machine, checks)
    after = fences.after.get(warp.actor.index)
    known = after if after is not None else np.zeros(checks.domain.width, np.int32)
    at = (np.asarray(rows, np.int64) * 512 + np.asarray(columns, np.int64)).reshape(-1)
    writers, times = shadow.writer[at], shadow.written[at]
    if write and shadow.columns:
        readers = shadow.readers[: len(shadow.columns)]
        last = shadow.reads[: len(shadow.columns)][:, at].max(axis=1, initial=0)
        writers, times = np.concatenate([writers, readers]), np.concatenate([times, last])
    foreign = (times > 0) & (writers != warp.actor.index)
    for actor in own:
        foreign &= writers != actor.index
    if not foreign.any():
        return
    for side, missing in (("after", known[writers] < times), ("before", times > fences.before[writers])):
        wrong = foreign & missing
        if wrong.any():
            other = checks.domain.name_of(int(writers[wrong][0]))
            who = "its own warp" if side == "after" else "that one"
            warp.report(
                "strict",
                f"{what} follows {other}, but {who} has no tcgen05.fence::{side}_thread_sync in between",
            )
            return
