"""The emulator for any PTX: parse, register arrays, launch.

emulator = Emulator(ptx_text)
x = emulator.array(numpy_array)                 # a global address; the array is updated after every launch
result = emulator.launch("kernel", grid=2, block=128, args=[x, c_int(5)])
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from mlagen.emu import code_cache, stored_code
from mlagen.emu.checks import CheckOptions
from mlagen.emu.codegen import Program
from mlagen.emu.findings import Findings
from mlagen.emu.interfaces import EmulatorError, Instruction
from mlagen.emu.launch_config import Dim3, LaunchConfig
from mlagen.emu.machine import Machine
from mlagen.emu.memory import GlobalMemory
from mlagen.emu.names import Names
from mlagen.emu.parser import parse_module
from mlagen.emu.placement import place_global
from mlagen.emu.ptx import Function, Module

Argument: TypeAlias = "bytes | int | float | np.generic | GlobalArray"
LONG = 1 << 16
"""Bytes of a PTX text from which it is worth keeping on disk what was made of it."""

_MODULES: dict[str, Module] = {}
_PROGRAMS: dict[tuple[Any, ...], Program] = {}


@dataclass(frozen=True, slots=True, eq=False)
class GlobalArray:
    """An array of the host and where the kernel sees it."""

    address: int
    data: Any
    nbytes: int

    @property
    def bytes(self) -> Any:
        """The array's bytes as uint8 (nbytes,), a view."""
        return _byte_view(self.data)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What a launch did.

    findings: of the sanitizers. seconds: of running, without parsing. instructions: warp-instructions.
    machine: for profiles.
    """

    findings: Findings
    seconds: float
    instructions: int
    machine: Machine


def _byte_view(data: Any) -> Any:
    """uint8 view of a contiguous numpy array or CPU torch tensor."""
    if hasattr(data, "untyped_storage"):
        if not data.is_contiguous() or data.device.type != "cpu":
            raise EmulatorError("a contiguous tensor in host memory is needed")
        import torch

        data = data.detach().reshape(-1).view(torch.uint8).numpy()
    if not data.flags.c_contiguous:
        raise EmulatorError("a contiguous array is needed")
    return data.reshape(-1).view(np.uint8)


def dim3(value: int | Sequence[int]) -> Dim3:
    """One to three extents as three."""
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3 or any(v < 1 for v in given):
        raise EmulatorError(
            f"{value!r} is no grid, block or cluster: one to three extents of at least 1 are needed"
        )
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def load_module(text: str) -> tuple[str, Module]:
    """(digest, parsed module) of a PTX text; parsed once, and kept on disk if it is long."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    module = _MODULES.get(digest)
    if module is None:
        key = code_cache.key_of("module", digest) if len(text) >= LONG else ""
        module = code_cache.load(key) if key else None
        if module is None:
            module = parse_module(text)
            if key:
                code_cache.store(key, module)
        _MODULES[digest] = module
    return digest, module


class Emulator:
    """A PTX module (a text, or one that was parsed already) and the global memory of its launches.

    Raises:
        EmulatorError: the text cannot be read.
    """

    def __init__(self, text: str | Module) -> None:
        if isinstance(text, Module):
            self.digest, self.module = "", text
        else:
            self.digest, self.module = load_module(text)
        self.memory = GlobalMemory()
        self.arrays: list[GlobalArray] = []
        self.programs: dict[tuple[Any, ...], Program] = {}
        for variable in self.module.variables:
            if variable.space in ("global", "const") and not variable.external:
                place_global(variable, self.memory)

    def array(self, data: Any, name: str = "", written: bool = True) -> GlobalArray:
        """Register a contiguous numpy array or CPU torch tensor.

        With written=False its bytes count as never written: reading one before the kernel wrote it is a
        finding.
        """
        view = _byte_view(data)
        address = self.memory.allocate_array(view.size, name or f"array {len(self.arrays)}", view)
        if not written:
            start = address - self.memory.base
            self.memory.allocate(start, view.size)
        self.arrays.append(GlobalArray(address, data, view.size))
        return self.arrays[-1]

    def update(self) -> None:
        """Copy the registered arrays into global memory again, after the host changed them."""
        for array in self.arrays:
            self.memory.write(array.address, array.bytes)

    def launch(
        self,
        entry: str | None = None,
        *,
        grid: int | Sequence[int] = 1,
        block: int | Sequence[int] = 32,
        cluster: int | Sequence[int] | None = None,
        dynamic_shared: int = 0,
        args: Sequence[Argument] = (),
        schedule: str = "eager",
        checks: CheckOptions | None = None,
        names: Names | None = None,
        exact: bool = True,
        fail_on_findings: bool = True,
        max_rounds: int = 0,
        stop_at_finding: bool = False,
        patch: Mapping[int, Instruction] | None = None,
    ) -> LaunchResult:
        """Run a kernel to its end and copy the arrays back.

        Args:
            entry: name of the kernel, or a part of it that only one name has; the only kernel if absent.
            grid, block, cluster: one to three extents; cluster defaults to the kernel's `.reqnctapercluster`.
            dynamic_shared: bytes.
            args: one for each parameter: a registered array, a Python number, a numpy scalar, or the bytes of
            a struct.
            schedule: eager, lazy, random:SEED, starve:ROLE (or a warp number, or ctaN) or lockstep.
            checks: which sanitizers run; all by default.
            names: names for reports, see Names.from_plan.
            exact: tensor-core products in the bit-exact model; otherwise float32 matmul.
            max_rounds: rounds of the scheduler after which the launch counts as endless; 0 for no limit.
            fail_on_findings: raise SanitizerError at the end if there are findings other than lints.
            stop_at_finding: raise it at the first one.
            patch: instructions that replace those of the kernel, by index (see `mlagen.emu.mutate`).

        Raises:
            EmulatorError: undefined behaviour, a deadlock, an unknown instruction, arguments that do not fit.
        """
        function = self.module.entry(entry)
        wanted = cluster if cluster is not None else (function.directives.get("reqnctapercluster") or 1)
        config = LaunchConfig(
            dim3(grid),
            dim3(block),
            dim3(wanted),
            dynamic_shared,
            schedule,
            checks or CheckOptions(),
            fail_on_findings,
            exact,
            replace(names) if names is not None else Names(),
            max_rounds,
            stop_at_finding,
            patch or {},
        )
        return self._run(*self._machine(function, pack_arguments(function, args), config))

    def _run(self, machine: Machine, stored: str) -> LaunchResult:
        """Runs a machine to its end, copies the arrays back, stores the code made on the way."""
        started = time.perf_counter()
        try:
            findings = machine.run()
        finally:
            self._copy_back()
            if stored:
                stored_code.store(machine.compiled, stored)
        return LaunchResult(findings, time.perf_counter() - started, machine.instruction_count(), machine)

    def _machine(self, function: Function, params: bytes, config: LaunchConfig) -> tuple[Machine, str]:
        """A machine with what is known of the kernel's code; and the key to store the code by, if any."""
        key = (self.digest, function.name, tuple(self.memory.variables.items()))
        programs = _PROGRAMS if self.digest else self.programs
        machine = Machine(self.module, function, self.memory, params, config, programs.get(key))
        long = len(function.instructions) >= LONG // 32
        stored = code_cache.key_of("code", *key) if long and self.digest else ""
        if key not in programs and stored:
            stored_code.restore(machine.compiled, stored)
        programs[key] = machine.compiled
        return machine, stored

    def _copy_back(self) -> None:
        for array in self.arrays:
            start = array.address - self.memory.base
            array.bytes[:] = self.memory.data[start : start + array.nbytes]


def pack_arguments(function: Function, args: Sequence[Argument]) -> bytes:
    """The parameter space of a kernel.

    Raises:
        EmulatorError: too many or too few arguments, or one of another size.
    """
    if len(args) != len(function.params):
        wanted = ", ".join(f"{p.name} ({p.size} bytes)" for p in function.params) or "none"
        raise EmulatorError(
            f"{function.name} takes {len(function.params)} parameters ({wanted}), {len(args)} were given"
        )
    offsets = function.param_offsets()
    space = bytearray(function.params_size)
    for param, arg in zip(function.params, args, strict=True):
        data = argument_bytes(arg, param.size)
        if len(data) != param.size:
            raise EmulatorError(f"parameter {param.name} has {param.size} bytes, {len(data)} were given")
        space[offsets[param.name] : offsets[param.name] + param.size] = data
    return bytes(space)


def argument_bytes(arg: Argument, size: int) -> bytes:
    """An argument as a kernel finds it. size: bytes of a Python number."""
    if isinstance(arg, GlobalArray):
        return struct.pack("<Q", arg.address)
    if isinstance(arg, bytes | bytearray | memoryview):
        return bytes(arg)
    if isinstance(arg, np.generic):
        return arg.tobytes()
    if isinstance(arg, float):
        return struct.pack("<f" if size == 4 else "<d", arg)
    return (int(arg) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
