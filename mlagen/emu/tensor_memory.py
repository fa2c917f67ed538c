"""What the tcgen05 instructions share: allocation state, checked accesses of tensor memory, the pipe of a
CTA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlagen.emu import clocks, tensor_fences, tmem_layouts
from mlagen.emu.interfaces import Actor, Array, Cta, EmulatorError, Instruction, Machine, Warp

MIN_COLUMNS = 32


@dataclass(slots=True)
class Allocations:
    """Columns of one CTA: first -> count. requests, frees: allocs and deallocs executed. relinquished: no
    more may come.
    """

    live: dict[int, int] = field(default_factory=dict)
    requests: int = 0
    last: int = tmem_layouts.COLUMNS
    relinquished: bool = False


def allocations(cta: Cta, machine: Machine) -> Allocations:
    """The allocation state of a CTA."""
    states: dict[int, Allocations] = machine.scratch.setdefault("tensor memory", {})
    return states.setdefault(cta.index, Allocations())


def cta_group(ins: Instruction) -> int:
    """1 or 2, from `.cta_group::N`."""
    for count in (1, 2):
        if ins.has(f"cta_group::{count}"):
            return count
    raise EmulatorError(f"{ins.name}: .cta_group::1 or .cta_group::2 is needed")


def use_group(machine: Machine, group: int, name: str) -> None:
    """All tcgen05 instructions of a kernel have one cta_group; EmulatorError for a second one."""
    first = machine.scratch.setdefault("tcgen05 cta_group", (group, name))
    if first[0] != group:
        raise EmulatorError(
            f"{name} is of cta_group::{group}, {first[1]} of cta_group::{first[0]}; one kernel uses one"
        )


def group_ctas(warp: Warp, group: int) -> Sequence[Cta]:
    """The CTAs that an instruction works on: its own, or the pair, even rank first."""
    if group == 1:
        return [warp.cta]
    even = warp.cta.rank & ~1
    pair = warp.cta.cluster[even : even + 2]
    if len(pair) != 2:
        raise EmulatorError(f"cta_group::2 in a cluster of {len(warp.cta.cluster)} CTA: there is no peer")
    return pair


def queue_of(cta: Cta) -> tuple[str, int]:
    """The queue in which the tcgen05 operations that a CTA issues run in order."""
    return ("tcgen05", cta.index)


def check_aligned(warp: Warp, lanes: npt.NDArray[np.bool_], name: str) -> None:
    """`.sync.aligned`: all lanes execute."""
    if not lanes.all():
        raise EmulatorError(f"{name}: {int(lanes.sum())} of 32 lanes execute it; .sync.aligned needs all")


def uniform(values: Array, what: str) -> int:
    """The value that all lanes have."""
    if (values != values[0]).any():
        raise EmulatorError(f"{what} differs between the lanes of a warp")
    return int(values[0])


def check_owned(cta: Cta, first: int, count: int, what: str) -> None:
    """Columns must be allocated."""
    if first + count > tmem_layouts.COLUMNS:
        raise EmulatorError(f"{what}: columns {first} to {first + count - 1} of {tmem_layouts.COLUMNS}")
    if not cta.tmem.owned[first : first + count].all():
        free = first + int(np.argmin(cta.tmem.owned[first : first + count]))
        raise EmulatorError(f"{what}: column {free} of CTA {cta.index}'s tensor memory is not allocated")


def check_written(warp: Warp, cta: Cta, lanes: Array, columns: Array | slice, what: str) -> None:
    """Report a read of cells that nobody has written."""
    written = cta.tmem.written[lanes, columns]
    if not written.all():
        count = int(written.size - written.sum())
        warp.report(
            "unwritten", f"{what} reads {count} never-written cells of CTA {cta.index}'s tensor memory"
        )


def declare(
    warp: Warp,
    cta: Cta,
    lanes: Array,
    columns: Array | range,
    actor: Actor,
    what: str,
    *,
    write: bool,
    own: tuple[clocks.Actor, ...] = (),
) -> None:
    """Tell the checks of an access to columns of some lanes (at a granularity of 16 lanes).

    own: actors whose accesses the warp's instruction follows without fences.
    """
    grid = np.broadcast_arrays(tmem_layouts.granules(lanes)[:, None], np.asarray(columns)[None, :])
    tensor_fences.check(warp, cta, grid[0], grid[1], own, what, write=write)
    if write:
        warp.machine.checks.tmem_write(cta, grid[0], grid[1], actor, what)
    else:
        warp.machine.checks.tmem_read(cta, grid[0], grid[1], actor, what)


def tensor_pipe(warp: Warp) -> tuple[clocks.Actor, ...]:
    """The actor of the products and copies that the warp's CTA issues."""
    actor = warp.cta.tensor_actor
    return (actor,) if isinstance(actor, clocks.Actor) else ()
