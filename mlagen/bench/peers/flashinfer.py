"""FlashInfer's paged MLA wrapper: its newest interface, or the older positional one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mlagen.bench.cases import BenchCase
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V
from mlagen.bench.subjects import Buffers, Step, Subject

WORKSPACE_BYTES = 256 << 20


class FlashInfer:
    """One backend of the wrapper, "fa2" or "fa3". It plans once a batch on the host."""

    checks_lse = False

    def __init__(self, backend: str) -> None:
        flashinfer = import_module("flashinfer")
        mla = import_module("flashinfer.mla")
        self.backend, self.name = backend, f"flashinfer {backend}"
        self.version = str(flashinfer.__version__)
        self._wrapper_type: Any = mla.BatchMLAPagedAttentionWrapper
        self._metadata: Any = getattr(mla, "MLAPlanMetadata", None)
        self._workspace: Any = None

    def supports(self, case: BenchCase) -> str:
        """See Subject."""
        return ""

    def _plan(self, data: StepData, pages: Any) -> Any:
        """A wrapper planned for one page set."""
        import torch

        case, device = data.case, data.kv_cache.device
        batch, page = len(case.lengths), case.page_size
        if self._workspace is None:
            self._workspace = torch.empty((WORKSPACE_BYTES,), dtype=torch.uint8, device=device)
        tokens = torch.arange(0, (batch + 1) * case.s_q, case.s_q, dtype=torch.int32, device=device)
        counts = [0]
        for length in case.lengths:
            counts.append(counts[-1] + -(-length // page))
        starts = torch.tensor(counts, dtype=torch.int32, device=device)
        wrapper = self._wrapper_type(self._workspace, backend=self.backend)
        shape: dict[str, Any] = {
            "num_heads": case.h_q,
            "head_dim_ckv": D_V,
            "head_dim_kpe": 64,
            "page_size": page,
            "causal": case.s_q > 1,
            "sm_scale": SOFTMAX_SCALE,
            "q_data_type": data.kv_cache.dtype,
            "kv_data_type": data.kv_cache.dtype,
        }
        if self._metadata is not None:
            metadata = self._metadata.csr(tokens, starts, pages, data.lengths)
            wrapper.plan(metadata=metadata, lse_mode="basee", **shape)
        else:
            wrapper.plan(tokens, starts, pages, data.lengths, **shape)
        return wrapper

    def prepare(self, data: StepData) -> Step:
        """See Subject. The plan is made once; a step on another page set swaps the page list of the plan."""
        buffers, rows = Buffers(data), len(data.case.lengths) * data.case.s_q
        heads = data.case.h_q
        wrapper = self._plan(data, data.page_lists[0])
        holder = getattr(wrapper, "_planned_backend", None) or wrapper
        if not hasattr(holder, "_kv_indices_buf"):
            raise RuntimeError(
                f"FlashInfer {self.version} keeps its page list elsewhere; the adapter must be updated"
            )
        if hasattr(holder, "_planned_kv_page_range"):
            holder._planned_kv_page_range = (0, data.kv_cache.shape[0])
        newest = self._metadata is not None

        def step(index: int) -> tuple[Any, Any]:
            out, lse = buffers.at(index)
            query = data.queries[index % len(data.queries)].view(rows, heads, 576)
            holder._kv_indices_buf = data.page_lists[index]
            flat = {"out": out.view(rows, heads, D_V), "lse": lse.view(rows, heads), "return_lse": True}
            if newest:
                wrapper.run(query=query, kv_cache=data.kv_cache, return_lse_base_on_e=True, **flat)
            else:
                latent, rope = data.kv_cache[..., :D_V], data.kv_cache[..., D_V:]
                wrapper.run(query[..., :D_V], query[..., D_V:], latent, rope, **flat)
            return out, lse

        return step

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        return {"version": self.version}


def make(name: str) -> Subject:
    """The subject "flashinfer-fa2" or "flashinfer-fa3".

    Raises:
        ImportError: FlashInfer is not installed.
    """
    return FlashInfer(name.removeprefix("flashinfer-"))
