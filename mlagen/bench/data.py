"""Tensors of a measured step: a pool of pages in disjoint sets, so that no set is in L2 when used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.bench.cases import BenchCase
from mlagen.bench.roofline import D_QK, work
from mlagen.casework import torch_dtype
from mlagen.errors import InputError

SOFTMAX_SCALE = 192**-0.5
POOL_TOKENS = 49152 * 64  # 3.6 GB of 16-bit rows
DISTINCT_BYTES = 256 << 20  # five times the L2 of an H200
MOST_SETS = 256
MOST_QUERIES = 64


@dataclass(frozen=True, slots=True, eq=False)
class StepData:
    """Inputs of one case.

    Attributes:
        case: what it is.
        kv_cache: [pages, page_size, 576], shared by all sets.
        tables: block tables of the sets, int32 [b, width].
        page_lists: the same pages, row after row without padding, int32.
        queries: [b, s_q, h_q, 576], rotated through.
        lengths: int32 [b].
    """

    case: BenchCase
    kv_cache: Any
    tables: list[Any]
    page_lists: list[Any]
    queries: list[Any]
    lengths: Any

    @property
    def sets(self) -> int:
        """Number of disjoint page sets."""
        return len(self.tables)


class Pool:
    """Random rows, made once for each dtype; the last dtype is kept."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._dtype = ""
        self._rows: Any = None

    def rows(self, dtype: str) -> Any:
        """[POOL_TOKENS, 576] in the dtype."""
        import torch

        if self._dtype != dtype:
            self._rows = None
            torch.cuda.empty_cache()
            generator = torch.Generator(device=self.device).manual_seed(1)
            self._rows = torch.empty((POOL_TOKENS, D_QK), dtype=torch_dtype(dtype), device=self.device)
            for part in self._rows.chunk(16):
                part.copy_(torch.randn(part.shape, generator=generator, device=self.device))
            self._dtype = dtype
        return self._rows


def make(case: BenchCase, pool: Pool) -> StepData:
    """The tensors of a case.

    Raises:
        InputError: the case does not fit the pool of pages.
    """
    import torch

    device, page = pool.device, case.page_size
    needs = [-(-length // page) for length in case.lengths]
    total, pages, width = sum(needs), POOL_TOKENS // page, max(needs)
    if total > pages:
        raise InputError(
            f"{case.name} needs {total} pages of {page} tokens, the pool has {pages}: {total - pages} too "
            f"many. "
            "Use a smaller batch or shorter rows"
        )
    nbytes = work(case.lengths, case.h_q, case.s_q).nbytes
    sets = max(1, min(MOST_SETS, pages // total, max(2, -(-DISTINCT_BYTES // nbytes))))
    generator = torch.Generator(device=device).manual_seed(7 + sum(case.lengths) % 1000 + case.h_q)
    order = torch.randperm(pages, generator=generator, device=device, dtype=torch.int32)
    used = torch.arange(width, device=device)[None] < torch.tensor(needs, device=device)[:, None]
    tables, lists = [], []
    for index in range(sets):
        mine = order[index * total : (index + 1) * total].contiguous()
        table = torch.zeros((len(needs), width), dtype=torch.int32, device=device)
        table[used] = mine
        tables.append(table)
        lists.append(mine)
    shape = (len(needs), case.s_q, case.h_q, D_QK)
    queries = [
        torch.randn(shape, generator=generator, device=device).to(torch_dtype(case.dtype))
        for _ in range(min(sets, MOST_QUERIES))
    ]
    return StepData(
        case=case,
        kv_cache=pool.rows(case.dtype).view(pages, page, D_QK),
        tables=tables,
        page_lists=lists,
        queries=queries,
        lengths=torch.tensor(case.lengths, dtype=torch.int32, device=device),
    )
