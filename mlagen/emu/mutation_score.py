"""The mutation score of one of mlagen's kernels, and its command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlagen.casework import Case, draw
from mlagen.emu.emulator import load_module
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.emu.mutate import SCHEDULES, Verdict, executed_instructions, score
from mlagen.emu.ptx import Module
from mlagen.spec import KernelSpec
from mlagen.verify import run_poisoned

LENGTHS = (300, 65)
ROUNDS_FACTOR = 40
"""Rounds of a mutant, as a multiple of the slowest schedule's, after which it counts as endless."""


@dataclass(frozen=True, slots=True)
class KernelRun:
    """Runs one call of a kernel, or of a mutant of it."""

    spec: KernelSpec
    call: Any
    sms: int

    def __call__(
        self, module: Module | None, schedule: str, max_rounds: int = 0
    ) -> tuple[bytes, EmulatorLauncher]:
        """The bytes of both outputs."""
        launcher = EmulatorLauncher(EmulatorOptions(schedule=schedule, sms=self.sms))
        launcher.module, launcher.max_rounds = module, max_rounds
        out, lse = run_poisoned(self.spec, self.call, launcher)
        return bytes(
            out.contiguous().view(-1).view(_uint8()).numpy()
        ) + lse.contiguous().numpy().tobytes(), launcher


def _uint8() -> Any:
    import torch

    return torch.uint8


def kernel_verdicts(
    spec: KernelSpec,
    *,
    lengths: Sequence[int] = LENGTHS,
    sms: int = 4,
    schedules: Sequence[str] = SCHEDULES,
    sample: int | None = None,
    seed: int = 0,
) -> Iterator[Verdict]:
    """Verdicts of the mutants of a kernel for one call.

    Raises:
        SanitizerError, EmulatorError: the unchanged kernel does not run clean.
    """
    case = Case(tuple(lengths), h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value)
    run = KernelRun(spec, draw(case, "cpu"), sms)
    expected, executed, rounds = b"", set[int](), 0
    for schedule in schedules:
        expected, launcher = run(None, schedule)
        machine = launcher.results[-1].machine
        executed |= executed_instructions(machine)
        rounds = max(rounds, machine.rounds)
    _, module = load_module(launcher.text(spec))
    limit = rounds * ROUNDS_FACTOR
    yield from score(
        lambda changed, schedule: run(changed, schedule, limit)[0],
        module,
        spec.name,
        executed,
        expected,
        schedules=schedules,
        sample=sample,
        seed=seed,
    )


def summary(verdicts: Sequence[Verdict]) -> str:
    """A table: for each kind of instruction how many mutants, how many caught and by what."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        stem = ".".join(verdict.mutant.name.split(".")[:2])
        groups.setdefault(f"{verdict.mutant.action} {stem}", []).append(verdict)
    lines = [f"{'mutation':36}{'n':>5}{'caught':>8}   by"]
    for name, rows in sorted(groups.items()):
        by = Counter(v.by for v in rows if v.caught)
        listed = ", ".join(f"{k} {n}" for k, n in by.most_common())
        lines.append(f"{name:36}{len(rows):5}{sum(v.caught for v in rows):8}   {listed}")
    caught = sum(v.caught for v in verdicts)
    lines.append(f"{caught} of {len(verdicts)} caught ({100 * caught / max(len(verdicts), 1):.1f} %)")
    lines += [f"  survived: {v.mutant.action} {v.mutant.where}" for v in verdicts if not v.caught]
    return "\n".join(lines)
