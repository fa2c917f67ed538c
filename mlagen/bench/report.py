"""The tables of a benchmark. Rows that lose stay in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from mlagen.bench.results import Line, best_peer, is_ours, timed

HEADINGS = (
    ("case", "left"),
    ("subject", "left"),
    ("us", "right"),
    ("p10..p90", "right"),
    ("sustained us", "right"),
    ("TFLOP/s", "right"),
    ("TB/s needed", "right"),
    ("% of floor", "right"),
    ("x best peer", "right"),
    ("MHz", "right"),
    ("W", "right"),
    ("correct", "left"),
)
FOOTNOTE = (
    "floor = max(bytes needed / 4.6 TB/s, FLOP / 790 TFLOP/s); bytes needed: cache once + q + out + LSE; "
    "FLOP: visible keys only. us: median of whole steps, cold L2, all kernels of the step; the plan of a "
    "peer is not in it. x best peer: the fastest peer's time / this time. MHz and W: during the bursts."
)


def table(lines: Sequence[Line]) -> Table:
    """All measurements as a rich table."""
    made = Table(title="decode step", caption=FOOTNOTE, caption_justify="left")
    for heading, justify in HEADINGS:
        made.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    by_case = timed(lines)
    for line in lines:
        if line.get("kind", "time") == "time":
            made.add_row(*cells(line, best_peer(by_case.get(line["case"], {}))))
    return made


def cells(line: Line, peer: Line | None) -> list[str]:
    """One line of the table."""
    if line.get("error") or "us_median" not in line:
        return [line["case"], line["subject"], *["-"] * (len(HEADINGS) - 3), line.get("error", "")]
    clocks = line.get("clocks") or {}
    return [
        line["case"],
        line["subject"],
        number(line["us_median"], 1),
        f"{line['us_p10']:.1f}..{line['us_p90']:.1f}",
        number(line.get("us_sustained"), 1),
        number(line["tflops"], 0),
        number(line["tb_per_s_needed"], 2),
        number(line.get("percent_of_floor"), 0),
        "-" if peer is None else f"{peer['us_median'] / line['us_median']:.2f}",
        number(clocks.get("sm_mhz"), 0),
        number(clocks.get("watts"), 0),
        "yes",
    ]


def number(value: Any, digits: int) -> str:
    """A number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def ceilings_text(line: Line) -> str:
    """The limits that the run measured, in one line."""
    parts = [
        f"reading {number(line['read_tb_per_s'], 2)} TB/s",
        f"bf16 8192^3 matmul {number(line['matmul_tflops'], 0)} TFLOP/s in a burst",
    ]
    if line["matmul_tflops_sustained"] is not None:
        parts.append(f"{number(line['matmul_tflops_sustained'], 0)} sustained")
    return "; ".join(parts + list(line["problems"]))


def shares(lines: Sequence[Line]) -> list[str]:
    """How near our lines come to the limits that the same run measured."""
    ceilings = next((line for line in lines if line.get("kind") == "ceilings"), None)
    if ceilings is None:
        return []
    made = []
    for line in lines:
        if line.get("kind", "time") != "time" or "us_median" not in line or not is_ours(line):
            continue
        parts = [
            f"{100 * value / limit:.1f} % of {what}"
            for value, limit, what in (
                (line["tb_per_s_needed"], ceilings["read_tb_per_s"], "reading"),
                (line["tflops"], ceilings["matmul_tflops"], "matmul"),
                (line.get("tflops_sustained"), ceilings["matmul_tflops_sustained"], "sustained matmul"),
            )
            if value and limit
        ]
        if parts:
            made.append(f"{line['case']} {line['subject']}: {', '.join(parts)}")
    return made


def summary_text(made: Line) -> str:
    """The kept result in a few lines."""
    mean, least = made["geometric_mean"], made["least_ratio"]
    rows = [line for line in made["rows"] if line["ratio"] is not None]
    text = (
        f"{len(rows)} of {len(made['rows'])} rows with ours and a peer: geometric mean of "
        f"best peer / {made['ours']} {number(mean, 3)}, least {number(least, 3)}"
    )
    if made["rows_below_1"]:
        text += f"; behind the best peer: {', '.join(made['rows_below_1'])}"
    if made["wrong"]:
        text += f"; without a time: {', '.join(made['wrong'])}"
    return text


def traffic_text(line: Line) -> str:
    """The counted bytes of one step in one line."""
    if line.get("error"):
        return f"bytes moved were not counted: {line['error']}"
    needed = line["bytes_needed"]
    text = f"{line['case']} {line['subject']}: DRAM read {line['dram_read_bytes'] / 1e6:.1f} MB"
    text += (
        f", written {line['dram_written_bytes'] / 1e6:.1f} MB, L2 read {line['l2_read_bytes'] / 1e6:.1f} MB"
    )
    return text + ("" if not needed else f"; needed {needed / 1e6:.1f} MB (counted by ncu)")
