"""Where the variables of a kernel are."""

from __future__ import annotations

import numpy as np

from mlagen.emu.binder import Symbols
from mlagen.emu.memory import GlobalMemory
from mlagen.emu.ptx import Function, Module, Variable

RESERVED_SHARED = 1024
"""Bytes at the start of shared memory that belong to the system."""


def place_global(variable: Variable, memory: GlobalMemory) -> int:
    """The address of a module's global or constant variable, allocated when first asked for."""
    address = memory.variables.get(variable.name)
    if address is None:
        data = np.frombuffer(variable.initial.ljust(max(variable.size, 1), b"\0"), np.uint8)
        address = memory.allocate_array(len(data), variable.name, data, max(variable.align, 16))
        memory.variables[variable.name] = address
    return address


def layout(module: Module, function: Function, memory: GlobalMemory) -> tuple[Symbols, int, int]:
    """Place variables: shared ones after the reserved bytes, dynamic shared memory last; global ones in the
    arena. Gives the symbols, where dynamic shared memory starts, and the bytes of local memory.
    """
    symbols = Symbols()
    symbols.params = function.param_offsets()
    position, local = RESERVED_SHARED, 0
    dynamic: list[Variable] = []
    for variable in [*module.variables, *function.variables]:
        if variable.space == "shared" and (variable.external or variable.count == 0):
            dynamic.append(variable)
        elif variable.space == "shared":
            position = -(-position // variable.align) * variable.align
            symbols.shared[variable.name] = position
            position += variable.size
        elif variable.space == "local":
            local = -(-local // variable.align) * variable.align
            symbols.local[variable.name] = local
            local += variable.size
        elif variable.space == "param":
            symbols.call_params[variable.name] = 0
        elif not variable.external:
            symbols.globals[variable.name] = place_global(variable, memory)
    align = max([v.align for v in dynamic] + [16])
    position = -(-position // align) * align
    for variable in dynamic:
        symbols.shared[variable.name] = position
    return symbols, position, local
