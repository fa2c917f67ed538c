"""Measures the promises about first use: `python scripts/reach.py --out docs/results/FILE.json`.

Every number is of fresh processes. Times are CPU seconds where a busy machine would count otherwise; wall
times are the best of several tries. With --gpu the warm call ends with the kernel loaded into the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KERNEL = "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s128_1sm"
_IMPORT = """
import json, time
wall, cpu = time.perf_counter(), time.process_time()
import mlagen
print(json.dumps({"wall_ms": 1e3 * (time.perf_counter() - wall), "cpu_ms": 1e3 * (time.process_time() -
cpu)}))
"""
_WARM = """
import json, time, torch
if {gpu!r}:
    torch.zeros(1, device="cuda")  # the context is torch's
wall, cpu = time.perf_counter(), time.process_time()
import mlagen.api
from mlagen import heuristics, runtime
from mlagen.plan.params import packer
spec = heuristics.pick("sm_90a", "", "bf16", 16, 64).spec
if {gpu!r}:
    runtime.launcher(0).kernel(spec)
else:
    artifact, plan = mlagen.build.load_artifact(spec), mlagen.make_plan(spec)
    packer(plan.params)
used = {{"wall_ms": 1e3 * (time.perf_counter() - wall), "cpu_ms": 1e3 * (time.process_time() - cpu)}}
assert spec.name == {name!r} and not mlagen.stats().compiles
print(json.dumps(used))
"""
_RACE = """
import hashlib, json, mlagen
artifact = mlagen.build.load_artifact(mlagen.KernelSpec.from_name({name!r}))
print(json.dumps([mlagen.stats().compiles, hashlib.sha256(artifact.cubin).hexdigest()]))
"""


def environment(cache: Path) -> dict[str, str]:
    """This environment with a cache of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLAGEN_")}
    return {**env, "MLAGEN_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}


def python(script: str, cache: Path) -> Any:
    """What a fresh process printed."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment(cache), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def mlagen(*words: str, cache: Path) -> Any:
    """What a command printed as JSON."""
    command = [sys.executable, "-m", "mlagen", *words, "--json"]
    done = subprocess.run(command, env=environment(cache), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def best(measure: Callable[[], dict[str, float]], tries: int = 10) -> dict[str, float]:
    """The smallest of each number over several tries; what else the machine does only adds."""
    rows = [measure() for _ in range(tries)]
    return {key: round(min(row[key] for row in rows), 1) for key in rows[0]}


def cold_kernel(folder: Path) -> dict[str, Any]:
    """One kernel, nothing cached: CPU seconds by phase."""
    tries = [mlagen("build", KERNEL, cache=folder / f"cold{n}")[0]["seconds"] for n in range(3)]
    return dict(min(tries, key=lambda row: float(row["cpu"])))


def cold_preset(folder: Path) -> dict[str, Any]:
    """The DeepSeek-V3 preset into an empty cache and a bundle: wall and CPU seconds, kernels, bytes."""
    bundle, started, before = folder / "bundle", time.perf_counter(), os.times()
    rows = mlagen("build", "--preset", "deepseek-v3", "--output", str(bundle), cache=folder / "preset")
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    listed = mlagen("bundle", "ls", str(bundle), cache=folder / "preset")
    return {
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "kernels": len(rows),
        "arch": listed["arch"],
        "bundle_bytes": sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()),
        "cpu_s_a_kernel": [row["seconds"]["cpu"] for row in rows],
    }


def race(folder: Path, processes: int = 32) -> dict[str, Any]:
    """Many processes at once on one cold cache."""
    command = [sys.executable, "-c", _RACE.format(name=KERNEL)]
    env = environment(folder / "race")
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    rows = [json.loads(process.communicate()[0]) for process in running]
    return {
        "processes": processes,
        "compiles": sum(row[0] for row in rows),
        "different_cubins": len({row[1] for row in rows}),
    }


def measure(*, gpu: bool) -> dict[str, Any]:
    """All rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: dict[str, Any] = {"cold kernel": cold_kernel(folder), "cold preset": cold_preset(folder)}
        rows["race"] = race(folder)
        cache = folder / "preset"
        warm = _WARM.format(name=KERNEL, gpu=gpu)
        time.sleep(3)  # files that have just changed are not trusted by what remembers their digest
        python(warm, cache)
        rows["warm first call beyond torch"] = best(lambda: python(warm, cache))
        rows["import mlagen"] = best(lambda: python(_IMPORT, cache))
        return rows


def loop() -> dict[str, float]:
    """CPU milliseconds of a plain loop: how fast this machine was, to compare records by."""
    started = time.process_time()
    for _ in range(200_000):
        pass
    return {"cpu_ms": 1e3 * (time.process_time() - started)}


def commit() -> str:
    """The commit of this checkout, with a mark if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="load the warm kernel into the driver")
    parser.add_argument("--out", type=Path, help="also write the record to this file")
    options = parser.parse_args()
    record = {
        "command": " ".join(["python scripts/reach.py", *(["--gpu"] if options.gpu else [])]),
        "machine": f"{len(os.sched_getaffinity(0))} CPU cores",
        "python": platform.python_version(),
        "commit": commit(),
        "load": round(os.getloadavg()[0], 1),
        "loop_ms": best(loop)["cpu_ms"],
        "rows": measure(gpu=options.gpu),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
