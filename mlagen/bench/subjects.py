"""What is measured: our kernels and baselines, each as a step on one page set."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import mlagen
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V, bytes_moved
from mlagen.spec import Arch, DType, KernelSpec

MOST_OUTPUTS = 8


class Subject(Protocol):
    """One implementation.

    Attributes:
        name: column of the report.
    """

    name: str

    def prepare(self, data: StepData) -> Callable[[int], tuple[Any, Any]]:
        """Everything that a server does once for a batch; returns step(i) -> (out, lse) for page set i."""
        ...

    def facts(self, data: StepData) -> dict[str, Any]:
        """More to report about the case, e.g. the kernel's name."""
        ...


class Buffers:
    """Outputs, rotated through so that writes do not stay in one place."""

    def __init__(self, data: StepData) -> None:
        import torch

        case, device = data.case, data.kv_cache.device
        shape = (len(case.lengths), case.s_q, case.h_q)
        count = min(data.sets, MOST_OUTPUTS)
        self.out = [
            torch.empty((*shape, D_V), dtype=data.kv_cache.dtype, device=device) for _ in range(count)
        ]
        self.lse = [torch.empty(shape, dtype=torch.float32, device=device) for _ in range(count)]

    def at(self, index: int) -> tuple[Any, Any]:
        """(out, lse) for page set `index`."""
        place = index % len(self.out)
        return self.out[place], self.lse[place]


class Ours:
    """mla_decode with a kernel of this library.

    Args:
        cta_group: 1 or 2.
        max_split: static bound on the pieces of a row.
    """

    def __init__(self, cta_group: int, max_split: int) -> None:
        self.cta_group, self.max_split = cta_group, max_split
        self.name = f"mlagen {cta_group}sm"

    def spec(self, data: StepData) -> KernelSpec:
        """The kernel for a case."""
        case = data.case
        dtype = DType(case.dtype)
        return KernelSpec(Arch.SM_90A, dtype, dtype, case.h_q, case.page_size, self.max_split, self.cta_group)

    def prepare(self, data: StepData) -> Callable[[int], tuple[Any, Any]]:
        """See Subject."""
        import torch

        spec, buffers = self.spec(data), Buffers(data)
        case, device = data.case, data.kv_cache.device
        size = mlagen.workspace_size(spec, len(case.lengths), case.s_q, device=device)
        workspace = torch.empty((size,), dtype=torch.uint8, device=device)

        def step(index: int) -> tuple[Any, Any]:
            out, lse = buffers.at(index)
            mlagen.mla_decode(
                data.queries[index % len(data.queries)],
                data.kv_cache,
                data.tables[index],
                data.lengths,
                softmax_scale=SOFTMAX_SCALE,
                out=out,
                lse=lse,
                workspace=workspace,
                spec=spec,
            )
            return out, lse

        return step

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        spec = self.spec(data)
        pieces = mlagen.schedule(
            data.queries[0],
            data.kv_cache,
            data.tables[0],
            data.lengths,
            softmax_scale=SOFTMAX_SCALE,
            spec=spec,
        )
        tiles = -(-data.case.s_q * data.case.h_q // 64)
        cache, partials = bytes_moved(pieces, self.cta_group, tiles)
        return {
            "kernel": spec.name,
            "pieces": len(pieces),
            "l2_read_bytes_computed": cache,
            "partial_bytes_computed": partials,
        }


class FlashInfer:
    """FlashInfer's paged MLA wrapper (its newest interface, or the older positional one)."""

    def __init__(self, backend: str) -> None:
        flashinfer = import_module("flashinfer")
        mla = import_module("flashinfer.mla")
        self.backend, self.name = backend, f"flashinfer {backend}"
        self.version = str(flashinfer.__version__)
        self._wrapper_type: Any = mla.BatchMLAPagedAttentionWrapper
        self._metadata: Any = getattr(mla, "MLAPlanMetadata", None)
        self._workspace: Any = None

    def _plan(self, data: StepData, pages: Any) -> Any:
        """A wrapper planned for one page set."""
        import torch

        case, device = data.case, data.kv_cache.device
        batch, page = len(case.lengths), case.page_size
        if self._workspace is None:
            self._workspace = torch.empty((256 << 20,), dtype=torch.uint8, device=device)
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

    def prepare(self, data: StepData) -> Callable[[int], tuple[Any, Any]]:
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


def baselines(wanted: tuple[str, ...]) -> tuple[list[Subject], list[str]]:
    """The baselines that are installed, and why the others are not there.

    Args:
        wanted: names such as "fa3", the backends of FlashInfer.
    """
    found: list[Subject] = []
    missing = []
    for backend in wanted:
        try:
            found.append(FlashInfer(backend))
        except ImportError as error:
            missing.append(f"flashinfer {backend}: not installed ({error}); pip install flashinfer-python")
    return found, missing
