"""What is measured: a protocol, our kernels and their choice by name. Peers are in mlagen.bench.peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

import mlagen
from mlagen import heuristics
from mlagen.bench.cases import BenchCase
from mlagen.bench.data import SOFTMAX_SCALE, StepData
from mlagen.bench.roofline import D_V, bytes_moved
from mlagen.driver import Gpu
from mlagen.spec import DType, KernelSpec, Tuning

MOST_OUTPUTS = 8
OURS = "mlagen"
Step = Callable[[int], tuple[Any, Any]]


class Subject(Protocol):
    """One implementation.

    Attributes:
        name: column of the report.
        checks_lse: whether the LSE that it returns must pass the bounds of ours.
    """

    name: str
    checks_lse: bool

    def supports(self, case: BenchCase) -> str:
        """Why the case cannot be measured, "" if it can."""
        ...

    def prepare(self, data: StepData) -> Step:
        """Everything that a server does once for a batch; returns step(i) -> (out, lse) for page set i, with
        out [b, s_q, h_q, 512] and lse [b, s_q, h_q] or None.
        """
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
        gpu: the GPU, for the choice of the kernel.
        cta_group: 1 or 2; None for the kernel that a call without `spec` gets.
        max_split: static bound on the pieces of a row; None for that of the choice.
        tuning: in place of the choice's.
    """

    checks_lse = True

    def __init__(
        self,
        gpu: Gpu,
        cta_group: int | None = None,
        max_split: int | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.gpu, self.cta_group, self.max_split, self.tuning = gpu, cta_group, max_split, tuning
        parts = [OURS]
        parts += [] if cta_group is None else [f"{cta_group}sm"]
        parts += [] if max_split is None else [f"s{max_split}"]
        parts += [] if tuning is None or tuning == Tuning() else [f"t{tuning.digest}"]
        self.name = " ".join(parts)

    def spec(self, case: BenchCase) -> KernelSpec:
        """The kernel for a case."""
        dtype, arch = DType(case.dtype), heuristics.arch_of(self.gpu)
        chosen = heuristics.pick(
            arch, self.gpu.name, dtype, case.h_q, case.page_size, case.s_q, case.splits
        ).spec
        return KernelSpec(
            arch,
            dtype,
            dtype,
            case.h_q,
            case.page_size,
            case.max_split or max(self.max_split or chosen.max_split, case.splits),
            self.cta_group or chosen.cta_group,
            self.tuning or chosen.tuning,
        )

    def supports(self, case: BenchCase) -> str:
        """See Subject."""
        return ""

    def prepare(self, data: StepData) -> Step:
        """See Subject."""
        buffers, fixed = Buffers(data), self._fixed(data)

        def step(index: int) -> tuple[Any, Any]:
            out, lse = buffers.at(index)
            mlagen.mla_decode(
                data.queries[index % len(data.queries)],
                data.kv_cache,
                data.tables[index],
                data.lengths,
                out=out,
                lse=lse,
                **fixed,
            )
            return out, lse

        return step

    def eager(self, data: StepData) -> Callable[[], Any]:
        """One call on page set 0 with nothing of the benchmark around it, for the host's time."""
        out, lse = Buffers(data).at(0)
        call = partial(mlagen.mla_decode, data.queries[0], data.kv_cache, data.tables[0], data.lengths)
        return partial(call, out=out, lse=lse, **self._fixed(data))

    def _fixed(self, data: StepData) -> dict[str, Any]:
        """Arguments that all calls of a case share."""
        import torch

        case, spec, device = data.case, self.spec(data.case), data.kv_cache.device
        size = mlagen.workspace_size(spec, len(case.lengths), case.s_q, device=device)
        return {
            "softmax_scale": SOFTMAX_SCALE,
            "num_splits": case.splits or None,
            "workspace": torch.empty((size,), dtype=torch.uint8, device=device),
            "spec": spec,
        }

    def facts(self, data: StepData) -> dict[str, Any]:
        """See Subject."""
        case = data.case
        spec = self.spec(case)
        pieces = mlagen.schedule(
            data.queries[0],
            data.kv_cache,
            data.tables[0],
            data.lengths,
            softmax_scale=SOFTMAX_SCALE,
            num_splits=case.splits or None,
            spec=spec,
        )
        tiles = -(-case.s_q * case.h_q // 64)
        cached, partials = bytes_moved(pieces, spec.cta_group, tiles)
        return {
            "kernel": spec.name,
            "cta_group": spec.cta_group,
            "tuning": asdict(spec.tuning),
            "pieces": len(pieces),
            "pieces_that_meet": sum(not piece.direct for piece in pieces),
            "l2_read_bytes_computed": cached,
            "partial_bytes_computed": partials,
        }


def ours(wanted: Sequence[str], max_split: int | None, gpu: Gpu) -> list[Ours]:
    """Our subjects: "auto" is the kernel that a call without `spec` gets, "1" and "2" are 1SM and 2SM."""
    return [Ours(gpu, None if kind == "auto" else int(kind), max_split) for kind in wanted]
