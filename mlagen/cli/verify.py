"""`mlagen verify`: a kernel against the fp64 reference."""

from __future__ import annotations

import sys
from typing import Any

import click

from mlagen.cli import FAILED
from mlagen.cli.common import chosen, json_option, kernel_options, print_json, progress, table


@click.command("verify")
@kernel_options
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU.")
@json_option
def command(
    names: tuple[str, ...],
    preset_name: str | None,
    tp: int | None,
    arch: str | None,
    shipped: bool,
    device: int,
    as_json: bool,
) -> None:
    """Run kernels on random calls on the GPU and compare them with fp64.

    Without a GPU this says so and exits with status 3.
    """
    from mlagen.verify import collect, default_cases, verify_each

    specs = chosen(names, preset_name, tp, arch, shipped)
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


def _print(results: list[Any]) -> None:
    for result in results:
        cases = result.as_dict()["cases"]
        columns = list(cases[0])
        table(f"{result.name} on {result.where}", columns, [[row[key] for key in columns] for row in cases])
        click.echo("agrees with fp64\n" if result.ok else "DOES NOT AGREE with fp64\n")
