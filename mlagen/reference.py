"""What mla_decode must return, in torch: the fp64 answer, and the same computation at the kernel's precision.

Both take the arguments of mla_decode with a fused cache and run where the tensors are. They define the
semantics of the call in one place; speed does not matter here, only that rows are independent and nothing
outside is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

D_LATENT = 512


@dataclass(frozen=True, slots=True)
class Result:
    """Output and log-sum-exp.

    Attributes:
        out: [b, s_q, h_q, 512].
        lse: [b, s_q, h_q], natural logarithm.
        top: [b, s_q, h_q], the largest magnitude that the sum of a scaled logit has on its way: its absolute
            value, or the square root of the sum of its squared products; 0 where no key is visible.
    """

    out: Any
    lse: Any
    top: Any


def visible_keys(length: int, s_q: int, token: int, causal: bool) -> int:
    """Keys that a token sees: all of them, or with causal those up to its own position."""
    return max(0, length - s_q + 1 + token) if causal else length


def clamped_lengths(cache_seqlens: Any, width: int, page_size: int) -> list[int]:
    """Lengths on the host, clamped as the kernel clamps them."""
    return [min(max(int(length), 0), width * page_size) for length in cache_seqlens.tolist()]


def gather_keys(kv_cache: Any, block_table: Any, row: int, length: int) -> Any:
    """[length, 576] keys of one row; a page number outside the cache reads zeros."""
    import torch

    pages, page_size = kv_cache.shape[0], kv_cache.shape[1]
    needed = -(-length // page_size)
    ids = block_table[row, :needed].long()
    inside = (ids >= 0) & (ids < pages)
    keys = kv_cache[torch.where(inside, ids, torch.zeros_like(ids))]
    keys = torch.where(inside[:, None, None], keys, torch.zeros((), dtype=keys.dtype, device=keys.device))
    return keys.reshape(needed * page_size, kv_cache.shape[-1])[:length]


def reference(
    q: Any, kv_cache: Any, block_table: Any, cache_seqlens: Any, *, softmax_scale: float, causal: bool = True
) -> Result:
    """The fp64 answer.

    Args:
        q: [b, s_q, h_q, 576].
        kv_cache: [pages, page_size, 576].
        block_table, cache_seqlens, softmax_scale, causal: as mla_decode.
    """
    return _rows(q, kv_cache, block_table, cache_seqlens, softmax_scale, causal, same_precision=False)


def same_precision(
    q: Any, kv_cache: Any, block_table: Any, cache_seqlens: Any, *, softmax_scale: float, causal: bool = True
) -> Result:
    """The answer with 16-bit inputs, fp32 scores and sums, probabilities and output rounded to 16 bits."""
    return _rows(q, kv_cache, block_table, cache_seqlens, softmax_scale, causal, same_precision=True)


def _rows(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    scale: float,
    causal: bool,
    same_precision: bool,
) -> Result:
    import torch

    if kv_cache.dim() == 4:
        kv_cache = kv_cache[:, :, 0]
    work = torch.float32 if same_precision else torch.float64
    batch, s_q, h_q, _ = q.shape
    out = torch.zeros((batch, s_q, h_q, D_LATENT), dtype=work, device=q.device)
    lse = torch.full((batch, s_q, h_q), -torch.inf, dtype=work, device=q.device)
    top = torch.zeros((batch, s_q, h_q), dtype=work, device=q.device)
    lengths = clamped_lengths(cache_seqlens, block_table.shape[1], kv_cache.shape[1])
    for row, length in enumerate(lengths):
        if length == 0:
            continue
        keys = gather_keys(kv_cache, block_table, row, length).to(work)
        for token in range(s_q):
            seen = visible_keys(length, s_q, token, causal)
            if seen == 0:
                continue
            logits = (q[row, token].to(work) @ keys[:seen].T) * scale
            peak = logits.amax(-1, keepdim=True)
            weights = torch.exp(logits - peak)
            total = weights.sum(-1, keepdim=True)
            if same_precision:
                weights = weights.to(q.dtype).to(work)
            out[row, token] = (weights @ keys[:seen, :D_LATENT]) / total
            lse[row, token] = (peak + torch.log(total)).squeeze(-1)
            steps = (q[row, token].to(work).square() @ keys[:seen].T.square()).sqrt() * scale
            top[row, token] = torch.maximum(logits.abs(), steps).amax(-1)
    if same_precision:
        out = out.to(q.dtype).to(work)
    return Result(out, lse, top)
