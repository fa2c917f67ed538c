"""The grids of the GPU tests: which kernels, and which calls of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from mlagen.casework import Case, split_counts
from mlagen.spec import KernelSpec

DTYPES = ("bf16", "fp16")
HEADS = (1, 5, 8, 16, 20, 40, 64, 96, 128)
PAGES = (1, 16, 32, 64, 128)
PAIRWISE_PAGES = (2, 4, 8)
SPLITS = (1, 4, 64)
GROUPS = (1, 2)
TOKENS = (1, 2, 4)
LOGIT_STDS = (0.1, 1.0, 10.0, 100.0)


def spec(dtype: str, h_q: int, page: int, max_split: int, group: int) -> KernelSpec:
    """A kernel for sm_90a."""
    return KernelSpec("sm_90a", dtype, dtype, h_q, page, max_split, group)


def lengths(page: int) -> tuple[int, ...]:
    """The lengths of the grid, mixed in one batch."""
    return (0, 1, page - 1, page, page + 1, 63, 64, 65, 1000, 4097)


def full_specs() -> list[KernelSpec]:
    """All 540 kernels of the grid, and page sizes 2, 4 and 8 on a subset that pairs them with everything."""
    everything = [spec(*fields) for fields in product(DTYPES, HEADS, PAGES, SPLITS, GROUPS)]
    pairs = []
    for index, (page, h_q) in enumerate(product(PAIRWISE_PAGES, HEADS)):
        dtype, max_split, group = DTYPES[index % 2], SPLITS[index % 3], GROUPS[(index // 2) % 2]
        pairs.append(spec(dtype, h_q, page, max_split, group))
    return everything + pairs


# Every head count, page size, split bound and CTA group in both dtypes, each pair of head count and CTA group
# once.
QUICK = (
    ("bf16", 128, 64, 64, 1),
    ("bf16", 128, 64, 64, 2),
    ("fp16", 128, 64, 4, 1),
    ("fp16", 128, 1, 64, 2),
    ("bf16", 128, 1, 4, 1),
    ("bf16", 96, 16, 64, 1),
    ("fp16", 96, 128, 4, 2),
    ("bf16", 64, 64, 64, 1),
    ("bf16", 64, 32, 64, 2),
    ("fp16", 64, 1, 1, 1),
    ("bf16", 40, 64, 4, 1),
    ("fp16", 40, 16, 64, 2),
    ("bf16", 20, 32, 64, 1),
    ("bf16", 20, 64, 1, 2),
    ("bf16", 16, 64, 64, 1),
    ("bf16", 16, 64, 64, 2),
    ("fp16", 16, 128, 64, 1),
    ("bf16", 8, 1, 64, 1),
    ("bf16", 8, 64, 4, 2),
    ("fp16", 5, 32, 64, 2),
    ("bf16", 5, 2, 4, 1),
    ("bf16", 1, 64, 64, 1),
    ("fp16", 1, 16, 4, 2),
    ("bf16", 16, 4, 64, 2),
    ("bf16", 128, 8, 64, 2),
)


def quick_specs() -> list[KernelSpec]:
    """The kernels of the quick grid."""
    return [spec(*fields) for fields in QUICK]


HEAD_COUNTS = (*range(1, 17), 20, 40, 72, 80, 96, 112, 120, 128)


def head_count_spec(heads: int) -> KernelSpec:
    """One kernel for each head count, 1SM and 2SM in turn."""
    return spec("bf16", heads, 64, 64, 1 + heads % 2)


def extra_specs() -> list[KernelSpec]:
    """Kernels of single tests that are in no grid, built together with it."""
    more = [spec("bf16", heads, 64, 64, 1) for heads in (1, 5, 8, 16, 128)]
    more += [spec("bf16", 16, page, 64, 1) for page in (1, 16)]
    return [*more, *(head_count_spec(heads) for heads in HEAD_COUNTS)]


def grid_specs(grid: str) -> list[KernelSpec]:
    """The kernels of a grid, "quick" or "full"."""
    return full_specs() if grid == "full" else quick_specs()


def calls(kernel: KernelSpec) -> Iterator[tuple[str, Case]]:
    """The calls of one kernel: every token count, with split modes and logit ranges rotated through them."""
    rows = lengths(kernel.page_size)
    modes: list[int | tuple[int, ...] | None] = [
        split_counts(rows, kernel.max_split),
        None,
        kernel.max_split,
    ]
    base = Case(rows, h_q=kernel.h_q, page_size=kernel.page_size, dtype=kernel.q_dtype.value)
    for index, s_q in enumerate(TOKENS):
        for turn, splits in enumerate(modes):
            std = LOGIT_STDS[(index + turn) % len(LOGIT_STDS)]
            mode = "balanced" if splits is None else "uniform" if isinstance(splits, int) else "mixed"
            seed = 10 * index + turn
            case = base.but(s_q=s_q, splits=splits, logit_std=std, seed=seed, causal=turn != 2 or s_q > 2)
            yield f"q{s_q}-{mode}-std{std:g}", case
