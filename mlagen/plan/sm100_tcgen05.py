"""Families sm100_tcgen05 and sm103_tcgen05 (Blackwell): tcgen05 products of one or two CTAs.

Rows form (`cta_group` 1): 64 rows by steps of 64 keys, `.ws`. Pair form (`cta_group` 2): 64 rows in each of
two CTAs by steps of 128 keys. Both have the same roles, ring and tensor-memory map.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlagen.errors import SpecError
from mlagen.hardware import limits
from mlagen.launch_shape import COUNTERS_PER_CTA
from mlagen.plan.budget import check_named_barriers, check_registers, lay_out_smem, lay_out_tmem
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

SLOT_KEYS, SLOT_COLUMNS = 64, 256  # what one slot of the ring holds
STAGES, SLOTS_PER_STAGE = 2, 2
QUERY_TILES = 9  # of 64 x 64: 8 latent, 1 rope
OUTPUT_COLUMNS = LATENT // 2  # of tensor memory: 64 rows are folded into 128 lanes


@dataclass(frozen=True, slots=True)
class Form:
    """Numbers in which the forms differ.

    Attributes:
        pair: two CTAs make one product.
        step_keys: keys of one softmax step.
        probs_buffers: buffers of P.
    """

    pair: bool
    step_keys: int
    probs_buffers: int

    @property
    def ctas(self) -> int:
        """CTAs that arrive at the leader's barriers."""
        return 2 if self.pair else 1

    @property
    def probs_bytes(self) -> int:
        """Bytes of all buffers of P in one CTA."""
        return self.probs_buffers * BLOCK_M * self.step_keys * ELEMENT_BYTES


ROWS = Form(pair=False, step_keys=64, probs_buffers=2)
PAIR = Form(pair=True, step_keys=128, probs_buffers=1)


def form_of(spec: KernelSpec) -> Form:
    """The form of a spec's products.

    Raises:
        SpecError: two CTAs for heads that fill one.
    """
    if spec.cta_group == 1:
        return ROWS
    if spec.h_q <= BLOCK_M:
        raise SpecError(
            f"{spec.name}: cta_group=2 with h_q={spec.h_q}; a pair of CTAs works on 128 rows, and "
            f"{BLOCK_M} heads or fewer fill one CTA, so {BLOCK_M + 1 - spec.h_q} heads are missing. "
            "Use cta_group=1"
        )
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
    knobs = f"kv stages ({STAGES}), probs buffers ({form.probs_buffers})"
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
        tensor_maps=tensor_maps(spec.page_size),
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
        Constant("kPageSize", spec.page_size, "tokens of a page"),
        Constant("kMaxSplit", spec.max_split, "static bound of the pieces of a row"),
        Constant("kCtaGroup", spec.cta_group, "CTAs that share one KV block"),
        Constant("kPairForm", int(form.pair), "1: products of two CTAs"),
        Constant("kPairSplits", 0, "1: two CTAs split the keys of an odd last tile"),
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
    return (
        TmemRegion("output", OUTPUT_COLUMNS, "O: row r in lanes r and r + 64, 256 latent columns each"),
        TmemRegion("scores", 2 * form.step_keys // 2, "S, two buffers: half of a step's keys in each half"),
    )


def _mbarriers(form: Form) -> tuple[Mbarrier, ...]:
    """In the pair form the leader's copy of most barriers counts both CTAs."""
    ctas = form.ctas
    slot = SLOT_KEYS * SLOT_COLUMNS * ELEMENT_BYTES
    rope = SLOT_KEYS * ROPE * ELEMENT_BYTES
    probs = form.probs_buffers
    rows = [
        Mbarrier("q_full", 1, 2 * ctas, 0, "query", "mma", "Q of an item has landed"),
        Mbarrier("q_empty", 1, 1, 0, "mma", "query", "all Q K^T of the item are done"),
        Mbarrier("kv_full", STAGES * SLOTS_PER_STAGE, ctas, slot * ctas, "load", "mma", "a slot has landed"),
        Mbarrier("kv_empty", STAGES * SLOTS_PER_STAGE, 1, 0, "mma", "load", "the slot has been read"),
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
        Mbarrier("stats_full", 1, 2, 0, "softmax", "epilogue", "log-sum-exps of an item are written"),
        Mbarrier("stats_empty", 1, 4, 0, "epilogue", "softmax", "they have been read"),
    ]
    if form.pair:
        rows.append(
            Mbarrier(
                "tail_full", 1, 1, 2 * slot, "load", "softmax", "values of a ragged end are here, at home"
            )
        )
    return tuple(rows)


def _named_barriers() -> tuple[NamedBarrier, ...]:
    return (
        NamedBarrier("row_maxima", 1, 128, "softmax: a vote, or maxima and sums of half rows are written"),
        NamedBarrier("half_read", 2, 128, "epilogue: partials are written; slices of a merge"),
        NamedBarrier("list_read", 3, 384, "all: the work list is used up, or filled"),
    )


def _regions(form: Form) -> tuple[SmemRegion, ...]:
    tile = BLOCK_M * ROPE * ELEMENT_BYTES
    slot = SLOT_KEYS * SLOT_COLUMNS * ELEMENT_BYTES
    work = WORK_CAPACITY * WORK_ITEM_BYTES + WORK_LIST_HEAD_BYTES
    held = "64 keys of 512 columns, or 128 of 256" if form.pair else "a block: keys and values at once"
    return (
        SmemRegion(
            "kv", "unsigned char", STAGES * SLOTS_PER_STAGE * slot, 1, 1024, f"{STAGES} stages: {held}"
        ),
        SmemRegion(
            "rope", "unsigned char", BLOCK_N * ROPE * ELEMENT_BYTES, 1, 1024, "rope columns of a step"
        ),
        SmemRegion("q", "unsigned char", QUERY_TILES * tile, 1, 1024, "Q of one item"),
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
    )
