"""What several subcommands share: choosing kernels, JSON, tables and progress bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlagen.resolve import resolve
from mlagen.shipped import preset, presets, shipped_specs
from mlagen.spec import Arch, KernelSpec

_F = TypeVar("_F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def kernel_options(function: _F) -> _F:
    """NAME..., --preset, --tp, --arch and --shipped: the ways to name kernels."""
    for decorate in (
        click.option("--shipped", is_flag=True, help="The whole shipped set."),
        click.option(
            "--arch",
            type=click.Choice([arch.value for arch in Arch]),
            help="Of a preset or the shipped set: only this.",
        ),
        click.option(
            "--tp", type=click.IntRange(min=1), help="With --preset: only this tensor-parallel size."
        ),
        click.option(
            "--preset", "preset_name", type=click.Choice(list(presets())), help="Kernels of a model."
        ),
        click.argument("names", nargs=-1, metavar="[NAME]..."),
    ):
        function = decorate(function)
    return function


def chosen(
    names: Sequence[str],
    preset_name: str | None,
    tp: int | None,
    arch: str | None,
    shipped: bool,
    more: Sequence[KernelSpec] = (),
) -> tuple[KernelSpec, ...]:
    """The kernels that the options name, each once; `more` are those that other options named.

    Raises:
        UsageError: no kernel is named, or --tp and --arch have nothing to choose from.
        SpecError: a name that does not resolve.
    """
    if preset_name is None and not more and (tp is not None or (arch is not None and not shipped)):
        raise click.UsageError("--tp and --arch choose from a preset: add --preset, or give kernel names")
    specs = [resolve(name) for name in names]
    if preset_name is not None:
        specs += preset(preset_name).specs(tp=tp, arch=arch)
    if shipped:
        specs += [spec for spec in shipped_specs() if arch in (None, spec.arch.value)]
    specs += more
    if not specs:
        raise click.UsageError(
            "name a kernel, or use --preset or --shipped; `mlagen list` shows what there is"
        )
    return tuple(dict.fromkeys(specs))


def print_json(value: Any) -> None:
    """JSON on standard output; a list has one line an element."""
    if isinstance(value, list):
        click.echo("[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]" if value else "[]")
    else:
        click.echo(json.dumps(value, indent=1))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output, after a blank line and its title; columns of numbers are right-aligned."""
    if title:
        click.echo(f"\n{title}")
    grid = Table(show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows)
        grid.add_column(column, justify="right" if rows and numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(escape(str(value)) for value in row))  # "[torch]" is no markup
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(grid)


@contextmanager
def progress(title: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error, or one line a step where that is not a terminal.

    Args:
        title: what is being done.
        total: number of steps.
        quiet: show nothing unless standard error is a terminal.

    Yields:
        A function to call after each step with a word about it.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        count = 0

        def plain(text: str) -> None:
            nonlocal count
            count += 1
            if not quiet:
                click.echo(f"{title} {count}/{total} {text}", err=True)

        yield plain
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)
