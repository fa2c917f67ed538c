"""One of several processes that use a GPU at the same time: calls one kernel many times.

A program, not a test:

    python tests/gpu/busy_process.py KERNEL direct|merged CALLS

It exits with 1 if a result differs from the first one, which is compared with the reference.
"""

from __future__ import annotations

import sys

from mlagen import runtime
from mlagen.casework import Case, draw
from mlagen.spec import KernelSpec
from mlagen.tolerance import compare
from mlagen.verify import references, run_poisoned


def main(name: str, mode: str, calls: int) -> int:
    """Runs the calls; the exit status."""
    import torch

    kernel = KernelSpec.from_name(name)
    lengths = (3000, 1, 700, 4097, 64)
    call = draw(
        Case(lengths, h_q=kernel.h_q, page_size=kernel.page_size, splits=1 if mode == "direct" else 8)
    )
    first, lse = run_poisoned(kernel, call, runtime.launcher(0))
    if not compare(first, lse, *references(call)).ok:
        return 1
    for _ in range(calls):
        out, _ = run_poisoned(kernel, call, runtime.launcher(0))
        if not torch.equal(out, first):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
