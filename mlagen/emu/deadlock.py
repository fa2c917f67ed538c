"""The report of a launch in which nothing can happen any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlagen.emu.codegen import describe
from mlagen.emu.interfaces import EmulatorError

if TYPE_CHECKING:
    from mlagen.emu.cta import Warp
    from mlagen.emu.machine import Machine


class DeadlockError(EmulatorError):
    """No warp can run and no asynchronous work is left."""


def deadlock_text(machine: Machine, live: list[Warp]) -> str:
    """Who waits for what, at which instruction, and what was found before."""
    seen: dict[str, list[str]] = {}
    for warp in live:
        for group in warp.groups:
            warp.at = min(group.pc, len(machine.program.instructions) - 1)
            what = (
                group.wait.describe()
                if group.wait is not None
                else "runs in circles without changing anything"
            )
            place = describe(machine.program.instructions[warp.at])
            lanes = "" if group.full else f" lanes {np.nonzero(group.mask)[0].tolist()}"
            seen.setdefault(f"{what}\n      at {place}", []).append(
                machine.names.warp(warp.cta.index, warp.id) + lanes
            )
    lines = [
        f"  {', '.join(who[:6])}{f' and {len(who) - 6} more' if len(who) > 6 else ''}: {what}"
        for what, who in seen.items()
    ]
    pending = machine.engine.pending()
    if pending:
        lines.append(f"  asynchronous work that is not ready: {', '.join(pending[:8])}")
    if machine.findings.counts:
        lines.append("the sanitizers found before:\n" + machine.findings.text(5))
    return "deadlock:\n" + "\n".join(lines)
