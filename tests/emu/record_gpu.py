"""Record what a GPU does: `python -m tests.emu.record_gpu FOLDER [--kernels FOLDER] [--sweeps FOLDER]
[--keep FOLDER] [--only TEXT]`.

Writes `FOLDER/sm_XY.json`: for each case of `gpu_cases` a digest of its output (the values themselves where
the emulator need not be exact), the bytes of tensor maps, and for each kernel that `gpu_kernels` prepared the
digests of its outputs and some of their values; the kernels' launches and PTX are copied beside it. A case
that fails or hangs is recorded with its error and the next one goes on in a fresh process.

--keep stores all outputs as .npy, to look at differences; --sweeps also runs `gpu_sweeps`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlagen import driver
from tests.emu import gpu_sweeps
from tests.emu.gpu_case import Case, canonical
from tests.emu.gpu_cases import all_cases, tensor_maps
from tests.emu.gpu_launch import encode, run_case, run_kernel

PATIENCE = 20.0
"""Seconds without a result after which a process counts as hanging."""
SAMPLES = 512


def record(case: Case, out: np.ndarray) -> dict[str, Any]:
    """What is kept of an output."""
    out = canonical(case, out)
    entry: dict[str, Any] = {"sha256": hashlib.sha256(out.tobytes()).hexdigest()}
    if case.ulps:
        values = np.ascontiguousarray(out.reshape(-1).view(np.uint32)[:: out.itemsize // 4])
        entry["values"] = base64.b64encode(values.tobytes()).decode()
    return entry


def record_kernel(outputs: dict[str, np.ndarray], given: dict[str, Any]) -> dict[str, Any]:
    """Digests, and SAMPLES words of each output."""
    entry: dict[str, Any] = {"ptx_sha256": given["ptx_sha256"]}
    for name, data in outputs.items():
        words = data.view(np.uint32)
        entry[name] = {
            "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
            "every": max(len(words) // SAMPLES, 1),
            "words": words[:: max(len(words) // SAMPLES, 1)].tobytes().hex(),
        }
    return entry


def jobs(options: argparse.Namespace) -> dict[tuple[str, str], Callable[[Any], Any]]:
    """What is to be recorded: (kind, name) -> function of the driver."""

    def keep(name: str, out: np.ndarray) -> None:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            np.save(options.keep / f"{name.translate(str.maketrans(' /,;|:', '______'))}.npy", out)

    def case_job(case: Case) -> Callable[[Any], Any]:
        def run(api: Any) -> Any:
            out = run_case(api, case)
            keep(case.name, out)
            return record(case, out)

        return run

    def kernel_job(name: str) -> Callable[[Any], Any]:
        def run(api: Any) -> Any:
            given = json.loads((options.kernels / f"{name}.json").read_text())
            first = run_kernel(api, options.kernels, name, given)
            second = run_kernel(api, options.kernels, name, given)
            for part, data in first.items():
                keep(f"{name}.{part}", data)
            same = all(np.array_equal(first[n], second[n]) for n in first)
            return {**record_kernel(first, given), "repeatable": same}

        return run

    def sweep_job(operation: str, first: int) -> Callable[[Any], Any]:
        def run(api: Any) -> Any:
            options.sweeps.mkdir(parents=True, exist_ok=True)
            data = gpu_sweeps.differences(operation, first, gpu_sweeps.sweep(api, operation, first))
            (options.sweeps / f"{operation}.{first:08x}").write_bytes(data)
            return len(data)

        return run

    found: dict[tuple[str, str], Callable[[Any], Any]] = {}
    found |= {
        ("tensor_maps", n): lambda api, g=g: encode(api, 1 << 40, g).hex() for n, g in tensor_maps().items()
    }
    found |= {("cases", case.name): case_job(case) for case in all_cases()}
    if options.kernels:
        found |= {("kernels", p.stem): kernel_job(p.stem) for p in sorted(options.kernels.glob("*.json"))}
    if options.sweeps:
        octaves = [(op, first) for op, firsts in gpu_sweeps.OCTAVES.items() for first in firsts]
        found |= {("sweeps", f"{op} {first:08x}"): sweep_job(op, first) for op, first in octaves}
    return {key: job for key, job in found.items() if options.only in key[1]}


def work(options: argparse.Namespace) -> None:
    """In a process of its own: run the jobs from number `options.start` on, one line of JSON each."""
    gpu = driver.gpu(0)
    with driver.current(gpu) as api, options.lines.open("a") as out:

        def tell(*line: Any) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        version = int(driver.call(api.cuDriverGetVersion(), "cuDriverGetVersion"))
        tell("gpu", "", [gpu.name, list(gpu.compute_capability), version])
        for number, ((kind, name), job) in enumerate(jobs(options).items()):
            if number < options.start:
                continue
            try:
                tell(kind, name, job(api))
            except Exception as error:
                tell("errors", f"{kind}: {name}", f"{type(error).__name__}: {error}")
                traceback.print_exc()
                sys.exit(1)  # a faulty launch may have spoilt the context


def supervise(options: argparse.Namespace, count: int) -> list[Any]:
    """All lines of the working processes; a new one begins behind a job that failed or hung."""
    options.lines.unlink(missing_ok=True)
    names = list(jobs(options))
    start, lines = 0, []
    while start < count:
        command = [sys.executable, "-m", "tests.emu.record_gpu", *sys.argv[1:], "--start", str(start)]
        process = subprocess.Popen(command)
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            now = options.lines.stat().st_size if options.lines.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE * (3 if now == 0 else 1):
                process.kill()
                process.wait()
                break
        text = options.lines.read_text() if options.lines.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        done = sum(line[0] != "gpu" for line in lines)
        if process.returncode == 0:
            return lines
        if not lines:
            sys.exit("no GPU could be opened, see above")
        if done == start:  # it died without a word
            lines.append(["errors", ": ".join(names[start]), f"no result, exit status {process.returncode}"])
            with options.lines.open("a") as out:
                out.write(json.dumps(lines[-1]) + "\n")
            done += 1
        start = done
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the recording goes")
    parser.add_argument("--kernels", type=Path, help="folder that tests.emu.gpu_kernels wrote")
    parser.add_argument("--sweeps", type=Path, help="also sweep the special functions into this folder")
    parser.add_argument("--keep", type=Path, help="folder for all outputs as .npy")
    parser.add_argument("--only", default="", help="jobs whose name has this text")
    parser.add_argument("--start", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.lines = options.folder / "lines.jsonl"
    if options.start >= 0:
        work(options)
        return
    started = time.monotonic()
    lines = supervise(options, len(jobs(options)))
    found: dict[str, Any] = {"cases": {}, "tensor_maps": {}, "kernels": {}, "errors": {}, "sweeps": {}}
    for kind, name, value in lines:
        if kind == "gpu":
            found["gpu"], capability, found["driver"] = value
        else:
            found[kind][name] = value
    sizes = found.pop("sweeps")
    name = "sm_" + "".join(map(str, capability))
    (options.folder / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if options.kernels:
        for path in [*options.kernels.glob("*.json"), *options.kernels.glob("*.ptx.xz")]:
            shutil.copy(path, options.folder)
    options.lines.unlink()
    counts = {kind: len(entries) for kind, entries in found.items() if isinstance(entries, dict)}
    print(counts, f"{len(sizes)} sweeps, {sum(sizes.values())} B", f"{time.monotonic() - started:.1f} s")
    for name, error in found["errors"].items():
        print("FAILED", name, error[:300])


if __name__ == "__main__":
    main()
