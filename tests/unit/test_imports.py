"""The straight line: who imports whom, and that importing does nothing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import sandbox

PACKAGE = sandbox.ROOT / "mlagen"
# The hops, first to last: nothing imports, even indirectly, what stands before it.
LINE = [
    "mlagen.cli",
    "mlagen.api",
    "mlagen.runtime",
    "mlagen.build",
    "mlagen.artifact",
    "mlagen.cache",
    "mlagen.nvrtc",
    "mlagen.toolchain",
]
# What may not reach what: the pure part of the line knows nothing of compiler, cache, device or user input.
APART = {
    "mlagen.plan": ["mlagen.render", "mlagen.cache", "mlagen.nvrtc", "mlagen.settings", "mlagen.driver"],
    "mlagen.render": ["mlagen.cache", "mlagen.nvrtc", "mlagen.settings", "mlagen.driver"],
    "mlagen.spec": ["mlagen.plan", "mlagen.hardware"],
    "mlagen.problem": ["mlagen.plan", "mlagen.heuristics", "mlagen.build", "mlagen.runtime"],
    "mlagen.heuristics": ["mlagen.build", "mlagen.runtime", "mlagen.api"],
    "mlagen.build": ["mlagen.runtime", "mlagen.driver", "mlagen.api", "mlagen.problem"],
}
# Imported by nobody below them.
TOPS = ("mlagen.cli", "mlagen.emu", "mlagen.bench", "mlagen.compat")


def module_name(path: Path) -> str:
    parts = path.relative_to(sandbox.ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: set[str]) -> set[str]:
    """Modules of the package that a file imports, anywhere in it, except for type checking."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names
            }
    return found & known - {"mlagen"}


def graph() -> dict[str, set[str]]:
    files = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    return {name: imports_of(path, set(files)) for name, path in files.items()}


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    """Everything that a module, or any module of a package, imports directly or indirectly."""
    open_, seen = [name for name in edges if within(name, start)], set[str]()
    while open_:
        for target in edges[open_.pop()]:
            if target not in seen:
                seen.add(target)
                open_.append(target)
    return seen


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_no_module_imports_its_caller() -> None:
    edges = graph()
    for name in edges:
        if name.startswith(("mlagen.plan.sm", "mlagen.emu")):
            continue  # families are loaded by name from mlagen.plan; the emulator has rules of its own
        assert name not in reachable({**edges}, name), f"{name} imports itself by way of others"


def test_the_hops_are_in_order() -> None:
    edges = graph()
    for position, name in enumerate(LINE):
        for before in LINE[:position]:
            assert not any(within(target, before) for target in reachable(edges, name)), (
                f"{name} reaches {before}"
            )


def test_the_parts_keep_apart() -> None:
    edges = graph()
    for name, others in APART.items():
        for other in others:
            assert not any(within(target, other) for target in reachable(edges, name)), (
                f"{name} reaches {other}"
            )


def test_nobody_below_imports_the_tops() -> None:
    edges = graph()
    for name, targets in edges.items():
        for top in TOPS:
            if not within(name, top) and not within(name, "mlagen.cli") and name != "mlagen.__main__":
                assert not any(within(target, top) for target in targets), f"{name} imports {top}"


def test_the_reader_of_imports_sees_them_all(tmp_path: Path) -> None:
    """The tests above can fail: plain, from, aliased and local imports are all seen."""
    path = tmp_path / "module.py"
    path.write_text(
        "import mlagen.a\nfrom mlagen import b as x\ndef f():\n    from mlagen.c import y\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mlagen.d\n"
    )
    known = {"mlagen.a", "mlagen.b", "mlagen.c", "mlagen.d"}
    assert imports_of(path, known) == {"mlagen.a", "mlagen.b", "mlagen.c"}
    assert reachable({"m": {"n"}, "n": {"m"}}, "m") == {"m", "n"}


def test_importing_mlagen_does_nothing() -> None:
    """No CUDA, compiler, torch, template engine or thread, and nothing is written."""
    script = (
        "import sys, threading; before = set(sys.modules); import mlagen; new = set(sys.modules) - before\n"
        "heavy = {'torch', 'numpy', 'jinja2', 'click', 'rich', 'cuda', 'filelock', 'logging'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in new}), threading.active_count())"
    )
    assert sandbox.python(script, sandbox.environment(None)) == "[] 1"


def test_importing_mlagen_takes_less_than_60_ms() -> None:
    """The best of several fresh processes, so that a busy machine does not count."""
    script = "import time; t = time.perf_counter(); import mlagen; print(time.perf_counter() - t)"
    times = [float(sandbox.python(script, sandbox.environment(None))) for _ in range(5)]
    assert min(times) <= 0.060, times


def test_public_names_are_there_whatever_was_imported_first() -> None:
    script = (
        "import mlagen.build, mlagen.errors, mlagen\n"
        "names = ['KernelSpec', 'compile', 'enumerate', 'stats', 'on_compile', 'make_plan', 'mla_decode']\n"
        "assert all(callable(getattr(mlagen, name)) for name in names)\n"
        "assert set(names) <= set(dir(mlagen)) and mlagen.compile([]).rows == ()\n"
        "try:\n    mlagen.nothing\nexcept AttributeError as error:\n    print(error)"
    )
    assert "nothing" in sandbox.python(script, sandbox.environment(None))


def test_a_fork_after_import_and_build_works(tmp_path: Path) -> None:
    """No context and no thread of ours is left that a child would miss."""
    script = sandbox.LOAD + (
        "import os\npid = os.fork()\n"
        "if pid == 0:\n"
        "    print(mlagen.build.load_artifact(spec).name, flush=True)\n"
        "    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    override = sandbox.small_kernels(tmp_path / "src")
    out = sandbox.python(script, sandbox.environment(tmp_path / "cache", override))
    assert out.splitlines()[-1] == sandbox.SPEC.name or out.splitlines()[0] == sandbox.SPEC.name


def test_the_package_folder_is_never_written(tmp_path: Path) -> None:
    home = sandbox.copy_package(tmp_path / "installed")
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override, PYTHONPATH=str(home))
    assert sandbox.load(env)[0] == 1
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_this_python_is_one_that_the_project_admits() -> None:
    assert sys.version_info >= (3, 11)
