"""FlashMLA's dense decode. Its scheduler runs once a batch; split and combine kernels run in every step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mlagen.bench.cases import BenchCase
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V
from mlagen.bench.subjects import Step, Subject

PAGE = 64


class FlashMla:
    """flash_mla_with_kvcache with metadata made once a batch, in its newest or in its older form."""

    name = "flashmla"
    checks_lse = False

    def __init__(self) -> None:
        self._module: Any = import_module("flash_mla")
        self.version = str(getattr(self._module, "__version__", "unknown"))

    def supports(self, case: BenchCase) -> str:
        """See Subject."""
        return "" if case.page_size == PAGE else f"pages of {PAGE} tokens only"

    def prepare(self, data: StepData) -> Step:
        """See Subject."""
        case = data.case
        cache = data.kv_cache.view(data.kv_cache.shape[0], PAGE, 1, 576)
        metadata, splits = self._module.get_mla_metadata(data.lengths, case.s_q * case.h_q, 1)

        def step(index: int) -> tuple[Any, Any]:
            out, lse = self._module.flash_mla_with_kvcache(
                data.queries[index % len(data.queries)],
                cache,
                data.tables[index],
                data.lengths,
                D_V,
                metadata,
                splits,
                softmax_scale=SOFTMAX_SCALE,
                causal=case.s_q > 1,
            )
            return out, lse.transpose(1, 2)

        return step

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        return {"version": self.version}


def make(name: str) -> Subject:
    """The subject "flashmla".

    Raises:
        ImportError: FlashMLA is not installed.
    """
    return FlashMla()
