"""`mlagen.kernels`: names as modules, what they refuse and offer, and that looking compiles nothing."""

from __future__ import annotations

import importlib
import rlcompleter
from pathlib import Path

import pytest
import sandbox

import mlagen
from mlagen import kernels
from mlagen.errors import DeviceError, SpecError
from mlagen.kernels.finder import nearest_names
from mlagen.plan import make_plan
from mlagen.render import render
from mlagen.shipped import shipped_specs
from mlagen.spec import KernelSpec

NAME = sandbox.SPEC.name


def test_a_name_is_a_module_with_spec_plan_and_source() -> None:
    kernel = importlib.import_module(f"mlagen.kernels.{NAME}")
    assert kernel is getattr(kernels, NAME) and kernel is importlib.import_module(f"mlagen.kernels.{NAME}")
    assert kernel.spec == sandbox.SPEC
    assert kernel.plan == make_plan(sandbox.SPEC)
    assert kernel.source == render(kernel.plan)
    assert NAME in repr(kernel) and callable(kernel)
    assert {"spec", "plan", "source", "cubin_path", "report", "load"} <= set(dir(kernel))


def test_import_compiles_nothing_the_first_use_once_and_later_ones_load(tmp_path: Path) -> None:
    script = (
        f"import mlagen\nfrom mlagen.kernels import {NAME} as kernel\n"
        "import mlagen.kernels as all\nfor name in dir(all): getattr(all, name)\n"
        "print(mlagen.stats().compiles)\n"
        "path, report = kernel.cubin_path, kernel.report\n"
        "assert kernel.load() is kernel and report.registers > 0\n"
        "assert len(path.read_bytes()) == report.cubin_bytes\n"
        "print(mlagen.stats().compiles)"
    )
    env = sandbox.environment(tmp_path / "cache", sandbox.small_kernels(tmp_path / "src"))
    assert sandbox.python(script, env).split() == ["0", "1"]
    assert sandbox.python(script, env).split() == ["0", "0"]


def test_where_no_folder_takes_kernels_there_is_no_path(tmp_path: Path) -> None:
    script = (
        f"from mlagen.kernels import {NAME} as kernel\nprint(kernel.cubin_path, kernel.report.registers > 0)"
    )
    env = sandbox.environment(Path("/dev/null/x"), sandbox.small_kernels(tmp_path / "src"))
    assert sandbox.python(script, env) == "None True"


@pytest.mark.parametrize(
    ("name", "why", "nearest"),
    [
        (NAME.replace("h16", "h300"), "1..128", NAME.replace("h16", "h128")),
        (NAME.replace("p64", "p48"), "page_size=48", NAME.replace("p64", "p32")),
        (NAME.replace("1sm", "4sm"), "cta_group=4", NAME.replace("1sm", "2sm")),
        (NAME.replace("bf16_bf16", "fp8_bf16"), "fp8", NAME),
        (NAME.replace("sm90_wgmma", "sm90_wgmmma"), "no family", NAME),
        (NAME + "_t01234567", "tuning 01234567", NAME),
        ("mla_decode", "not a kernel name", ""),
        ("decode", "not a kernel name", ""),
    ],
)
def test_a_name_that_is_no_kernel_says_why_and_names_the_nearest(name: str, why: str, nearest: str) -> None:
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"mlagen.kernels.{name}")
    assert why in str(caught.value)
    offered = str(caught.value).rpartition("Nearest kernels: ")[2].split(", ")
    assert nearest in offered or not nearest
    for other in offered:
        make_plan(KernelSpec.from_name(other))


def test_from_import_says_the_same_and_attributes_are_attribute_errors() -> None:
    bad = NAME.replace("h16", "h300")
    with pytest.raises(ImportError, match=r"1\.\.128.*\n?.*Nearest"):
        exec(f"from mlagen.kernels import {bad}")
    with pytest.raises(AttributeError, match=r"1\.\.128"):
        getattr(kernels, bad)
    assert not hasattr(kernels, "nothing")
    with pytest.raises(ImportError):
        importlib.import_module(f"mlagen.kernels.{NAME}.more")


def test_names_are_offered_for_completion_and_all_are_kernels() -> None:
    offered = [name for name in dir(kernels) if name.startswith("mla_decode_")]
    assert set(offered) >= {spec.name for spec in shipped_specs()}
    assert nearest_names(NAME)[0] == NAME
    completer = rlcompleter.Completer({"kernels": kernels})
    assert f"kernels.{NAME}" in [
        match.rstrip("()") for match in completer.attr_matches("kernels.mla_decode_") or []
    ]


def test_get_gives_what_a_call_gets() -> None:
    from mlagen import heuristics
    from mlagen.spec import Arch, DType

    wanted = heuristics.pick(Arch.SM_90A, "", DType.BF16, 16, 64).spec
    kernel = kernels.get(h_q=16, page_size=64, arch="sm_90a")
    assert kernel.spec == wanted
    changed = kernels.get(h_q=16, arch="sm_90a", dtype="fp16", max_split=4, cta_group=2).spec
    assert (changed.max_split, changed.cta_group, changed.kv_dtype) == (4, 2, DType.FP16)
    with pytest.raises(SpecError, match=r"1\.\.128"):
        kernels.get(h_q=129, arch="sm_90a")
    with pytest.raises(SpecError, match="sm_90a"):
        kernels.get(h_q=16, arch="sm_42")


def test_get_without_a_gpu_asks_for_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlagen import driver

    def missing(ordinal: int) -> None:
        raise DeviceError("no driver")

    monkeypatch.setattr(driver, "gpu", missing)
    with pytest.raises(DeviceError, match="arch is not given"):
        kernels.get(h_q=16)


def test_a_kernel_is_called_with_its_own_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlagen import api

    calls = []
    monkeypatch.setattr(api, "mla_decode", lambda *values, **options: calls.append((values, options)))
    getattr(kernels, NAME)(1, 2, 3, 4, softmax_scale=0.5, return_lse=True)
    assert calls == [((1, 2, 3, 4), {"spec": sandbox.SPEC, "softmax_scale": 0.5, "return_lse": True})]


def test_the_public_names_of_serving_are_there() -> None:
    assert mlagen.compile([]).rows == ()
    assert NAME in {spec.name for spec in mlagen.enumerate("deepseek-v3", tp=8)} | {NAME}
    assert mlagen.stats().compiles >= 0
    mlagen.on_compile(lambda *call: None)()
