"""Running a call on the GPU and holding it against the reference."""

from __future__ import annotations

from typing import Any

import pytest

from mlagen import runtime
from mlagen.casework import Call, Case, draw
from mlagen.spec import KernelSpec
from mlagen.tolerance import Margin, compare
from mlagen.verify import references, run_poisoned


def run(kernel: KernelSpec, call: Call) -> tuple[Any, Any]:
    """(out, lse) of one run into poisoned buffers."""
    return run_poisoned(kernel, call, runtime.launcher(call.q.device.index))


def same_bits(first: Any, second: Any) -> bool:
    """Whether two tensors have the same bits (NaNs included)."""
    import torch

    as_int = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return bool((first.contiguous().view(as_int) == second.contiguous().view(as_int)).all())


def margin_of(call: Call, out: Any, lse: Any) -> Margin:
    """How close an answer came to its bounds."""
    return compare(out, lse, *references(call))


def assert_right(call: Call, out: Any, lse: Any) -> Margin:
    """Fails with the margin and the case unless the answer is right."""
    margin = margin_of(call, out, lse)
    print(f"{margin} {call.case}")
    if not margin.ok:
        pytest.fail(f"{margin}\n{call.case}")
    return margin


def check(kernel: KernelSpec, case: Case, *, repeats: int = 1) -> tuple[Any, Any]:
    """Draws a case, runs it, compares with the reference and with further runs; returns (out, lse)."""
    call = draw(case)
    out, lse = run(kernel, call)
    for _ in range(repeats):
        again, lse_again = run(kernel, call)
        assert same_bits(out, again) and same_bits(lse, lse_again), f"a second run differs: {case}"
    assert_right(call, out, lse)
    return out, lse
