"""What the plans of all families share: the call's parameters, tensor maps, and the check of a spec."""

from __future__ import annotations

from collections.abc import Mapping

from mlagen.errors import SpecError
from mlagen.plan.model import ParamField, TensorMapDim, TensorMapSpec
from mlagen.spec import DType, KernelSpec

ELEMENT = {DType.BF16: "__nv_bfloat16", DType.FP16: "__half"}
ELEMENT_BYTES = 2

LATENT = 512  # latent columns: K and V
ROPE = 64  # rope columns: K only
BLOCK_M = 64  # rows of one tile
BLOCK_N = 64  # keys of one block
MERGE_PATIENCE = 1 << 15  # polls of about 0.6 us: far above any wait between CTAs that run
WORK_CAPACITY = 32  # items of one work list: rows that one warp looks at at once
WORK_ITEM_BYTES, WORK_LIST_HEAD_BYTES, DUTY_BYTES, WALK_BYTES = 28, 8, 36, 28

READBACK = (
    ParamField("out", "int*", "P", "rows of 6: row, tile, first key, last key, CTA, 1 direct or 2 partial"),
    ParamField("count", "int*", "P", "rows appended so far"),
    ParamField("capacity", "int", "i", "rows that fit"),
)


def check_supported(spec: KernelSpec, supported: Mapping[str, tuple[object, ...]]) -> None:
    """Refuses a spec outside what its family builds.

    Raises:
        SpecError: names the field, its limits, by how much it is off and the nearest value that would work.
    """
    for field, allowed in supported.items():
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


def parameters() -> tuple[ParamField, ...]:
    """Members of Params, in their order."""

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


def tensor_maps(page: int, latent_tiles: int = 4) -> tuple[TensorMapSpec, ...]:
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
            "tma_latent",
            "latent",
            dims(8, latent_tiles),
            128,
            f"{latent_tiles * 64} latent columns of up to 64 keys of a page",
        ),
        TensorMapSpec("tma_rope", "rope", dims(1, 1), 128, "rope columns of up to 64 keys of a page"),
    )
