"""From a checked call and a launch shape to the values of the kernel's parameters, by name."""

from __future__ import annotations

import math

from mlagen.launch_shape import LaunchShape
from mlagen.layout import Layout
from mlagen.problem import Problem

# Fields of Params that change from call to call; all others follow from the layout and the launch shape.
CALL_FIELDS = (
    "block_table",
    "cache_seqlens",
    "num_splits",
    "q_nope",
    "q_pe",
    "out",
    "lse",
    "partial_out",
    "partial_lse",
    "counters",
    "uniform_splits",
    "causal",
    "scale_log2",
)


def layout_values(layout: Layout, shape: LaunchShape) -> dict[str, int]:
    """Values that follow from shapes and strides: extents, strides in elements, and the split of the grid."""
    return {
        **layout.strides,
        "batch": layout.batch,
        "s_q": layout.s_q,
        "max_len": layout.max_len,
        "tiles": shape.tiles,
        "units_per_team": shape.units_per_team,
        "groups": shape.groups,
        "teams": shape.teams,
    }


def call_values(
    problem: Problem, *, out: int, lse: int, workspace: int, partial_lse_offset: int, counters: int
) -> dict[str, int | float]:
    """Values of CALL_FIELDS.

    Args:
        problem: the checked call.
        out, lse, workspace, counters: device addresses; workspace and counters are 0 for a kernel that never
            splits.
        partial_lse_offset: bytes from the workspace to the partial log-sum-exps.
    """
    pointers, layout = problem.pointers, problem.layout
    return {
        "block_table": pointers["block_table"],
        "cache_seqlens": pointers["cache_seqlens"],
        "num_splits": pointers.get("num_splits", 0),
        "q_nope": pointers[layout.q_nope[0]] + layout.q_nope[1],
        "q_pe": pointers[layout.q_pe[0]] + layout.q_pe[1],
        "out": out,
        "lse": lse,
        "partial_out": workspace,
        "partial_lse": workspace + partial_lse_offset if workspace else 0,
        "counters": counters,
        "uniform_splits": problem.uniform_splits,
        "causal": int(problem.causal),
        "scale_log2": problem.softmax_scale * math.log2(math.e),
    }
