"""Masks of the lanes of a warp: bool (32,), or the bits of an integer with lane 0 in the lowest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

ALL_LANES: Mask = np.ones(32, np.bool_)
TOGETHER: Mask = np.ones(32, np.bool_)
"""All lanes, which make an access together: nobody can say which lane touched which byte (ldmatrix)."""

ALL_BITS = (1 << 32) - 1


def lane_bits(lanes: Mask) -> int:
    """A mask as an integer."""
    if lanes is ALL_LANES:
        return ALL_BITS
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


def any_true(flags: npt.NDArray[np.bool_]) -> bool:
    """`flags.any()`, ten times faster for the lanes of a warp."""
    return 1 in flags.tobytes()


def all_true(flags: npt.NDArray[np.bool_]) -> bool:
    """`flags.all()`, ten times faster for the lanes of a warp."""
    return 0 not in flags.tobytes()


def any_nonzero(values: npt.NDArray[Any]) -> bool:
    """Whether some element has a bit set."""
    return values.tobytes() != bytes(values.nbytes)
