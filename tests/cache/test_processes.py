"""Real processes on one cache: races, removal, relocation, hostile homes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sandbox

PROCESSES = 32


def test_32_processes_on_one_cold_cache_compile_once_and_agree(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    running = [sandbox.start(sandbox.LOAD, env) for _ in range(PROCESSES)]
    rows = [sandbox.finish(process).split() for process in running]
    assert len(rows) == PROCESSES
    assert sum(int(row[0]) for row in rows) == 1
    assert len({(row[2], row[3]) for row in rows}) == 1
    assert sandbox.load(env)[:2] == (0, 1)


def test_processes_on_a_cache_with_a_damaged_entry_all_get_the_right_kernel(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    right = sandbox.load(env)[2:]
    (cubin,) = (tmp_path / "cache").rglob("kernel.cubin")
    cubin.write_bytes(cubin.read_bytes()[:100])
    running = [sandbox.start(sandbox.LOAD, env) for _ in range(8)]
    rows = [sandbox.finish(process).split() for process in running]
    assert {tuple(row[2:]) for row in rows} == {right}


def test_removing_the_cache_under_running_processes_breaks_none(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    running = [sandbox.start(sandbox.LOAD, env) for _ in range(8)]
    while any(process.poll() is None for process in running):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        time.sleep(0.02)
    assert len({sandbox.finish(process).split()[3] for process in running}) == 1


def test_a_second_process_compiles_nothing_even_after_every_time_stamp_changed(tmp_path: Path) -> None:
    home = sandbox.copy_package(tmp_path / "a")
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override, PYTHONPATH=str(home))
    assert sandbox.load(env)[0] == 1
    for path in home.rglob("*"):
        os.utime(path, (10**9, 10**9))
    assert sandbox.load(env)[:2] == (0, 1)


def test_a_moved_installation_still_hits_and_a_changed_header_misses(tmp_path: Path) -> None:
    """With blanks, quotes and accents in every path."""
    first = sandbox.copy_package(tmp_path / "a b" / "é'x")
    override = sandbox.small_kernels(tmp_path / "sr c")
    cache = tmp_path / "ca 'che é"
    assert sandbox.load(sandbox.environment(cache, override, PYTHONPATH=str(first)))[0] == 1
    second = tmp_path / "elsewhere"
    first.rename(second)
    env = sandbox.environment(cache, override, PYTHONPATH=str(second))
    assert sandbox.load(env)[0] == 0
    header = second / "mlagen" / "templates" / "include" / "mlagen" / "base.cuh"
    header.write_text(header.read_text() + "// changed\n")
    assert sandbox.load(env)[0] == 1


def test_a_real_kernel_builds_from_a_path_with_blanks_and_quotes(tmp_path: Path) -> None:
    home = sandbox.copy_package(tmp_path / "a b" / "é'x")
    env = sandbox.environment(tmp_path / "c d", PYTHONPATH=str(home), CUDA_HOME=":/nonexistent")
    assert sandbox.load(env)[0] == 1


@pytest.mark.parametrize("home", ["/nonexistent", "/proc/1", "/dev/null/x"])
def test_an_unusable_home_costs_one_warning(tmp_path: Path, home: str) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(None, override, HOME=home)
    env.pop("XDG_CACHE_HOME", None)
    script = sandbox.LOAD + "mlagen.build.load_artifact(spec); print(mlagen.build.stats().compiles)"
    process = sandbox.start(script, env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[-1] == "1"
    assert err.count("cannot be used") == 1
    assert not Path("/nonexistent").exists()


def test_a_cache_folder_that_cannot_be_made_costs_a_warning(tmp_path: Path) -> None:
    """A file stands in place of the folder."""
    override = sandbox.small_kernels(tmp_path / "src")
    (tmp_path / "file").write_text("")
    assert sandbox.load(sandbox.environment(tmp_path / "file", override))[0] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_cache_of_another_user_is_ignored(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    assert sandbox.load(env)[0] == 1
    os.chown(tmp_path / "cache" / "v2", 12345, 12345)
    process = sandbox.start(sandbox.LOAD, env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[0] == "1"
    assert "belongs to user 12345" in err


def test_a_cache_that_others_can_write_to_is_ignored(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    assert sandbox.load(env)[0] == 1
    (tmp_path / "cache" / "v2").chmod(0o777)
    assert sandbox.load(env)[0] == 1


def test_prebuilt_kernels_work_without_a_compiler_and_are_never_written(tmp_path: Path) -> None:
    """Built here with --output, used where neither NVRTC nor headers are installed."""
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    build = [
        sys.executable,
        "-m",
        "mlagen",
        "build",
        sandbox.SPEC.name,
        "--output",
        str(tmp_path / "kit"),
        "--json",
    ]
    subprocess.run(build, env=env, check=True, capture_output=True, cwd="/")
    before = sorted(path for path in (tmp_path / "kit").rglob("*"))
    hidden = (
        "from importlib import metadata\n"
        "real = metadata.distribution\n"
        "def distribution(name):\n"
        "    if name.startswith('nvidia-'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.distribution = distribution\n"
        "import sys; sys.modules['cuda.pathfinder'] = None\n"
    )
    user = sandbox.environment(tmp_path / "other", override, MLAGEN_CACHE_PATH=str(tmp_path / "kit"))
    assert sandbox.python(hidden + sandbox.LOAD, user).split()[:2] == ["0", "1"]
    assert sandbox.load(user | {"MLAGEN_DISABLE_JIT": "1"})[:2] == (0, 1)
    assert sorted(path for path in (tmp_path / "kit").rglob("*")) == before
    sandbox.small_kernels(tmp_path / "src", value=2)
    assert sandbox.load(user)[0] == 1, "a prebuilt kernel of another source must not be used"


def test_the_cache_folder_of_the_environment_counts_with_prebuilt_kernels_too(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    (tmp_path / "kit").mkdir()
    env = sandbox.environment(tmp_path / "mine", override, MLAGEN_CACHE_PATH=str(tmp_path / "kit"))
    assert sandbox.load(env)[0] == 1
    assert list((tmp_path / "mine").rglob("kernel.cubin"))


@pytest.mark.parametrize("cuda_home", [None, ":/x", "/nonexistent"])
def test_variables_of_a_system_toolkit_do_not_matter(tmp_path: Path, cuda_home: str | None) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        env.pop(name, None)
        if cuda_home is not None:
            env[name] = cuda_home
    assert sandbox.load(env)[0] == 1


def test_nothing_is_ever_downloaded(tmp_path: Path) -> None:
    """A build in which no socket can be opened, also not by a worker."""
    block = (
        "import socket\n"
        "class Refused(socket.socket):\n"  # a class: the ssl module derives its sockets from it
        "    def __init__(self, *a, **k): raise AssertionError('network')\n"
        "socket.socket = socket.create_connection = Refused\n"
    )
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(block)
    override = sandbox.small_kernels(tmp_path / "src")
    path = f"{tmp_path / 'site'}{os.pathsep}{sandbox.ROOT}"
    assert sandbox.load(sandbox.environment(tmp_path / "cache", override, PYTHONPATH=path))[0] == 1


def test_files_of_the_current_folder_do_not_reach_the_workers(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('wrong module')")
    (tmp_path / "script.py").write_text(sandbox.LOAD)
    override = sandbox.small_kernels(tmp_path / "src")
    env = sandbox.environment(tmp_path / "cache", override)
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "1"


def test_a_user_script_without_main_guard_can_build_many(tmp_path: Path) -> None:
    """Workers never run the caller's script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('started', flush=True)\nimport mlagen\n"
        "specs = [mlagen.KernelSpec('sm_90a', 'bf16', 'bf16', h, 64, 16, 1) for h in (1, 2, 3)]\n"
        "print(len(mlagen.compile(specs, jobs=2).failed))\n"
    )
    import mlagen

    specs = [mlagen.KernelSpec("sm_90a", "bf16", "bf16", h, 64, 16, 1) for h in (1, 2, 3)]  # type: ignore[arg-type]
    override = sandbox.small_kernels(tmp_path / "src", *specs)
    env = sandbox.environment(tmp_path / "cache", override)
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["started", "0"]
