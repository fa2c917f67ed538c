"""FlashAttention-3 with its extra query operand (qv): MLA decode over separate rope and latent parts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mlagen.bench.cases import BenchCase
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V
from mlagen.bench.subjects import Step, Subject


class FlashAttention3:
    """The operator flash_attn_3::fwd; the scheduler's metadata is made once a batch."""

    name = "fa3"
    checks_lse = False

    def __init__(self) -> None:
        import torch

        import_module("flash_attn_interface")
        self._ops: Any = torch.ops.flash_attn_3
        package = import_module("flash_attn_3")
        self.version = str(getattr(package, "__version__", "unknown"))

    def supports(self, case: BenchCase) -> str:
        """See Subject."""
        if case.dtype != "bf16":
            return "bf16 only"
        return "" if case.page_size >= 8 else "pages of 8 tokens and more only"

    def prepare(self, data: StepData) -> Step:
        """See Subject."""
        case, pages = data.case, data.kv_cache.shape[0]
        cache = data.kv_cache.view(pages, case.page_size, 1, 576)
        keys, values = cache[..., D_V:], cache[..., :D_V]
        rope = [query[..., D_V:].contiguous() for query in data.queries]
        latent = [query[..., :D_V].contiguous() for query in data.queries]
        width = data.tables[0].shape[1]
        metadata = self._ops.get_scheduler_metadata(
            batch_size=len(case.lengths),
            max_seqlen_q=case.s_q,
            max_seqlen_k=width * case.page_size,
            num_heads=case.h_q,
            num_heads_k=1,
            headdim=64,
            headdim_v=D_V,
            qkv_dtype=data.kv_cache.dtype,
            seqused_k=data.lengths,
            page_size=case.page_size,
            is_causal=True,
        )

        def step(index: int) -> tuple[Any, Any]:
            place = index % len(rope)
            out, lse, *_ = self._ops.fwd(
                q=rope[place],
                k=keys,
                v=values,
                q_v=latent[place],
                seqused_k=data.lengths,
                page_table=data.tables[index],
                softmax_scale=SOFTMAX_SCALE,
                is_causal=True,
                scheduler_metadata=metadata,
                num_splits=0,
            )
            return out, lse.transpose(1, 2)

        return step

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        return {"version": self.version}


def make(name: str) -> Subject:
    """The subject "fa3".

    Raises:
        ImportError: FlashAttention-3 is not installed.
    """
    return FlashAttention3()
