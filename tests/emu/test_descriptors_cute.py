"""Descriptors and canonical layouts against CuTe's own functions, evaluated by NVRTC at compile time.

One kernel stores what `make_gmma_desc`, `make_umma_desc` and `make_instr_desc` give for a table of layouts,
and a hash of CuTe's own (swizzled) element offsets; all of it folds to constants, which are read from the
PTX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from mlagen.emu import descriptors
from tests.emu.nvrtc_ptx import compile_to_ptx

MULTIPLIER = 1_000_003
TYPES = {"bfloat16_t": 2, "float_e4m3_t": 1, "tfloat32_t": 4}
ATOMS = ("INTER", "SW32", "SW64", "SW128")

PRELUDE = """
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
using namespace cute;
template <class L, int R, int K> constexpr unsigned long long offsets(int k0) {
  unsigned long long h = 0;
  for (int r = 0; r < R; r = r ? 2 * r : 1)
    for (int k = 0; k < K; k = k ? 2 * k : 1) h = h * 1000003ull + unsigned(L{}(r, k0 + k));
  return h;
}
template <class T, class L, SM90::GMMA::Major G, UMMA::Major U, int R, int K, int I>
__device__ void layout_case(volatile unsigned long long* o, T* shared) {
  auto slice = local_tile(make_tensor(make_smem_ptr(shared), L{}), Shape<Int<R>, Int<K>>{}, make_coord(0, I));
  using Offsets = decltype(as_position_independent_swizzle_layout(L{}));
  constexpr unsigned long long hash = offsets<Offsets, R, K>(I * K), start = Offsets{}(0, I * K);
  o[0] = hash;
  o[1] = start;
  o[2] = SM90::GMMA::make_gmma_desc<G>(slice).desc_ & ~0x3fffull;
  o[3] = UMMA::make_umma_desc<U>(slice).desc_ & ~0x3fffull;
}
"""


@dataclass(frozen=True)
class LayoutCase:
    type: str
    major: str
    atom: str
    rows: int
    index: int

    @property
    def size(self) -> int:
        return TYPES[self.type]

    @property
    def k(self) -> int:
        return 32 // self.size

    def call(self, at: int) -> str:
        # tile_to_shape repeats the atom along M (N) first: the layouts of our kernels and of CuTe's mainloops
        atom = f"SM90::GMMA::Layout_{self.major}_{self.atom}_Atom<{self.type}>"
        layout = f"decltype(tile_to_shape({atom}{{}}, Shape<Int<{self.rows}>, Int<{128 // self.size}>>{{}}))"
        majors = f"SM90::GMMA::Major::{self.major}, UMMA::Major::{self.major}"
        return (
            f"layout_case<{self.type}, {layout}, {majors}, {self.rows}, {self.k}, {self.index}>"
            f"(o + {at}, reinterpret_cast<{self.type}*>(shared));"
        )


LAYOUTS = [
    LayoutCase(type_, major, atom, rows, index)
    for type_ in TYPES
    for major in ("K", "MN")
    for atom in ATOMS
    for rows, index in (((128, 1), (256, 3)) if atom == "SW128" else ((128, 1),))
    if not (type_ == "tfloat32_t" and major == "MN")
]
INSTRUCTIONS = [
    (a, b, c, m, n, a_major, b_major)
    for a, b, c in (
        ("bfloat16_t", "bfloat16_t", "float"),
        ("half_t", "half_t", "float"),
        ("half_t", "half_t", "half_t"),
        ("float_e4m3_t", "float_e5m2_t", "float"),
    )
    for m, n, a_major, b_major in (
        (64, 8, "K", "K"),
        (64, 64, "K", "K"),
        (64, 256, "K", "MN"),
        (128, 64, "K", "K"),
        (128, 128, "K", "MN"),
        (128, 256, "K", "MN"),
        (256, 64, "K", "K"),
        (256, 128, "MN", "K"),
        (256, 256, "K", "MN"),
    )
]
"""M of 64 and 128 with one CTA, 128 and 256 with two; B by keys (K) and by values (MN)."""
CUTE_NAMES = {
    "bfloat16_t": "bf16",
    "half_t": "f16",
    "float": "f32",
    "float_e4m3_t": "e4m3",
    "float_e5m2_t": "e5m2",
}


@pytest.fixture(scope="module")
def constants() -> dict[int, int]:
    """index -> constant stored by the kernel."""
    body = [case.call(4 * i) for i, case in enumerate(LAYOUTS)]
    for i, (a, b, c, m, n, a_major, b_major) in enumerate(INSTRUCTIONS, 4 * len(LAYOUTS)):
        arguments = f"{a}, {b}, {c}, {m}, {n}, UMMA::Major::{a_major}, UMMA::Major::{b_major}"
        body.append(f"o[{i}] = uint32_t(UMMA::make_instr_desc<{arguments}>());")
    text = "\n".join(body)
    source = f"""{PRELUDE}
extern "C" __global__ void table(volatile unsigned long long* o) {{
  __shared__ __align__(1024) char shared[65536 / 2];
  {text}
}}"""
    ptx = compile_to_ptx(source, "compute_100a")
    moved = {r: int(v) for r, v in re.findall(r"mov\.[bu]64\s+(%rd\d+), (-?\d+);", ptx)}
    found: dict[int, int] = {}
    for offset, value in re.findall(r"st\.volatile\.global\.[bu]64\s+\[%rd\d+(?:\+(\d+))?\], ([^;]+);", ptx):
        found[int(offset or 0) // 8] = (moved[value] if value in moved else int(value)) % 2**64
    return found


def powers(below: int) -> list[int]:
    """0, 1, 2, 4 ...: a layout of powers of two with an XOR swizzle is determined by these."""
    return [0] + [1 << i for i in range(below.bit_length()) if 1 << i < below]


def hash_of(offsets: np.ndarray) -> int:
    value = 0
    for offset in offsets.reshape(-1).tolist():
        value = (value * MULTIPLIER + offset) % 2**64
    return value


@pytest.mark.parametrize("case", LAYOUTS, ids=lambda c: f"{c.type}-{c.major}-{c.atom}-{c.rows}x{c.k}")
def test_addresses_agree_with_cute(case: LayoutCase, constants: dict[int, int]) -> None:
    at = 4 * LAYOUTS.index(case)
    want, start, sm90, sm100 = (constants[at + i] for i in range(4))
    start_bits = start * case.size >> 4
    for descriptor in (
        descriptors.decode_sm90(sm90 | start_bits),
        descriptors.decode_sm100(sm100 | start_bits),
    ):
        addresses = descriptors.operand_addresses(
            descriptor, case.rows, case.k, case.size, case.major == "MN"
        )
        assert hash_of(addresses[np.ix_(powers(case.rows), powers(case.k))] // case.size) == want


@pytest.mark.parametrize("case", INSTRUCTIONS, ids=lambda c: "-".join(map(str, c)))
def test_instruction_descriptors_agree_with_cute(
    case: tuple[str, str, str, int, int, str, str], constants: dict[int, int]
) -> None:
    a, b, c, m, n, a_major, b_major = case
    kind = "f8f6f4" if "e4m3" in a else "f16"
    d = descriptors.decode_instruction(constants[4 * len(LAYOUTS) + INSTRUCTIONS.index(case)], kind)
    names = tuple(CUTE_NAMES[x] for x in (a, b, c))
    assert (d.a_type, d.b_type, d.d_type, d.m, d.n) == (*names, m, n)
    assert (d.a_mn_major, d.b_mn_major, d.a_negated, d.b_negated) == (
        a_major == "MN",
        b_major == "MN",
        False,
        False,
    )
