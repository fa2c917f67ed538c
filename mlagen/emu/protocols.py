"""The machine as instructions see it. `mlagen.emu.interfaces` re-exports these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mlagen.emu.lanes import ALL_BITS

if TYPE_CHECKING:
    from mlagen.emu.interfaces import Array, AsyncOp, Wait


class Stamp(Protocol):
    """A point in happens-before time that is handed over; opaque."""


class Actor(Protocol):
    """Somebody who accesses memory: a warp, a pipe, or one asynchronous operation."""

    @property
    def name(self) -> str:
        """How reports call it."""

    proxy: Literal["generic", "async"]

    def release(self) -> Stamp:
        """What this actor did so far, to be handed over."""

    def acquire(self, stamp: Stamp | None) -> None:
        """From now on this actor comes after what the stamp covers."""


class Checks(Protocol):
    """Race, proxy and initialisation checks; every method is a cheap no-op when its check is off.

    offsets: integer array of any shape, byte offsets of accesses of `width` bytes in the CTA's shared memory;
    or a slice / range of bytes
    for a contiguous region (much cheaper).
    rows, columns: TMEM lanes 0..127 and columns 0..511 (broadcast against each other).
    """

    def operation(self, issuer: Actor, name: str, lanes: int = ALL_BITS) -> Actor:
        """The actor of one asynchronous operation (async proxy) that starts from the time of the issuer's
        lanes (bits).
        """

    def shared_read(
        self,
        cta: Cta,
        offsets: Array | slice | range,
        width: int,
        actor: Actor,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """A read is issued; by these lanes of a warp if given, offsets in their order."""

    def shared_write(
        self,
        cta: Cta,
        offsets: Array | slice | range,
        width: int,
        actor: Actor,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """A write is issued; by these lanes of a warp if given, offsets in their order."""

    def product_done(self, warp: Warp, stamp: Stamp | None) -> Stamp | None:
        """What a warp may take over when a wgmma of its warpgroup is done."""

    def tmem_read(self, cta: Cta, rows: Array, columns: Array, actor: Actor, what: str) -> None:
        """A read is issued."""

    def tmem_write(self, cta: Cta, rows: Array, columns: Array, actor: Actor, what: str) -> None:
        """A write is issued."""


class Mbarrier(Protocol):
    """The state of one mbarrier. Over-arrival and negative transaction counts are errors."""

    @property
    def phase(self) -> int:
        """Phases completed."""

    def arrive(self, count: int, stamp: Stamp | None) -> None:
        """Arrivals."""

    def expect_tx(self, n: int) -> None:
        """Bytes to come."""

    def complete_tx(self, n: int, stamp: Stamp | None) -> None:
        """Bytes that came."""


class SharedMemory(Protocol):
    """Shared memory of one CTA; offsets are byte offsets from the CTA's base."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The content."""

    def gather(self, offsets: Array, width: int) -> Array:
        """Unsigned values of `width` (1, 2, 4, 8, 16) bytes, shape of offsets (16: uint64 (..., 2)); bounds,
        alignment and
        never-written bytes are checked."""

    def scatter(self, offsets: Array, values: Array, width: int) -> None:
        """Store unsigned values of `width` bytes (16: uint64 (..., 2)); bounds and alignment are checked."""


class TensorMemory(Protocol):
    """Tensor memory of one CTA: data uint32 (128 lanes, 512 columns), written bool of the same shape, owned
    bool (512,).
    """

    @property
    def data(self) -> npt.NDArray[np.uint32]:
        """The content."""

    @property
    def written(self) -> npt.NDArray[np.bool_]:
        """Which cells hold data."""

    @property
    def owned(self) -> npt.NDArray[np.bool_]:
        """Which columns are allocated."""


class GlobalMemory(Protocol):
    """All global allocations, bounds-checked to the byte."""

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of `size` bytes."""

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes."""

    def gather_rows(self, addresses: Array, size: int) -> npt.NDArray[np.uint8]:
        """uint8 (n, size) for n addresses."""

    def scatter_rows(self, addresses: Array, data: npt.NDArray[np.uint8]) -> None:
        """Write uint8 (n, size) to n addresses."""


class Cta(Protocol):
    """One CTA. rank: in its cluster; cluster: all CTAs of the cluster by rank; index: linear index in the
    grid.
    """

    @property
    def rank(self) -> int:
        """Rank in the cluster."""

    @property
    def index(self) -> int:
        """Linear index in the grid."""

    @property
    def cluster(self) -> Sequence[Cta]:
        """All CTAs of the cluster, by rank."""

    @property
    def shared(self) -> SharedMemory:
        """Its shared memory."""

    @property
    def tmem(self) -> TensorMemory:
        """Its tensor memory."""

    @property
    def tensor_actor(self) -> Actor:
        """The tcgen05 pipe."""

    @property
    def warps(self) -> Sequence[Warp]:
        """Its warps."""

    def mbarrier(self, offset: int) -> Mbarrier:
        """The mbarrier at this byte offset; an EmulatorError when none was initialised there."""


class Warpgroup(Protocol):
    """Four warps. `scratch` is a dict for the state of wgmma (pending groups and so on)."""

    @property
    def warps(self) -> Sequence[Warp]:
        """Its warps."""

    @property
    def actor(self) -> Actor:
        """Who it is in happens-before time."""

    @property
    def scratch(self) -> dict[str, Any]:
        """State of isa modules."""


class Warp(Protocol):
    """One warp. inflight: register slots that unfinished wgmmas write; inflight_read: slots that they read.
    Before a block runs that touches
    the first or writes the second, on_touch(warp, slots) is called. bulk_actor: pipe actor for reads of
    shared memory by bulk stores.

    @property
    def id(self) -> in its CTA. registers: by slot, arrays (32,) bool / uint16 / uint32 / uint64, (32, 2)
    uint64 for b128; replace an: ...

    entry, never write into one. at: pc of the executing instruction. scratch: a dict for isa modules."""

    @property
    def id(self) -> int:
        """Number in the CTA."""

    @property
    def cta(self) -> Cta:
        """Its CTA."""

    @property
    def machine(self) -> Machine:
        """The launch."""

    @property
    def warpgroup(self) -> Warpgroup:
        """Its warpgroup."""

    @property
    def actor(self) -> Actor:
        """Who it is in happens-before time."""

    @property
    def registers(self) -> list[Array]:
        """Registers by slot."""

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Lanes that exist."""

    done: bool

    @property
    def at(self) -> int:
        """Index of the executing instruction."""

    @property
    def scratch(self) -> dict[str, Any]:
        """State of isa modules."""

    inflight: set[int]
    inflight_read: set[int]
    unfenced: set[int]
    on_touch: Callable[[Warp, frozenset[int]], Wait | None] | None

    @property
    def bulk_actor(self) -> Actor:
        """The pipe of its bulk stores."""

    def mbarrier(self, address: int, proxy: Literal["generic", "async"] = "generic") -> Mbarrier:
        """The mbarrier at a shared address, for an operation that is issued now; checks that its
        initialisation is ordered before and
        fenced. Asynchronous operations call it at issue with proxy="async" and keep the object."""

    def shared(self, address: int) -> tuple[Cta, int]:
        """(CTA, offset) of a shared address; an EmulatorError when it names no CTA of the cluster."""

    def report(self, kind: str, message: str) -> None:
        """A finding of a sanitizer at the executing instruction."""


class Machine(Protocol):
    """The whole launch. scratch: a dict for caches of isa modules (decoded tensor maps by content, address
    arrays by descriptor).
    """

    @property
    def memory(self) -> GlobalMemory:
        """Global memory."""

    @property
    def checks(self) -> Checks:
        """The sanitizers."""

    @property
    def scratch(self) -> dict[str, Any]:
        """State of isa modules."""

    @property
    def exact(self) -> bool:
        """Whether tensor products are bit-exact."""

    def post(self, op: AsyncOp) -> None:
        """Hand work to the asynchronous engine."""
