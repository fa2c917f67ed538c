"""Library-owned counters through which the pieces of a row meet.

A slot is six words per CTA: two counters and four flags. It is zeroed once, when it is created: every launch
adds exactly 2^31 in total to each counter that it uses, so bit 31 flips once per launch and nothing is ever
reset; the flags are back at zero when a launch ends.

Two launches that may run at the same time must not share a slot. Launches of one stream follow each other, so
a stream has one slot; inside a captured graph the launches of one captured stream follow each other, so a
slot belongs to a (capture, stream) pair and branches of a graph have their own. Slots are never given back: a
graph may be replayed at any later time. A slot is `slot_bytes` long, 3200 B on a GPU with 132
multiprocessors.

Limits, by design:

* Two executable graphs instantiated from one capture share the slots of that capture (and its workspace).
  They may be replayed one after the other in any order, not at the same time. One executable graph never runs
  twice at a time.
* A launch that the driver refuses has not touched its counters. A launch that dies on the GPU (a fault, a
  trap) leaves the context unusable, and the counters go with it; there is no state to repair.
"""

from __future__ import annotations

import threading
from typing import Any

from mlagen.driver import Gpu, call, capture_id, outside_capture
from mlagen.launch_shape import COUNTERS_PER_CTA

SLOTS_PER_CHUNK = 64
_ALIGN = 128
_LOCK = threading.Lock()
_POOLS: dict[int, CounterPool] = {}


def slot_bytes(sm_count: int) -> int:
    """Bytes of one slot: the 32-bit counters of each CTA that can be resident, rounded up to 128."""
    return -(-4 * COUNTERS_PER_CTA * sm_count // _ALIGN) * _ALIGN


class CounterPool:
    """The slots of one GPU. Thread safe; allocates in chunks of SLOTS_PER_CHUNK slots."""

    def __init__(self, device: Gpu) -> None:
        self.slot_bytes = slot_bytes(device.sm_count)
        self._slots: dict[tuple[int, int], int] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def slot(self, driver: Any, stream: int) -> int:
        """Device address of the slot for a launch on this stream now. The GPU's context must be current.

        Raises:
            DeviceError: the stream cannot be used, or no memory is left.
        """
        capture = capture_id(driver, stream)
        # Outside a capture a handle may name another stream later, an id may not. Inside one the driver does
        # not tell ids, and handles last as long as the capture.
        key = (capture, stream if capture else int(call(driver.cuStreamGetId(stream), "cuStreamGetId")))
        known = self._slots.get(key)
        if known is not None:
            return known
        with self._lock:
            if key not in self._slots:
                if not self._free:
                    self._grow(driver)
                self._slots[key] = self._free.pop()
            return self._slots[key]

    def _grow(self, driver: Any) -> None:
        """Allocates and zeroes a chunk on a stream of its own, so that a capture neither sees nor forbids
        it.
        """
        nbytes = self.slot_bytes * SLOTS_PER_CHUNK
        with outside_capture(driver):
            base = call(driver.cuMemAlloc(nbytes), f"cuMemAlloc({nbytes})")
            flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
            side = call(driver.cuStreamCreate(flags), "cuStreamCreate")
            try:
                call(driver.cuMemsetD8Async(base, 0, nbytes, side), "cuMemsetD8Async")
                call(driver.cuStreamSynchronize(side), "cuStreamSynchronize")
            finally:
                call(driver.cuStreamDestroy(side), "cuStreamDestroy")
        first = int(base)
        self._free.extend(first + index * self.slot_bytes for index in reversed(range(SLOTS_PER_CHUNK)))


def pool(device: Gpu) -> CounterPool:
    """The pool of one GPU; made when first asked for."""
    known = _POOLS.get(device.ordinal)
    if known is None:
        with _LOCK:
            known = _POOLS.setdefault(device.ordinal, CounterPool(device))
    return known
