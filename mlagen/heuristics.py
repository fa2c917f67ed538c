"""Which kernel serves a call.

The choice depends only on what is static for a served model: heads, page size, dtype and GPU architecture,
never on batch or lengths, so a warmed-up server never meets a kernel that it has not loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mlagen.driver import Gpu
from mlagen.errors import DeviceError
from mlagen.hardware import limits
from mlagen.problem import Problem
from mlagen.spec import Arch, DType, KernelSpec

MAX_SPLIT_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of the table.

    Attributes:
        arch: GPU architecture.
        most_heads: the row serves head counts up to this one.
        max_split: bound on the pieces of one row.
        cta_group: 1 or 2.
        reason: why, with date.
    """

    arch: Arch
    most_heads: int
    max_split: int
    cta_group: int
    reason: str


# A larger static bound costs nothing when few pieces are used, and a single long row wants a piece on every
# multiprocessor: 132 / tiles of 64 heads, rounded to the nearest power of two.
TABLE = (
    Choice(
        Arch.SM_90A,
        64,
        128,
        1,
        "2026-11-30, H200: one tile of heads, 132 multiprocessors; 2SM not measured yet",
    ),
    Choice(
        Arch.SM_90A, 128, 64, 1, "2026-11-30, H200: two tiles of heads, 66 CTAs each; 2SM not measured yet"
    ),
)


@lru_cache(maxsize=64)
def arch_of(device: Gpu) -> Arch:
    """The architecture to build for.

    Raises:
        DeviceError: no family serves this GPU.
    """
    for arch in dict.fromkeys(choice.arch for choice in TABLE):
        if limits(arch).compute_capability == device.compute_capability:
            return arch
    served = ", ".join(
        f"{'.'.join(map(str, limits(arch).compute_capability))} ({arch})"
        for arch in dict.fromkeys(choice.arch for choice in TABLE)
    )
    raise DeviceError(
        f"device {device.ordinal} is a {device.name} with compute capability "
        f"{'.'.join(map(str, device.compute_capability))}; kernels exist for {served}"
    )


def choose(problem: Problem, device: Gpu) -> KernelSpec:
    """The kernel for a call on a GPU.

    A host split count above the table's bound raises the bound to the next power of two.

    Raises:
        DeviceError: no family serves this GPU.
    """
    layout = problem.layout
    return _choose(arch_of(device), layout.dtype, layout.h_q, layout.page_size, problem.uniform_splits)


@lru_cache(maxsize=1024)
def _choose(arch: Arch, dtype: DType, h_q: int, page_size: int, uniform_splits: int) -> KernelSpec:
    row = next(choice for choice in TABLE if choice.arch == arch and h_q <= choice.most_heads)
    max_split = row.max_split
    while max_split < min(uniform_splits, MAX_SPLIT_LIMIT):
        max_split *= 2
    return KernelSpec(
        arch=arch,
        q_dtype=dtype,
        kv_dtype=dtype,
        h_q=h_q,
        page_size=page_size,
        max_split=max_split,
        cta_group=row.cta_group,
    )
