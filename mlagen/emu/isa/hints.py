"""Instructions that change nothing the emulator models: hints, cache control, register counts, dependent
launches.
"""

from __future__ import annotations

from functools import partial

from mlagen.emu.cta import Warp
from mlagen.emu.interfaces import Array, Binder, Bound, EmulatorError, Inline, Instruction, instruction


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


def run_set_registers(increase: bool, count: int, warp: Warp, lanes: Array) -> None:
    """setmaxnreg: a multiple of 8 in 24..256, executed by a whole warp; every warp of the warpgroup asks for
    the same count.
    """
    if not lanes.all():
        raise EmulatorError("setmaxnreg under divergence")
    asked = warp.warpgroup.scratch.setdefault("setmaxnreg", {})
    turn = warp.scratch["setmaxnreg"] = warp.scratch.get("setmaxnreg", -1) + 1
    first = asked.setdefault(turn, count)
    if first != count:
        raise EmulatorError(f"setmaxnreg {count} in one warp and {first} in another of the same warpgroup")


@instruction("setmaxnreg", section="9.7.19.5 setmaxnreg")
def setmaxnreg(ins: Instruction, bind: Binder) -> Bound:
    """Register count of the warpgroup."""
    count = bind.immediate(ins.operands[0])
    if count % 8 or not 24 <= count <= 256:
        raise EmulatorError(f"setmaxnreg {count}: a multiple of 8 in 24..256 is needed")
    return Bound(partial(run_set_registers, "inc" in ins.modifiers, count))
