"""Memory spaces: a checked store of bytes, and what global, shared, tensor and local memory add to it.

Every byte has a state: not allocated, allocated and never written, written, or part of an mbarrier. A load or
a store looks at the state
of all its bytes at once; only when something is wrong does it look for what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import GLOBAL_BASE, Array, EmulatorError
from mlagen.emu.lanes import any_nonzero, any_true

Bytes = npt.NDArray[np.uint8]

FREE, UNWRITTEN, WRITTEN, MBARRIER = 0, 1, 3, 5
_WIDTHS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3}


def _repeat(value: int, width: int) -> Any:
    return _WIDTHS[width](int.from_bytes(bytes([value]) * width, "little"))


_ALL_WRITTEN = {w: _repeat(WRITTEN, w) for w in _WIDTHS}
_STORE_MASK = {w: _repeat(UNWRITTEN | 4, w) for w in _WIDTHS}
_STORE_OK = {w: _repeat(UNWRITTEN, w) for w in _WIDTHS}


class ByteStore:
    """Bytes with a state each. Offsets are byte offsets.

    on_unwritten(offset, places) is called when bytes are read that nobody wrote; None switches this off.
    element: which element of a vector that is, and of how many.
    """

    def __init__(self, size: int, name: str) -> None:
        self.name = name
        self.on_unwritten: Callable[[int, Array], None] | None = None
        self.element = (0, 1)
        self.resize(size)

    def resize(self, size: int) -> None:
        """Room for `size` bytes, all free; for a store that holds nothing yet."""
        self.size = size
        padded = -(-size // 64) * 64
        self.data: Bytes = np.full(padded, 0xFF, np.uint8)
        self.state: Bytes = np.zeros(padded, np.uint8)
        self.views = {w: self.data.view(t) for w, t in _WIDTHS.items()}
        self.states = {w: self.state.view(t) for w, t in _WIDTHS.items()}

    def where(self, offset: int) -> str:
        """How an offset is written in messages."""
        return f"{self.name}+0x{offset:x}"

    def allocate(self, offset: int, size: int, written: bool = False) -> None:
        """Make bytes usable."""
        self.state[offset : offset + size] = WRITTEN if written else UNWRITTEN

    def _index(self, offsets: Array, width: int, vector: int) -> Array:
        """Element indices; checks alignment and the outer bounds."""
        total = width * vector
        if any_nonzero(offsets & offsets.dtype.type(total - 1)):
            bad = int(offsets[(offsets & offsets.dtype.type(total - 1)) != 0][0])
            raise EmulatorError(f"misaligned access of {total} bytes at {self.where(bad)}")
        top = int(np.maximum.reduce(offsets, axis=None))
        if top + total > self.size:
            raise EmulatorError(
                f"access of {total} bytes out of bounds at {self.where(top)} (size {self.size})"
            )
        index: Array = offsets >> offsets.dtype.type(_SHIFT[width])
        return index

    def load(self, offsets: Array, width: int, vector: int = 1) -> list[Array]:
        """`vector` arrays of unsigned values of `width` bytes at unsigned offsets."""
        index = self._index(offsets, width, vector)
        data, state, good = self.views[width], self.states[width], _ALL_WRITTEN[width]
        out = []
        for i in range(vector):
            if any_nonzero(state[index] ^ good):
                self.element = (i, vector)
                self.examine(index, width, store=False)
                self.element = (0, 1)
            out.append(data[index])
            index = index + index.dtype.type(1)
        return out

    def store(self, offsets: Array, width: int, values: list[Array]) -> None:
        """Store `len(values)` arrays of unsigned values side by side."""
        index = self._index(offsets, width, len(values))
        data, state = self.views[width], self.states[width]
        for value in values:
            if any_nonzero((state[index] & _STORE_MASK[width]) ^ _STORE_OK[width]):
                self.examine(index, width, store=True)
            data[index] = value
            state[index] = _ALL_WRITTEN[width]
            index = index + index.dtype.type(1)

    def examine(self, index: Array, width: int, store: bool) -> None:
        """Say what is wrong with an access to elements: free bytes, an mbarrier, or never-written bytes."""
        offsets = (np.asarray(index, np.int64)[..., None] * width + np.arange(width)).reshape(-1)
        states = self.state[offsets]
        verb = "store to" if store else "load from"
        if (states == FREE).any():
            raise EmulatorError(f"{verb} unallocated memory at {self.where(int(offsets[states == FREE][0]))}")
        if (states == MBARRIER).any():
            raise EmulatorError(
                f"{verb} the bytes of a live mbarrier at {self.where(int(offsets[states == MBARRIER][0]))}"
            )
        if not store and self.on_unwritten is not None:
            places = (states == UNWRITTEN).reshape(-1, width).any(axis=1)
            self.on_unwritten(int(offsets[states == UNWRITTEN][0]), places)

    def gather(self, offsets: Array, width: int) -> Array:
        """Values of `width` bytes (16: uint64 (..., 2)) in the shape of `offsets`."""
        offsets = np.asarray(offsets)
        if offsets.dtype.kind != "u":
            offsets = offsets.astype(np.uint64)
        if width == 16:
            return np.stack(self.load(offsets, 8, 2), -1)
        return self.load(offsets, width)[0]

    def scatter(self, offsets: Array, values: Array, width: int) -> None:
        """The inverse of `gather`."""
        offsets = np.asarray(offsets)
        if offsets.dtype.kind != "u":
            offsets = offsets.astype(np.uint64)
        if width == 16:
            self.store(offsets, 8, [values[..., 0], values[..., 1]])
        else:
            self.store(offsets, width, [values])


class SharedMemory(ByteStore):
    """Shared memory of one CTA: `reserved` bytes that nobody may touch, then static and dynamic memory."""

    def __init__(self, size: int, reserved: int, name: str) -> None:
        super().__init__(size, name)
        self.allocate(reserved, size - reserved)

    def mark_mbarrier(self, offset: int, live: bool) -> None:
        """Make 8 bytes an mbarrier, or plain never-written memory again."""
        if offset % 8:
            raise EmulatorError(f"mbarrier at {self.where(offset)} is not 8-byte aligned")
        if offset + 8 > self.size or self.state[offset] == FREE:
            raise EmulatorError(f"mbarrier at {self.where(offset)} is outside of the CTA's shared memory")
        self.state[offset : offset + 8] = MBARRIER if live else UNWRITTEN


class TensorMemory:
    """Tensor memory of one CTA: 128 lanes x 512 columns of 32 bits."""

    def __init__(self) -> None:
        self.data: npt.NDArray[np.uint32] = np.full((128, 512), 0x7FC0DEAD, np.uint32)
        self.written: npt.NDArray[np.bool_] = np.zeros((128, 512), np.bool_)
        self.owned: npt.NDArray[np.bool_] = np.zeros(512, np.bool_)


class GlobalMemory(ByteStore):
    """All global allocations in one arena; addresses start at GLOBAL_BASE, and free bytes lie between
    allocations.
    """

    GAP = 512
    base = GLOBAL_BASE

    def __init__(self, capacity: int = 1 << 20) -> None:
        super().__init__(capacity, "global")
        self.top = self.GAP
        self.names: list[tuple[int, int, str]] = []
        self.variables: dict[str, int] = {}

    def where(self, offset: int) -> str:
        """The address, and the allocation it is in or next to."""
        nearest = [
            (max(start - offset, offset - start - size + 1, 0), start, name)
            for start, size, name in self.names
        ]
        if not nearest:
            return f"global 0x{GLOBAL_BASE + offset:x}"
        distance, start, name = min(nearest)
        place = f"{name}{offset - start:+#x}" if distance < 1 << 24 else "no allocation"
        return f"global 0x{GLOBAL_BASE + offset:x} ({place})"

    def allocate_array(self, size: int, name: str, data: Bytes | None = None, align: int = 256) -> int:
        """A new allocation; its address. Without data the bytes count as never written."""
        start = -(-self.top // align) * align
        if start + size + self.GAP > self.size:
            self._grow(start + size + self.GAP)
        self.top = start + size + self.GAP
        self.names.append((start, size, name))
        self.allocate(start, size, written=data is not None)
        if data is not None:
            self.data[start : start + size] = data
        return GLOBAL_BASE + start

    def _grow(self, size: int) -> None:
        data, state = self.data, self.state
        self.resize(max(size, 2 * self.size))
        self.data[: len(data)] = data
        self.state[: len(state)] = state

    def offsets(self, addresses: Array) -> Array:
        """uint64 addresses as offsets; EmulatorError for addresses of no allocation."""
        offsets: Array = addresses - np.uint64(GLOBAL_BASE)
        if any_true(offsets >= np.uint64(self.size)):
            bad = int(addresses[offsets >= np.uint64(self.size)][0])
            raise EmulatorError(f"global address 0x{bad:x} is in no allocation")
        return offsets

    def _rows(self, addresses: Array, size: int) -> Array:
        offsets = self.offsets(np.asarray(addresses).astype(np.uint64)).astype(np.int64)
        if offsets.size and int(offsets.max()) + size > self.size:
            raise EmulatorError(f"access out of bounds at {self.where(int(offsets.max()))}")
        rows: Array = offsets[:, None] + np.arange(size)
        return rows

    def gather_rows(self, addresses: Array, size: int) -> Bytes:
        """uint8 (n, size) for n addresses."""
        rows = self._rows(addresses, size)
        if (self.state[rows] != WRITTEN).any():
            self.examine(rows.reshape(-1), 1, store=False)
        gathered: Bytes = self.data[rows]
        return gathered

    def scatter_rows(self, addresses: Array, data: Bytes) -> None:
        """Write uint8 (n, size) to n addresses."""
        rows = self._rows(addresses, data.shape[1])
        if ((self.state[rows] & 5) != UNWRITTEN).any():
            self.examine(rows.reshape(-1), 1, store=True)
        self.data[rows] = data
        self.state[rows] = WRITTEN

    def read(self, address: int, size: int) -> Bytes:
        """A copy of `size` bytes."""
        found: Bytes = self.gather_rows(np.array([address], np.uint64), size)[0]
        return found

    def write(self, address: int, data: Bytes) -> None:
        """Write bytes."""
        self.scatter_rows(np.array([address], np.uint64), data[None, :])


class LocalMemory:
    """Local memory of one warp: every lane has its own bytes at the same addresses."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data: Bytes = np.zeros((32, -(-max(size, 16) // 16) * 16), np.uint8)
        self.views = {w: self.data.view(t) for w, t in _WIDTHS.items()}

    def _index(self, offsets: Array, width: int, vector: int) -> Array:
        if offsets.size and int(offsets.max()) + width * vector > self.size:
            raise EmulatorError(
                f"local memory access out of bounds at 0x{int(offsets.max()):x} (size {self.size})"
            )
        if (offsets & offsets.dtype.type(width * vector - 1)).any():
            raise EmulatorError("misaligned local memory access")
        index: Array = (offsets >> offsets.dtype.type(_SHIFT[width])).astype(np.int64)
        return index

    def load(self, lanes: Array, offsets: Array, width: int, vector: int) -> list[Array]:
        """Values of the lanes with these numbers."""
        index = self._index(offsets, width, vector)
        return [self.views[width][lanes, index + i] for i in range(vector)]

    def store(self, lanes: Array, offsets: Array, width: int, values: list[Array]) -> None:
        """Store values of the lanes with these numbers."""
        index = self._index(offsets, width, len(values))
        for i, value in enumerate(values):
            self.views[width][lanes, index + i] = value
