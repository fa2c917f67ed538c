"""The Triton MLA decode kernels of vLLM."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mlagen.bench.cases import BenchCase
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V
from mlagen.bench.subjects import Buffers, Step, Subject

KEYS_A_SPLIT = 512


class TritonVllm:
    """decode_attention_fwd; rows of several tokens become one row a token."""

    name = "triton"
    checks_lse = False

    def __init__(self) -> None:
        self._module: Any = import_module("vllm.v1.attention.ops.triton_decode_attention")
        self.version = str(getattr(import_module("vllm"), "__version__", "unknown"))

    def supports(self, case: BenchCase) -> str:
        """See Subject."""
        return "" if case.page_size % 16 == 0 else "pages of multiples of 16 tokens only"

    def prepare(self, data: StepData) -> Step:
        """See Subject."""
        import torch

        case, device, buffers = data.case, data.kv_cache.device, Buffers(data)
        rows, sms = len(case.lengths) * case.s_q, torch.cuda.get_device_properties(0).multi_processor_count
        splits = max(1, max(case.lengths) // KEYS_A_SPLIT)
        splits = min(1 << (splits - 1).bit_length(), 2 * sms)
        tables = [table.repeat_interleave(case.s_q, dim=0) for table in data.tables]
        offsets = torch.arange(1 - case.s_q, 1, device=device, dtype=torch.int32)
        lengths = (data.lengths[:, None] + offsets).flatten()
        partial = torch.empty((rows, case.h_q, splits, D_V + 1), dtype=torch.float32, device=device)
        cache = data.kv_cache.view(data.kv_cache.shape[0], case.page_size, 1, 576)
        one = torch.ones((), dtype=torch.float32, device=device)

        def step(index: int) -> tuple[Any, Any]:
            out, lse = buffers.at(index)
            self._module.decode_attention_fwd(
                data.queries[index % len(data.queries)].view(rows, case.h_q, 576),
                cache,
                cache[..., :D_V],
                out.view(rows, case.h_q, D_V),
                lse.view(rows, case.h_q),
                tables[index],
                lengths,
                partial,
                splits,
                SOFTMAX_SCALE,
                case.page_size,
                k_scale=one,
                v_scale=one,
                is_mla=True,
            )
            return out, lse

        return step

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        return {"version": self.version}


def make(name: str) -> Subject:
    """The subject "triton".

    Raises:
        ImportError: vLLM is not installed.
    """
    return TritonVllm()
