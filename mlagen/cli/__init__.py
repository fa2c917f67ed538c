"""The command `mlagen`. Each subcommand is a module of its own, loaded when it is asked for."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import click

from mlagen import __version__
from mlagen.cli.status import FAILED, NO_DEVICE
from mlagen.errors import DeviceError, MlagenError

# Subcommand -> module of this package, where it has the name `command`.
_COMMANDS = {
    "bench": "mlagen.cli.bench",
    "build": "mlagen.cli.build",
    "bundle": "mlagen.cli.bundle",
    "cache": "mlagen.cli.cache",
    "doctor": "mlagen.cli.doctor",
    "list": "mlagen.cli.listing",
    "show": "mlagen.cli.show",
    "tune": "mlagen.cli.tune",
    "verify": "mlagen.cli.verify",
}


class _Commands(click.Group):
    """Loads a subcommand's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(_COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlagen")
def group() -> None:
    """MLA decode kernels: plan, render, compile, cache, check.

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 no GPU that can run the kernel.
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; errors of mlagen become a message and an exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        group.main(args=given, prog_name="mlagen")
    except MlagenError as error:
        if "--json" in given:
            click.echo(json.dumps(_as_json(error)))
        click.echo(f"mlagen: {type(error).__name__}: {error}", err=True)
        sys.exit(NO_DEVICE if isinstance(error, DeviceError) else FAILED)


def _as_json(error: MlagenError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}
