"""Kernels as modules: `from mlagen.kernels import mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s128_1sm`.

Each name is a kernel that can be called like `mlagen.mla_decode`. Importing one plans it and refuses what
cannot be built; it is compiled, once a machine, when it is first called, or before that by `load()`.
"""

from __future__ import annotations

import sys
from typing import Any

from mlagen.kernels.choice import get as get
from mlagen.kernels.finder import PREFIX, KernelFinder, known_names
from mlagen.kernels.kernel import Kernel as Kernel

__all__ = ["Kernel", "get"]

if not any(isinstance(item, KernelFinder) for item in sys.meta_path):
    sys.meta_path.append(KernelFinder())


def __getattr__(name: str) -> Any:
    if not name.startswith(PREFIX):
        raise AttributeError(f"module 'mlagen.kernels' has no attribute {name!r}")
    from importlib import import_module

    try:
        return import_module(f"mlagen.kernels.{name}")
    except ImportError as error:
        raise AttributeError(str(error)) from error


def __dir__() -> list[str]:
    """The shipped kernels and all that lie in a cache folder or bundle."""
    return sorted({*__all__, *known_names()})
