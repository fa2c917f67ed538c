"""One case on one subject: first right, then timed, then put against the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from mlagen.bench.clock import Effort, Timing, time_host, time_steps
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import Machine, work
from mlagen.bench.sampler import Sensors
from mlagen.bench.subjects import OURS, Ours, Step, Subject
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
        facts: what the subject says about the case, and host times where they were asked for.
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

    @property
    def is_ours(self) -> bool:
        """Whether the subject is a kernel of this library."""
        return self.subject.split()[0] == OURS

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON line."""
        row: dict[str, Any] = {
            "kind": "time",
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
            row |= {
                f"us_{name}" if name in _TIMES else name: value for name, value in asdict(self.timing).items()
            }
            row |= rates(self.nbytes, self.flop, self.timing.median)
            if self.timing.sustained is not None:
                row["tflops_sustained"] = self.flop / self.timing.sustained / 1e6
            moved = self.facts.get("l2_read_bytes_computed")
            if moved is not None:
                total = moved + self.facts["partial_bytes_computed"]
                row["tb_per_s_l2_computed"] = total / self.timing.median / 1e6
            row["percent_of_floor"] = (
                None if self.floor_us is None else 100 * self.floor_us / self.timing.median
            )
        return row


_TIMES = ("median", "least", "p10", "p90", "bursts", "sustained")


def rates(nbytes: int, flop: int, us: float) -> dict[str, float]:
    """What the needed bytes and FLOP come to."""
    return {"tflops": flop / us / 1e6, "tb_per_s_needed": nbytes / us / 1e6}


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What the checked rows of page set 0 must be, made once a case for all subjects."""

    rows: Any
    exact: Result
    rounded: Result


def expect(data: StepData) -> Expected:
    """The fp64 answer of the checked rows, and the same computation at the kernels' precision."""
    import torch

    rows = torch.tensor(checked_rows(data.case.lengths), device=data.lengths.device)
    arguments = (data.queries[0][rows], data.kv_cache, data.tables[0][rows], data.lengths[rows])
    return Expected(
        rows,
        reference(*arguments, softmax_scale=SOFTMAX_SCALE),
        same_precision(*arguments, softmax_scale=SOFTMAX_SCALE),
    )


def checked_rows(lengths: tuple[int, ...]) -> list[int]:
    """The longest, the shortest and the last row."""
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    shortest = min(range(len(lengths)), key=lengths.__getitem__)
    return sorted({longest, shortest, len(lengths) - 1})[:CHECKED_ROWS]


def check(step: Step, expected: Expected, *, with_lse: bool) -> Margin:
    """Runs the step on set 0 into poisoned outputs and compares some rows of the answer with fp64."""
    import torch

    out, lse = step(0)
    out.fill_(float("nan"))
    if lse is not None:
        lse.fill_(float("nan"))
    out, lse = step(0)
    torch.cuda.synchronize()
    rows = expected.rows
    checked_lse = lse[rows] if with_lse and lse is not None else None
    return compare(out[rows], checked_lse, expected.exact, expected.rounded)


def measure(
    subject: Subject,
    data: StepData,
    expected: Expected,
    machine: Machine | None,
    sensors: Sensors,
    effort: Effort,
    *,
    host: bool = False,
    after: Callable[[Step], dict[str, Any]] | None = None,
) -> Measurement:
    """Checks and times one subject on one case. Errors of the subject become part of the measurement.

    Args:
        subject, data, expected: what, on what, and what it must give.
        machine: limits of the GPU, None if they are not known.
        sensors, effort: see mlagen.bench.clock.
        host: also time the host's part of an eager call.
        after: makes more facts from the step, once it is known to be right.
    """
    case = data.case
    needed = work(case.lengths, case.h_q, case.s_q)
    floor = None if machine is None else needed.floor_seconds(machine) * 1e6
    margin, timing, error = None, None, ""
    facts: dict[str, Any] = {}
    try:
        step = subject.prepare(data)
        margin = check(step, expected, with_lse=subject.checks_lse)
        facts = subject.facts(data)
        if margin.ok:
            timing = time_steps(step, data.sets, sensors, effort)
            facts["page_sets"] = data.sets
            if host:
                facts |= time_host(subject.eager(data) if isinstance(subject, Ours) else lambda: step(0))
            if after is not None:
                facts |= after(step)
        else:
            error = f"wrong, so not timed: {margin}"
    except Exception as problem:  # a peer may fail in any way; the report goes on and says how
        error = f"{type(problem).__name__}: {problem}"
    return Measurement(
        case.name, subject.name, error, margin, timing, needed.nbytes, needed.flop, floor, facts
    )
