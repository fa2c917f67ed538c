"""`mlagen build`: kernels into the cache, or into a folder of prebuilt kernels."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from mlagen.build import build
from mlagen.cli.common import chosen, json_option, kernel_options, print_json, progress, table
from mlagen.cli.status import FAILED
from mlagen.config import read_config
from mlagen.demand import Demand
from mlagen.model import read_model
from mlagen.report import Report, Row
from mlagen.spec import Arch, KernelSpec

_FILE = click.Path(exists=True, path_type=Path)


@click.command("build")
@kernel_options
@click.option("--model", type=_FILE, help="A model's config.json, or its folder: what --tp ranks of it call.")
@click.option("--page-size", type=click.IntRange(min=1), default=64, show_default=True, help="With --model.")
@click.option("--mtp", type=click.IntRange(min=0), default=0, help="With --model: tokens drafted ahead.")
@click.option("--config", type=_FILE, help="An mlagen.toml.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Compiler processes at a time; default: what cores and memory serve.",
)
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Also write this bundle of kernels."
)
@click.option("--force", is_flag=True, help="Compile again what is cached.")
@click.option("--dry-run", is_flag=True, help="Only print the names of the kernels.")
@json_option
def command(
    names: tuple[str, ...],
    preset_name: str | None,
    tp: int | None,
    arch: str | None,
    shipped: bool,
    model: Path | None,
    page_size: int,
    mtp: int,
    config: Path | None,
    jobs: int | None,
    output: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build kernels that are not cached yet and report registers, spills, memory and times.

    A build that was stopped goes on where it was.
    """
    more: list[KernelSpec] = []
    if model is not None:
        more += _of_model(model, tp, arch, page_size, mtp, quiet=as_json)
    if config is not None:
        file = read_config(config)
        more += file.specs
        jobs, output = jobs or file.jobs, output or file.output
    specs = chosen(names, preset_name, tp, arch, shipped, more)
    if dry_run:
        print_json([spec.name for spec in specs]) if as_json else click.echo("\n".join(map(str, specs)))
        return
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
        if output is not None:
            click.echo(f"bundle {output}: add it to MLAGEN_CACHE_PATH where the kernels are to be used")
    if report.failed:
        sys.exit(FAILED)


def _of_model(
    path: Path, tp: int | None, arch: str | None, page_size: int, mtp: int, *, quiet: bool
) -> tuple[KernelSpec, ...]:
    """The kernels of one deployment, and a line about what was read."""
    shape = read_model(path)
    sizes, targets = (tp or 1,), () if arch is None else (Arch(arch),)
    if not quiet:
        click.echo(
            f"{shape.name}: {shape.heads} heads, {shape.heads_per_rank(tp or 1)} a rank, cache rows of "
            f"{shape.latent}+{shape.rope}, 1..{mtp + 1} tokens a step, "
            f"softmax_scale {shape.softmax_scale:.7g}",
            err=True,
        )
    return Demand(shape, tp=sizes, page_size=page_size, mtp=mtp, arch=targets).specs()


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
    phases = [times.get(phase, 0.0) for phase in ("front_end", "nvvm", "ptxas", "cpu")]
    return (
        row.name,
        row.status,
        row.registers,
        spill,
        row.smem_bytes,
        *(round(value, 2) for value in phases),
    )
