"""Source text -> PTX, cubin, log and numbers, through NVRTC. In this process; `build` runs it in workers."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlagen import toolchain
from mlagen.errors import CompileError, ToolchainError
from mlagen.fingerprint import INSTALL_LINE, Fingerprint
from mlagen.options import options
from mlagen.spec import Arch, KernelSpec


@dataclass(frozen=True, slots=True)
class FunctionUsage:
    """What ptxas reports for one function. Bytes are per thread, `smem` is static shared memory."""

    name: str
    entry: bool
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    smem: int


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """CPU seconds of C++ front end, NVVM optimiser and ptxas, and of the whole compilation."""

    front_end: float
    nvvm: float
    ptxas: float
    cpu: float


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Everything that one compilation gave.

    Attributes:
        ptx: PTX text.
        cubin: machine code for exactly the architecture of the spec.
        log: the compiler's log without times, so that equal inputs give equal bytes.
        options: ordered options with symbolic include folders.
        functions: one row a function, in the order of the log.
        seconds: times of the phases.
        fingerprint: compiler and headers that were in place before and after.
    """

    ptx: bytes
    cubin: bytes
    log: str
    options: tuple[str, ...]
    functions: tuple[FunctionUsage, ...]
    seconds: PhaseSeconds
    fingerprint: Fingerprint

    def usage(self, function: str) -> FunctionUsage:
        """The row of one function.

        Raises:
            KeyError: the log has no such function.
        """
        for row in self.functions:
            if row.name == function:
                return row
        raise KeyError(function)

    @property
    def registers(self) -> int:
        """Registers per thread of the main entry, which comes first in the source."""
        return self._main.registers

    @property
    def stack(self) -> int:
        """Largest stack frame of any function, in bytes."""
        return max((row.stack for row in self.functions), default=0)

    @property
    def spill_stores(self) -> int:
        """Bytes of spill stores in all functions."""
        return sum(row.spill_stores for row in self.functions)

    @property
    def spill_loads(self) -> int:
        """Bytes of spill loads in all functions."""
        return sum(row.spill_loads for row in self.functions)

    @property
    def smem(self) -> int:
        """Bytes of static shared memory of the main entry."""
        return self._main.smem

    @property
    def _main(self) -> FunctionUsage:
        entries = [row for row in self.functions if row.entry]
        return min(entries, key=lambda row: len(row.name))


def _resolve(symbolic: Sequence[str], tools: toolchain.Toolchain) -> list[str]:
    """The options with the real include folders of this installation."""
    folders = {f"-I<{name}>": f"-I{path}" for name, path in tools.includes}
    return [folders.get(option, option) for option in symbolic]


def compile_source(
    source: str,
    arch: Arch,
    *,
    name: str,
    spec: KernelSpec | None = None,
    symbolic: Sequence[str] | None = None,
) -> CompileResult:
    """Compiles one source text in this process.

    Args:
        source: complete CUDA C++ text.
        arch: architecture to compile for.
        name: file name in messages and line information, without suffix.
        spec: for the error message.
        symbolic: options in place of `options(arch)`.

    Raises:
        ToolchainError: the compiler or a header package is missing, or changed while compiling.
        CompileError: the compiler refused the source; nothing is cached.
    """
    tools = toolchain.locate()
    before = toolchain.fingerprint(tools)
    chosen = tuple(options(arch) if symbolic is None else symbolic)
    nvrtc = _load_nvrtc(tools.library)
    started = time.process_time()
    ok, ptx, cubin, log = _run(nvrtc, source, f"{name}.cu", _resolve(chosen, tools))
    cpu = time.process_time() - started
    if not ok:
        raise CompileError(_failure(name, chosen, log), spec=spec, options=chosen, log=log)
    if toolchain.fingerprint(tools) != before:
        raise ToolchainError(f"{name}: headers changed while the kernel was compiled; compile again")
    usage, phases = parse_usage(log), parse_phases(log, cpu)
    return CompileResult(ptx, cubin, without_times(log), chosen, usage, phases, before)


def _failure(name: str, chosen: Sequence[str], log: str) -> str:
    lines = [line for line in log.splitlines() if re.search(r"\berror\b|\bfatal\b", line)]
    first = "\n".join(f"  {line}" for line in (lines or log.splitlines())[:8])
    return (
        f"{name}: the compiler refused the source.\n{first}\n"
        f"  options: {' '.join(chosen)}\n  The attribute `log` holds the whole log"
    )


def _load_nvrtc(library: Path) -> Any:
    """The module cuda.bindings.nvrtc, bound to exactly this library file.

    Raises:
        ToolchainError: cuda-bindings is missing or the library cannot be loaded.
    """
    try:
        # NVRTC opens its built-ins by bare name, so they must be in the process first.
        for builtins in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins))
        ctypes.CDLL(str(library))
        from cuda.bindings import nvrtc
    except (ImportError, OSError) as error:
        raise ToolchainError(f"NVRTC cannot be loaded: {error}. Install: {INSTALL_LINE}") from error
    return nvrtc


def _check(result: tuple[Any, ...], nvrtc: Any, step: str) -> Any:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ToolchainError(f"NVRTC: {step} failed with {result[0].name}")
    return result[1] if len(result) == 2 else None


def _run(nvrtc: Any, source: str, file: str, real: Sequence[str]) -> tuple[bool, bytes, bytes, str]:
    """One NVRTC program from creation to destruction."""
    created = nvrtc.nvrtcCreateProgram(source.encode(), file.encode(), 0, None, None)
    program = _check(created, nvrtc, "creating a program")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(real), [option.encode() for option in real])
        log = _buffer(nvrtc, program, "ProgramLog").decode("utf-8", "replace").rstrip("\0 \n") + "\n"
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            return False, b"", b"", log
        _check((status,), nvrtc, f"compiling {file}")
        return True, _buffer(nvrtc, program, "PTX").rstrip(b"\0"), _buffer(nvrtc, program, "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _buffer(nvrtc: Any, program: Any, what: str) -> bytes:
    size = _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program), nvrtc, f"size of {what}")
    buffer: bytes = b" " * size
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer), nvrtc, f"reading {what}")
    return buffer


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")


def parse_usage(log: str) -> tuple[FunctionUsage, ...]:
    """The ptxas rows of a log: an entry has registers, a function called by it only a frame."""
    rows: list[FunctionUsage] = []
    entry = current = ""
    frames: dict[str, tuple[int, int, int]] = {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            current = match[1]
        elif match := _FRAME.search(line):
            frames[current] = (int(match[1]), int(match[2]), int(match[3]))
        elif match := _USED.search(line):
            smem = _SMEM.search(line)
            stack, stores, loads = frames.pop(entry, (0, 0, 0))
            rows.append(
                FunctionUsage(entry, True, int(match[1]), stack, stores, loads, int(smem[1]) if smem else 0)
            )
    rows += [FunctionUsage(name, False, 0, *frame, 0) for name, frame in frames.items()]
    return tuple(rows)


def parse_phases(log: str, cpu: float) -> PhaseSeconds:
    """The phase table that `-time=-` appends to the log, in CPU seconds.

    The table has wall times. One thread does all the work, so on a busy machine each phase takes its share of
    the CPU time.
    """
    table: dict[str, float] = {}
    for line in log.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[3] == "ms":
            table[parts[1]] = table.get(parts[1], 0.0) + float(parts[2]) / 1000
    wall = sum(table.values())
    share = min(1.0, cpu / wall) if wall else 1.0
    return PhaseSeconds(
        front_end=round(share * table.get("CUDA C++ Frontend", 0.0), 3),
        nvvm=round(share * table.get("NVVM Optimizer", 0.0), 3),
        ptxas=round(share * table.get("PTX Translation", 0.0), 3),
        cpu=round(cpu, 3),
    )


def without_times(log: str) -> str:
    """The log without its lines about time."""
    kept = [
        line
        for line in log.splitlines()
        if "Compile time =" not in line and "phase name, metric" not in line and not line.endswith(", ms")
    ]
    return "\n".join(kept).rstrip() + "\n"
