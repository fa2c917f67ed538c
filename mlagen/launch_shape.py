"""How the grid of a launch is divided: from rows, CTA group and resident units to teams. Pure integers.

Rows are s_q * h_q packed query heads; a tile has `tile_rows(spec)` of them. A unit is a CTA (1SM) or a
cluster of two CTAs on two tiles (2SM). A team is `units_per_team` neighbouring units that walk the same keys
at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mlagen.spec import Arch, KernelSpec

TILE_ROWS = 64
D_LATENT = 512
MAX_UNITS_PER_TEAM = 8
PARTIALS_PER_CTA = 2
PARTIAL_BYTES = TILE_ROWS * D_LATENT * 2
HALVES = 2  # the two accumulators keep their own copy of what they need to merge
PARTIAL_LSE_BYTES = HALVES * TILE_ROWS * 4
COUNTERS_PER_CTA = 3 * HALVES  # arrivals by half; flags by half and by which of two shared rows


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The division of one grid.

    Attributes:
        tiles: tiles of 64 packed rows in one batch row.
        units: units that one batch row needs.
        units_per_team: units of one team.
        groups: teams' worth of units in one batch row.
        teams: teams of the grid.
        ctas: blocks of the grid.
    """

    tiles: int
    units: int
    units_per_team: int
    groups: int
    teams: int
    ctas: int

    @property
    def partial_lse_offset(self) -> int:
        """Bytes from the start of the workspace to the partial log-sum-exps, behind all partial outputs."""
        return self.ctas * PARTIALS_PER_CTA * PARTIAL_BYTES


def tile_rows(spec: KernelSpec) -> int:
    """Rows of one tile: 64, or 16 or 32 where a Blackwell GPU takes few heads as columns of its products."""
    if spec.arch == Arch.SM_90A or spec.h_q > 32:
        return TILE_ROWS
    if spec.h_q <= 16:
        return 16
    return 32 if spec.cta_group == 1 else TILE_ROWS  # two CTAs need room for what they exchange


@lru_cache(maxsize=1024)
def launch_shape(spec: KernelSpec, s_q: int, resident_units: int) -> LaunchShape:
    """The grid for rows of `s_q` tokens on a GPU that holds `resident_units` units at a time.

    Args:
        spec: heads and CTA group.
        s_q: query tokens of a row.
        resident_units: multiprocessors (1SM) or clusters that run together (2SM).
    """
    tiles = -(-s_q * spec.h_q // tile_rows(spec))
    units = -(-tiles // spec.cta_group)
    candidates = range(1, min(MAX_UNITS_PER_TEAM, units, max(resident_units, 1)) + 1)
    # The fewest idle places in the last group; of equals, the larger team.
    units_per_team = min(candidates, key=lambda team: (-(-units // team) * team, -team))
    teams = max(resident_units // units_per_team, 1)
    return LaunchShape(
        tiles=tiles,
        units=units,
        units_per_team=units_per_team,
        groups=-(-units // units_per_team),
        teams=teams,
        ctas=teams * units_per_team * spec.cta_group,
    )


def workspace_bytes(spec: KernelSpec, shape: LaunchShape) -> int:
    """Bytes of scratch: two partial results for each CTA, none for a kernel that never splits a row."""
    if spec.max_split == 1:
        return 0
    return shape.ctas * PARTIALS_PER_CTA * (PARTIAL_BYTES + PARTIAL_LSE_BYTES)
