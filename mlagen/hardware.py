"""Limits of each architecture: the only place where such numbers stand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlagen.spec import Arch


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one SM of an architecture offers to one block.

    Attributes:
        smem_opt_in: bytes of shared memory that one block can ask for.
        registers: 32-bit registers of one SM.
        register_unit: registers per thread are given out in multiples of this.
        max_registers_per_thread: largest count that the compiler may use.
        max_threads: threads of one block.
        named_barriers: hardware barriers of one block; number 0 is __syncthreads.
        max_cluster: CTAs of one portable cluster.
        tmem_columns: 32-bit columns of tensor memory, 0 where there is none.
        compute_capability: (major, minor) that the driver reports.
    """

    smem_opt_in: int
    registers: int
    register_unit: int
    max_registers_per_thread: int
    max_threads: int
    named_barriers: int
    max_cluster: int
    tmem_columns: int
    compute_capability: tuple[int, int]


_SM90 = Hardware(
    smem_opt_in=232448,
    registers=65536,
    register_unit=8,
    max_registers_per_thread=255,
    max_threads=1024,
    named_barriers=16,
    max_cluster=8,
    tmem_columns=0,
    compute_capability=(9, 0),
)
_SM100 = replace(_SM90, tmem_columns=512, compute_capability=(10, 0))
_SM103 = replace(_SM100, compute_capability=(10, 3))

_LIMITS = {Arch.SM_90A: _SM90, Arch.SM_100A: _SM100, Arch.SM_103A: _SM103}


def limits(arch: Arch) -> Hardware:
    """The limits of one architecture."""
    return _LIMITS[arch]
