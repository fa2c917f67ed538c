"""What is installed: templates and data inside the wheel, dependencies as promised, README as it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import sandbox

from mlagen.cli.listing import range_text
from mlagen.plan import make_plan
from mlagen.plan.sm90_wgmma import SUPPORTED
from mlagen.render import render

PROJECT = tomllib.loads((sandbox.ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a freshly built wheel, as an installation lays it out."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        sandbox.ROOT,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_template_and_header_is_in_the_wheel(installed: Path) -> None:
    root = sandbox.ROOT / "templates"
    wanted = {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    inside = installed / "mlagen" / "templates"
    assert {p.relative_to(inside): p.read_bytes() for p in inside.rglob("*") if p.is_file()} == wanted
    assert (installed / "mlagen" / "shipped.toml").is_file()
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"mlagen"}


def test_an_installed_package_renders_the_same_text(installed: Path) -> None:
    script = (
        "from mlagen.paths import template_root\nfrom mlagen.plan import make_plan\n"
        "from mlagen.render import render\n"
        f"from mlagen.spec import KernelSpec\nspec = KernelSpec.from_name({sandbox.SPEC.name!r})\n"
        "import sys; sys.stdout.write(render(make_plan(spec)))\nprint(template_root(), file=sys.stderr)"
    )
    process = sandbox.start(script, sandbox.environment(None, PYTHONPATH=str(installed)))
    out, err = process.communicate(timeout=60)
    assert out == render(make_plan(sandbox.SPEC))
    assert err.strip() == str(installed / "mlagen" / "templates")


def test_the_base_installation_has_neither_compiler_nor_torch() -> None:
    base = " ".join(PROJECT["dependencies"])
    for name in ("torch", "nvrtc", "cccl", "cutlass", "cuda-toolkit"):
        assert name not in base
    assert {"compile", "torch", "test"} <= set(PROJECT["optional-dependencies"])


def test_the_readme_has_two_commands_and_the_real_ranges() -> None:
    text = (sandbox.ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert [block.strip() for block in blocks[:2]] == ["./scripts/quickstart.sh", "./scripts/test.sh"]
    assert text[: text.index(blocks[1])].count("\n") < 25, "both stand on the first screen"
    for values in SUPPORTED.values():
        cell = range_text(values)
        assert cell in text or all(str(value) in text for value in values), cell
    for block in blocks[:2]:
        script = sandbox.ROOT / block.strip()
        assert script.stat().st_mode & 0o111, script


def test_ci_runs_the_second_command() -> None:
    text = (sandbox.ROOT / ".ci" / "run").read_text()
    assert "set -euo pipefail" in text
    assert "exec ./scripts/test.sh" in text
