"""Special registers (PTX ISA 10), as arrays that are fixed for a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.emu.interfaces import Array, EmulatorError

if TYPE_CHECKING:
    from mlagen.emu.cta import Warp

_AXES = {"x": 0, "y": 1, "z": 2}
_BIT = np.uint32(1)


def _lane_mask(name: str, lanes: Array) -> Array:
    bit = np.left_shift(_BIT, lanes, dtype=np.uint32)
    below = bit - _BIT
    masks = {"eq": bit, "lt": below, "le": below | bit, "gt": ~(below | bit), "ge": ~below}
    found: Array = masks[name.rsplit("_", 1)[1]]
    return found


def _per_axis(name: str, axis: int, warp: Warp) -> Array | int:
    machine, cta = warp.machine, warp.cta
    block, cluster = machine.block, machine.cluster_shape
    if name == "%tid":
        return [warp.tid % block[0], warp.tid // block[0] % block[1], warp.tid // (block[0] * block[1])][axis]
    values = {
        "%ntid": block[axis],
        "%ctaid": cta.position[axis],
        "%nctaid": machine.grid[axis],
        "%clusterid": cta.position[axis] // cluster[axis],
        "%nclusterid": machine.grid[axis] // cluster[axis],
        "%cluster_ctaid": cta.position[axis] % cluster[axis],
        "%cluster_nctaid": cluster[axis],
    }
    if name not in values:
        raise EmulatorError(f"unknown special register {name}")
    return values[name]


def special_value(name: str, warp: Warp) -> Array:
    """The value of a special register for a warp, uint32 (32,)."""
    machine, cta = warp.machine, warp.cta
    lanes: Array = np.arange(32, dtype=np.uint32)
    stem, _, axis = name.partition(".")
    value: Array | int
    if axis:
        value = _per_axis(stem, _AXES[axis], warp)
    elif name.startswith("%lanemask_"):
        value = _lane_mask(name, lanes)
    else:
        simple: dict[str, Array | int] = {
            "%laneid": lanes,
            "%warpid": warp.id,
            "%nwarpid": len(cta.warps),
            "%smid": cta.index,
            "%nsmid": machine.ctas_total,
            "%gridid": 1,
            "%cluster_ctarank": cta.rank,
            "%cluster_nctarank": len(cta.cluster),
            "%is_explicit_cluster": 0,
            "%dynamic_smem_size": machine.dynamic_shared,
            "%total_smem_size": machine.shared_size,
        }
        if name not in simple:
            raise EmulatorError(f"unknown special register {name}")
        value = simple[name]
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.uint32), (32,)))
