"""Every error that mlagen raises: what was asked, the limit, by how much, and what would work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.spec import KernelSpec


class MlagenError(Exception):
    """Base of all errors raised by mlagen."""


class SpecError(MlagenError, ValueError):
    """A kernel was asked for that no family can build, or a name that is not a kernel name."""


class BudgetError(SpecError):
    """A plan does not fit the hardware: shared memory, registers or barriers."""


class InputError(MlagenError, ValueError):
    """An argument of a call is wrong: type, shape, stride, device or range."""


class DeviceError(MlagenError, RuntimeError):
    """No GPU, no driver, or a GPU for which the kernel was not built."""


class ToolchainError(MlagenError, RuntimeError):
    """The compiler library or a header package is missing or does not fit the others."""


class CacheError(MlagenError, RuntimeError):
    """A kernel is not in any cache and compiling is not allowed, or no cache folder can be used."""


class CompileError(MlagenError, RuntimeError):
    """The compiler refused a rendered source.

    Attributes:
        spec: the kernel that was compiled, or None for a source without one.
        options: the ordered compiler options.
        log: the whole compiler log.
    """

    def __init__(self, message: str, *, spec: KernelSpec | None, options: Sequence[str], log: str) -> None:
        super().__init__(message)
        self.message = message
        self.spec = spec
        self.options = tuple(options)
        self.log = log

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps spec, options and log when a worker process sends the error to its parent."""
        return _make_compile_error, (self.message, self.spec, self.options, self.log)


def _make_compile_error(
    message: str, spec: KernelSpec | None, options: Sequence[str], log: str
) -> CompileError:
    return CompileError(message, spec=spec, options=options, log=log)
