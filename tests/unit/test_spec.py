"""KernelSpec: one name for one spec."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlagen.errors import SpecError
from mlagen.resolve import resolve
from mlagen.spec import ARCH_OF_FAMILY, Arch, DType, KernelSpec, Tuning

SPECS = st.builds(
    KernelSpec,
    arch=st.sampled_from(Arch),
    q_dtype=st.sampled_from(DType),
    kv_dtype=st.sampled_from(DType),
    h_q=st.integers(0, 10**6),
    page_size=st.integers(0, 10**6),
    max_split=st.integers(0, 10**6),
    cta_group=st.integers(1, 100),
    tuning=st.builds(Tuning, piece_cost=st.integers(0, 50)),
)


@given(SPECS)
def test_name_leads_back_to_the_spec(spec: KernelSpec) -> None:
    assert KernelSpec.from_name(spec.name, tunings=[spec.tuning]) == spec


@given(SPECS, SPECS)
def test_different_specs_have_different_names(first: KernelSpec, second: KernelSpec) -> None:
    assert (first.name == second.name) == (first == second)


@given(SPECS, st.data())
def test_a_changed_name_is_another_spec_or_none(spec: KernelSpec, data: st.DataObject) -> None:
    """No two texts mean the same spec: whatever parses prints itself."""
    name = spec.name
    position = data.draw(st.integers(0, len(name)))
    text = data.draw(st.text(alphabet="0123456789smhpt_b +-\n", max_size=2))
    changed = name[:position] + text + name[position + data.draw(st.integers(0, 1)) :]
    try:
        parsed = KernelSpec.from_name(changed, tunings=[spec.tuning])
    except SpecError:
        return
    assert parsed.name == changed


def test_the_name_is_spelled_as_promised() -> None:
    spec = KernelSpec(Arch.SM_90A, DType.BF16, DType.BF16, 128, 64, 16, 2)
    assert spec.name == "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm"
    tuned = KernelSpec(Arch.SM_90A, DType.BF16, DType.BF16, 128, 64, 16, 2, Tuning(piece_cost=7))
    assert re.fullmatch(re.escape(spec.name) + r"_t[0-9a-f]{8}", tuned.name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "mla_decode_sm90_wgmma_bf16_bf16_h0128_p64_s16_2sm",
        "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm\n",
        "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2SM",
        "mla_decode_sm90_wgmma_bf16_bf16_h١_p64_s16_2sm",
        "mla_decode_sm80_wgmma_bf16_bf16_h128_p64_s16_2sm",
        "mla_decode_sm90_wgmma_fp8_bf16_h128_p64_s16_2sm",
        "../mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm",
    ],
)
def test_other_texts_are_refused_by_name(name: str) -> None:
    with pytest.raises(SpecError, match=re.escape(repr(name))):
        KernelSpec.from_name(name)


def test_a_tuning_nobody_knows_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_CACHE_DIR", "/proc/none")
    with pytest.raises(SpecError, match="MLAGEN_CACHE_PATH"):
        resolve("mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm_t01234567")


def test_the_default_tuning_has_no_second_name() -> None:
    digest = Tuning().digest
    with pytest.raises(SpecError):
        KernelSpec.from_name(f"mla_decode_sm90_wgmma_bf16_bf16_h8_p64_s16_2sm_t{digest}", tunings=[Tuning()])


@pytest.mark.parametrize(
    ("field", "value"),
    [("h_q", 1.0), ("h_q", True), ("page_size", "64"), ("arch", "sm_90"), ("q_dtype", "fp32"), ("tuning", 2)],
)
def test_wrong_types_are_refused(field: str, value: object) -> None:
    good = dict(
        arch="sm_90a", q_dtype="bf16", kv_dtype="bf16", h_q=8, page_size=64, max_split=16, cta_group=1
    )
    with pytest.raises(SpecError, match=field):
        KernelSpec(**{**good, field: value})  # type: ignore[arg-type]


def test_specs_travel_between_processes_and_work_as_keys() -> None:
    spec = KernelSpec("sm_90a", "fp16", "fp16", 5, 2, 64, 2, Tuning(3))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert {spec: 1}[KernelSpec.from_name(spec.name, tunings=[Tuning(3)])] == 1


def test_family_and_architecture_are_a_bijection() -> None:
    assert sorted(ARCH_OF_FAMILY.values()) == sorted(Arch)
    assert set(ARCH_OF_FAMILY) == {"sm90_wgmma", "sm100_tcgen05", "sm103_tcgen05"}
