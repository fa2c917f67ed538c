"""Compiler options, ordered, as the cache key sees them."""

from __future__ import annotations

from mlagen import settings
from mlagen.spec import Arch

# What every kernel is compiled with, besides architecture and include folders. ptxas options stay separate:
# ptxas refuses them joined by commas.
_FIXED = (
    "-std=c++17",
    "-default-device",
    "-time=-",
    "--ptxas-options=-v",
    # The scorer fills its registers to the last: above level 3 ptxas schedules for more than there are
    # (CUDA 13.0).
    "--ptxas-options=--register-usage-level=3",
    "--ptxas-options=--warn-on-spills",
    "--ptxas-options=--warn-on-local-memory-usage",
)
INCLUDE_ORDER = ("mlagen", "cutlass", "cudart", "cccl", "cccl_parent")


def options(arch: Arch, *, lineinfo: bool | None = None) -> tuple[str, ...]:
    """The ordered options with symbolic include folders (`-I<cutlass>`), as the cache key sees them.

    Args:
        arch: architecture with its suffix.
        lineinfo: in place of the setting MLAGEN_LINEINFO.
    """
    wanted = settings.read().lineinfo if lineinfo is None else lineinfo
    return (
        f"--gpu-architecture={arch}",
        *_FIXED,
        *(("-lineinfo",) if wanted else ()),
        *(f"-I<{name}>" for name in INCLUDE_ORDER),
    )
