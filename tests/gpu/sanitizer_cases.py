"""Twelve small calls for compute-sanitizer. A program, not a test.

{1SM, 2SM} x {page 1, 16, 64} x {direct, merged}; TOOL is memcheck, racecheck or synccheck:

    compute-sanitizer --tool TOOL --error-exitcode 9 --kernel-regex kns=mla_decode \\
        python tests/gpu/sanitizer_cases.py

Run it once without the sanitizer first, so that the kernels are compiled and cached. It exits with 1 if an
answer is wrong. `--only 2sm-p16` restricts it to the cases whose name holds that text.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

from mlagen import runtime
from mlagen.casework import Case, draw
from mlagen.spec import Arch, DType, KernelSpec
from mlagen.tolerance import compare
from mlagen.verify import references, run_poisoned

LENGTHS = (0, 1, 130, 700)


def main() -> int:
    """Runs the cases; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="text that the names of the cases hold")
    only = parser.parse_args().only
    wrong = 0
    for group, page, merged in product((1, 2), (1, 16, 64), (False, True)):
        name = f"{group}sm-p{page}-{'merged' if merged else 'direct'}"
        if only not in name:
            continue
        kernel = KernelSpec(Arch.SM_90A, DType.BF16, DType.BF16, 80, page, 8 if merged else 1, group)
        case = Case(LENGTHS, h_q=80, s_q=1, page_size=page, splits=(1, 2, 3, 8) if merged else None)
        call = draw(case)
        out, lse = run_poisoned(kernel, call, runtime.launcher(0))
        margin = compare(out, lse, *references(call))
        print(name, margin, flush=True)
        wrong += not margin.ok
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
