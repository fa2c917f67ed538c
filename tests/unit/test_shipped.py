"""The shipped set is what the project promises."""

from __future__ import annotations

import pytest

from mlagen import heuristics
from mlagen.errors import SpecError
from mlagen.plan import make_plan
from mlagen.shipped import generated_specs, preset, presets, shipped_specs
from mlagen.spec import DType


def test_deepseek_v3_and_kimi_k2_are_there_for_every_rank_size_in_both_groups() -> None:
    shipped = set(shipped_specs())
    for name, heads in (("deepseek-v3", {128, 64, 32, 16, 8}), ("kimi-k2", {64, 32, 16, 8, 4})):
        specs = preset(name).specs()
        assert {(spec.h_q, spec.cta_group) for spec in specs} == {
            (h, group) for h in heads for group in (1, 2)
        }
        assert {(spec.page_size, spec.max_split, spec.q_dtype) for spec in specs} == {(64, 128, DType.BF16)}
        assert shipped.issuperset(specs)


def test_the_kernel_of_a_plain_call_is_in_every_preset() -> None:
    """Whoever built a preset ahead compiles nothing at the first call, with or without drafted tokens."""
    for name in presets():
        for spec in preset(name).specs():
            for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
                for s_q in (1, 2, 4):
                    choice = heuristics.pick(
                        spec.arch, gpu, spec.q_dtype, spec.h_q, spec.page_size, s_q, splits=spec.max_split
                    )
                    assert choice.spec in preset(name).specs(), choice.why()


def test_a_dozen_more_cover_the_other_axes() -> None:
    specs = shipped_specs()
    extra = set(specs) - {spec for item in presets().values() for spec in item.specs()}
    assert len(extra) >= 12
    assert {spec.page_size for spec in specs} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert {spec.q_dtype for spec in specs} == {DType.BF16, DType.FP16}
    assert {1, 256} <= {spec.max_split for spec in specs}
    assert any(spec.h_q % 2 for spec in specs)
    assert len(specs) == len(set(specs))


def test_a_dozen_are_tracked_as_text() -> None:
    assert 10 <= len(generated_specs()) <= 14
    assert set(generated_specs()) <= set(shipped_specs())


def test_presets_filter_by_rank_size_and_architecture() -> None:
    assert {spec.h_q for spec in preset("deepseek-v3").specs(tp=8, arch="sm_90a")} == {16}
    with pytest.raises(SpecError, match="1, 2, 4, 8, 16"):
        preset("deepseek-v3").specs(tp=3)
    with pytest.raises(SpecError, match="sm_90a"):
        preset("deepseek-v3").specs(arch="sm_100a")
    with pytest.raises(SpecError, match="kimi-k2"):
        preset("llama")


def test_no_preset_divides_heads_unevenly() -> None:
    for item in presets().values():
        for size in item.tp:
            assert item.model.heads % size == 0
        for spec in item.specs():
            make_plan(spec)
