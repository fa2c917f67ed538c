"""The proof matrix of the Blackwell families, as one command that can be stopped and taken up again.

    python -m mlagen.emu.matrix --results matrix.jsonl [--jobs N] [--schedules eager,random:1] [--pairwise]

A line of the results file is one case; cases that are there already are not run again.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click

from mlagen.casework import Case, split_counts
from mlagen.emu.launcher import EmulatorOptions
from mlagen.emu.verify import run_emulated
from mlagen.spec import Arch, DType, KernelSpec

LENGTHS = (0, 1, 63, 128, 129, 300, 1025)
HEADS = (1, 8, 16, 20, 40, 64, 96, 128)
PAGES, MORE_PAGES = (1, 16, 64, 128), (2, 4, 8)
SPLITS, TOKENS, GROUPS = (1, 4, 16), (1, 2), (1, 2)
ROLES = ("softmax", "epilogue", "mma", "load", "query")
ALL_SCHEDULES = ("eager", "lazy", "lockstep", "random:1", "random:2", *(f"starve:{role}" for role in ROLES))

Row = tuple[str, int, str]
"""Kernel name, query tokens, schedule: the key of one result."""


def _kernel(dtype: str, group: int, heads: int, page: int, splits: int) -> str:
    kind = DType(dtype)
    return KernelSpec(Arch.SM_100A, kind, kind, heads, page, splits, group).name


def full_rows(schedules: tuple[str, ...]) -> list[Row]:
    """Every combination of types, groups, heads, pages, splits and tokens; pages 2, 4, 8 on a subset."""
    rows = []
    for dtype, group, heads, splits, tokens in product(("bf16", "fp16"), GROUPS, HEADS, SPLITS, TOKENS):
        more = MORE_PAGES if (dtype, splits, tokens) == ("bf16", 4, 1) else ()
        for page in (*PAGES, *more):
            rows += [(_kernel(dtype, group, heads, page, splits), tokens, name) for name in schedules]
    return rows


def pairwise_rows(schedules: tuple[str, ...] = ALL_SCHEDULES) -> list[Row]:
    """A set of cases in which every two values of different axes meet, under every schedule."""
    axes: tuple[tuple[Any, ...], ...] = (("bf16", "fp16"), GROUPS, HEADS, PAGES, SPLITS, TOKENS)
    wanted = {
        ((i, a), (j, b))
        for i in range(len(axes))
        for j in range(i + 1, len(axes))
        for a in axes[i]
        for b in axes[j]
    }
    chosen: list[tuple[Any, ...]] = []
    candidates = list(product(*axes))
    while wanted:
        best = max(candidates, key=lambda values: len(wanted & _pairs(values)))
        chosen.append(best)
        wanted -= _pairs(best)
    return [
        (_kernel(dtype, group, heads, page, splits), tokens, name)
        for dtype, group, heads, page, splits, tokens in chosen
        for name in schedules
    ]


def _pairs(values: tuple[Any, ...]) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    return {((i, values[i]), (j, values[j])) for i in range(len(values)) for j in range(i + 1, len(values))}


def run_row(row: Row) -> dict[str, Any]:
    """One case: all lengths in one batch, mixed device splits, everything that must not be read poisoned."""
    name, tokens, schedule = row
    spec = KernelSpec.from_name(name)
    counts = split_counts(LENGTHS, spec.max_split) if spec.max_split > 1 else None
    case = Case(
        LENGTHS, h_q=spec.h_q, s_q=tokens, page_size=spec.page_size, dtype=spec.q_dtype.value, splits=counts
    )
    options = EmulatorOptions(schedule=schedule, sms=4)
    found = run_emulated(spec, f"{tokens} tokens, {schedule}", case, options)
    return {"kernel": name, "tokens": tokens, "schedule": schedule, **found.as_dict()}


def finished(results: Path) -> dict[Row, bool]:
    """Rows of a results file, and whether each was right; a torn last line counts as absent."""
    done: dict[Row, bool] = {}
    if not results.exists():
        return done
    for line in results.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        done[row["kernel"], row["tokens"], row["schedule"]] = row["ok"]
    return done


def _results(rows: list[Row], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(run_row, rows)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_row, rows)


@click.command()
@click.option("--results", type=click.Path(path_type=Path), required=True, help="JSON lines, appended to.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--schedules", default="", help="Comma-separated; eager,random:1 or, with --pairwise, all.")
@click.option("--pairwise", is_flag=True, help="The pairwise set instead of every combination.")
@click.option("--only", default="", help="Kernels whose name contains this.")
def command(results: Path, jobs: int, schedules: str, pairwise: bool, only: str) -> None:
    """Run the proof matrix on the emulator; run it again to go on where it stopped."""
    names = tuple(schedules.split(",")) if schedules else ALL_SCHEDULES if pairwise else ("eager", "random:1")
    rows = [row for row in (pairwise_rows(names) if pairwise else full_rows(names)) if only in row[0]]
    done = finished(results)
    left = [row for row in rows if row not in done]
    wrong = [row for row in rows if done.get(row) is False]
    with (
        results.open("a") as out,
        click.progressbar(length=len(left), label="matrix", file=sys.stderr) as bar,
    ):
        for found in _results(left, jobs):
            out.write(json.dumps(found) + "\n")
            out.flush()
            bar.update(1)
            if not found["ok"]:
                wrong.append((found["kernel"], found["tokens"], found["schedule"]))
    click.echo(f"{len(rows) - len(wrong)} of {len(rows)} right")
    for row in wrong:
        click.echo("WRONG " + " ".join(map(str, row)))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    command()
