"""Kernels of sm100_tcgen05 on the emulator: right and clean in every form, on every schedule."""

from __future__ import annotations

from typing import Any

import pytest

from mlagen.casework import Case
from mlagen.emu.launcher import EmulatorOptions
from mlagen.emu.verify import kernel_profile, run_emulated
from mlagen.launch_shape import launch_shape, tile_rows
from mlagen.spec import KernelSpec

pytestmark = pytest.mark.slow
FAMILY = "mla_decode_sm100_tcgen05"


def spec_of(tail: str) -> KernelSpec:
    return KernelSpec.from_name(f"{FAMILY}_{tail}")


ROWS = spec_of("bf16_bf16_h64_p64_s4_1sm")
PAIR = spec_of("bf16_bf16_h128_p64_s4_2sm")
COLUMNS = spec_of("bf16_bf16_h16_p64_s4_1sm")
SPLIT_ROWS = spec_of("bf16_bf16_h64_p64_s4_2sm")
SPLIT_COLUMNS = spec_of("bf16_bf16_h16_p64_s4_2sm")
FORMS = pytest.mark.parametrize("spec", [ROWS, PAIR, COLUMNS], ids=["rows", "pair", "columns"])


def run(spec: KernelSpec, lengths: tuple[int, ...], schedule: str = "eager", **changes: Any) -> None:
    case = Case(lengths, h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value).but(**changes)
    found = run_emulated(spec, "case", case, EmulatorOptions(schedule=schedule, sms=2 * spec.cta_group))
    assert found.ok, (found.error, found.findings, found.result)
    assert not [row for row, _ in found.findings if row.kind == "strict"], (
        "a fence of the ISA text is missing"
    )


@FORMS
@pytest.mark.parametrize(
    "schedule",
    [
        "lazy",
        "random:1",
        "lockstep",
        *(f"starve:{role}" for role in ("softmax", "epilogue", "mma", "load", "query")),
    ],
)
def test_right_and_clean_on_every_schedule(spec: KernelSpec, schedule: str) -> None:
    run(spec, (130, 5), schedule, splits=(2, 1))


@FORMS
def test_lengths_splits_and_tokens(spec: KernelSpec) -> None:
    run(spec, (0, 1, 129, 300), splits=(1, 4, 2, 4), s_q=2)


@FORMS
def test_references_that_move(spec: KernelSpec) -> None:
    """Large logits outgrow their references, so that O is corrected in the middle of a row."""
    run(spec, (400,), logit_std=100.0, splits=1)


@pytest.mark.parametrize(
    "tail",
    [
        "fp16_fp16_h20_p1_s4_1sm",
        "fp16_fp16_h40_p8_s1_1sm",
        "bf16_bf16_h8_p128_s4_1sm",
        "bf16_bf16_h96_p16_s4_2sm",
        "fp16_fp16_h72_p4_s1_2sm",
        "bf16_bf16_h128_p32_s4_1sm",
    ],
)
def test_pages_heads_and_types(tail: str) -> None:
    run(spec_of(tail), (65, 200))


def test_an_odd_last_tile_of_a_pair() -> None:
    """96 heads and two tokens are three tiles: the second CTA of the last pair pads."""
    run(spec_of("bf16_bf16_h96_p64_s4_2sm"), (200, 64), s_q=2, splits=(3, 1))


@pytest.mark.parametrize(("heads", "rows"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (128, 64)])
def test_few_heads_are_not_padded_to_64(heads: int, rows: int) -> None:
    spec = spec_of(f"bf16_bf16_h{heads}_p64_s4_1sm")
    assert tile_rows(spec) == rows
    assert launch_shape(spec, 1, 148).tiles == -(-heads // rows)


@pytest.mark.parametrize("spec", [SPLIT_ROWS, SPLIT_COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("schedule", ["eager", "lazy", "starve:epilogue"])
def test_two_ctas_split_the_keys_of_a_single_tile(spec: KernelSpec, schedule: str) -> None:
    """One block leaves the second CTA without keys; the parts of a row that teams share are joined twice."""
    run(spec, (0, 1, 200), schedule, splits=(1, 1, 2))


@pytest.mark.parametrize("spec", [SPLIT_ROWS, SPLIT_COLUMNS], ids=["rows", "columns"])
def test_two_ctas_on_a_tile_each(spec: KernelSpec) -> None:
    """An even number of tiles leaves no keys to split."""
    run(spec, (70,), s_q=2, splits=1)


@pytest.mark.parametrize(
    ("spec", "instructions", "copied"),
    [(ROWS, 3300, 148_000), (PAIR, 3900, 279_000), (COLUMNS, 2100, 148_000)],
    ids=["rows", "pair", "columns"],
)
def test_cost_of_128_keys(spec: KernelSpec, instructions: int, copied: int) -> None:
    """Warp-instructions and TMA bytes of all CTAs that share a tile; random N(0, 1) logits."""
    counted, blocks = kernel_profile(spec, blocks=8)
    assert 2 * counted.instructions / blocks <= instructions
    assert 2 * counted.copied["shared"] / blocks <= copied
