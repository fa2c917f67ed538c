"""`mlagen bench`: hands over to the benchmark, which defines its own options."""

from __future__ import annotations

from importlib import import_module

import click


@click.command("bench", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
def command(arguments: tuple[str, ...]) -> None:
    """Measure kernels on the GPU, beside baselines; `mlagen bench --help` has the options."""
    bench: click.Command = import_module("mlagen.bench.command").command
    bench.main(args=list(arguments), prog_name="mlagen bench")
