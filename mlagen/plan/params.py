"""One list of parameter fields: C++ struct, ctypes packer, offsets and size all come from it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mlagen.errors import SpecError
from mlagen.plan.model import ParamField

CTYPES: dict[str, type[Any]] = {
    "P": ctypes.c_void_p,
    "q": ctypes.c_int64,
    "i": ctypes.c_int32,
    "f": ctypes.c_float,
}


@cache
def packer(fields: tuple[ParamField, ...]) -> type[ctypes.Structure]:
    """The ctypes.Structure with exactly these fields; instances are filled by field name.

    Raises:
        SpecError: an unknown type code or a name that occurs twice.
    """
    names: set[str] = set()
    for field in fields:
        if field.ctype_code not in CTYPES:
            raise SpecError(
                f"parameter {field.name}: type code {field.ctype_code!r}; known: {', '.join(CTYPES)}"
            )
        if field.name in names:
            raise SpecError(f"parameter {field.name} occurs twice")
        names.add(field.name)
    members = [(field.name, CTYPES[field.ctype_code]) for field in fields]
    return type("Params", (ctypes.Structure,), {"_fields_": members, "__slots__": ()})


def lay_out_params(fields: Sequence[ParamField]) -> tuple[tuple[ParamField, ...], int]:
    """Gives every field its offset.

    Returns:
        The fields with offsets in bytes, and the size of the struct.
    """
    bare = tuple(replace(field, offset=-1) for field in fields)
    struct = packer(bare)
    placed = tuple(replace(field, offset=getattr(struct, field.name).offset) for field in bare)
    return placed, ctypes.sizeof(struct)


def pack(fields: tuple[ParamField, ...], values: dict[str, Any]) -> ctypes.Structure:
    """A filled struct.

    Args:
        fields: the plan's parameter table.
        values: one value for each field, by name; pointers as ints (0 for null).

    Raises:
        SpecError: a field without value, or a value without field.
    """
    names = {field.name for field in fields}
    if names != values.keys():
        missing = sorted(names - values.keys())
        unknown = sorted(values.keys() - names)
        raise SpecError(f"parameters do not match the plan: missing {missing}, unknown {unknown}")
    return packer(fields)(**values)
