"""A kernel's generated code as plain data, and back: what `mlagen.emu.code_cache` keeps of a `Program`."""

from __future__ import annotations

import dataclasses
import marshal
from typing import TYPE_CHECKING, Any

from mlagen.emu import code_cache

if TYPE_CHECKING:
    from mlagen.emu.codegen import Block, Program

LEAST_NEW = 1 / 16
"""Share of new blocks among all from which a program is stored again."""

_NOT_STORED = ("run", "finish")


def _fields(block: Block) -> dict[str, Any]:
    return {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name not in _NOT_STORED}


def store(program: Program, key: str) -> None:
    """Store a program unless little has changed since it was stored or loaded."""
    new = len(program.codes) - program.stored_codes
    if not new or new < LEAST_NEW * program.stored_codes:
        return
    binder = program.binder
    code_cache.store(
        key,
        {
            "codes": {place: marshal.dumps(code) for place, code in program.codes.items()},
            "blocks": {pc: _fields(block) for pc, block in program.blocks.items()},
            "constants": (binder.constants, binder.constant_index),
            "functions": binder.functions,
        },
    )
    program.stored_codes = len(program.codes)


def restore(program: Program, key: str) -> bool:
    """Fill a new program with stored code; whether there was any. Functions are made when a block first
    runs.
    """
    from mlagen.emu.codegen import Block

    found = code_cache.load(key)
    if found is None:
        return False
    binder = program.binder
    binder.constants[:], binder.constant_index = found["constants"][0], found["constants"][1]
    binder.functions[:] = found["functions"]
    program.codes = {place: marshal.loads(code) for place, code in found["codes"].items()}
    program.stored_codes = len(program.codes)
    for pc, values in found["blocks"].items():
        block = program.blocks[pc] = Block(**values)
        program.attach(block)
    return True
