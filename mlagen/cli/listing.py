"""`mlagen list`: the shipped set and what is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import click

from mlagen import toolchain
from mlagen.artifact import order
from mlagen.cache import Cache
from mlagen.cli.common import json_option, print_json, table
from mlagen.errors import SpecError, ToolchainError
from mlagen.plan import FAMILIES
from mlagen.resolve import resolve
from mlagen.shipped import presets, shipped_specs
from mlagen.spec import KernelSpec


@click.command("list")
@click.option("--all", "show_all", is_flag=True, help="Also print the ranges of every family.")
@json_option
def command(show_all: bool, as_json: bool) -> None:
    """List the shipped set and everything else that is cached."""
    rows = _rows()
    ranges = _ranges() if show_all else []
    if as_json:
        print_json(rows if not show_all else rows + ranges)
        return
    table("", ("kernel", "cached", "from"), [(row["name"], row["cached"], row["from"]) for row in rows])
    for family in ranges:
        click.echo(f"\n{family['name']}: any kernel in these ranges can be built by name")
        for axis, values in family["ranges"].items():
            click.echo(f"  {axis:<12} {values}")


def _rows() -> list[dict[str, Any]]:
    """One row a kernel: shipped ones in their order, then others of the cache."""
    cache = Cache()
    try:
        tools = toolchain.fingerprint(toolchain.locate())
    except ToolchainError:
        tools = None
    origin: dict[KernelSpec, list[str]] = {spec: [] for spec in shipped_specs()}
    for name, item in presets().items():
        for size in item.tp:
            for spec in item.specs(tp=size):
                origin[spec].append(f"{name} tp{size}")
    others = []
    for name in cache.names():
        try:
            spec = resolve(name)
        except SpecError:
            continue
        if spec not in origin:
            others.append(spec)
    rows = []
    for spec in (*origin, *others):
        task = order(spec, tools)
        hit = cache.lookup(spec.name, task.key)
        rows.append(
            {
                "name": spec.name,
                "shipped": spec in origin,
                "cached": "yes" if hit is not None else "stale" if spec in others else "no",
                "folder": "" if hit is None else str(hit.folder),
                "from": ", ".join(origin.get(spec) or ["shipped" if spec in origin else "cache"]),
            }
        )
    return rows


def _ranges() -> list[dict[str, Any]]:
    """What each family can build, from the family's own table."""
    return [
        {"name": family, "ranges": {axis: range_text(values) for axis, values in _supported(module).items()}}
        for family, module in FAMILIES.items()
    ]


def _supported(module: str) -> Mapping[str, Sequence[object]]:
    return cast(Mapping[str, Sequence[object]], import_module(module).SUPPORTED)


def range_text(values: Sequence[object]) -> str:
    """`1..128` for neighbouring numbers, a list for everything else."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) == len(values) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}..{numbers[-1]}"
    return ", ".join(map(str, values))
