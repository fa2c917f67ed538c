"""Tensor maps that kernels change: `tensormap.replace` and the copy with a proxy fence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk
from mlagen.emu.bulk import Region
from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    instruction,
)
from mlagen.emu.tensormap import BYTES, INDEXED_FIELDS, REPLACEABLE, replaced

_ALIGNMENT = 128


@instruction("tensormap.replace", section="9.7.9.27.3 tensormap.replace")
def tensormap_replace(ins: Instruction, bind: Binder) -> Bound:
    """Set one field of the tensor map at an address."""
    if "tile" not in ins.modifiers:
        raise EmulatorError(f"{ins.name}: only .tile is emulated")
    field = next((m for m in ins.modifiers if m in REPLACEABLE), None)
    if field is None:
        raise EmulatorError(f"{ins.name}: no field; known are {', '.join(REPLACEABLE)}")
    where, *rest = ins.operands
    ordinal = 0
    if field in INDEXED_FIELDS:
        ordinal = bind.immediate(rest.pop(0))
        if ordinal >= INDEXED_FIELDS[field]:
            raise EmulatorError(f"{ins.name}: dimension {ordinal}, {INDEXED_FIELDS[field]} exist")
    shared = any(m.startswith("shared") for m in ins.modifiers)
    type_ = ins.modifiers[-1]
    value = bind.value(rest[0], type_)
    address = bind.shared_address(where) if shared else bind.address(where, "global")
    return Bound(partial(run_replace, shared, field, ordinal), (address, value))


def run_replace(
    shared: bool,
    field: str,
    ordinal: int,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    address: Array,
    value: Array,
) -> None:
    """One map for each executing lane."""
    for lane in bulk.lanes_of(lanes):
        change = partial(replaced, field=field, ordinal=ordinal, value=int(value[lane]))
        if shared:
            change_shared(warp, int(address[lane]), change)
        else:
            place = _aligned(int(address[lane]))
            memory = warp.machine.memory
            data = change(memory.read(place, BYTES).tobytes())
            memory.write(place, np.frombuffer(data, np.uint8))
    warp.machine.progress += 1


def _aligned(address: int) -> int:
    if address % _ALIGNMENT:
        raise EmulatorError(f"tensor map at {address:#x}: a multiple of {_ALIGNMENT} is needed")
    return address


def change_shared(warp: Warp, address: int, change: Callable[[bytes], bytes]) -> None:
    """Rewrite the 128 bytes of a tensor map in shared memory as an ordinary access of the warp."""
    cta, offset = warp.shared(_aligned(address))
    region = Region(cta, offset, BYTES)
    checks = warp.machine.checks
    checks.shared_read(cta, region.footprint(), 16, warp.actor, "tensormap.replace")
    data = change(region.read().tobytes())
    region.write(np.frombuffer(data, np.uint8))
    checks.shared_write(cta, region.footprint(), 16, warp.actor, "tensormap.replace")


@instruction("fence.proxy.tensormap::generic", section="9.7.13.4 fence.proxy")
def fence_proxy_tensormap(ins: Instruction, bind: Binder) -> None:
    """Copies read tensor maps when they are issued: nothing has to be ordered."""


@instruction("fence.proxy.async::generic", section="9.7.13.4 fence.proxy")
def fence_proxy_async_restricted(ins: Instruction, bind: Binder) -> None:
    """From the async proxy to ordinary accesses: what an mbarrier hands over is ordered here anyway."""


@instruction("tensormap.cp_fenceproxy", section="9.7.13.16 tensormap.cp_fenceproxy")
def tensormap_cp_fenceproxy(ins: Instruction, bind: Binder) -> Bound:
    """Copy a tensor map from shared to global memory, with the fence that makes it usable there."""
    destination, source, size = ins.operands
    if bind.immediate(size) != BYTES:
        raise EmulatorError(f"{ins.name}: {bind.immediate(size)} bytes; a tensor map has {BYTES}")
    return Bound(run_copy, (bind.address(destination, "global"), bind.shared_address(source)))


def run_copy(warp: Warp, lanes: npt.NDArray[np.bool_], destination: Array, source: Array) -> None:
    """All lanes give the same addresses."""
    if not lanes.all():
        raise EmulatorError("tensormap.cp_fenceproxy under divergence")
    if (destination != destination[0]).any() or (source != source[0]).any():
        raise EmulatorError("tensormap.cp_fenceproxy: the lanes of a warp name different addresses")
    cta, offset = warp.shared(_aligned(int(source[0])))
    region = Region(cta, offset, BYTES)
    warp.machine.checks.shared_read(cta, region.footprint(), 16, warp.actor, "tensormap.cp_fenceproxy")
    warp.machine.memory.write(_aligned(int(destination[0])), region.read())
    warp.machine.progress += 1
