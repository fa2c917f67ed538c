"""An independent reference in numpy: one row, token and head after another, fp64, from the definition.

It exists to check mlagen.reference, which is vectorised; tests of kernels use the latter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def decode(
    q: Array,
    kv_cache: Array,
    block_table: npt.NDArray[np.int64],
    cache_seqlens: npt.NDArray[np.int64],
    *,
    softmax_scale: float,
    causal: bool = True,
) -> tuple[Array, Array]:
    """(out [b, s_q, h_q, 512], lse [b, s_q, h_q]) for q [b, s_q, h_q, 576] and a cache [pages, page_size,
    576].
    """
    batch, s_q, h_q, _ = q.shape
    pages, page_size, _ = kv_cache.shape
    out = np.zeros((batch, s_q, h_q, 512))
    lse = np.full((batch, s_q, h_q), -np.inf)
    for row in range(batch):
        length = min(max(int(cache_seqlens[row]), 0), block_table.shape[1] * page_size)
        for token in range(s_q):
            seen = max(0, length - s_q + 1 + token) if causal else length
            for head in range(h_q):
                top, total, mixed = -np.inf, 0.0, np.zeros(512)
                for key in range(seen):
                    page = int(block_table[row, key // page_size])
                    vector = kv_cache[page, key % page_size] if 0 <= page < pages else np.zeros(576)
                    logit = float(q[row, token, head] @ vector) * softmax_scale
                    higher = max(top, logit)
                    keep, weight = np.exp(top - higher), np.exp(logit - higher)
                    total = total * keep + weight
                    mixed = mixed * keep + weight * vector[:512]
                    top = higher
                if seen:
                    out[row, token, head] = mixed / total
                    lse[row, token, head] = top + np.log(total)
    return out, lse
