"""Faults of building: each an error with everything in it, and the process goes on."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import fakes
import pytest
import sandbox

import mlagen
from mlagen import build as build_module
from mlagen import heuristics, log, toolchain
from mlagen.build import build, load_artifact, on_compile, stats
from mlagen.driver import Gpu
from mlagen.errors import CacheError, CompileError, MlagenError, ToolchainError
from mlagen.problem import Problem
from mlagen.spec import KernelSpec
from mlagen.worker import TYPICAL_MIB, Job, Worker, default_jobs


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a small source for this test alone."""
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLAGEN_OVERRIDE_DIR", str(sandbox.small_kernels(tmp_path / "src")))
    for name in ("MLAGEN_CACHE_PATH", "MLAGEN_DISABLE_JIT", "MLAGEN_SPILL_CHECK", "MLAGEN_DUMP_DIR"):
        monkeypatch.delenv(name, raising=False)
    log.warn_once.cache_clear()


def spoil(tmp_path: Path, text: str) -> None:
    (tmp_path / "src" / f"{sandbox.SPEC.name}.cu").write_text(text)


def test_with_jit_off_a_miss_names_spec_digest_folders_and_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kit").mkdir()
    monkeypatch.setenv("MLAGEN_CACHE_PATH", str(tmp_path / "kit"))
    monkeypatch.setenv("MLAGEN_DISABLE_JIT", "1")
    with pytest.raises(CacheError) as caught:
        load_artifact(sandbox.SPEC)
    message = str(caught.value)
    for word in (sandbox.SPEC.name, str(tmp_path / "kit"), str(tmp_path / "cache"), "MLAGEN_DISABLE_JIT"):
        assert word in message
    assert re.search(r"\b[0-9a-f]{64}\b", message)
    assert f"mlagen build {sandbox.SPEC.name}" in message
    monkeypatch.delenv("MLAGEN_DISABLE_JIT")
    load_artifact(sandbox.SPEC)
    monkeypatch.setenv("MLAGEN_DISABLE_JIT", "1")
    before = stats().compiles
    assert load_artifact(sandbox.SPEC).folder is not None
    assert stats().compiles == before


def test_a_source_that_does_not_compile_is_an_error_and_nothing_is_cached(tmp_path: Path) -> None:
    spoil(tmp_path, "int x = y;\n")
    with pytest.raises(CompileError) as caught:
        load_artifact(sandbox.SPEC)
    assert caught.value.spec == sandbox.SPEC
    assert 'identifier "y" is undefined' in caught.value.log
    assert caught.value.options
    assert not list((tmp_path / "cache").rglob("kernel.json"))
    spoil(tmp_path, sandbox.small_source())
    assert load_artifact(sandbox.SPEC).cubin


def test_one_bad_kernel_of_many_is_a_row_and_the_others_are_built(tmp_path: Path) -> None:
    good = KernelSpec("sm_90a", "bf16", "bf16", 8, 64, 16, 1)  # type: ignore[arg-type]
    impossible = KernelSpec("sm_90a", "bf16", "bf16", 500, 64, 16, 1)  # type: ignore[arg-type]
    sandbox.small_kernels(tmp_path / "src", good)
    spoil(tmp_path, "int x = y;\n")
    seen = []
    report = build([sandbox.SPEC, good, impossible, good], jobs=2, progress=lambda row: seen.append(row.name))
    assert [row.status for row in report.rows] == ["failed", "compiled", "failed"]
    assert "1..128" in report.rows[2].error
    assert sorted(seen) == sorted(row.name for row in report.rows)


def test_a_missing_toolchain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find", lambda component: None)
    with pytest.raises(ToolchainError) as caught:
        load_artifact(sandbox.SPEC)
    for word in ("nvidia-cuda-nvrtc", "nvidia-cutlass", "pip install 'mlagen[compile]'", "bundle"):
        assert word in str(caught.value)


def test_spills_are_an_error_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "int a[300]; for (int i = 0; i < out[9]; ++i) a[out[i] & 255] += i; out[0] = a[out[8] & 255];"
    spoil(tmp_path, sandbox.small_source().replace("out[0] = 1;", body))
    assert load_artifact(sandbox.SPEC).manifest["stack"] > 0
    monkeypatch.setenv("MLAGEN_SPILL_CHECK", "1")
    with pytest.raises(CompileError, match="MLAGEN_SPILL_CHECK") as caught:
        load_artifact(sandbox.SPEC)
    assert "stack" in caught.value.log


def test_counters_and_callbacks_tell_which_kernel_was_compiled() -> None:
    calls: list[tuple[str, str, float]] = []
    end = on_compile(lambda *call: calls.append(call))
    before = stats()
    try:
        artifact = load_artifact(sandbox.SPEC)
        load_artifact(sandbox.SPEC)
    finally:
        end()
    assert stats().compiles == before.compiles + 1
    assert stats().hits == before.hits + 1
    ((name, digest, seconds),) = calls
    assert (name, digest) == (sandbox.SPEC.name, artifact.manifest["digest"])
    assert seconds > 0
    end_twice = on_compile(lambda *call: calls.append(call))
    end_twice()
    build([sandbox.SPEC], force=True)
    assert len(calls) == 1


def test_a_worker_that_dies_is_an_error_and_the_next_job_gets_a_new_one() -> None:
    worker = Worker()
    job = Job(sandbox.SPEC, sandbox.small_source(), ("--gpu-architecture=sm_90a",))
    assert worker.compile(job).cubin
    worker._process.kill()
    with pytest.raises(ToolchainError, match="-9"):
        worker.compile(job)
    assert not worker.alive
    worker.close()
    assert load_artifact(sandbox.SPEC).cubin


def test_a_compiler_that_wants_too_much_memory_is_an_error_and_the_next_kernel_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLAGEN_WORKER_MEMORY", "256")
    spoil(tmp_path, sandbox.small_source() + "__device__ int many[] = {" + "1," * 5_000_000 + "};\n")
    with pytest.raises(MlagenError) as caught:
        load_artifact(sandbox.SPEC)
    assert re.search(r"memory|MLAGEN_WORKER_MEMORY", str(caught.value) + getattr(caught.value, "log", ""))
    spoil(tmp_path, sandbox.small_source())
    assert load_artifact(sandbox.SPEC).cubin


def test_the_number_of_compilers_follows_cores_and_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    for mebibytes, jobs in ((10, 1), (4 * TYPICAL_MIB, 4), (1000 * TYPICAL_MIB, 64)):
        text = f"MemTotal: 1 kB\nMemAvailable: {mebibytes * 1024} kB\n"
        monkeypatch.setattr(Path, "read_text", lambda path, encoding, text=text: text)
        assert default_jobs() == jobs


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(ToolchainError, match="/nonexistent/python"):
        load_artifact(sandbox.SPEC)


def test_dump_folder_gets_everything_about_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_DUMP_DIR", str(tmp_path / "dump"))
    load_artifact(sandbox.SPEC)
    found = {path.suffix: path for path in (tmp_path / "dump").iterdir()}
    assert set(found) == {".cu", ".ptx", ".cubin", ".log", ".sass"}
    assert sandbox.SPEC.name in found[".sass"].read_text()


def test_kernels_that_no_folder_takes_are_compiled_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_CACHE_DIR", "/dev/null/cache")
    monkeypatch.setattr(build_module, "_UNSAVED", {})
    before = stats().compiles
    assert load_artifact(sandbox.SPEC).cubin == load_artifact(sandbox.SPEC).cubin
    assert stats().compiles == before + 1


def test_all_errors_have_one_base_and_the_expected_builtin() -> None:
    from mlagen import errors

    expected = {
        "SpecError": ValueError,
        "BudgetError": ValueError,
        "InputError": ValueError,
        "DeviceError": RuntimeError,
        "ToolchainError": RuntimeError,
        "CompileError": RuntimeError,
        "CacheError": RuntimeError,
    }
    for name, builtin in expected.items():
        kind = getattr(errors, name)
        assert issubclass(kind, MlagenError) and issubclass(kind, builtin)


def test_every_compilation_has_a_log_line_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mlagen"):
        artifact = load_artifact(sandbox.SPEC)
    messages = [record.getMessage() for record in caplog.records]
    lines = [message for message in messages if message.startswith("compil")]
    assert lines[0] == f"compiling {sandbox.SPEC.name}"
    assert re.fullmatch(
        rf"compiled {sandbox.SPEC.name} in \d+\.\d s \({artifact.manifest['digest']}\)", lines[1]
    )
    caplog.clear()
    with caplog.at_level(logging.INFO, "mlagen"):
        load_artifact(sandbox.SPEC)
    assert not [record for record in caplog.records if record.getMessage().startswith("compil")]


def test_after_warm_up_no_batch_length_or_split_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment is built ahead; then compiling is forbidden and calls of all kinds come in."""
    specs = mlagen.enumerate("deepseek-v3", tp=8, mtp=1, arch="sm_90a")
    sandbox.small_kernels(tmp_path / "src", *specs)
    assert not build(specs).failed
    monkeypatch.setenv("MLAGEN_DISABLE_JIT", "1")
    before = stats().compiles
    gpu = Gpu(0, 0, "some Hopper", (9, 0), 132)
    bound = max(spec.max_split for spec in specs)

    def call(**shape: object) -> None:
        problem = Problem.from_tensors(**fakes.arguments(h_q=16, **shape))  # type: ignore[arg-type]
        load_artifact(heuristics.choose(problem, gpu))

    for batch in (1, 3, 64, 255):
        for s_q in (1, 2):
            for width in (1, 7, 500):
                for splits in (None, 1, bound):
                    call(batch=batch, s_q=s_q, width=width, pages=batch * width, num_splits=splits)
    assert stats().compiles == before
    with pytest.raises(CacheError, match="MLAGEN_DISABLE_JIT"):
        call(num_splits=bound + 1)
