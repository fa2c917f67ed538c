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
from mlagen.emu.lanes import ALL_BITS, any_true

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
    """A warp, a pipe or one asynchronous operation, with the time that it knows.

    Lanes of a warp share its entry. What one lane releases covers accesses of other lanes only as far as
    the warp has synchronised: `synced` is that time; `touched` are the lanes (bits) with accesses since the
    last release, `older` those with accesses between `synced` and that release. `whole` is an entry for what
    every lane of the warp did itself, such as waiting.
    """

    __slots__ = ("clock", "index", "name", "older", "operation", "proxy", "synced", "touched", "whole")

    def __init__(self, name: str, proxy: Literal["generic", "async"], index: int, clock: Clock) -> None:
        self.name = name
        self.proxy: Literal["generic", "async"] = proxy
        self.index = index
        self.whole = index
        self.clock = clock
        self.operation = False
        self.synced = 0
        self.touched = 0
        self.older = 0

    def release(self, lanes: int = ALL_BITS) -> Stamp:
        """What these lanes (bits) of the actor did so far, and what they know. Later accesses are not
        covered.
        """
        stamp = Stamp(self.clock.copy())
        if (self.touched | self.older) & ~lanes:
            stamp.clock[self.index] = self.synced
        if not self.operation:
            self.clock[self.index] += 1
            if self.whole != self.index:
                self.clock[self.whole] += 1
            self.older |= self.touched
            self.touched = 0
        return stamp

    def sync_lanes(self) -> None:
        """All lanes come after all accesses of all lanes."""
        self.acquire(self.release())

    def acquire(self, stamp: interfaces.Stamp | None) -> None:
        """This actor now comes after what the stamp covers."""
        if isinstance(stamp, Stamp):
            own = stamp.clock[self.index]
            np.maximum(self.clock, stamp.clock, out=self.clock)
            if own > self.synced:
                self.synced = int(own)
                if own + 1 >= self.clock[self.index]:
                    self.older = 0


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

    def warp(self, name: str) -> Actor:
        """A new warp, with an entry for what all of its lanes did themselves."""
        actor = self.actor(name, "generic")
        actor.whole = len(self.names)
        self.names.append(name)
        actor.clock[actor.whole] = 1
        return actor

    def operation(self, issuer: Actor, name: str, lanes: int = ALL_BITS) -> Actor:
        """A new asynchronous operation that starts at the time of the issuer's lanes (bits)."""
        number, self.operations = self.operations, self.operations + 1
        index = self.first_operation + number % OPERATIONS
        clock = issuer.clock.copy()
        if (issuer.touched | issuer.older) & ~lanes:
            clock[issuer.index] = issuer.synced
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
    read stays small. For accesses that one lane of a warp made, lane and read_lane say which (else -1); of
    reads only the last one is known to the lane.
    """

    def __init__(self, granules: int, readers: int = 4) -> None:
        self.granules = granules
        self.writer: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.written: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.columns: dict[int, int] = {}
        self.readers: npt.NDArray[np.int32] = np.zeros(readers, np.int32)
        self.reads: npt.NDArray[np.int32] = np.zeros((readers, granules), np.int32)
        self.lane: npt.NDArray[np.int8] = np.full(granules, -1, np.int8)
        self.reader: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.read_time: npt.NDArray[np.int32] = np.zeros(granules, np.int32)
        self.read_lane: npt.NDArray[np.int8] = np.full(granules, -1, np.int8)

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
        return int(writer[late][0]) if any_true(late) else None

    def write(self, actor: Actor, at: npt.NDArray[np.int64] | slice) -> tuple[str, int] | None:
        """Record a write; ("read" or "write", entry) of an access that it is not ordered after, if any."""
        clock = actor.clock
        found: tuple[str, int] | None = None
        writer = self.writer[at]
        late = clock[writer] < self.written[at]
        if any_true(late):
            found = ("write", int(writer[late][0]))
        used = len(self.columns)
        if used and found is None:
            readers = self.readers[:used]
            early = self.reads[:used][:, at].max(axis=1, initial=0) > clock[readers]
            if early.any():
                found = ("read", int(readers[early][0]))
        self.writer[at] = actor.index
        self.written[at] = clock[actor.index]
        self.lane[at] = -1
        return found

    def lane_conflict(
        self, actor: Actor, at: npt.NDArray[np.int64], lanes: npt.NDArray[np.int8], write: bool
    ) -> tuple[str, int, int, int] | None:
        """(read or write, its lane, our lane, granule) of an access by another lane of the same warp that the
        warp has not synchronised since. Call it before `read` or `write`.
        """
        if not actor.touched | actor.older:
            return None
        late = (self.writer[at] == actor.index) & (self.written[at] > actor.synced)
        late &= (self.lane[at] != lanes) & (self.lane[at] >= 0)
        kind, theirs = "write", self.lane
        if write and not any_true(late):
            late = (self.reader[at] == actor.index) & (self.read_time[at] > actor.synced)
            late &= (self.read_lane[at] != lanes) & (self.read_lane[at] >= 0)
            kind, theirs = "read", self.read_lane
        if not any_true(late):
            return None
        first = int(np.nonzero(late)[0][0])
        return kind, int(theirs[at[first]]), int(lanes[first]), int(at[first])

    def read_by_lanes(self, actor: Actor, at: npt.NDArray[np.int64], lanes: npt.NDArray[np.int8]) -> None:
        """Which lanes made a read."""
        self.reader[at] = actor.index
        self.read_time[at] = actor.clock[actor.index]
        self.read_lane[at] = lanes
