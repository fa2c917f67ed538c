"""The mutation score of one of mlagen's kernels: mutants caught, equivalent and missed."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.casework import Call, Case, draw
from mlagen.emu.call_sites import Frame, call_chains
from mlagen.emu.emulator import load_module
from mlagen.emu.interfaces import EmulatorError, Instruction
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.emu.mutate import Mutant, Trial, Verdict, executed_instructions, mutants, try_mutant
from mlagen.launch_shape import TILE_ROWS
from mlagen.nvrtc import compile_source
from mlagen.options import options
from mlagen.plan import make_plan
from mlagen.render import render
from mlagen.spec import KernelSpec
from mlagen.verify import run_poisoned

EQUIVALENTS = Path(__file__).with_name("equivalent_mutants.toml")

SCHEDULES = (
    "eager", "lockstep", "lazy", "random:1", "starve:cta1", "starve:scorer", "starve:accumulator",
)  # fmt: skip
"""The first one runs every case, the others every third, each from another one on."""

MERGING = tuple(f"pause:{seed}" for seed in range(4))
"""Schedules for merged pieces: they differ in who arrives last, and in who has gone by then."""

PATIENCE = 100
"""Polls of a piece that waits to be merged: few enough that some schedules see it leave."""

ROUNDS_FACTOR = 10
"""Rounds of a mutant, as a multiple of the unchanged kernel's, after which it counts as endless."""


@dataclass(frozen=True, slots=True)
class ScoreCase:
    """One call. sms: multiprocessors of the emulated GPU. schedules: in place of those of other cases."""

    title: str
    case: Case
    sms: int
    schedules: tuple[str, ...] = ()


def score_cases(spec: KernelSpec) -> list[ScoreCase]:
    """Calls that together run every role's code: cheap ones first."""
    base = Case((), h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value)
    group, split = spec.cta_group, spec.max_split > 1
    one, two, three = (_tokens(spec, tiles) for tiles in (1, 2, 3))
    found = []

    def add(
        title: str,
        tokens: int | None,
        lengths: tuple[int, ...],
        units: int,
        schedules: tuple[str, ...] = (),
        splits: int | None = None,
    ) -> None:
        if tokens is not None:
            case = base.but(lengths=lengths, s_q=tokens, splits=splits)
            found.append(ScoreCase(title, case, units * group, schedules))

    add("one tile, several rows", one, (130, 0, 65), 1)
    if group == 2:
        add("two tiles, several rows", two, (130, 0, 70), 1)
    if split:
        add("one tile, three pieces", one, (300, 5), 3, splits=3)
        if group == 2 or one is None:
            add("two tiles, three pieces", two, (200,), 3, splits=3)
        add("merging", one or two, (140,), 3, MERGING, splits=3)
    add("two work lists", two if group == 2 else one or two, (70, *(0,) * 33, 200), 1)
    add("three tiles, balanced", three, (200, 70), 2)
    add("ring three times around", one or two, (64 * 8 * group + 5, 130 * group), 1)
    return found


def _tokens(spec: KernelSpec, tiles: int) -> int | None:
    """The fewest query tokens that make this many row tiles, or None."""
    for tokens in range(1, TILE_ROWS * tiles + 1):
        if -(-tokens * spec.h_q // TILE_ROWS) == tiles:
            return tokens
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instruction comes from. function: the kernel's function that it is in or that calls the
    wrapper of the instruction; text: the source line there; callers: all functions, innermost first; lines:
    the source lines of all of them.
    """

    function: str
    text: str
    callers: tuple[str, ...]
    lines: tuple[str, ...] = ()


def place_of(frames: Sequence[Frame]) -> Place:
    """The place of an instruction that comes from these frames, innermost first."""
    own = [f for f in frames if "/arch/" not in f.file] or list(frames)
    if not own:
        return Place("", "", ())
    callers, lines = tuple(f.function for f in frames), tuple(f.text for f in frames)
    return Place(own[0].function, own[0].text, callers, lines)


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A row of the table of equivalent mutants. A mutant belongs to it if its instruction starts with
    `instruction`, its function is `function`, and each of `lines` is part of a source line that it comes
    from or that calls it (all of the line, if it begins with "="). kernel: part of the kernel's name, for a
    mutant that is caught elsewhere.
    """

    action: str
    instruction: str
    function: str
    reason: str
    lines: tuple[str, ...] = ()
    kernel: str = ""

    def covers(self, mutant: Mutant, place: Place, kernel: str) -> bool:
        """Whether a mutant of a kernel is this one."""
        return (
            mutant.action == self.action
            and mutant.name.startswith(self.instruction)
            and place.function == self.function
            and self.kernel in kernel
            and all(any(_fits(part, line) for line in place.lines) for part in self.lines)
        )


def _fits(part: str, line: str) -> bool:
    return line == part[1:] if part.startswith("=") else part in line


@cache
def equivalents(path: Path = EQUIVALENTS) -> tuple[Equivalent, ...]:
    """The committed table."""
    rows = tomllib.loads(path.read_text()).get("mutant", [])
    return tuple(Equivalent(**{**row, "lines": tuple(row.get("lines", ()))}) for row in rows)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with the place and the written reason, empty if there is none."""

    verdict: Verdict
    place: Place
    reason: str

    @property
    def outcome(self) -> str:
        """caught, equivalent or missed."""
        if self.verdict.caught:
            return "caught"
        return "equivalent" if self.reason else "missed"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without anything that changes from machine to machine."""
        v = self.verdict
        found: dict[str, Any] = {
            "key": v.mutant.key,
            "action": v.mutant.action,
            "instruction": v.mutant.name,
            "function": self.place.function,
            "text": self.place.text,
            "callers": list(self.place.callers),
            "outcome": self.outcome,
        }
        if v.caught:
            return {**found, "by": v.by, "run": v.schedule, "detail": v.detail.split("\n")[0]}
        return {**found, "reason": self.reason}


@dataclass(slots=True)
class KernelScore:
    """Runs the mutants of a kernel through cases and schedules."""

    spec: KernelSpec
    cases: Sequence[ScoreCase] = ()
    schedules: Sequence[str] = SCHEDULES
    text: str = ""
    _calls: list[tuple[ScoreCase, Call]] = field(default_factory=list)
    _rounds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cases = self.cases or score_cases(self.spec)
        self.text = self.text or line_ptx(self.spec)
        self._calls = [(c, draw(c.case, "cpu")) for c in self.cases]

    def run(self, which: int, schedule: str, patch: dict[int, Instruction]) -> tuple[bytes, EmulatorLauncher]:
        """The bytes of both outputs of one case."""
        case, call = self._calls[which]
        launcher = EmulatorLauncher(
            EmulatorOptions(schedule, case.sms, exact=False, stop_at_finding=True),
            ptx=lambda _: self.text,
        )
        launcher.patch = patch
        if patch:
            launcher.max_rounds = ROUNDS_FACTOR * self._rounds[f"{case.title}, {schedule}"] + 2000
        out, lse = run_poisoned(self.spec, call, launcher)
        if not patch:
            self._rounds[f"{case.title}, {schedule}"] = launcher.results[-1].machine.rounds
        return _bytes(out) + _bytes(lse), launcher

    def trials(self) -> list[Trial]:
        """All ways to run the kernel.

        Raises:
            SanitizerError, EmulatorError: the unchanged kernel does not run clean.
        """
        trials: list[Trial] = []
        for schedule, which in self._order():
            case = self._calls[which][0]
            expected, launcher = self.run(which, schedule, {})
            executed = frozenset(executed_instructions(launcher.results[-1].machine))
            name = f"{case.title}, {schedule}"

            def run(patch: dict[int, Instruction], w: int = which, s: str = schedule) -> bytes:
                return self.run(w, s, patch)[0]

            trials.append(Trial(name, run, expected, executed))
        return trials

    def _order(self) -> Iterator[tuple[str, int]]:
        """Schedules and cases, as they are tried."""
        for number, schedule in enumerate(self.schedules):
            for which, (case, _) in enumerate(self._calls):
                reached = not schedule.startswith("starve:cta") or int(schedule[-1]) < case.sms
                if not case.schedules and reached and (number == 0 or (which + number) % 3 == 0):
                    yield schedule, which
            if number == 0:
                for which, (case, _) in enumerate(self._calls):
                    yield from ((s, which) for s in case.schedules)

    def judged(
        self, *, sample: int | None = None, seed: int = 0, known: Container[str] = ()
    ) -> Iterator[Judged]:
        """Every mutant, or a fixed random sample of those without a written reason. known: keys of mutants to
        leave out (see `Mutant.key`).
        """
        trials = self.trials()
        executed = frozenset[int]().union(*(t.executed for t in trials))
        function = load_module(self.text)[1].entry(self.spec.name)
        chains = call_chains(self.text, self.spec.name)
        chosen = mutants(function, executed)
        places = {m: place_of(chains.get(function.instructions[m.pc].line, ())) for m in chosen}
        name, table = self.spec.name, equivalents()
        reasons = {m: next((e.reason for e in table if e.covers(m, places[m], name)), "") for m in chosen}
        if sample is not None:
            open_ones = [m for m in chosen if not reasons[m]]
            chosen = random.Random(seed).sample(open_ones, min(sample, len(open_ones)))
        for mutant in sorted(chosen, key=lambda m: (bool(reasons[m]), m.pc, m.action)):
            if mutant.key in known:
                continue
            verdict = try_mutant(function, mutant, trials)
            yield Judged(verdict, places[mutant], reasons[mutant])


def line_ptx(spec: KernelSpec) -> str:
    """The kernel with line information and little patience in its merge.

    Raises:
        ToolchainError, CompileError: it cannot be compiled.
    """
    plan = make_plan(spec)
    source = render(plan)
    patience = next((c.value for c in plan.constants if c.name == "kMergePatience"), None)
    if patience is not None:
        line = f"kMergePatience = {patience};"
        if source.count(line) != 1:
            raise EmulatorError(f"{spec.name}: its source has no line {line!r}")
        source = source.replace(line, f"kMergePatience = {PATIENCE};")
    symbolic = options(spec.arch, lineinfo=True)
    return compile_source(source, spec.arch, name=spec.name, symbolic=symbolic).ptx.decode()


def _bytes(tensor: Any) -> bytes:
    import torch

    view: np.ndarray[Any, Any] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return view.tobytes()


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """A table of `Judged.as_dict`: for each kind of instruction how many mutants, and what became of them."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        stem = ".".join(row["instruction"].split(".")[:2])
        groups.setdefault(f"{row['action']} {stem}", []).append(row)
    lines = [f"{'mutation':36}{'n':>5}{'caught':>8}{'equivalent':>12}{'missed':>8}   by"]
    for name, members in sorted(groups.items()):
        outcomes = Counter(r["outcome"] for r in members)
        by = Counter(r["by"] for r in members if r["outcome"] == "caught")
        listed = ", ".join(f"{k} {n}" for k, n in by.most_common())
        counts = f"{outcomes['caught']:8}{outcomes['equivalent']:12}{outcomes['missed']:8}"
        lines.append(f"{name:36}{len(members):5}{counts}   {listed}")
    totals = Counter(r["outcome"] for r in rows)
    counted = totals["caught"] + totals["missed"]
    lines.append(
        f"{totals['caught']} of {counted} mutants that are not equivalent are caught "
        f"({100 * totals['caught'] / max(counted, 1):.1f} %); {totals['equivalent']} of {len(rows)} are "
        f"equivalent ({100 * totals['equivalent'] / max(len(rows), 1):.1f} %)"
    )
    lines += [
        f"  missed: {r['action']} {r['instruction']} in {' < '.join(r['callers'])}: {r['text']}"
        for r in rows
        if r["outcome"] == "missed"
    ]
    return "\n".join(lines)
