"""Fresh Python processes with a cache of their own, and a kernel that compiles in milliseconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from mlagen import paths
from mlagen.spec import KernelSpec

ROOT = Path(__file__).resolve().parent.parent
SPEC = KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 128, 1)  # type: ignore[arg-type]

# Prints "<compiles> <hits> <digest> <sha256 of the cubin>" for the small kernel.
LOAD = """
import hashlib, mlagen
spec = mlagen.KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 128, 1)
artifact = mlagen.build.load_artifact(spec)
counts = mlagen.build.stats()
print(counts.compiles, counts.hits, artifact.manifest["digest"], hashlib.sha256(artifact.cubin).hexdigest())
"""


def small_source(spec: KernelSpec = SPEC, value: int = 1) -> str:
    """A source with the entries of a real kernel and next to nothing in them."""
    return (
        f'extern "C" __global__ void {spec.name}(int* out) {{ out[0] = {value}; }}\n'
        f'extern "C" __global__ void {spec.name}_schedule(int* out) {{ out[1] = {value}; }}\n'
    )


def small_kernels(folder: Path, *specs: KernelSpec, value: int = 1) -> Path:
    """A folder for MLAGEN_OVERRIDE_DIR in which every spec has a small source."""
    folder.mkdir(parents=True, exist_ok=True)
    for spec in specs or (SPEC,):
        (folder / f"{spec.name}.cu").write_text(small_source(spec, value))
    return folder


def environment(cache: Path | None, override: Path | None = None, **more: str) -> dict[str, str]:
    """The process environment with only these mlagen settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLAGEN_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"MLAGEN_CACHE_DIR": str(cache)} if cache is not None else {}
    env |= {"MLAGEN_OVERRIDE_DIR": str(override)} if override is not None else {}
    return env | more


def start(script: str, env: dict[str, str], **options: object) -> subprocess.Popen[str]:
    """Starts a fresh interpreter with a script."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        **options,  # type: ignore[call-overload]
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Its output; fails with its errors if it failed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


def python(script: str, env: dict[str, str], **options: object) -> str:
    """Runs a script and returns what it printed."""
    return finish(start(script, env, **options))


def load(env: dict[str, str]) -> tuple[int, int, str, str]:
    """Loads the small kernel in a fresh process: compilations, hits, digest, checksum."""
    compiles, hits, digest, checksum = python(LOAD, env).split()
    return int(compiles), int(hits), digest, checksum


def copy_package(folder: Path) -> Path:
    """A second installation: package and templates under another path."""
    skip = shutil.ignore_patterns("__pycache__", "emu", "cli")
    shutil.copytree(ROOT / "mlagen", folder / "mlagen", ignore=skip)
    shutil.copytree(paths.template_root(), folder / "mlagen" / "templates")
    return folder
