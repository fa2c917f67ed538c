"""Families sm100_tcgen05 and sm103_tcgen05 (Blackwell): tcgen05 products of one or two CTAs.

Rows form (`cta_group` 1): 64 rows by steps of 64 keys, `.ws`. Pair form (`cta_group` 2): 64 rows in each of
two CTAs by steps of 128 keys. Columns form (`cta_group` 1, up to 32 heads): steps of 128 keys by 16 or 32
rows, transposed. With `cta_group` 2 and at most 64 heads, two CTAs of the rows or columns form split the keys
of a tile and join their parts on chip. All have the same roles and barriers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlagen.hardware import limits
from mlagen.launch_shape import COUNTERS_PER_CTA, tile_rows
from mlagen.plan.budget import check_named_barriers, check_registers, lay_out_smem, lay_out_tmem
from mlagen.plan.common import (
    BLOCK_M,
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
    TmemRegion,
    TypeAlias,
    WarpRole,
)
from mlagen.plan.params import lay_out_params
from mlagen.spec import Arch, DType, KernelSpec

# What this family builds; errors and the README table are made from it.
SUPPORTED: dict[str, tuple[object, ...]] = {
    "arch": (Arch.SM_100A, Arch.SM_103A),
    "q_dtype": (DType.BF16, DType.FP16),
    "h_q": tuple(range(1, 129)),
    "page_size": (1, 2, 4, 8, 16, 32, 64, 128),
    "max_split": tuple(range(1, 257)),
    "cta_group": (1, 2),
}

QUERY_TILES = 9  # of 64 columns: 8 latent, 1 rope
FOLD = 2  # 64 rows are folded into 128 lanes of tensor memory


@dataclass(frozen=True, slots=True)
class Form:
    """Numbers in which the forms differ.

    Attributes:
        rows: rows of a tile.
        step_keys: keys of one softmax step.
        probs_buffers: buffers of P.
        slots: of the ring.
        slot_keys, slot_columns: what one of them holds.
        rope_keys: keys of the rope tile.
        pair: two CTAs make one product.
        columns: rows are columns of the products.
        splits_keys: two CTAs, each with products of its own, split the keys of an odd last tile.
    """

    rows: int
    step_keys: int
    probs_buffers: int
    slots: int
    slot_keys: int
    slot_columns: int
    rope_keys: int
    pair: bool = False
    columns: bool = False
    splits_keys: bool = False

    @property
    def ctas(self) -> int:
        """CTAs that arrive at the leader's barriers."""
        return 2 if self.pair else 1

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of the ring."""
        return self.slot_keys * self.slot_columns * ELEMENT_BYTES

    @property
    def probs_bytes(self) -> int:
        """Bytes of all buffers of P in one CTA."""
        return self.probs_buffers * self.rows * self.step_keys * ELEMENT_BYTES

    @property
    def exchange_bytes(self) -> int:
        """Bytes of one chunk of O that a CTA gets from its peer: 32 or `rows` columns of 128 lanes."""
        return 128 * (self.rows if self.columns else 32) * ELEMENT_BYTES

    @property
    def score_columns(self) -> int:
        """Columns of tensor memory of one buffer of S."""
        return self.rows if self.columns else self.step_keys // FOLD

    @property
    def output_columns(self) -> int:
        """Columns of tensor memory of O."""
        return LATENT // 128 * self.rows if self.columns else LATENT // FOLD


ROWS = Form(64, step_keys=64, probs_buffers=2, slots=4, slot_keys=64, slot_columns=256, rope_keys=64)
PAIR = Form(
    64, step_keys=128, probs_buffers=1, slots=4, slot_keys=64, slot_columns=256, rope_keys=64, pair=True
)
COLUMNS_OF_16 = Form(
    16, step_keys=128, probs_buffers=1, slots=5, slot_keys=128, slot_columns=128, rope_keys=128, columns=True
)
COLUMNS_OF_32 = replace(COLUMNS_OF_16, rows=32)


def form_of(spec: KernelSpec) -> Form:
    """The form of a spec's products."""
    form = {form.rows: form for form in (ROWS, COLUMNS_OF_16, COLUMNS_OF_32)}[tile_rows(spec)]
    if spec.cta_group == 1:
        return form
    if spec.h_q <= BLOCK_M:
        return replace(form, splits_keys=True, probs_buffers=1)
    return PAIR


def make_plan(spec: KernelSpec) -> Plan:
    """The plan of one spec of this family.

    Raises:
        SpecError: the family does not build this spec; the message names field, limits and what would work.
        BudgetError: the plan does not fit an SM.
    """
    check_supported(spec, SUPPORTED)
    form = form_of(spec)
    hardware = limits(spec.arch)
    roles = _roles()
    registers = check_registers(roles, hardware)
    mbarriers = _mbarriers(form)
    named = _named_barriers()
    check_named_barriers(named, hardware)
    knobs = f"slots of the ring ({form.slots}), probs buffers ({form.probs_buffers})"
    smem, smem_bytes = lay_out_smem(_regions(form), mbarriers, hardware.smem_opt_in, knobs)
    tmem, tmem_columns = lay_out_tmem(_tmem(form), hardware.tmem_columns, knobs)
    params, params_bytes = lay_out_params(parameters())
    threads = sum(role.threads for role in roles)
    return Plan(
        spec=spec,
        constants=_constants(spec, form, tmem, tmem_columns),
        types=(TypeAlias("Element", ELEMENT[spec.q_dtype], "queries, cache, output and partials"),),
        roles=roles,
        mbarriers=mbarriers,
        named_barriers=named,
        smem=smem,
        smem_bytes=smem_bytes,
        smem_limit=hardware.smem_opt_in,
        params=params,
        params_bytes=params_bytes,
        tensor_maps=tensor_maps(spec.page_size, form.slot_columns // 64),
        launch=Launch(threads, spec.cta_group, smem_bytes, cooperative=True, registers=registers),
        headers=("mlagen/kernels/sm100_tcgen05.cuh",),
        entries=(
            Entry("", "sm100_tcgen05", threads, min_blocks=1, cluster=spec.cta_group, tensor_maps=True),
            Entry("_schedule", "sm90_schedule", 32, extra=READBACK),
        ),
        tmem=tmem,
    )


def _constants(
    spec: KernelSpec, form: Form, tmem: tuple[TmemRegion, ...], tmem_columns: int
) -> tuple[Constant, ...]:
    first = {region.name: region.first_column for region in tmem}
    return (
        Constant("kHeads", spec.h_q, "query heads"),
        Constant("kTileRows", form.rows, "rows of a tile"),
        Constant("kPageSize", spec.page_size, "tokens of a page"),
        Constant("kMaxSplit", spec.max_split, "static bound of the pieces of a row"),
        Constant("kCtaGroup", spec.cta_group, "CTAs that share one KV block"),
        Constant("kPairForm", int(form.pair), "1: products of two CTAs"),
        Constant("kColumnsForm", int(form.columns), "1: rows are columns of the products"),
        Constant("kPairSplits", int(form.splits_keys), "1: two CTAs split the keys of an odd last tile"),
        Constant("kStepKeys", form.step_keys, "keys of one softmax step"),
        Constant("kTmemColumns", tmem_columns, "columns of tensor memory that a CTA allocates"),
        Constant("kTmemScores", first["scores"], "first column of S"),
        Constant("kTmemOutput", first["output"], "first column of O"),
        Constant("kCounterWords", COUNTERS_PER_CTA, "words of a CTA in the counters' slot"),
        Constant("kMergePatience", MERGE_PATIENCE, "polls before a piece leaves its slice to the last one"),
        Constant("kPieceCost", spec.tuning.piece_cost, "cost of starting a piece of work, in blocks"),
    )


def _roles() -> tuple[WarpRole, ...]:
    return (
        WarpRole("softmax", 0, 4, 216, "Softmax"),
        WarpRole("epilogue", 4, 4, 184, "OutputRole"),
        WarpRole("mma", 8, 1, 104, "MultiplyRole"),
        WarpRole("load", 9, 1, 104, "Load"),
        WarpRole("query", 10, 2, 104, "Query"),
    )


def _tmem(form: Form) -> tuple[TmemRegion, ...]:
    if form.columns:
        output = "O: latent column l in lane l % 128, rows side by side, four times"
        scores = "S, two buffers: key k in lane k, rows side by side"
    else:
        output = "O: row r in lanes r and r + 64, 256 latent columns each"
        scores = "S, two buffers: half of a step's keys in each half of the lanes"
    return (
        TmemRegion("output", form.output_columns, output),
        TmemRegion("scores", 2 * form.score_columns, scores),
    )


def _mbarriers(form: Form) -> tuple[Mbarrier, ...]:
    """In the pair form the leader's copy of most barriers counts both CTAs."""
    ctas = form.ctas
    slot = form.slot_bytes
    rope = form.rope_keys * ROPE * ELEMENT_BYTES
    probs = form.probs_buffers
    rows = [
        Mbarrier("q_full", 1, 2 * ctas, 0, "query", "mma", "Q of an item has landed"),
        Mbarrier("q_empty", 1, 1, 0, "mma", "query", "all Q K^T of the item are done"),
        Mbarrier("kv_full", form.slots, ctas, slot * ctas, "load", "mma", "a slot has landed"),
        Mbarrier("kv_empty", form.slots, 1, 0, "mma", "load", "the slot has been read"),
        Mbarrier("rope_full", 1, ctas, rope * ctas, "load", "mma", "the rope tile has landed"),
        Mbarrier("rope_empty", 1, 1, 0, "mma", "load", "the rope tile has been read"),
        Mbarrier("s_full", 2, 1, 0, "mma", "softmax", "S of a step is complete"),
        Mbarrier("s_empty", 2, 4 * ctas, 0, "softmax", "mma", "S has been read"),
        Mbarrier(
            "probs_full", probs, 4 * ctas, 0, "softmax", "mma", "P is written, O corrected, tails cleared"
        ),
        Mbarrier("probs_empty", probs, 1, 0, "mma", "softmax", "P V of the step has been added to O"),
        Mbarrier("o_full", 1, 1, 0, "mma", "epilogue", "O of an item is complete"),
        Mbarrier("o_empty", 1, 4 * ctas, 0, "epilogue", "mma", "O has been read"),
        Mbarrier(
            "stats_full",
            1,
            1 if form.columns else 2,
            0,
            "softmax",
            "epilogue",
            "log-sum-exps of an item are written",
        ),
        Mbarrier("stats_empty", 1, 4, 0, "epilogue", "softmax", "they have been read"),
    ]
    if form.pair:
        rows.append(
            Mbarrier(
                "tail_full", 1, 1, 2 * slot, "load", "softmax", "values of a ragged end are here, at home"
            )
        )
    if form.splits_keys:
        joined = form.exchange_bytes + 4 * form.rows
        rows += [
            Mbarrier(
                "exchange_full", 1, 1, joined, "epilogue", "epilogue", "the peer's chunk of O has landed"
            ),
            Mbarrier("exchange_empty", 1, 1, 0, "epilogue", "epilogue", "the peer expects our chunk"),
        ]
    return tuple(rows)


def _named_barriers() -> tuple[NamedBarrier, ...]:
    return (
        NamedBarrier("row_maxima", 1, 128, "softmax: a vote, or maxima and sums of half rows are written"),
        NamedBarrier("list_read", 2, 384, "all: the work list is used up, or filled"),
        NamedBarrier("half_read", 3, 128, "epilogue: partials or chunks are read or written, or merged"),
        NamedBarrier("half_read_second", 4, 128, "the same for the second half of a row, by the second CTA"),
    )


def _regions(form: Form) -> tuple[SmemRegion, ...]:
    rope = form.rope_keys * ROPE * ELEMENT_BYTES
    query = QUERY_TILES * form.rows * 64 * ELEMENT_BYTES
    work = WORK_CAPACITY * WORK_ITEM_BYTES + WORK_LIST_HEAD_BYTES
    held = f"{form.slots} slots of {form.slot_keys} keys x {form.slot_columns} columns"
    regions = [
        SmemRegion("kv", "unsigned char", form.slots * form.slot_bytes, 1, 1024, held),
        SmemRegion("rope", "unsigned char", rope, 1, 1024, "rope columns of a step"),
        SmemRegion("q", "unsigned char", query, 1, 1024, "Q of one item"),
        SmemRegion("probs", "unsigned char", form.probs_bytes, 1, 1024, f"P, {form.probs_buffers} buffers"),
        SmemRegion("stats", "float2", BLOCK_M, 8, 16, "log-sum-exp and 1 / sum, one item"),
        SmemRegion("row_max", "float", 2 * BLOCK_M, 4, 16, "maxima of half rows, when references move"),
        SmemRegion("row_sum", "float", 2 * BLOCK_M, 4, 16, "sums of half rows, at the end of an item"),
        SmemRegion("work", "mlagen::WorkList", 1, work, 4, "the team's next rows"),
        SmemRegion(
            "duty", "mlagen::MergeDuty", 2, DUTY_BYTES, 4, "rows shared with other teams, until merged"
        ),
        SmemRegion("walk", "mlagen::WalkState", 1, WALK_BYTES, 4, "where the walk over the rows rests"),
        SmemRegion("arrival", "unsigned", 4, 4, 16, "counter values at our arrival, by duty"),
        SmemRegion("tmem", "unsigned", 1, 4, 16, "address of the allocated tensor memory"),
    ]
    if form.columns:
        regions.append(
            SmemRegion("turn", "unsigned char", 4096, 1, 16, "O of 32 columns x 16 rows a warp, to be turned")
        )
    if form.splits_keys:
        regions += [
            SmemRegion("exchange", "unsigned char", form.exchange_bytes, 1, 16, "a chunk of the peer's O"),
            SmemRegion("peer_lse", "float", form.rows, 4, 16, "log-sum-exps of the peer's part, one item"),
        ]
    return tuple(regions)
