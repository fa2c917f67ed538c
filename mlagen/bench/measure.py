"""One case on one subject: first right, then timed, then put against the floor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlagen.bench.clock import Timing, time_steps
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import Machine, work
from mlagen.bench.subjects import Subject
from mlagen.reference import Result, reference, same_precision
from mlagen.tolerance import Margin, compare

CHECKED_ROWS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the report.

    Attributes:
        case, subject: what was measured.
        error: why there are no numbers, empty if there are.
        margin: correctness of the checked rows, as fractions of the bounds.
        timing: microseconds of a step.
        nbytes, flop: what the step needs.
        floor_us: the least time, None on a GPU without measured limits.
        facts: what the subject says about the case.
    """

    case: str
    subject: str
    error: str
    margin: Margin | None
    timing: Timing | None
    nbytes: int
    flop: int
    floor_us: float | None
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON line."""
        row: dict[str, Any] = {
            "case": self.case,
            "subject": self.subject,
            "error": self.error,
            "correct": self.margin is not None and self.margin.ok,
            "margin": None if self.margin is None else asdict(self.margin),
            "bytes_needed": self.nbytes,
            "flop": self.flop,
            "floor_us": self.floor_us,
            **self.facts,
        }
        if self.timing is not None:
            median = self.timing.median
            row |= {
                f"us_{name}" if name in _TIMES else name: value for name, value in asdict(self.timing).items()
            }
            row["tflops"] = self.flop / median / 1e6
            row["tb_per_s_needed"] = self.nbytes / median / 1e6
            moved = self.facts.get("l2_read_bytes_computed")
            if moved is not None:
                row["tb_per_s_l2_computed"] = (moved + self.facts["partial_bytes_computed"]) / median / 1e6
            row["percent_of_floor"] = None if self.floor_us is None else 100 * self.floor_us / median
        return row


_TIMES = ("median", "least", "p10", "p90", "bursts", "sustained")


def measure(
    subject: Subject, data: StepData, machine: Machine | None, *, device: int, pause: float, sustain: float
) -> Measurement:
    """Checks and times one subject on one case. Errors of the subject become part of the measurement."""
    case = data.case
    needed = work(case.lengths, case.h_q, case.s_q)
    floor = None if machine is None else needed.floor_seconds(machine) * 1e6
    margin, timing, error = None, None, ""
    facts: dict[str, Any] = {}
    try:
        step = subject.prepare(data)
        margin = check(step, data)
        facts = subject.facts(data)
        if margin.ok:
            timing = time_steps(step, data.sets, device=device, pause=pause, sustain=sustain)
            facts["page_sets"] = data.sets
        else:
            error = f"wrong, so not timed: {margin}"
    except Exception as problem:  # a baseline may fail in any way; the report goes on and says how
        error = f"{type(problem).__name__}: {problem}"
    return Measurement(
        case.name, subject.name, error, margin, timing, needed.nbytes, needed.flop, floor, facts
    )


def checked_rows(lengths: tuple[int, ...]) -> list[int]:
    """The longest, the shortest and the last row."""
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    return sorted({longest, shortest, len(lengths) - 1})[:CHECKED_ROWS]


def check(step: Any, data: StepData) -> Margin:
    """Runs the step on set 0 into poisoned outputs and compares some rows of the output with fp64."""
    import torch

    out, lse = step(0)
    out.fill_(float("nan"))
    lse.fill_(float("nan"))
    out, _ = step(0)
    torch.cuda.synchronize()
    rows = torch.tensor(checked_rows(data.case.lengths), device=out.device)
    arguments = (data.queries[0][rows], data.kv_cache, data.tables[0][rows], data.lengths[rows])
    exact: Result = reference(*arguments, softmax_scale=SOFTMAX_SCALE)
    rounded: Result = same_precision(*arguments, softmax_scale=SOFTMAX_SCALE)
    return compare(out[rows], None, exact, rounded)
