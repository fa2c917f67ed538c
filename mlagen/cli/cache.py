"""`mlagen cache`: where kernels are kept, whether they are whole, cleaning up, and moving them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mlagen.bundle import Writer, read_bundle
from mlagen.cache import Cache, store_entry
from mlagen.cache_entry import DamagedError, read_entry
from mlagen.cli.common import json_option, print_json, table
from mlagen.cli.status import FAILED
from mlagen.errors import CacheError

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group("cache")
def command() -> None:
    """Look at the cache folders, check them, clean up, and move kernels between machines."""


def _entries(cache: Cache) -> Iterator[tuple[str, Path]]:
    for name, folders in sorted(cache.names().items()):
        for folder in folders:
            yield name, folder


def _bytes(folder: Path) -> int:
    """Size of an entry; one that vanishes meanwhile counts as nothing."""
    total = 0
    try:
        for file in folder.iterdir():
            total += file.stat().st_size
    except OSError:
        return total
    return total


@command.command("info")
@json_option
def info(as_json: bool) -> None:
    """Show the folders and how much they hold."""
    cache = Cache()
    entries = list(_entries(cache))
    value = {
        "private": None if cache.private is None else str(cache.private.path),
        "search": [str(root.path) for root in cache.search],
        "entries": len(entries),
        "bytes": sum(_bytes(folder) for _, folder in entries),
    }
    if as_json:
        print_json(value)
        return
    click.echo(f"private  {value['private'] or 'none: kernels are kept in memory only'}")
    for root in cache.search:
        click.echo(f"search   {root.path}")
    click.echo(f"entries  {value['entries']} ({value['bytes']} B)")


@command.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List the kernels of all folders, with digest, size and place."""
    rows = [
        {"name": name, "digest": folder.name, "bytes": _bytes(folder), "folder": str(folder)}
        for name, folder in _entries(Cache())
    ]
    if as_json:
        print_json(rows)
    else:
        table(
            "",
            ("kernel", "digest", "B", "folder"),
            [
                (row["name"], str(row["digest"])[:12], row["bytes"], str(Path(str(row["folder"])).parents[1]))
                for row in rows
            ],
        )


@command.command("verify")
@json_option
def verify(as_json: bool) -> None:
    """Read every byte of all folders against its digests. Exits with status 1 if one is damaged."""
    rows: list[dict[str, Any]] = []
    for name, folder in _entries(Cache()):
        try:
            entry = read_entry(folder, name)
            fault = "" if entry.key.digest == folder.name else "the folder name is not the digest of the key"
        except (DamagedError, FileNotFoundError) as error:
            fault = str(error)
        rows.append({"name": name, "folder": str(folder), "fault": fault})
    faults = [row for row in rows if row["fault"]]
    if as_json:
        print_json(rows)
    else:
        for row in faults:
            click.echo(f"{row['folder']}: {row['fault']}")
        click.echo(f"{len(rows) - len(faults)} whole, {len(faults)} damaged")
    if faults:
        sys.exit(FAILED)


@command.command("gc")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Also remove all kernels.")
@click.option(
    "--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Also kernels stored before."
)
@json_option
def collect(names: tuple[str, ...], everything: bool, older_than: float | None, as_json: bool) -> None:
    """Remove leftovers older than a day, and the kernels NAME from the private folder.

    Leftovers are temporary files, damaged entries and locks. Running programs are not disturbed.
    """
    cache = Cache()
    removed = cache.collect_garbage()
    if names:
        removed += cache.remove(names)
    elif everything or older_than is not None:
        removed += cache.remove(older_than=0.0 if everything else 86400.0 * (older_than or 0.0))
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"{removed} removed")


@command.command("export")
@click.argument("folder", type=_FOLDER)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def export(folder: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Put the cached kernels, or those called NAME, into the bundle FOLDER."""
    writer, added = Writer(folder), 0
    found = [(name, place) for name, place in _entries(Cache()) if not names or name in names]
    missing = sorted(set(names) - {name for name, _ in found})
    if missing:
        raise CacheError(f"{missing[0]} is not cached; `mlagen build {missing[0]}` builds it")
    for name, place in found:
        try:
            added += writer.add(read_entry(place, name))
        except (DamagedError, FileNotFoundError) as error:
            raise CacheError(f"{place} is damaged: {error}. `mlagen cache gc {name}` removes it") from error
    value = {"added": added, "kernels": writer.finish()}
    print_json(value) if as_json else click.echo("{added} added, {kernels} in the bundle".format(**value))


@command.command("import")
@click.argument("bundles", type=_FOLDER, nargs=-1, required=True, metavar="BUNDLE...")
@json_option
def import_(bundles: tuple[Path, ...], as_json: bool) -> None:
    """Copy the kernels of bundles into the private folder, after a check of every byte."""
    cache = Cache()
    if cache.private is None:
        raise CacheError(
            "there is no private cache folder here: set MLAGEN_CACHE_DIR to a folder of your own"
        )
    entries = [entry for bundle in bundles for entry in read_bundle(bundle)]
    for entry in entries:
        if not store_entry(cache.private, entry, entry.key.digest or ""):
            raise CacheError(f"{entry.name} could not be written to {cache.private.path}")
    value = {"imported": len(entries)}
    print_json(value) if as_json else click.echo("{imported} imported".format(**value))
