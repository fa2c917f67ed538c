"""Data-path layouts of tensor memory against CuTe's `tmem_frg` and `tmem_frg_ws`, evaluated by NVRTC at
compile time.
"""

from __future__ import annotations

import re

import pytest

from tests.emu.nvrtc_ptx import compile_to_ptx
from tests.emu.test_tmem_layouts import places

N = 64
FRAGMENTS = {
    "A": ("tmem_frg<float, float, 2>", 128),
    "B": ("tmem_frg<float, float, 2>", 64),
    "D": ("tmem_frg<float, float, 1>", 128),
    "E": ("tmem_frg_ws<float, float, 1>", 64),
    "F": ("tmem_frg<float, float, 1>", 64),
    "G": ("tmem_frg_ws<float, float, 1>", 32),
}

PRELUDE = """
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
using namespace cute;
template <class F, int M, int N> __device__ void layout_case(volatile unsigned* o) {
  using L = typename decltype(F::make(Shape<Shape<Int<M>, Int<N>>, _1, _1>{}))::layout_type;
  int i = 0;
  #pragma unroll
  for (int m = 0; m < M; m = m ? 2 * m : 1)
    #pragma unroll
    for (int n = 0; n < N; n = n ? 2 * n : 1) o[i++] = unsigned(L{}(make_coord(make_coord(m, n), 0, 0)));
}
"""


def powers(below: int) -> list[int]:
    """0, 1, 2, 4 ...: layouts of powers of two are determined by these."""
    return [0] + [1 << i for i in range(below.bit_length()) if 1 << i < below]


@pytest.fixture(scope="module")
def addresses() -> dict[str, list[int]]:
    """layout -> addresses of the elements at powers of two, as CuTe computes them."""
    calls = [
        f"layout_case<UMMA::{f}, {m}, {N}>(o + {1000 * i});" for i, (f, m) in enumerate(FRAGMENTS.values())
    ]
    source = PRELUDE + 'extern "C" __global__ void table(volatile unsigned* o) {\n' + "\n".join(calls) + "\n}"
    ptx = compile_to_ptx(source, "compute_100a")
    moved = {r: int(v) for r, v in re.findall(r"mov\.[bu]32\s+(%r\d+), (-?\d+);", ptx)}
    stored: dict[int, int] = {}
    for offset, value in re.findall(r"st\.volatile\.global\.[bu]32\s+\[%rd\d+(?:\+(\d+))?\], ([^;]+);", ptx):
        stored[int(offset or 0) // 4] = moved[value] if value in moved else int(value)
    count = [len(powers(m)) * len(powers(N)) for _, m in FRAGMENTS.values()]
    return {k: [stored[1000 * i + j] for j in range(count[i])] for i, k in enumerate(FRAGMENTS)}


@pytest.mark.parametrize("layout", FRAGMENTS)
def test_layout_agrees_with_cute(layout: str, addresses: dict[str, list[int]]) -> None:
    mine, rows = places(layout, N), FRAGMENTS[layout][1]
    want = [lane << 16 | column for m in powers(rows) for n in powers(N) for lane, column in [mine[m, n]]]
    assert addresses[layout] == want
