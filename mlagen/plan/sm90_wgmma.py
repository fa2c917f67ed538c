"""Family sm90_wgmma (Hopper): a scorer, two accumulator warpgroups that also load, three KV stages."""

from __future__ import annotations

from mlagen.hardware import limits
from mlagen.launch_shape import COUNTERS_PER_CTA
from mlagen.plan.budget import check_named_barriers, check_registers, lay_out_smem
from mlagen.plan.common import (
    BLOCK_M,
    BLOCK_N,
    DUTY_BYTES,
    ELEMENT,
    ELEMENT_BYTES,
    LATENT,
    MERGE_PATIENCE,
    READBACK,
    ROPE,
    WALK_BYTES,
    WORK_CAPACITY,
    WORK_ITEM_BYTES,
    WORK_LIST_HEAD_BYTES,
    check_supported,
    parameters,
    tensor_maps,
)
from mlagen.plan.model import (
    Constant,
    Entry,
    Launch,
    Mbarrier,
    NamedBarrier,
    Plan,
    SmemRegion,
    TypeAlias,
    WarpRole,
)
from mlagen.plan.params import lay_out_params
from mlagen.spec import Arch, DType, KernelSpec

# What this family builds; errors and the README table are made from it.
SUPPORTED: dict[str, tuple[object, ...]] = {
    "arch": (Arch.SM_90A,),
    "q_dtype": (DType.BF16, DType.FP16),
    "h_q": tuple(range(1, 129)),
    "page_size": (1, 2, 4, 8, 16, 32, 64, 128),
    "max_split": tuple(range(1, 257)),
    "cta_group": (1, 2),
}

STAGES = 3  # a fourth would need 64 KB more than the SM has


def make_plan(spec: KernelSpec) -> Plan:
    """The plan of one spec of this family.

    Raises:
        SpecError: the family does not build this spec; the message names field, limits and what would work.
        BudgetError: the plan does not fit an SM.
    """
    check_supported(spec, SUPPORTED)
    hardware = limits(spec.arch)
    pair = spec.cta_group == 2
    roles = _roles()
    registers = check_registers(roles, hardware)
    mbarriers = _mbarriers(pair)
    named = _named_barriers()
    check_named_barriers(named, hardware)
    knobs = f"kv stages ({STAGES})"
    smem, smem_bytes = lay_out_smem(_regions(pair), mbarriers, hardware.smem_opt_in, knobs)
    params, params_bytes = lay_out_params(parameters())
    threads = sum(role.threads for role in roles)
    return Plan(
        spec=spec,
        constants=(
            Constant("kHeads", spec.h_q, "query heads"),
            Constant("kTileRows", BLOCK_M, "rows of a tile"),
            Constant("kPageSize", spec.page_size, "tokens of a page"),
            Constant("kMaxSplit", spec.max_split, "static bound of the pieces of a row"),
            Constant("kCtaGroup", spec.cta_group, "CTAs that share one KV block"),
            Constant("kPairSplits", int(pair), "1: two CTAs split the keys of an odd last tile"),
            Constant("kStages", STAGES, "depth of the KV ring"),
            Constant("kCounterWords", COUNTERS_PER_CTA, "words of a CTA in the counters' slot"),
            Constant(
                "kMergePatience", MERGE_PATIENCE, "polls before a piece leaves its slice to the last one"
            ),
            Constant("kPieceCost", spec.tuning.piece_cost, "cost of starting a piece of work, in blocks"),
        ),
        types=(TypeAlias("Element", ELEMENT[spec.q_dtype], "queries, cache, output and partials"),),
        roles=roles,
        mbarriers=mbarriers,
        named_barriers=named,
        smem=smem,
        smem_bytes=smem_bytes,
        smem_limit=hardware.smem_opt_in,
        params=params,
        params_bytes=params_bytes,
        tensor_maps=tensor_maps(spec.page_size),
        launch=Launch(threads, spec.cta_group, smem_bytes, cooperative=True, registers=registers),
        headers=("mlagen/kernels/sm90_wgmma.cuh",),
        entries=(
            Entry("", "sm90_wgmma", threads, min_blocks=1, cluster=spec.cta_group, tensor_maps=True),
            Entry("_schedule", "sm90_schedule", 32, extra=READBACK),
        ),
    )


def _roles() -> tuple[WarpRole, ...]:
    return (
        WarpRole("scorer", 0, 4, 184, "Scorer"),
        WarpRole("accumulator", 4, 8, 160, "Accumulator"),
    )


def _mbarriers(pair: bool) -> tuple[Mbarrier, ...]:
    half = BLOCK_N * LATENT // 2 * ELEMENT_BYTES
    rope = BLOCK_N * ROPE * ELEMENT_BYTES
    rows = [
        Mbarrier("kv_full", 2 * STAGES, 1, half, "accumulator", "scorer", "half a stage has landed"),
        Mbarrier("rope_full", 1, 1, rope, "accumulator", "scorer", "the rope tile has landed"),
        Mbarrier("rope_empty", 1, 4, 0, "scorer", "accumulator", "Q K^T has read the rope tile"),
        Mbarrier("probs_full", 2, 4, 0, "scorer", "accumulator", "P, its factors and statistics are written"),
        Mbarrier("probs_empty", 1, 2, 0, "accumulator", "scorer", "P V has read P"),
    ]
    if pair:
        exchange = half + BLOCK_M * 4
        rows += [
            Mbarrier(
                "pair_kv_empty", STAGES, 2, 0, "accumulator", "accumulator", "both copies of a half are free"
            ),
            Mbarrier("pair_rope_empty", 1, 2, 0, "accumulator", "accumulator", "both rope tiles are free"),
            Mbarrier(
                "exchange_empty", 1, 1, 0, "accumulator", "accumulator", "the peer's half stage is free"
            ),
            Mbarrier(
                "exchange_full",
                1,
                1,
                exchange,
                "accumulator",
                "accumulator",
                "the peer's half of O has landed",
            ),
        ]
    return tuple(rows)


def _named_barriers() -> tuple[NamedBarrier, ...]:
    return (
        NamedBarrier(
            "half_read", 1, 128, "first accumulator: its half of a stage, or of staging, is read or written"
        ),
        NamedBarrier("half_read_second", 2, 128, "the same of the second accumulator"),
        NamedBarrier("query_ready", 3, 128, "scorer: Q tiles in shared memory may be read, or overwritten"),
        NamedBarrier("list_accumulators", 4, 256, "accumulators: the work list is used up, or filled"),
        NamedBarrier("list_filled", 5, 160, "feeder to scorer: the work list is filled"),
        NamedBarrier("list_read", 6, 160, "scorer to feeder: the work list is used up"),
    )


def _regions(pair: bool) -> tuple[SmemRegion, ...]:
    stage = BLOCK_N * LATENT * ELEMENT_BYTES
    tile = BLOCK_N * ROPE * ELEMENT_BYTES
    work = WORK_CAPACITY * WORK_ITEM_BYTES + WORK_LIST_HEAD_BYTES
    rows = [
        SmemRegion(
            "kv", "unsigned char", STAGES * stage, 1, 1024, f"{STAGES} stages of latent columns; staging of O"
        ),
        SmemRegion(
            "rope", "unsigned char", tile, 1, 1024, "rope columns of one block, until Q K^T has read them"
        ),
        SmemRegion("q_tail", "unsigned char", 2 * tile, 1, 1024, "Q columns 448..575, one item"),
        SmemRegion("probs", "unsigned char", tile, 1, 1024, "P of one block"),
        SmemRegion("stats", "float2", 2 * BLOCK_M, 8, 16, "log-sum-exp and 1 / sum by item parity"),
        SmemRegion("rescale", "float", 2 * BLOCK_M, 4, 16, "factors for O by block parity"),
        SmemRegion("rescale_flag", "unsigned", 8, 4, 16, "does a warp's 16 rows need them"),
        SmemRegion("work", "mlagen::WorkList", 1, work, 4, "the team's next rows"),
        SmemRegion(
            "duty", "mlagen::MergeDuty", 2, DUTY_BYTES, 4, "rows shared with other teams, until merged"
        ),
        SmemRegion("walk", "mlagen::WalkState", 1, WALK_BYTES, 4, "where the walk over the rows rests"),
        SmemRegion("arrival", "unsigned", 4, 4, 16, "counter values at our arrival, by duty and half"),
    ]
    if pair:
        rows.append(
            SmemRegion("peer_lse", "float", BLOCK_M, 4, 16, "log-sum-exps of the peer's part, one item")
        )
    return tuple(rows)
