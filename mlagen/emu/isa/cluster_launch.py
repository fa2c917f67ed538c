"""`clusterlaunchcontrol`: a running cluster asks for the work of one that has not been launched.

The emulator launches the whole grid at once, so that a request always finds nothing left to cancel.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk
from mlagen.emu.interfaces import Array, Binder, Bound, EmulatorError, Instruction, Vec, instruction
from mlagen.emu.protocols import Warp

RESPONSE_BYTES = 16


@instruction("clusterlaunchcontrol.try_cancel", section="9.7.13.16.1 clusterlaunchcontrol.try_cancel")
def try_cancel(ins: Instruction, bind: Binder) -> Bound:
    """Write a response of 16 bytes to shared memory (of all CTAs with `.multicast::cluster::all`); completes
    on an mbarrier.
    """
    every = ins.has("multicast::cluster::all")
    reads = (bind.shared_address(ins.operands[0]), bind.shared_address(ins.operands[1]))
    return Bound(
        run=partial(run_try_cancel, f"clusterlaunchcontrol.try_cancel (line {ins.line})", every), reads=reads
    )


def run_try_cancel(
    name: str, every: bool, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array, barrier: Array
) -> None:
    """One request per executing lane."""
    for lane in bulk.lanes_of(lanes):
        cta, offset = warp.shared(int(address[lane]))
        if offset % RESPONSE_BYTES:
            raise EmulatorError(f"{name}: the address {offset:#x} is not a multiple of {RESPONSE_BYTES}")
        mask = (1 << len(warp.cta.cluster)) - 1 if every else None
        region = bulk.Region(cta, offset, RESPONSE_BYTES)
        targets = bulk.load_targets(warp, region, int(barrier[lane]), mask, False)
        bulk.post_load(warp, name, targets, nothing_cancelled)


@instruction(
    "clusterlaunchcontrol.query_cancel.is_canceled", section="9.7.13.16.2 clusterlaunchcontrol.query_cancel"
)
def is_canceled(ins: Instruction, bind: Binder) -> Bound:
    """Whether the response says that a cluster was cancelled."""
    reads = (bind.value(ins.operands[1], "b128"),)
    return Bound(run=run_is_canceled, reads=reads, writes=((ins.operands[0], "pred"),))


def run_is_canceled(warp: Warp, lanes: npt.NDArray[np.bool_], response: Array) -> Array:
    """False for every response that `try_cancel` writes here."""
    return np.asarray(response.any(axis=1))


@instruction(
    *(f"clusterlaunchcontrol.query_cancel.get_first_ctaid{part}" for part in ("", "::x", "::y", "::z")),
    section="9.7.13.16.2 clusterlaunchcontrol.query_cancel",
)
def get_first_ctaid(ins: Instruction, bind: Binder) -> Bound:
    """The position of the cancelled cluster: undefined without one, and there never is one."""
    target = ins.operands[0]
    items = target.items if isinstance(target, Vec) else (target,)
    reads = (bind.value(ins.operands[1], "b128"),)
    return Bound(
        run=partial(run_first_ctaid, len(items)), reads=reads, writes=tuple((x, "b32") for x in items)
    )


def run_first_ctaid(
    count: int, warp: Warp, lanes: npt.NDArray[np.bool_], response: Array
) -> Array | tuple[Array, ...]:
    """Zeros."""
    zero = np.zeros(32, np.uint32)
    return (zero,) * count if count > 1 else zero


def nothing_cancelled() -> npt.NDArray[np.uint8]:
    """The response to every request."""
    return np.zeros(RESPONSE_BYTES, np.uint8)
