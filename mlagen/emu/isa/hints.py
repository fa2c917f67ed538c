"""Instructions that change nothing the emulator models: hints, cache control, register counts, dependent
launches.
"""

from __future__ import annotations

from functools import partial

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import (
    Array,
    Binder,
    Bound,
    EmulatorError,
    Inline,
    Instruction,
    Wait,
    instruction,
)

REGISTER_FILE = 65536  # 32-bit registers of an SM
MOST_REGISTERS = 255 // 8 * 8


@instruction(
    "prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "pmevent",
    section="9.7.9.15 prefetch, 9.7.9.16 applypriority, 9.7.9.17 discard, 9.7.19.1 nanosleep",
)  # fmt: skip
def hint(ins: Instruction, bind: Binder) -> None:
    """No effect on results."""


@instruction("griddepcontrol", section="9.7.13.13 griddepcontrol")
def griddepcontrol(ins: Instruction, bind: Binder) -> None:
    """One launch is emulated at a time: its predecessors are complete."""


@instruction("createpolicy", section="9.7.9.18 createpolicy")
def createpolicy(ins: Instruction, bind: Binder) -> Inline:
    """A cache policy: a number that only cache hints take."""
    return Inline(bind.constant(0, "b64").code, "b64", ins.operands[0])


def registers_at_launch(threads: int) -> int:
    """The most registers per thread that a block of this size can be launched with: a full register file, in
    steps of 8. What ptxas gives a kernel stands in no PTX; it is never more.
    """
    return min(REGISTER_FILE // threads // 8 * 8, MOST_REGISTERS)


def run_set_registers(increase: bool, count: int, warp: Warp, lanes: Array) -> Wait | None:
    """setmaxnreg: a multiple of 8 in 24..256, executed by a whole warp; every warp of the warpgroup asks for
    the same count. `inc` waits until the pool of the block, which is what it was launched with, holds enough.
    """
    if not lanes.all():
        raise EmulatorError("setmaxnreg under divergence")
    asked = warp.warpgroup.scratch.setdefault("setmaxnreg", {})
    turn = warp.scratch["setmaxnreg"] = warp.scratch.get("setmaxnreg", -1) + 1
    first = asked.setdefault(turn, count)
    if first != count:
        raise EmulatorError(f"setmaxnreg {count} in one warp and {first} in another of the same warpgroup")
    warps = len(warp.cta.warps)
    at_launch = registers_at_launch(32 * warps)
    held: dict[int, int] = warp.cta.scratch.setdefault("registers", {})

    def free() -> int:
        return warps * at_launch - sum(held.values()) - (warps - len(held)) * at_launch

    def enough() -> bool:
        return count - held.get(warp.id, at_launch) <= free()

    def take() -> None:
        held[warp.id] = count
        warp.machine.progress += 1

    def describe() -> str:
        return (
            f"setmaxnreg.inc {count}: the block was launched with at most {at_launch} registers a thread, "
            f"and its other warps keep too many of them"
        )

    if not increase or enough():
        take()
        return None
    return Wait(enough, take, describe)


@instruction("setmaxnreg", section="9.7.19.5 setmaxnreg", blocking=True)
def setmaxnreg(ins: Instruction, bind: Binder) -> Bound:
    """Register count of the warpgroup."""
    count = bind.immediate(ins.operands[0])
    if count % 8 or not 24 <= count <= 256:
        raise EmulatorError(f"setmaxnreg {count}: a multiple of 8 in 24..256 is needed")
    return Bound(partial(run_set_registers, "inc" in ins.modifiers, count))
