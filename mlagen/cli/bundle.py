"""`mlagen bundle`: folders of prebuilt kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mlagen.bundle import check, make_wheel, merge, summary
from mlagen.bundle_index import row_of
from mlagen.cli.common import json_option, print_json, table
from mlagen.cli.status import FAILED

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group("bundle")
def command() -> None:
    """Look at bundles of prebuilt kernels, check and merge them, pack them as wheels.

    `mlagen build --output FOLDER` makes one.
    """


@command.command("ls")
@click.argument("folder", type=_FOLDER)
@json_option
def ls(folder: Path, as_json: bool) -> None:
    """List the kernels of a bundle. Exits with status 1 if one is damaged or missing."""
    checked = check(folder)
    rows = [row_of(entry) for entry in checked.entries]
    if as_json:
        print_json({**summary(rows), "rows": rows, "faults": checked.faults})
    else:
        columns = ("kernel", "digest", "regs", "spill B", "smem B", "B", "NVRTC")
        cells = [
            (
                row["name"],
                row["digest"][:12],
                row["registers"],
                row["spill_stores"] + row["spill_loads"],
                row["smem_bytes"],
                sum(row["bytes"].values()),
                row["toolchain"]["nvrtc"],
            )
            for row in rows
        ]
        table("", columns, cells)
        for fault in checked.faults:
            click.echo(fault, err=True)
        click.echo(
            "{kernels} kernels, {bytes} B".format(**summary(rows)) + f", {len(checked.faults)} damaged"
        )
    if checked.faults:
        sys.exit(FAILED)


@command.command("merge")
@click.argument("target", type=_FOLDER)
@click.argument("sources", type=_FOLDER, nargs=-1, required=True, metavar="SOURCE...")
@json_option
def merge_(target: Path, sources: tuple[Path, ...], as_json: bool) -> None:
    """Add the kernels of the bundles SOURCE to the bundle TARGET. Equal digests must mean equal bytes."""
    added, total = merge(target, sources)
    value = {"added": added, "kernels": total}
    print_json(value) if as_json else click.echo(f"{added} added, {total} in {target}")


@command.command("wheel")
@click.argument("folder", type=_FOLDER)
@click.option("--label", required=True, help="Name of this set; the package is mlagen-kernels-LABEL.")
@click.option("--output", type=_FOLDER, default=Path(), help="Folder for the wheel; default: here.")
@json_option
def wheel(folder: Path, label: str, output: Path, as_json: bool) -> None:
    """Pack a bundle as a wheel. Where it is installed, its kernels are found without any setting."""
    path = make_wheel(folder, output, label)
    value = {"wheel": str(path), "bytes": path.stat().st_size}
    print_json(value) if as_json else click.echo("{wheel} ({bytes} B)".format(**value))
