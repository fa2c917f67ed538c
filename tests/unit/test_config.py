"""`mlagen.toml`, models and presets: what they stand for, and what is refused with which hint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import mlagen
from mlagen import heuristics
from mlagen.config import config_of, read_config
from mlagen.demand import measured
from mlagen.errors import SpecError
from mlagen.model import model_of, read_model, softmax_scale, yarn_mscale
from mlagen.shipped import preset, presets
from mlagen.spec import Arch, DType

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
}


def test_presets_are_what_the_models_say() -> None:
    """Heads, ranks of the projections and softmax scale of each model, from its published configuration."""
    known = {
        "deepseek-v3": (128, 1536, 0.1352337788608801),
        "deepseek-r1": (128, 1536, 0.1352337788608801),
        "deepseek-v2": (128, 1536, 0.11472138679292611),
        "deepseek-v2-lite": (16, None, 0.11472138679292611),
        "kimi-k2": (64, 1536, 0.13086079996295005),
    }
    assert known.keys() == presets().keys()
    for name, (heads, q_rank, scale) in known.items():
        model = preset(name).model
        assert (model.heads, model.q_rank, model.latent, model.rope) == (heads, q_rank, 512, 64)
        assert model.softmax_scale == pytest.approx(scale, rel=1e-12)


def test_the_kernels_of_a_preset_include_what_its_calls_get() -> None:
    for name, item in presets().items():
        for arch in item.arch:
            for tp in item.tp:
                called = mlagen.enumerate(name, tp=tp, arch=str(arch), mtp=3)
                assert set(called) <= set(item.specs(tp=tp)), name


def test_softmax_scale_follows_yarn_only_where_it_is_folded_in() -> None:
    assert softmax_scale(192, None) == 192**-0.5
    assert softmax_scale(192, {"factor": 40.0}) == 192**-0.5
    assert softmax_scale(192, {"factor": 40.0, "mscale_all_dim": 0}) == 192**-0.5
    assert softmax_scale(192, {"factor": 1.0, "mscale_all_dim": 1.0}) == 192**-0.5
    assert yarn_mscale(40, 1.0) == 0.1 * math.log(40) + 1
    assert softmax_scale(192, {"factor": 40, "mscale_all_dim": 1.0}) == pytest.approx(0.135234, abs=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        V3,
        {"text_config": V3, "torch_dtype": "bfloat16"},
        {**V3, "torch_dtype": None, "dtype": "torch.bfloat16"},
        {
            **V3,
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "yarn", "factor": 40, "mscale_all_dim": 1},
        },
    ],
    ids=["plain", "with images", "dtype", "rope_parameters"],
)
def test_a_configuration_is_read_in_all_its_spellings(config: dict[str, Any]) -> None:
    model = model_of(config)
    assert (model.heads, model.dtype) == (128, DType.BF16)
    assert model.softmax_scale == pytest.approx(0.135234, abs=1e-6)


def test_other_scalings_of_rotary_leave_the_scale_alone() -> None:
    for scaling in ({"type": "linear", "factor": 4.0}, {"rope_type": "default"}, {}):
        assert model_of({**V3, "rope_scaling": scaling}).softmax_scale == 192**-0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lora_rank": None}, "not MLA"),
        ({"kv_lora_rank": 256}, "256+64"),
        ({"qk_rope_head_dim": 32}, "512+32"),
        ({"num_attention_heads": "128"}, "num_attention_heads='128'"),
        ({"num_attention_heads": 0}, "above 0"),
        ({"qk_nope_head_dim": None}, "qk_nope_head_dim"),
        ({"rope_scaling": 4}, "rope_scaling"),
        ({"rope_scaling": {"type": "yarn", "factor": "x", "mscale_all_dim": 1}}, "rope_scaling.factor"),
    ],
)
def test_a_model_that_is_not_served_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_of({**V3, **change})
    assert words in str(caught.value) and "deepseek_v3" in str(caught.value)


def test_a_model_file_is_found_in_its_folder_and_refused_otherwise(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3))
    assert read_model(tmp_path) == read_model(tmp_path / "config.json") == model_of(V3)
    for text, words in (("{", "not JSON"), ("[]", "an object")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(SpecError, match=words):
            read_model(tmp_path / "bad.json")
    with pytest.raises(SpecError, match="cannot be read"):
        read_model(tmp_path / "none.json")


def test_a_deployment_builds_exactly_what_its_calls_get(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3))
    found = mlagen.enumerate(tmp_path, tp=8, page_size=32, mtp=1)
    wanted = {
        heuristics.pick(arch, "", DType.BF16, 16, 32, s_q).spec for arch in measured() for s_q in (1, 2)
    }
    assert set(found) == wanted and len(found) == len(wanted)
    with pytest.raises(SpecError, match="1, 2, 4, 8, 16, 32, 64, 128"):
        mlagen.enumerate(tmp_path, tp=3)
    with pytest.raises(SpecError, match="page_size=48"):
        mlagen.enumerate(V3, page_size=48)
    with pytest.raises(SpecError, match="Did you mean 'page_size'"):
        mlagen.enumerate(V3, page_sise=64)
    with pytest.raises(SpecError, match=r"neither a file nor a preset.*deepseek-v3"):
        mlagen.enumerate("deepseek-v9")


def test_a_matrix_multiplies_its_axes_and_obeys_include_and_exclude() -> None:
    specs = config_of(
        {
            "matrix": [
                {
                    "arch": "sm_90a",
                    "h_q": [8, 16],
                    "page_size": [32, 64],
                    "max_split": 4,
                    "cta_group": [1, 2],
                    "exclude": [{"h_q": 8, "page_size": 32}, {"cta_group": 2, "page_size": [32]}],
                    "include": [{"h_q": 5, "page_size": 1}],
                    "tuning": {"piece_cost": 3},
                }
            ]
        }
    ).specs
    found = {(spec.h_q, spec.page_size, spec.cta_group) for spec in specs}
    assert found == {(16, 32, 1), (8, 64, 1), (8, 64, 2), (16, 64, 1), (16, 64, 2), (5, 1, 1)}
    assert {spec.max_split for spec in specs} == {4}
    assert {spec.tuning.piece_cost for spec in specs} == {3}


def test_what_a_matrix_leaves_open_is_what_a_call_gets() -> None:
    specs = config_of({"matrix": [{"h_q": 16}]}).specs
    assert set(specs) == {heuristics.pick(arch, "", DType.BF16, 16, 64).spec for arch in measured()}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "no kernels"),
        ({"matrx": []}, "Did you mean 'matrix'"),
        ({"build": {"job": 1}}, "Did you mean 'jobs'"),
        ({"matrix": [{"h_qs": 1}]}, "matrix[0]: no key 'h_qs'. Did you mean 'h_q'"),
        ({"matrix": {"h_q": 1}}, "[[matrix]]"),
        ({"matrix": [{"arch": "sm_90a"}]}, "h_q is needed"),
        ({"matrix": [{"h_q": "16"}]}, "h_q='16'"),
        ({"matrix": [{"h_q": 200}]}, "1..128"),
        ({"matrix": [{"h_q": 16, "dtype": "fp32"}]}, "bf16, fp16"),
        ({"matrix": [{"h_q": 16, "arch": "sm_9"}]}, "sm_90a"),
        ({"matrix": [{"h_q": 16, "exclude": [{"hq": 16}]}]}, "exclude[0]: no key 'hq'"),
        ({"matrix": [{"h_q": 16, "include": {"h_q": 1}}]}, "a list of tables"),
        ({"matrix": [{"h_q": 16, "tuning": {"piece_csot": 1}}]}, "Did you mean 'piece_cost'"),
        ({"model": [{"preset": "deepseek-v3", "tp": 0}]}, "model[0].tp=0"),
        ({"model": [{"preset": "deepseek-v3", "mtp": True}]}, "model[0].mtp=True"),
        ({"model": [{"tp": 8}]}, "exactly one of config and preset"),
        ({"model": [{"preset": "deepseek-v4"}]}, "no preset 'deepseek-v4'"),
        ({"presets": [3]}, "presets=3; a text"),
        ({"kernels": ["x"]}, "not a kernel name"),
        ({"build": {"jobs": 0}, "presets": ["kimi-k2"]}, "build.jobs=0"),
        ({"build": {"output": 1}, "presets": ["kimi-k2"]}, "build.output=1"),
    ],
)
def test_a_wrong_file_says_where_and_what_would_do(data: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        config_of(data)
    assert words in str(caught.value)


def test_a_file_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3))
    path = tmp_path / "mlagen.toml"
    path.write_text(
        'presets = ["kimi-k2"]\n[build]\njobs = 2\noutput = "kernels"\n'
        '[[model]]\nconfig = "config.json"\ntp = 1\nmtp = 1\narch = "sm_90a"\n'
    )
    config = read_config(path)
    assert (config.jobs, config.output, config.models) == (2, tmp_path / "kernels", (model_of(V3),))
    assert mlagen.enumerate(path) == config.specs
    assert {spec.arch for spec in config.specs} <= set(Arch)
    assert set(preset("kimi-k2").specs()) < set(config.specs)
    with pytest.raises(SpecError, match="tp: only for"):
        mlagen.enumerate(path, tp=8)
    path.write_text("x = ")
    with pytest.raises(SpecError, match="is not TOML"):
        read_config(path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
