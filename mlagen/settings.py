"""Every MLAGEN_* variable: one typed row each. Read at each use, so a change takes effect at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from mlagen.errors import InputError

PREFIX = "MLAGEN_"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def _flag(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"one of {', '.join(_TRUE + _FALSE)}")


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(_folder(part) for part in text.split(os.pathsep) if part)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ValueError("a whole number from 1 to 1024")
    return int(text)


def _mebibytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 256 <= int(text) <= 1 << 20:
        raise ValueError("a whole number of MiB from 256 to 1048576")
    return int(text)


def _level(text: str) -> str:
    if text.upper() not in _LEVELS:
        raise ValueError(f"one of {', '.join(_LEVELS)}")
    return text.upper()


def _row(parse: Callable[[str], Any], default: Any, kind: str, text: str, *, code: bool = False) -> Any:
    return field(default=default, metadata={"parse": parse, "kind": kind, "help": text, "changes_code": code})


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force. The variable of a field is MLAGEN_ and the field's name in capitals."""

    cache_dir: Path | None = _row(
        _folder, None, "folder", "private cache folder, in place of the user's cache folder"
    )
    cache_path: tuple[Path, ...] = _row(
        _folders, (), "folders", "read-only folders with prebuilt kernels, searched first"
    )
    disable_jit: bool = _row(
        _flag, False, "flag", "never compile: a kernel that is in no cache folder is an error"
    )
    jobs: int | None = _row(
        _count, None, "count", "compiler processes of one build; default: all cores that memory serves"
    )
    worker_memory: int = _row(_mebibytes, 4096, "MiB", "memory that one compiler process may take")
    lineinfo: bool = _row(
        _flag, False, "flag", "put source lines into PTX and cubin for profilers and debuggers", code=True
    )
    spill_check: bool = _row(
        _flag, False, "flag", "a kernel that spills registers or uses local memory is an error"
    )
    dump_dir: Path | None = _row(
        _folder,
        None,
        "folder",
        "copy source, PTX, cubin, SASS and log of every loaded kernel to here",
    )
    override_dir: Path | None = _row(
        _folder,
        None,
        "folder",
        "take NAME.cu from here in place of the rendered source, if it is there",
        code=True,
    )
    check: bool = _row(
        _flag, False, "flag", "check lengths, page ids and split counts on the device before each call (slow)"
    )
    log_level: str | None = _row(
        _level, None, "level", "DEBUG, INFO, WARNING or ERROR; default: warnings and errors"
    )


class Row(NamedTuple):
    """One variable, as documentation and `mlagen doctor` show it."""

    variable: str
    kind: str
    default: Any
    help: str
    changes_code: bool


def rows() -> tuple[Row, ...]:
    """All variables, in their declared order."""
    return tuple(
        Row(
            PREFIX + item.name.upper(),
            item.metadata["kind"],
            item.default,
            item.metadata["help"],
            item.metadata["changes_code"],
        )
        for item in fields(Settings)
    )


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force. An empty variable counts as not set.

    Args:
        environ: in place of the process environment.

    Raises:
        InputError: a value that does not fit its row.
    """
    source = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for item in fields(Settings):
        variable = PREFIX + item.name.upper()
        text = source.get(variable, "").strip()
        if not text:
            continue
        try:
            values[item.name] = item.metadata["parse"](text)
        except ValueError as error:
            raise InputError(f"{variable}={text!r}: {error} is needed") from None
    return Settings(**values)


def unknown(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Variables that start with MLAGEN_ but have no row: misspelled, most likely."""
    source = os.environ if environ is None else environ
    known = {row.variable for row in rows()}
    return tuple(sorted(name for name in source if name.startswith(PREFIX) and name not in known))
