"""`mlagen verify`: a kernel against the fp64 reference."""

from __future__ import annotations

import sys
from typing import Any

import click

from mlagen.cli.common import chosen, json_option, kernel_options, print_json, progress, table
from mlagen.cli.status import FAILED


@click.command("verify")
@kernel_options
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU.")
@click.option(
    "--emulate", is_flag=True, help="Run on the PTX emulator: no GPU is needed, and its sanitizers look on."
)
@click.option(
    "--schedule",
    default="eager",
    show_default=True,
    metavar="NAME",
    help="Of the emulator: eager, lazy, random:SEED, pause:SEED, starve:ROLE or lockstep.",
)
@click.option(
    "--sms",
    type=click.IntRange(1, 132),
    default=4,
    show_default=True,
    help="Multiprocessors of the emulated GPU.",
)
@json_option
def command(
    names: tuple[str, ...],
    preset_name: str | None,
    tp: int | None,
    arch: str | None,
    shipped: bool,
    device: int,
    emulate: bool,
    schedule: str,
    sms: int,
    as_json: bool,
) -> None:
    """Run kernels on random calls on the GPU, or with --emulate on the CPU, and compare them with fp64.

    Without a GPU and without --emulate this says so and exits with status 3.
    """
    specs = chosen(names, preset_name, tp, arch, shipped)
    if emulate:
        _emulate(specs, schedule, sms, as_json)
        return
    from mlagen.verify import collect, default_cases, verify_each

    results: list[Any] = []
    total = sum(len(default_cases(spec)) for spec in specs)
    with progress("verify", total, quiet=as_json) as step:
        for spec in specs:
            rows = []
            for row in verify_each(spec, device=device):
                rows.append(row)
                step(f"{spec.name} {row.title}")
            results.append(collect(iter(rows), spec, device, ""))
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        _print(results)
    if not all(result.ok for result in results):
        sys.exit(FAILED)


def _emulate(specs: tuple[Any, ...], schedule: str, sms: int, as_json: bool) -> None:
    from mlagen.emu.launcher import EmulatorOptions
    from mlagen.emu.verify import emulate_each, emulated_cases, report

    options = EmulatorOptions(schedule=schedule, sms=sms)
    everything: dict[str, list[Any]] = {}
    with progress("emulate", sum(len(emulated_cases(spec)) for spec in specs), quiet=as_json) as step:
        for spec in specs:
            rows = everything[spec.name] = []
            for row in emulate_each(spec, options):
                rows.append(row)
                step(f"{spec.name} {row.title}")
    if as_json:
        print_json([{"name": n, "cases": [r.as_dict() for r in rows]} for n, rows in everything.items()])
    else:
        for name, rows in everything.items():
            click.echo(f"{name} on the emulator, schedule {schedule}")
            report(rows, click.echo)
    if not all(row.ok for rows in everything.values() for row in rows):
        sys.exit(FAILED)


def _print(results: list[Any]) -> None:
    for result in results:
        cases = result.as_dict()["cases"]
        columns = list(cases[0])
        table(f"{result.name} on {result.where}", columns, [[row[key] for key in columns] for row in cases])
        click.echo("agrees with fp64\n" if result.ok else "DOES NOT AGREE with fp64\n")
