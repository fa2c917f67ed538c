"""MLA decode attention kernels: planned, rendered, compiled and cached on the machine that uses them.

Importing this package does nothing: no CUDA, no compiler, no torch. Public names load on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` would take most of the time

if TYPE_CHECKING:
    from typing import Any

    from mlagen import build as build
    from mlagen import config as _config
    from mlagen import errors as errors
    from mlagen import kernels as kernels
    from mlagen.api import mla_decode as mla_decode
    from mlagen.api import schedule as schedule
    from mlagen.api import workspace_size as workspace_size
    from mlagen.build import on_compile as on_compile
    from mlagen.build import stats as stats
    from mlagen.plan import make_plan as make_plan
    from mlagen.spec import KernelSpec as KernelSpec
    from mlagen.spec import Tuning as Tuning

    compile = build.build
    enumerate = _config.enumerate_specs

__version__ = "0.1.0"

# Public name -> (module, attribute); an empty attribute is the module itself.
_PUBLIC = {
    "KernelSpec": ("mlagen.spec", "KernelSpec"),
    "Tuning": ("mlagen.spec", "Tuning"),
    "build": ("mlagen.build", ""),
    "compile": ("mlagen.build", "build"),
    "enumerate": ("mlagen.config", "enumerate_specs"),
    "errors": ("mlagen.errors", ""),
    "kernels": ("mlagen.kernels", ""),
    "make_plan": ("mlagen.plan", "make_plan"),
    "mla_decode": ("mlagen.api", "mla_decode"),
    "on_compile": ("mlagen.build", "on_compile"),
    "schedule": ("mlagen.api", "schedule"),
    "stats": ("mlagen.build", "stats"),
    "workspace_size": ("mlagen.api", "workspace_size"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mlagen' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    loaded = import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
