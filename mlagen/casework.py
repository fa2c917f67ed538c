"""Random calls, poisoned wherever a kernel must not read: tails, unused pages, outputs, scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

NEVER_READ_ID = 2147480000
D_QK = 576


@dataclass(frozen=True, slots=True)
class Case:
    """How to draw one call.

    Attributes:
        lengths: keys of each row.
        h_q, s_q, page_size: shape.
        dtype: "bf16" or "fp16".
        causal: see mla_decode.
        logit_std: standard deviation of the scaled logits.
        softmax_scale: factor of q.k.
        splits: None, a host int, or one count for each row (becomes a device tensor).
        spare_pages: unused pages in the pool, filled with poison.
        spare_columns: table columns beyond the longest row's need.
        layout: "fused", "fused4" ([pages, page_size, 1, 576]), "pair", "padded" (rows and pages padded) or
            "strided" (all arguments are views of larger tensors).
        poison: what fills tails, unused pages and outputs.
        seed: of everything random.
    """

    lengths: tuple[int, ...]
    h_q: int = 16
    s_q: int = 1
    page_size: int = 64
    dtype: str = "bf16"
    causal: bool = True
    logit_std: float = 1.0
    softmax_scale: float = 192**-0.5
    splits: int | tuple[int, ...] | None = None
    spare_pages: int = 7
    spare_columns: int = 3
    layout: str = "fused"
    poison: float = float("nan")
    seed: int = 0

    def but(self, **changes: Any) -> Case:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Tensors of one call.

    Attributes:
        case: how it was drawn.
        q: [b, s_q, h_q, 576], a plain tensor for the reference.
        kv_cache: [pages, page_size, 576], a view that the reference reads.
        args: positional arguments of mla_decode.
        block_table, cache_seqlens: int32.
        num_splits: as mla_decode.
    """

    case: Case
    q: Any
    kv_cache: Any
    args: tuple[Any, ...]
    block_table: Any
    cache_seqlens: Any
    num_splits: Any

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of mla_decode."""
        return {
            "softmax_scale": self.case.softmax_scale,
            "causal": self.case.causal,
            "num_splits": self.num_splits,
        }

    @property
    def reference_arguments(self) -> tuple[Any, ...]:
        """Positional arguments of the reference."""
        return self.q, self.kv_cache, self.block_table, self.cache_seqlens


def torch_dtype(dtype: str) -> Any:
    """torch.bfloat16 or torch.float16."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def draw(case: Case, device: Any = "cuda") -> Call:
    """Makes the tensors of a case on a device (also "cpu", for the reference alone)."""
    import torch

    generator = torch.Generator(device=device).manual_seed(case.seed)
    dtype = torch_dtype(case.dtype)
    batch, page = len(case.lengths), case.page_size
    needs = [-(-max(length, 0) // page) for length in case.lengths]
    pages = sum(needs) + case.spare_pages
    width = max(needs, default=0) + case.spare_columns
    kv_args, kv = _draw_cache(case, max(pages, 1), device, dtype)
    order = torch.randperm(max(pages, 1), generator=generator, device=device)
    table = _wide(
        torch.full((batch, width + 5), NEVER_READ_ID, dtype=torch.int32, device=device), width, case.layout
    )
    used = 0
    for row, (length, need) in enumerate(zip(case.lengths, needs, strict=True)):
        ids = order[used : used + need]
        used += need
        if not need:
            continue
        table[row, :need] = ids.to(torch.int32)
        values = torch.randn((need * page, D_QK), generator=generator, device=device)
        values[length:] = case.poison
        kv[ids] = values.view(need, page, D_QK).to(dtype)
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    # q.k has standard deviation sqrt(576) for unit entries; scaling q sets that of the logits.
    factor = case.logit_std / (case.softmax_scale * D_QK**0.5)
    shape = (batch, case.s_q, case.h_q, D_QK)
    q = (torch.randn(shape, generator=generator, device=device) * factor).to(dtype)
    splits: Any = case.splits
    if isinstance(splits, tuple):
        splits = torch.tensor(splits, dtype=torch.int32, device=device)
    return Call(case, q, kv, (_q_argument(q, case), kv_args, table, lengths), table, lengths, splits)


def _wide(table: Any, width: int, layout: str) -> Any:
    """The table as a view with a row stride above its width, or contiguous."""
    view = table[:, :width]
    return view if layout in ("strided", "padded") else view.contiguous()


def _draw_cache(case: Case, pages: int, device: Any, dtype: Any) -> tuple[Any, Any]:
    """The cache argument, and a [pages, page_size, 576] tensor that shares or mirrors its memory."""
    import torch

    page = case.page_size
    if case.layout in ("padded", "strided"):
        whole = torch.full((pages, page + 1, D_QK + 64), case.poison, dtype=dtype, device=device)
        view = whole[:, :page, :D_QK]
        return view, view
    whole = torch.full((pages, page, D_QK), case.poison, dtype=dtype, device=device)
    if case.layout == "fused4":
        return whole[:, :, None, :], whole
    if case.layout == "pair":
        return (whole[..., :512], whole[..., 512:]), whole
    return whole, whole


def _q_argument(q: Any, case: Case) -> Any:
    if case.layout == "pair":
        return q[..., :512].contiguous(), q[..., 512:].contiguous()
    if case.layout == "strided":
        import torch

        batch, s_q, h_q, _ = q.shape
        whole = torch.full((batch, s_q + 1, h_q + 2, 640), case.poison, dtype=q.dtype, device=q.device)
        view = whole[:, :s_q, :h_q, :D_QK]
        view.copy_(q)
        return view
    return q


def split_counts(lengths: Sequence[int], max_split: int) -> tuple[int, ...]:
    """A different count for each row, 1..max_split, with the ends of the range included."""
    counts = [1, max_split, 2, max(1, max_split // 2), 3, max(1, max_split - 1)]
    return tuple(min(counts[row % len(counts)], max_split) for row in range(len(lengths)))
