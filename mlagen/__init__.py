"""MLA decode attention kernels: planned, rendered, compiled and cached on the machine that uses them.

Importing this package does nothing: no CUDA, no compiler, no torch. Public names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlagen import errors as errors
    from mlagen.build import build as build
    from mlagen.plan import make_plan as make_plan
    from mlagen.spec import KernelSpec as KernelSpec

__version__ = "0.1.0"

# Public name -> (module, attribute); an empty attribute is the module itself.
_PUBLIC = {
    "KernelSpec": ("mlagen.spec", "KernelSpec"),
    "Tuning": ("mlagen.spec", "Tuning"),
    "build": ("mlagen.build", ""),  # a callable module: the name is the same
    "errors": ("mlagen.errors", ""),
    "make_plan": ("mlagen.plan", "make_plan"),
    "mla_decode": ("mlagen.api", "mla_decode"),
    "schedule": ("mlagen.api", "schedule"),
    "workspace_size": ("mlagen.api", "workspace_size"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mlagen' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    loaded = import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
