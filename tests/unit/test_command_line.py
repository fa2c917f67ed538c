"""The command line: every command, as text and as JSON, and its exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sandbox

from mlagen.cli.common import table
from mlagen.plan import make_plan
from mlagen.render import render
from mlagen.shipped import shipped_specs

NAME = sandbox.SPEC.name


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A cache of its own and small sources for the DeepSeek-V3 kernels of one rank of 8."""
    override = sandbox.small_kernels(tmp_path / "src", *[s for s in shipped_specs() if s.h_q == 16])
    return sandbox.environment(tmp_path / "cache", override)


def mlagen(env: dict[str, str], *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mlagen", *words],
        env=env,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 or "--json" in words else done.stderr


def as_json(env: dict[str, str], *words: str, status: int = 0) -> Any:
    return json.loads(mlagen(env, *words, "--json", status=status))


def test_build_by_preset_reports_every_kernel_then_finds_them_cached(env: dict[str, str]) -> None:
    words = ("build", "--preset", "deepseek-v3", "--tp", "8", "--arch", "sm_90a", "--jobs", "2")
    rows = as_json(env, *words)
    assert [row["name"] for row in rows] == [NAME, NAME.replace("1sm", "2sm")]
    for row in rows:
        assert row["status"] == "compiled"
        assert (row["spill_stores"], row["spill_loads"]) == (0, 0)
        assert row["registers"] > 0
        assert row["smem_bytes"] == make_plan(sandbox.SPEC).smem_bytes or "2sm" in row["name"]
        assert {"front_end", "nvvm", "ptxas", "cpu"} == set(row["seconds"])
    text = mlagen(env, *words)
    assert "0 compiled, 2 cached, 0 failed" in text
    listed = {row["name"]: row for row in as_json(env, "list")}
    assert {name for name, row in listed.items() if row["cached"] == "yes"} == {row["name"] for row in rows}
    assert set(listed) >= {spec.name for spec in shipped_specs()}


def test_build_names_forces_and_fails_with_status_1(env: dict[str, str]) -> None:
    assert as_json(env, "build", NAME)[0]["status"] == "compiled"
    assert as_json(env, "build", NAME)[0]["status"] == "cached"
    assert as_json(env, "build", NAME, "--force")[0]["status"] == "compiled"
    bad = as_json(env, "build", NAME.replace("h16", "h300"), status=1)
    assert bad[0]["status"] == "failed" and "1..128" in bad[0]["error"]
    assert as_json(env, "build", "nonsense", status=1)["error"] == "SpecError"
    assert "--preset" in mlagen(env, "build", status=2)
    assert "--preset" in mlagen(env, "build", NAME, "--tp", "8", status=2)


def test_list_all_prints_the_ranges(env: dict[str, str]) -> None:
    text = mlagen(env, "list", "--all")
    assert "1..128" in text and "1, 2, 4, 8, 16, 32, 64, 128" in text and "1..256" in text
    assert all("name" in row for row in as_json(env, "list", "--all"))


def test_show_prints_every_table_or_the_source(env: dict[str, str]) -> None:
    plan = make_plan(sandbox.SPEC)
    text = mlagen(env, "show", NAME)
    for row in (
        *plan.roles,
        *plan.mbarriers,
        *plan.named_barriers,
        *plan.smem,
        *plan.params,
        *plan.tensor_maps,
    ):
        assert row.name in text
    assert f"{plan.smem_bytes} of {plan.smem_limit} B" in text
    assert mlagen(env, "show", NAME, "--source").rstrip("\n") == render(plan).rstrip("\n")
    value = as_json(env, "show", NAME, "--source")
    assert value["name"] == NAME and value["source"] == render(plan)
    assert [row["name"] for row in value["roles"]] == [role.name for role in plan.roles]
    assert NAME in mlagen(env, "show", NAME, "--sass")
    assert ".target sm_90a" in mlagen(env, "show", NAME, "--ptx")


def test_doctor_reports_and_fails_when_nothing_can_be_compiled(env: dict[str, str], tmp_path: Path) -> None:
    value = as_json(env, "doctor")
    assert value["can_compile"] is True
    found = {row["what"]: row for row in value["findings"]}
    assert {"nvidia-cuda-nvrtc", "nvidia-cutlass", "test compilation", "cache folder"} <= set(found)
    assert "MLAGEN_OVERRIDE_DIR" in found
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "from importlib import metadata\nreal = metadata.distribution\n"
        "def distribution(name):\n"
        "    if name == 'nvidia-cutlass':\n        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.distribution = distribution\n"
    )
    broken = env | {"PYTHONPATH": f"{tmp_path / 'site'}:{sandbox.ROOT}", "MLAGEN_CACHE": "/x"}
    script = "import cuda.pathfinder as p\np.find_nvidia_header_directory = lambda name: None\n"
    (tmp_path / "site" / "sitecustomize.py").open("a").write(script)
    value = as_json(broken, "doctor", status=1)
    found = {row["what"]: row for row in value["findings"]}
    assert found["nvidia-cutlass"]["status"] == "missing"
    assert found["nvidia-cutlass"]["fix"] == "pip install 'mlagen[compile]'"
    assert found["MLAGEN_CACHE"]["status"] == "wrong"


def test_square_brackets_reach_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    """A table is no markup: `mlagen[torch]` must not lose its end."""
    table("", ("what to do",), [("pip install 'mlagen[torch]'",)])
    assert "mlagen[torch]" in capsys.readouterr().out


def test_verify_without_a_gpu_says_so_and_exits_with_3(env: dict[str, str]) -> None:
    hidden = env | {"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": ""}
    assert as_json(hidden, "verify", NAME, status=3)["error"] == "DeviceError"
    assert "GPU" in mlagen(hidden, "verify", NAME, status=3)


def test_cache_commands(env: dict[str, str], tmp_path: Path) -> None:
    as_json(env, "build", NAME)
    info = as_json(env, "cache", "info")
    assert info["entries"] == 1 and info["bytes"] > 0 and info["private"] == str(tmp_path / "cache")
    assert as_json(env, "cache", "gc") == {"removed": 0}
    (row,) = as_json(env, "cache", "ls")
    assert row["name"] == NAME and row["bytes"] > 0
    assert NAME in mlagen(env, "cache", "ls")
    assert [row["fault"] for row in as_json(env, "cache", "verify")] == [""]
    kit = str(tmp_path / "kit")
    assert as_json(env, "cache", "export", kit) == {"added": 1, "kernels": 1}
    assert as_json(env, "cache", "export", kit, NAME) == {"added": 0, "kernels": 1}
    assert "not cached" in as_json(env, "cache", "export", kit, "other", status=1)["message"]
    (cubin,) = (tmp_path / "cache").rglob("kernel.cubin")
    cubin.write_bytes(b"damaged")
    assert "kernel.cubin" in as_json(env, "cache", "verify", status=1)[0]["fault"]
    assert as_json(env, "cache", "gc", NAME) == {"removed": 1}
    assert as_json(env, "cache", "info")["entries"] == 0
    assert as_json(env, "cache", "import", kit) == {"imported": 1}
    assert as_json(env, "build", NAME)[0]["status"] == "cached"
    assert as_json(env, "cache", "gc", "--older-than", "1") == {"removed": 0}
    assert as_json(env, "cache", "gc", "--all") == {"removed": 1}


def test_bundle_commands(env: dict[str, str], tmp_path: Path) -> None:
    one, two, both = (str(tmp_path / name) for name in ("one", "two", "both"))
    second = NAME.replace("1sm", "2sm")
    as_json(env, "build", NAME, "--output", one)
    as_json(env, "build", NAME, second, "--output", two)
    assert as_json(env, "bundle", "merge", both, one, two) == {"added": 2, "kernels": 2}
    listed = as_json(env, "bundle", "ls", both)
    assert [row["name"] for row in listed["rows"]] == [NAME, second] and listed["faults"] == []
    assert NAME in mlagen(env, "bundle", "ls", both)
    made = as_json(env, "bundle", "wheel", both, "--label", "test_set", "--output", str(tmp_path))
    assert Path(made["wheel"]).stat().st_size == made["bytes"]
    assert "label" in as_json(env, "bundle", "wheel", both, "--label", "a b", status=1)["message"]
    assert "not a bundle" in as_json(env, "bundle", "ls", str(tmp_path), status=1)["message"]


def test_a_bad_setting_is_named(env: dict[str, str]) -> None:
    assert "MLAGEN_JOBS='x'" in mlagen(env | {"MLAGEN_JOBS": "x"}, "build", NAME, status=1)


def test_help_names_every_command(env: dict[str, str]) -> None:
    text = mlagen(env, "--help")
    for word in ("bench", "build", "bundle", "cache", "doctor", "list", "show", "verify"):
        assert word in text
        if word != "bench":
            assert "--help" in mlagen(env, word, "--help")
