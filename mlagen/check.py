"""MLAGEN_CHECK=1: what lives on the GPU is validated before a launch.

It waits for the GPU, so it is off by default. Without it the kernel makes bad values harmless: lengths are
clamped to what the table can hold, a page number outside the cache reads zeros, split counts are clamped.
"""

from __future__ import annotations

import os
from typing import Any

from mlagen import settings
from mlagen.errors import InputError
from mlagen.log import warn_once
from mlagen.problem import Problem
from mlagen.spec import KernelSpec

_VARIABLE = settings.PREFIX + "CHECK"
_RAW_VARIABLE = os.fsencode(_VARIABLE)


def wanted() -> bool:
    """Whether MLAGEN_CHECK is set. This is on the path of every call: looking at one variable costs less than
    reading all settings, and looking into the dictionary behind os.environ less than a failing lookup in it.
    """
    raw = getattr(os.environ, "_data", None)
    if type(raw) is dict and os.name == "posix" and _RAW_VARIABLE not in raw:
        return False
    return _VARIABLE in os.environ and settings.read().check


def validate(problem: Problem, spec: KernelSpec) -> None:
    """Checks lengths, page numbers and split counts on the GPU when MLAGEN_CHECK is set; otherwise does
    nothing.

    Inside a stream capture nothing can be copied to the host; the check is skipped there with a log line.

    Raises:
        InputError: names the row, and for a page number the column.
    """
    if not wanted():
        return
    import torch

    if problem.like.is_cuda and torch.cuda.is_current_stream_capturing():
        warn_once(
            "MLAGEN_CHECK: skipped inside a stream capture; run the call once outside it to have it checked"
        )
        return
    tensors, layout = problem.tensors, problem.layout
    check_lengths(tensors["cache_seqlens"], layout.max_len, layout.width, layout.page_size)
    check_pages(tensors["block_table"], tensors["cache_seqlens"], layout.pages, layout.page_size)
    if "num_splits" in tensors:
        check_splits(tensors["num_splits"], spec)


def check_lengths(cache_seqlens: Any, max_len: int, width: int, page_size: int) -> None:
    """Every length is 0..max_len.

    Raises:
        InputError: naming the first row that is not.
    """
    bad = ((cache_seqlens < 0) | (cache_seqlens > max_len)).nonzero()
    if len(bad):
        row = int(bad[0, 0])
        raise InputError(
            f"cache_seqlens[{row}] is {int(cache_seqlens[row])}; 0..{max_len} is possible with {width} "
            f"table columns "
            f"of {page_size} keys ({len(bad)} row(s) like this). It would be clamped"
        )


def check_pages(block_table: Any, cache_seqlens: Any, pages: int, page_size: int) -> None:
    """Every page number that a row needs is 0..pages-1.

    Raises:
        InputError: naming the first row and column that is not.
    """
    import torch

    columns = torch.arange(block_table.shape[1], device=block_table.device)
    needed = columns[None, :] * page_size < cache_seqlens[:, None]
    bad = (needed & ((block_table < 0) | (block_table >= pages))).nonzero()
    if len(bad):
        row, column = (int(index) for index in bad[0])
        raise InputError(
            f"block_table[{row}, {column}] is {int(block_table[row, column])}; the cache has pages "
            f"0..{pages - 1}, and "
            f"row {row} needs this one for its {int(cache_seqlens[row])} keys ({len(bad)} entries like "
            f"this). "
            "It would read as zeros"
        )


def check_splits(num_splits: Any, spec: KernelSpec) -> None:
    """Every split count is 1..max_split.

    Raises:
        InputError: naming the first row that is not.
    """
    bad = ((num_splits < 1) | (num_splits > spec.max_split)).nonzero()
    if len(bad):
        row = int(bad[0, 0])
        raise InputError(
            f"num_splits[{row}] is {int(num_splits[row])}; 1..{spec.max_split} is possible with {spec.name} "
            f"({len(bad)} row(s) like this). It would be clamped"
        )
