"""The device's own list of work, read back: which CTA does which keys of which row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.errors import DeviceError
from mlagen.problem import Problem
from mlagen.runtime import Launcher
from mlagen.spec import KernelSpec

FIELDS = 6
FLAG_DIRECT = 1
FLAG_PARTIAL = 2


@dataclass(frozen=True, slots=True, order=True)
class WorkPiece:
    """One piece of work of one CTA.

    Attributes:
        row: batch row.
        tile: tile of 64 packed rows (token r // h_q, head r % h_q).
        first_key: first key of the piece.
        last_key: key behind the last one, at most the row's length; equal to first_key for a row without
            keys.
        cta: block of the grid.
        direct: whether the piece is the whole row tile and writes the output itself; otherwise it writes a
            partial.
    """

    row: int
    tile: int
    first_key: int
    last_key: int
    cta: int
    direct: bool


def capacity_for(problem: Problem, ctas: int) -> int:
    """Pieces to make room for: one a row tile, one more for each cut between two CTAs, twice that for
    pairs.
    """
    layout = problem.layout
    tiles = -(-layout.s_q * layout.h_q // 64)
    return 2 * (layout.batch * tiles + ctas)


def read_back(problem: Problem, spec: KernelSpec, launcher: Launcher) -> list[WorkPiece]:
    """Runs the read-back kernel and copies its list to the host. Waits for the GPU.

    Raises:
        DeviceError: the kernel cannot run, or the list does not fit twice over (a fault of the schedule).
    """
    import torch

    capacity = capacity_for(problem, 1024)
    for _ in range(2):
        rows = problem.like.new_full((capacity, FIELDS), -1, dtype=torch.int32)
        count = problem.like.new_zeros((1,), dtype=torch.int32)
        launcher.schedule(spec, problem, rows.data_ptr(), count.data_ptr(), capacity)
        found = int(count.item())
        if found <= capacity:
            return parse(rows[:found].cpu().tolist())
        capacity = found
    raise DeviceError(
        f"the schedule of {spec.name} reported {found} pieces after room was made for {capacity}"
    )


def parse(rows: list[Any]) -> list[WorkPiece]:
    """WorkPieces from rows of six ints, sorted."""
    return sorted(
        WorkPiece(row, tile, first, last, cta, bool(flags & FLAG_DIRECT))
        for row, tile, first, last, cta, flags in rows
    )
