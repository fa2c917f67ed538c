"""The table of a benchmark. Rows that lose stay in it; there is no average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from mlagen.bench.measure import Measurement

HEADINGS = (
    ("case", "left"),
    ("subject", "left"),
    ("us", "right"),
    ("p10..p90", "right"),
    ("sustained us", "right"),
    ("TFLOP/s", "right"),
    ("TB/s needed", "right"),
    ("TB/s L2 (computed)", "right"),
    ("% of floor", "right"),
    ("x best baseline", "right"),
    ("correct", "left"),
)
FOOTNOTE = (
    "floor = max(bytes needed / 4.6 TB/s, FLOP / 790 TFLOP/s); bytes needed: cache once + q + out + LSE; "
    "FLOP: visible "
    "keys only. us: median of whole steps, cold L2, all kernels of the step; the plan of a baseline is not "
    "in it. "
    "TB/s L2: cache rows that all CTAs read plus partial results, from the schedule. "
    "x best baseline: its time / ours (or / this baseline's)."
)


def best_baselines(rows: Sequence[Measurement]) -> dict[str, float]:
    """Case -> least median of a subject that is not ours."""
    best: dict[str, float] = {}
    for row in rows:
        if row.timing is not None and not row.subject.startswith("mlagen"):
            best[row.case] = min(best.get(row.case, float("inf")), row.timing.median)
    return best


def table(rows: Sequence[Measurement]) -> Table:
    """All measurements as a rich table."""
    made = Table(title="decode step", caption=FOOTNOTE, caption_justify="left")
    for heading, justify in HEADINGS:
        made.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    best = best_baselines(rows)
    for row in rows:
        made.add_row(*cells(row, best))
    return made


def cells(row: Measurement, best: dict[str, float]) -> list[str]:
    """One line of the table."""
    values: dict[str, Any] = row.as_dict()
    if row.timing is None:
        return [row.case, row.subject, *["-"] * 8, row.error]

    def number(name: str, digits: int) -> str:
        value = values.get(name)
        return "-" if value is None else f"{value:.{digits}f}"

    baseline = best.get(row.case)
    return [
        row.case,
        row.subject,
        number("us_median", 1),
        f"{row.timing.p10:.1f}..{row.timing.p90:.1f}",
        number("us_sustained", 1),
        number("tflops", 0),
        number("tb_per_s_needed", 2),
        number("tb_per_s_l2_computed", 2),
        number("percent_of_floor", 0),
        "-" if baseline is None else f"{baseline / row.timing.median:.2f}",
        "yes",
    ]
