"""Bytes, FLOP and the floor of a decode step. The only home of these formulas.

    bytes needed = sum(len) * 576 * e + b * s_q * h_q * (576 + 512) * e + 4 * b * s_q * h_q
    FLOP         = 2 * h_q * (576 + 512) * sum over rows and tokens of the keys that the token sees
    floor        = max(bytes needed / 4.6 TB/s, FLOP / 790 TFLOP/s)

with e bytes an element: the cache is read once for all heads, q is read, out and LSE are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlagen.reference import visible_keys
from mlagen.worklist import WorkPiece

D_QK = 576
D_V = 512
TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """What one GPU reaches at best, measured.

    Attributes:
        name: part of the driver's device name.
        bytes_per_second: reading HBM.
        flop_per_second: 16-bit matrix products, in a burst.
        source: when and how it was measured.
    """

    name: str
    bytes_per_second: float
    flop_per_second: float
    source: str


H200 = Machine(
    "H200",
    4.6e12,
    790e12,
    "2026-11-30: read-only kernel 4.5-4.66 TB/s; bf16 matmul 8192^3 791 TFLOP/s in a burst",
)
MACHINES = (H200,)


@dataclass(frozen=True, slots=True)
class Work:
    """What one decode step has to do.

    Attributes:
        nbytes: bytes that must move between memory and the GPU at least.
        flop: floating-point operations that the visible keys need.
    """

    nbytes: int
    flop: int

    def floor_seconds(self, machine: Machine) -> float:
        """The least time on a machine."""
        return max(self.nbytes / machine.bytes_per_second, self.flop / machine.flop_per_second)


def work(lengths: Sequence[int], h_q: int, s_q: int, *, causal: bool = True, itemsize: int = 2) -> Work:
    """Bytes and FLOP of one step.

    Args:
        lengths: keys of each row.
        h_q, s_q: query heads and tokens of a row.
        causal: see mla_decode.
        itemsize: bytes of an element of q, cache and output.
    """
    rows = len(lengths) * s_q * h_q
    cache = sum(lengths) * D_QK * itemsize
    seen = sum(visible_keys(length, s_q, token, causal) for length in lengths for token in range(s_q))
    return Work(
        nbytes=cache + rows * (D_QK + D_V) * itemsize + rows * 4,
        flop=2 * h_q * (D_QK + D_V) * seen,
    )


def bytes_moved(
    pieces: Sequence[WorkPiece], cta_group: int, tiles: int, *, itemsize: int = 2
) -> tuple[int, int]:
    """Traffic that follows from a schedule: computed, not measured.

    Args:
        pieces: the device's list of work.
        cta_group: 2 if the CTAs of a pair share each key.
        tiles: row tiles of one batch row.
        itemsize: bytes of an element.

    Returns:
        Bytes of cache read through L2 by all CTAs, and bytes of partial results written and read again.
    """
    keys = 0.0
    partials = 0
    for piece in pieces:
        alone = cta_group == 2 and tiles % 2 == 1 and piece.tile == tiles - 1
        keys += (piece.last_key - piece.first_key) / (1 if alone else cta_group)
        partials += 0 if piece.direct else 1
    return int(keys * D_QK * itemsize), 2 * partials * TILE_ROWS * (D_V * itemsize + 4)


def machine_named(device: str) -> Machine | None:
    """The measured limits of a GPU; None for one that has not been measured."""
    return next((machine for machine in MACHINES if machine.name in device), None)
