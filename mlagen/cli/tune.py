"""`mlagen tune`: hands over to the benchmark, which defines the options."""

from __future__ import annotations

from importlib import import_module

import click


@click.command("tune", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
def command(arguments: tuple[str, ...]) -> None:
    """Measure our kernels on this GPU and keep which is fastest; `mlagen tune --help` has the options."""
    tune: click.Command = import_module("mlagen.bench.tune_command").command
    tune.main(args=list(arguments), prog_name="mlagen tune")
