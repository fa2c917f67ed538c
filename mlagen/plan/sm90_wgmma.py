"""Family sm90_wgmma (Hopper): a scorer, two accumulator warpgroups that also load, three KV stages."""

from __future__ import annotations

from mlagen.errors import SpecError
from mlagen.hardware import limits
from mlagen.launch_shape import COUNTERS_PER_CTA
from mlagen.plan.budget import check_named_barriers, check_registers, lay_out_smem
from mlagen.plan.model import (
    Constant,
    Entry,
    Launch,
    Mbarrier,
    NamedBarrier,
    ParamField,
    Plan,
    SmemRegion,
    TensorMapDim,
    TensorMapSpec,
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
ELEMENT = {DType.BF16: "__nv_bfloat16", DType.FP16: "__half"}
ELEMENT_BYTES = 2

LATENT = 512  # latent columns: K and V
ROPE = 64  # rope columns: K only
BLOCK_M = 64  # rows of one tile
BLOCK_N = 64  # keys of one block
STAGES = 3  # a fourth would need 64 KB more than the SM has
MERGE_PATIENCE = 1 << 15  # polls of about 0.6 us: far above any wait between CTAs that run
WORK_CAPACITY = 32  # items of one work list: rows that one warp looks at at once
WORK_ITEM_BYTES, WORK_LIST_HEAD_BYTES, DUTY_BYTES, WALK_BYTES = 28, 8, 36, 24


def make_plan(spec: KernelSpec) -> Plan:
    """The plan of one spec of this family.

    Raises:
        SpecError: the family does not build this spec; the message names field, limits and what would work.
        BudgetError: the plan does not fit an SM.
    """
    check_supported(spec)
    hardware = limits(spec.arch)
    pair = spec.cta_group == 2
    roles = _roles()
    registers = check_registers(roles, hardware)
    mbarriers = _mbarriers(pair)
    named = _named_barriers()
    check_named_barriers(named, hardware)
    knobs = f"kv stages ({STAGES})"
    smem, smem_bytes = lay_out_smem(_regions(pair), mbarriers, hardware.smem_opt_in, knobs)
    params, params_bytes = lay_out_params(_params())
    threads = sum(role.threads for role in roles)
    readback = (
        ParamField(
            "out", "int*", "P", "rows of 6: row, tile, first key, last key, CTA, 1 direct or 2 partial"
        ),
        ParamField("count", "int*", "P", "rows appended so far"),
        ParamField("capacity", "int", "i", "rows that fit"),
    )
    return Plan(
        spec=spec,
        constants=(
            Constant("kHeads", spec.h_q, "query heads"),
            Constant("kPageSize", spec.page_size, "tokens of a page"),
            Constant("kMaxSplit", spec.max_split, "static bound of the pieces of a row"),
            Constant("kCtaGroup", spec.cta_group, "CTAs that share one KV block"),
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
        tensor_maps=_tensor_maps(spec.page_size),
        launch=Launch(threads, spec.cta_group, smem_bytes, cooperative=True, registers=registers),
        headers=("mlagen/kernels/sm90_wgmma.cuh",),
        entries=(
            Entry("", "sm90_wgmma", threads, min_blocks=1, cluster=spec.cta_group, tensor_maps=True),
            Entry("_schedule", "sm90_schedule", 32, extra=readback),
        ),
    )


def check_supported(spec: KernelSpec) -> None:
    """Refuses a spec outside SUPPORTED.

    Raises:
        SpecError: names the field, its limits, by how much it is off and the nearest value that would work.
    """
    for field, allowed in SUPPORTED.items():
        value = getattr(spec, field)
        if value in allowed:
            continue
        if not isinstance(value, int):
            choices = ", ".join(str(choice) for choice in allowed)
            raise SpecError(f"{spec.name}: {field}={value}; this family builds {choices}")
        numbers = [choice for choice in allowed if isinstance(choice, int)]
        nearest = min(numbers, key=lambda choice: abs(choice - value))
        dense = len(numbers) == numbers[-1] - numbers[0] + 1
        text = f"{numbers[0]}..{numbers[-1]}" if dense else ", ".join(map(str, numbers))
        raise SpecError(
            f"{spec.name}: {field}={value}; {text} can be built, so it is off by {abs(value - nearest)}. "
            f"Nearest that would work: {field}={nearest}"
        )
    if spec.kv_dtype != spec.q_dtype:
        raise SpecError(
            f"{spec.name}: q_dtype={spec.q_dtype} with kv_dtype={spec.kv_dtype}; the two must be equal. "
            f"Use kv_dtype={spec.q_dtype}"
        )
    if not 1 <= spec.tuning.piece_cost <= 64:
        raise SpecError(f"{spec.name}: tuning.piece_cost={spec.tuning.piece_cost}; 1..64 blocks can be built")


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
        NamedBarrier("list_scorer", 5, 160, "the same for the scorer and the warp that fills the list"),
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


def _params() -> tuple[ParamField, ...]:
    def stride(tensor: str, axis: str) -> ParamField:
        return ParamField(
            f"{tensor}_stride_{axis[0]}", "long long", "q", f"elements between {axis} of {tensor}"
        )

    strides = tuple(
        stride(tensor, axis)
        for tensor in ("q_nope", "q_pe", "out", "lse")
        for axis in ("batch rows", "s_q", "heads")
    )
    return (
        ParamField("block_table", "int const*", "P", "[b, width] page ids"),
        ParamField("cache_seqlens", "int const*", "P", "[b] keys of each row, the new ones included"),
        ParamField("num_splits", "int const*", "P", "[b] pieces asked for, or null"),
        ParamField("q_nope", "void const*", "P", "[b, s_q, h_q, 512]"),
        ParamField("q_pe", "void const*", "P", "[b, s_q, h_q, 64]"),
        ParamField("out", "void*", "P", "[b, s_q, h_q, 512]"),
        ParamField("lse", "float*", "P", "[b, s_q, h_q] natural log, or null"),
        ParamField("partial_out", "void*", "P", "[2 CTAs, 64, 512] normalised partial outputs"),
        ParamField("partial_lse", "float*", "P", "[2 CTAs, 2 halves, 64] their log-sum-exps, base 2"),
        ParamField(
            "counters", "unsigned*", "P", "[CTAs, words] arrivals and flags of merging; see schedule.cuh"
        ),
        ParamField("block_table_stride", "long long", "q", "elements between rows of block_table"),
        *strides,
        ParamField("batch", "int", "i", "b"),
        ParamField("s_q", "int", "i", "query tokens of a row"),
        ParamField("max_len", "int", "i", "width x page_size: lengths are clamped to it"),
        ParamField("uniform_splits", "int", "i", "pieces for every row, 0 for balanced"),
        ParamField("causal", "int", "i", "1: token t sees length - s_q + 1 + t keys"),
        ParamField("tiles", "int", "i", "64-row tiles of a batch row"),
        ParamField("units_per_team", "int", "i", "CTAs or pairs that walk the same keys together"),
        ParamField("groups", "int", "i", "groups of tiles, one a pass of a team"),
        ParamField("teams", "int", "i", "teams of the grid"),
        ParamField("scale_log2", "float", "f", "softmax_scale x log2(e)"),
    )


def _tensor_maps(page: int) -> tuple[TensorMapSpec, ...]:
    """Boxes of whole 8-key groups for pages of 8 and more, of one column tile below."""

    def dims(tiles: int, box_tiles: int) -> tuple[TensorMapDim, ...]:
        columns = TensorMapDim(64, "element", 1, 64, "columns of a tile")
        tile = TensorMapDim(tiles, "element", 64, box_tiles if page >= 8 else 1, "column tiles")
        pages = TensorMapDim(None, "page", 1, 1, "pages")
        if page < 8:
            return (columns, TensorMapDim(page, "row", 1, page, "tokens of a page"), tile, pages)
        rows = TensorMapDim(8, "row", 1, 8, "tokens of a group")
        groups = TensorMapDim(page // 8, "row", 8, min(page, BLOCK_N) // 8, "groups of a page")
        return (columns, rows, tile, groups, pages)

    return (
        TensorMapSpec(
            "tma_latent", "latent", dims(8, 4), 128, "256 latent columns of up to 64 keys of a page"
        ),
        TensorMapSpec("tma_rope", "rope", dims(1, 1), 128, "rope columns of up to 64 keys of a page"),
    )
