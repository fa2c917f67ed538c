"""Happens-before time: vector clocks of everybody who accesses memory.

One `ClockDomain` per launch. A vector has one entry per warp and pipe, and a ring of entries for asynchronous
operations: operation k uses
entry k % OPERATIONS with time k // OPERATIONS + 1, so that knowing a later operation of the ring counts as
knowing the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlagen.emu import interfaces

OPERATIONS = 256

Clock = npt.NDArray[np.int32]


@dataclass(slots=True)
class Stamp:
    """Time handed over from one actor to another."""

    clock: Clock

    def joined(self, other: interfaces.Stamp | None) -> Stamp:
        """The later of both in every entry."""
        if not isinstance(other, Stamp):
            return self
        return Stamp(np.maximum(self.clock, other.clock))


class Actor:
    """A warp, a pipe or one asynchronous operation, with the time that it knows."""

    __slots__ = ("clock", "index", "name", "operation", "proxy")

    def __init__(self, name: str, proxy: Literal["generic", "async"], index: int, clock: Clock) -> None:
        self.name = name
        self.proxy: Literal["generic", "async"] = proxy
        self.index = index
        self.clock = clock
        self.operation = False

    def release(self) -> Stamp:
        """What this actor did so far. Later accesses are not covered."""
        stamp = Stamp(self.clock.copy())
        if not self.operation:
            self.clock[self.index] += 1
        return stamp

    def acquire(self, stamp: interfaces.Stamp | None) -> None:
        """This actor now comes after what the stamp covers."""
        if isinstance(stamp, Stamp):
            np.maximum(self.clock, stamp.clock, out=self.clock)


class ClockDomain:
    """All clocks of a launch. names[i] says who owns entry i."""

    def __init__(self, actors: int) -> None:
        self.names: list[str] = []
        self.first_operation = actors
        self.width = actors + OPERATIONS
        self.operations = 0
        self.operation_names: dict[int, str] = {}

    def actor(self, name: str, proxy: Literal["generic", "async"]) -> Actor:
        """A new warp or pipe."""
        index = len(self.names)
        if index >= self.first_operation:
            raise ValueError(f"room for {self.first_operation} actors only")
        self.names.append(name)
        clock: Clock = np.zeros(self.width, np.int32)
        clock[index] = 1
        return Actor(name, proxy, index, clock)

    def operation(self, issuer: Actor, name: str) -> Actor:
        """A new asynchronous operation that starts at the issuer's time."""
        number, self.operations = self.operations, self.operations + 1
        index = self.first_operation + number % OPERATIONS
        clock = issuer.clock.copy()
        clock[index] = number // OPERATIONS + 1
        actor = Actor(name, "async", index, clock)
        actor.operation = True
        self.operation_names[index] = name
        return actor

    def name_of(self, index: int) -> str:
        """Who owns an entry."""
        if index < self.first_operation:
            return self.names[index]
        return self.operation_names.get(index, "an asynchronous operation")


class Shadow:
    """Who wrote and who read each granule of one memory, and when.

    columns: which actors ever read here; read times are kept per column, so that a memory that few actors
    read stays small.
    """

    def __init__(self, granules: int) -> None:
        self.granules = granules
        self.writer: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.written: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.columns: dict[int, int] = {}
        self.readers: npt.NDArray[np.int32] = np.zeros((4,), np.int32)
        self.reads: npt.NDArray[np.int32] = np.zeros((4, granules), np.int32)

    def column(self, index: int) -> int:
        """The column of a reader, new if this is its first read."""
        found = self.columns.get(index)
        if found is None:
            found = self.columns[index] = len(self.columns)
            if found >= len(self.reads):
                self.reads = np.concatenate([self.reads, np.zeros_like(self.reads)])
                self.readers = np.concatenate([self.readers, np.zeros_like(self.readers)])
            self.readers[found] = index
        return found

    def read(self, actor: Actor, at: npt.NDArray[np.int64] | slice) -> int | None:
        """Record a read; the entry of a writer that it is not ordered after, if any."""
        clock = actor.clock
        writer = self.writer[at]
        late = clock[writer] < self.written[at]
        column = self.column(actor.index)
        self.reads[column, at] = clock[actor.index]
        return int(writer[late][0]) if late.any() else None

    def write(self, actor: Actor, at: npt.NDArray[np.int64] | slice) -> tuple[str, int] | None:
        """Record a write; ("read" or "write", entry) of an access that it is not ordered after, if any."""
        clock = actor.clock
        found: tuple[str, int] | None = None
        writer = self.writer[at]
        late = clock[writer] < self.written[at]
        if late.any():
            found = ("write", int(writer[late][0]))
        used = len(self.columns)
        if used and found is None:
            readers = self.readers[:used]
            early = self.reads[:used][:, at].max(axis=1, initial=0) > clock[readers]
            if early.any():
                found = ("read", int(readers[early][0]))
        self.writer[at] = actor.index
        self.written[at] = clock[actor.index]
        return found
