"""`mlagen build`: kernels into the cache, or into a folder of prebuilt kernels."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from mlagen.build import Report, Row, build
from mlagen.cli.common import chosen, json_option, kernel_options, print_json, progress, table
from mlagen.cli.status import FAILED


@click.command("build")
@kernel_options
@click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Compiler processes at a time; default: all cores."
)
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Also write prebuilt kernels here."
)
@click.option("--force", is_flag=True, help="Compile again what is cached.")
@json_option
def command(
    names: tuple[str, ...],
    preset_name: str | None,
    tp: int | None,
    arch: str | None,
    shipped: bool,
    jobs: int | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Build kernels that are not cached yet and report registers, spills, memory and times."""
    specs = chosen(names, preset_name, tp, arch, shipped)
    with progress("build", len(specs), quiet=as_json) as step:
        report = build(
            specs,
            jobs=jobs,
            output=output,
            force=force,
            progress=lambda row: step(f"{row.name} {row.status}"),
        )
    if as_json:
        print_json([asdict(row) for row in report.rows])
    else:
        _print(report)
    if report.failed:
        sys.exit(FAILED)


def _print(report: Report) -> None:
    done = [row for row in report.rows if row.status != "failed"]
    if done:
        columns = (
            "kernel",
            "status",
            "regs",
            "spill B",
            "smem B",
            "front end s",
            "NVVM s",
            "ptxas s",
            "CPU s",
        )
        table("", columns, [_cells(row) for row in done])
    for row in report.failed:
        click.echo(f"\n{row.name} failed:\n{row.error}", err=True)
    compiled = sum(row.status == "compiled" for row in done)
    click.echo(
        f"{compiled} compiled, {len(done) - compiled} cached, {len(report.failed)} failed "
        f"in {report.seconds:.1f} s"
    )


def _cells(row: Row) -> tuple[object, ...]:
    times = row.seconds
    spill = row.spill_stores + row.spill_loads
    phases = (times["front_end"], times["nvvm"], times["ptxas"], times["cpu"])
    return (
        row.name,
        row.status,
        row.registers,
        spill,
        row.smem_bytes,
        *(round(value, 2) for value in phases),
    )
