"""Sizes, formatting and types: the rules that a machine can check."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sandbox

ROOT = sandbox.ROOT
PYTHON_FILE, PYTHON_FUNCTION, TEMPLATE, HEADER = 400, 60, 150, 600
# Path, or path and function -> reason.
EXCEPTIONS: dict[str, str] = {}


def python_files() -> list[Path]:
    return sorted([*(ROOT / "mlagen").rglob("*.py"), *(ROOT / "scripts").glob("*.py")])


def headers() -> list[Path]:
    return sorted((ROOT / "templates" / "include").rglob("*.cuh"))


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def too_long() -> dict[str, int]:
    """Everything over its limit, by name."""
    limits = [(path, PYTHON_FILE) for path in python_files()]
    limits += [(path, TEMPLATE) for path in (ROOT / "templates").rglob("*.j2")]
    limits += [(path, HEADER) for path in headers()]
    found = {str(path.relative_to(ROOT)): length(path) for path, limit in limits if length(path) > limit}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > PYTHON_FUNCTION:
                    found[f"{path.relative_to(ROOT)}::{node.name}"] = lines
    return found


def test_files_and_functions_are_short() -> None:
    assert {name: lines for name, lines in too_long().items() if name not in EXCEPTIONS} == {}


def test_no_exception_is_out_of_date() -> None:
    assert set(EXCEPTIONS) <= set(too_long())


def test_kernel_entries_are_short_and_compile_alone_is_possible() -> None:
    for path in (ROOT / "templates" / "include" / "mlagen" / "kernels").glob("*.cuh"):
        assert length(path) <= 150, path
    for path in headers():
        assert "#pragma once" in path.read_text(), path


def run_tool(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_ruff_finds_nothing() -> None:
    run_tool(tool("ruff"), "check", "--no-cache", "mlagen", "scripts", "tests")
    run_tool(tool("ruff"), "format", "--no-cache", "--check", "mlagen", "scripts", "tests")


def test_mypy_strict_finds_nothing() -> None:
    run_tool(tool("mypy"), "--strict")


def test_headers_are_formatted() -> None:
    run_tool(tool("clang-format"), "--dry-run", "--Werror", *map(str, headers()))


def test_scripts_have_no_name_of_the_standard_library() -> None:
    """The folder of a script comes first on the import path and would hide the module from other scripts."""
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")}.isdisjoint(sys.stdlib_module_names)
