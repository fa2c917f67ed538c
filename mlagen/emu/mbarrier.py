"""The state of an mbarrier object (PTX ISA 9.7.13.15) and what can go wrong with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlagen.emu import interfaces
from mlagen.emu.clocks import Actor, Stamp
from mlagen.emu.interfaces import EmulatorError

if TYPE_CHECKING:
    from mlagen.emu.cta import Cta

MAX_COUNT = (1 << 20) - 1


class Mbarrier:
    """Counts arrivals and bytes; a phase completes when both are done.

    stamp gathers the time of all arrivals of the current phase, released is the stamp of the last complete
    phase. waiters: for each
    actor that saw the last complete phase, its time when it did (used to find waits whose parity may alias).
    """

    __slots__ = ("count", "cta", "fenced", "offset", "pending", "phase", "released", "stamp", "tx", "waiters")

    def __init__(self, cta: Cta, offset: int, count: int) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise EmulatorError(
                f"mbarrier.init of {cta.machine.names.shared(offset)} with count {count}, 1..{MAX_COUNT} "
                "allowed"
            )
        self.cta = cta
        self.offset = offset
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        self.stamp: Stamp | None = None
        self.released: Stamp | None = None
        self.fenced = False
        self.waiters: dict[int, tuple[int, str]] = {}

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"{self.cta.machine.names.shared(self.offset)} of CTA {self.cta.index}"

    def state(self) -> str:
        """For reports."""
        text = f"{self.name}: phase {self.phase}, {self.pending} of {self.count} arrivals missing"
        return text + (f", {self.tx} bytes outstanding" if self.tx else "")

    def arrive(self, count: int, stamp: interfaces.Stamp | None) -> None:
        """Arrivals; EmulatorError when the phase has fewer left."""
        if count > self.pending:
            raise EmulatorError(f"over-arrival: {count} arrivals on {self.state()}")
        self.pending -= count
        self._join(stamp)
        self._settle()

    def drop(self, stamp: interfaces.Stamp | None) -> None:
        """One arrival that also lowers the count of later phases."""
        self.count -= 1
        self.arrive(1, stamp)

    def expect_tx(self, n: int) -> None:
        """More bytes to come in this phase."""
        self.tx += n
        self._check_tx()

    def complete_tx(self, n: int, stamp: interfaces.Stamp | None) -> None:
        """Bytes have come."""
        self.tx -= n
        self._check_tx()
        self._join(stamp)
        self._settle()

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity is complete (and the current phase has the other parity)."""
        return (self.phase & 1) != parity

    def saw(self, actor: Actor) -> None:
        """An actor observed that the last phase is complete."""
        actor.acquire(self.released)
        self.waiters[actor.whole] = (int(actor.clock[actor.whole]), actor.name)

    def _check_tx(self) -> None:
        if abs(self.tx) > MAX_COUNT:
            raise EmulatorError(f"transaction count out of range (limit {MAX_COUNT}): {self.state()}")

    def _join(self, stamp: interfaces.Stamp | None) -> None:
        if isinstance(stamp, Stamp):
            self.stamp = stamp.joined(self.stamp)

    def _settle(self) -> None:
        """Complete the phase if nothing is missing."""
        machine = self.cta.machine
        machine.progress += 1
        if self.pending or self.tx:
            return
        if self.waiters and self.stamp is not None and machine.checks.options.race:
            self._check_alias(self.stamp)
        self.phase += 1
        self.pending = self.count
        self.released, self.stamp = self.stamp, None
        self.waiters = {}
        if self.count == 0:
            raise EmulatorError(f"every participant dropped out of {self.name}")

    def _check_alias(self, stamp: Stamp) -> None:
        """Who saw the phase before must come before the completion of this one; else parity can run around
        it.
        """
        for index, (time, name) in self.waiters.items():
            if stamp.clock[index] < time:
                self.cta.machine.report(
                    "phase",
                    f"phase {self.phase} of {self.name} completes although nothing orders it after the "
                    f"wait of {name} for phase {self.phase - 1}: the barrier can run two phases ahead of "
                    "that wait, and its parity then hangs or lies",
                )
