"""`mlagen cache`: where kernels are kept, and cleaning up."""

from __future__ import annotations

import click

from mlagen.cache import Cache
from mlagen.cli.common import json_option, print_json


@click.group("cache")
def command() -> None:
    """Look at the cache folders and clean up."""


@command.command("info")
@json_option
def info(as_json: bool) -> None:
    """Show the folders and how much they hold."""
    cache = Cache()
    entries = [folder for folders in cache.names().values() for folder in folders]
    value = {
        "private": None if cache.private is None else str(cache.private.path),
        "search": [str(root.path) for root in cache.search],
        "entries": len(entries),
        "bytes": sum(file.stat().st_size for folder in entries for file in folder.iterdir()),
    }
    if as_json:
        print_json(value)
        return
    click.echo(f"private  {value['private'] or 'none: kernels are kept in memory only'}")
    for root in cache.search:
        click.echo(f"search   {root.path}")
    click.echo(f"entries  {value['entries']} ({value['bytes']} B)")


@command.command("clear")
@click.argument("name", required=False)
@json_option
def clear(name: str | None, as_json: bool) -> None:
    """Remove all kernels of the private folder, or those called NAME. Running programs go on."""
    _report("removed", Cache().clear(name), as_json)


@command.command("gc")
@json_option
def collect(as_json: bool) -> None:
    """Remove temporary files, damaged entries and locks that are older than a day."""
    _report("removed", Cache().collect_garbage(), as_json)


def _report(word: str, count: int, as_json: bool) -> None:
    if as_json:
        print_json({word: count})
    else:
        click.echo(f"{count} {word}")
