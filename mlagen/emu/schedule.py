"""In which order warps run and asynchronous work is done. Every schedule is legal; a correct kernel gives the
same result on all.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlagen.emu.interfaces import AsyncOp, EmulatorError

if TYPE_CHECKING:
    from mlagen.emu.cta import Warp
    from mlagen.emu.machine import Machine

QUANTUM = 64
"""Blocks that a warp runs before the next warp's turn."""

SPIN_QUANTUM = 6
"""The same for a warp that ran its last turn without changing anything: it polls."""

PAUSE_CHANCE = 0.05
"""How often a warp sleeps after a turn, with `pause`."""

PAUSE_ROUNDS = (20, 200)
"""For how many rounds."""

_SHUFFLED = ("random", "pause", "starve")


class AsyncEngine:
    """Work that was issued and not done. Ops with a queue key run in order of that queue, the others in any
    order.
    """

    def __init__(self) -> None:
        self.loose: list[AsyncOp] = []
        self.queues: dict[Hashable, deque[AsyncOp]] = {}

    def __len__(self) -> int:
        return len(self.loose) + sum(map(len, self.queues.values()))

    def add(self, op: AsyncOp) -> None:
        """Queue an op."""
        if op.queue is None:
            self.loose.append(op)
        else:
            self.queues.setdefault(op.queue, deque()).append(op)

    def candidates(self) -> list[AsyncOp]:
        """Ops that may run now."""
        heads = [q[0] for q in self.queues.values() if q]
        return [op for op in (*self.loose, *heads) if op.ready is None or op.ready()]

    def take(self, op: AsyncOp) -> None:
        """Remove an op that is about to run."""
        if op.queue is None:
            self.loose.remove(op)
        else:
            queue = self.queues[op.queue]
            queue.popleft()
            if not queue:
                del self.queues[op.queue]

    def pending(self) -> list[str]:
        """Names of what is queued, for the deadlock report."""
        return [op.name for op in self.loose] + [op.name for q in self.queues.values() for op in q]


@dataclass(slots=True)
class Schedule:
    """A schedule, from its name.

    eager: work is done when it is issued. lazy: only when no warp can run. random:SEED: warps in random
    order, work at random times.
    starve:ROLE[:SEED]: warps of a role (or with a number, or `ctaN`: all of one CTA) hardly ever run while
    others can. pause:SEED: as random, and now and then a warp sleeps for long. lockstep: one block per warp
    and turn.
    """

    name: str
    random: random.Random
    starved: frozenset[Warp] = frozenset()
    paused: dict[Warp, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Schedule:
        """`eager`, `lazy`, `random:7`, `pause:7`, `starve:load`, `lockstep`."""
        kind, _, argument = text.partition(":")
        if kind not in ("eager", "lazy", "random", "pause", "starve", "lockstep"):
            raise EmulatorError(
                f"unknown schedule {text!r}: eager, lazy, random:SEED, pause:SEED, starve:ROLE or lockstep "
                "would work"
            )
        seed = 0
        starved: frozenset[Warp] = frozenset()
        if kind in ("random", "pause"):
            seed = int(argument or 0)
        elif kind == "starve":
            role, _, seed_text = argument.partition(":")
            starved = _chosen(role, machine)
            seed = int(seed_text or 0)
            if not starved and not role.isdigit():
                roles = ", ".join(r[0] for r in machine.names.roles) or "none known"
                raise EmulatorError(
                    f"starve:{role}: no such role (roles: {roles}), warp number or CTA (cta0)"
                )
        return cls(kind, random.Random(seed), starved)

    def at_post(self, op: AsyncOp) -> bool:
        """Whether an op runs when it is issued."""
        return self.name == "eager" and (op.ready is None or op.ready())

    def order(self, warps: list[Warp]) -> list[Warp]:
        """The warps of one round."""
        if self.name in _SHUFFLED:
            warps = list(warps)
            self.random.shuffle(warps)
        return warps

    def skips(self, warp: Warp) -> bool:
        """Whether a warp that could run does not get this turn."""
        if self.name == "pause":
            return self._pauses(warp)
        return bool(self.starved) and warp in self.starved and self.random.random() < 0.97

    def _pauses(self, warp: Warp) -> bool:
        now = warp.machine.rounds
        if now < self.paused.get(warp, 0):
            return True
        if self.random.random() < PAUSE_CHANCE:
            self.paused[warp] = now + self.random.randrange(*PAUSE_ROUNDS)
        return False

    def held(self, warp: Warp) -> bool:
        """Whether a warp is kept from running though it could."""
        return warp in self.starved or warp.machine.rounds < self.paused.get(warp, 0)

    def quantum(self, warp: Warp) -> int:
        """Blocks of this turn."""
        if self.name == "lockstep":
            return 1
        if self.name in ("random", "pause"):
            return self.random.choice((1, 2, 4, 16, QUANTUM))
        return warp.quantum or QUANTUM

    def between(self, machine: Machine) -> None:
        """After a warp's turn: do some asynchronous work, or none."""
        if not len(machine.engine):
            return
        if self.name == "eager":
            machine.run_async(limit=1 << 30)
        elif (self.name in ("random", "pause") and self.random.random() < 0.3) or (
            self.name == "starve" and self.random.random() < 0.1
        ):
            machine.run_async(limit=1)

    def end_of_round(self, machine: Machine) -> None:
        """After every warp had its turn."""
        if self.name == "lockstep":
            machine.run_async(limit=1)

    def pick(self, ops: list[AsyncOp]) -> AsyncOp:
        """Which op runs next."""
        if self.name in _SHUFFLED:
            return self.random.choice(ops)
        if self.name == "lazy":
            return ops[-1]
        return ops[0]


def _chosen(name: str, machine: Machine) -> frozenset[Warp]:
    """Warps of a role, with a number, or of a CTA (`cta1`)."""
    if name[:3] == "cta" and name[3:].isdigit():
        return frozenset(w for w in machine.warps if w.cta.index == int(name[3:]))
    numbers = machine.names.warps_of(name)
    return frozenset(w for w in machine.warps if w.id in numbers)
