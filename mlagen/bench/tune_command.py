"""The options of `mlagen tune`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mlagen import driver, heuristics
from mlagen.bench import session, tune
from mlagen.bench.cases import parse
from mlagen.bench.clock import Effort
from mlagen.bench.command import build_kernels
from mlagen.bench.results import Line, read_lines
from mlagen.bench.subjects import Ours
from mlagen.errors import MlagenError
from mlagen.spec import Arch, Tuning


def _counts(least: int, most: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """A callback that reads whole numbers with commas."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and least <= int(part) <= most for part in parts):
            raise click.BadParameter(f"{value!r}; numbers from {least} to {most} with commas are needed")
        return tuple(dict.fromkeys(int(part) for part in parts))

    return read


@click.command("tune")
@click.option(
    "--heads",
    callback=_counts(1, 128),
    metavar="N,N",
    default="16,64,128",
    show_default=True,
    help="Head counts.",
)
@click.option(
    "--s-q",
    "tokens",
    callback=_counts(1, 16),
    metavar="N,N",
    default="1",
    show_default=True,
    help="Tokens a row.",
)
@click.option(
    "--page-size", type=click.Choice([str(2**n) for n in range(8)]), default="64", show_default=True
)
@click.option("--dtype", type=click.Choice(["bf16", "fp16"]), default="bf16", show_default=True)
@click.option(
    "--piece-cost",
    "costs",
    callback=_counts(0, 64),
    metavar="N,N",
    default="2",
    show_default=True,
    help="Costs of a piece to try.",
)
@click.option("--max-split", type=click.IntRange(1, 256), default=128, show_default=True)
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU.")
@click.option(
    "--pause", type=float, default=0.2, show_default=True, help="Seconds of rest before each burst."
)
@click.option(
    "--from",
    "loaded",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Lines of `mlagen bench --ours 1,2 --output` in place of measuring; needs no GPU.",
)
@click.option("--lines", type=click.Path(path_type=Path), default=None, help="Append what is measured here.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=None, help="Table to write; the cache's if absent."
)
def command(**given: Any) -> None:
    """Measure our variants on this GPU and keep which is fastest, for calls without a spec.

    The table goes into the cache folder and comes before the shipped ones. Takes about a second a variant and
    case: 30 s with the defaults.
    """
    path = given["output"] or heuristics.tuned_file()
    if path is None:
        raise MlagenError(
            "there is no cache folder to keep the table in; set MLAGEN_CACHE_DIR, or give --output"
        )
    if given["loaded"]:
        lines: list[Line] = [line for part in given["loaded"] for line in read_lines(part)]
        arch = Arch.SM_90A
    else:
        gpu = driver.gpu(given["device"])
        arch = heuristics.arch_of(gpu)
        lines = measured(given, gpu)
    page = int(given["page_size"])
    table = tune.table_from(
        lines,
        arch=arch,
        max_split=given["max_split"],
        source=str(path),
        page_size=None if page == 64 else page,
    )
    tune.save(table, path)
    for row in table.rows:
        where = "" if row.s_q is None else f", s_q {row.s_q}"
        click.echo(f"heads {row.least_heads}..{row.most_heads}{where}: {row.cta_group}SM, {row.reason}")
    click.echo(f"kept in {path}")


def measured(given: dict[str, Any], gpu: driver.Gpu) -> list[Line]:
    """Lines of every variant on every deciding case.

    Raises:
        MlagenError: a kernel cannot be built, or a variant gives a wrong answer.
    """
    names = tune.case_names(given["heads"], given["tokens"], int(given["page_size"]), given["dtype"])
    cases = [parse(name) for name in names]
    variants = [
        Ours(gpu, group, given["max_split"], Tuning(piece_cost=cost))
        for group in (1, 2)
        for cost in given["costs"]
    ]
    build_kernels(session.kernels(cases, variants))
    lines: list[Line] = []
    write = session.line_writer(given["lines"], False, click.echo)

    def emit(line: Line) -> None:
        lines.append(line)
        write(line)
        click.echo(session.short(line), err=True)

    order = session.Order(
        cases=cases,
        ours=variants,
        peers=(),
        gpu=gpu,
        effort=Effort(pause=given["pause"]),
        host=False,
        ceilings=False,
        command=" ".join(["mlagen", "tune", *sys.argv[2:]]),
        emit=emit,
    )
    wrong = [row for row in session.run(order) if row.error]
    if wrong:
        raise MlagenError(f"{wrong[0].case} {wrong[0].subject}: {wrong[0].error}; no table was written")
    return lines
