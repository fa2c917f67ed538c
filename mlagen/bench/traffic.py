"""Bytes moved, counted by the GPU: one step of each subject under Nsight Compute, in a process of its own.

    python -m mlagen.bench.traffic CASE... --ours auto --peers flashmla

is the process that is profiled; `count_traffic` starts it and reads what ncu prints.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from mlagen.bench.cases import parse
from mlagen.bench.data import Pool, make
from mlagen.bench.peers import peers
from mlagen.bench.subjects import Subject, ours

METRICS = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_written_bytes": ("dram__bytes_write.sum", 1),
    "l2_read_bytes": ("lts__t_sectors_op_read.sum", 32),
}
MARK = "BitwiseXor"  # part of the name of the kernel that ends the kernels of one subject
SECONDS_A_PAIR = 60.0
Counts = dict[tuple[str, str], dict[str, float]]


def count_traffic(
    cases: Sequence[str], kinds: Sequence[str], peer_names: Sequence[str], device: int
) -> tuple[Counts, str]:
    """Bytes of one step by (case, subject), and why there are none where that failed.

    Args:
        cases: their names.
        kinds: our subjects, see mlagen.bench.subjects.ours.
        peer_names: see mlagen.bench.peers.
        device: number of the GPU.
    """
    profiler = shutil.which("ncu")
    if profiler is None:
        return {}, "ncu is not installed"
    command = [profiler, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--target-processes", "all"]
    command += ["--metrics", ",".join(metric for metric, _ in METRICS.values())]
    command += [sys.executable, "-m", "mlagen.bench.traffic", *cases]
    command += ["--ours", ",".join(kinds), "--peers", ",".join(peer_names) or "none", "--device", str(device)]
    limit = SECONDS_A_PAIR * len(cases) * (len(kinds) + len(peer_names))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return {}, f"ncu: {type(error).__name__}: {error}"
    if done.returncode:
        return {}, f"ncu ended with status {done.returncode}: {(done.stderr or done.stdout)[-300:].strip()}"
    return read_counts(done.stdout), ""


def read_counts(text: str) -> Counts:
    """Sums of the metrics of each subject's kernels, from the output of ncu and of the profiled process."""
    lines = text.splitlines()
    pairs = [tuple(line.split("\t")[1:3]) for line in lines if line.startswith("pair\t")]
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    counts: Counts = {}
    sums = dict.fromkeys(METRICS, 0.0)
    done = 0
    for row in rows:
        if not (row.get("ID") or "").isdecimal():
            continue  # the line of units
        if MARK in (row.get("Kernel Name") or ""):
            if done < len(pairs):
                case, subject = pairs[done]
                counts[case, subject] = sums
            sums, done = dict.fromkeys(METRICS, 0.0), done + 1
            continue
        for name, (metric, factor) in METRICS.items():
            sums[name] += factor * float((row.get(metric) or "0").replace(",", ""))
    return counts


def run_once(cases: Sequence[str], subjects: Sequence[Subject], device: int) -> None:
    """One profiled step of each subject on each case, after steps on other page sets."""
    import torch

    cuda: Any = torch.cuda
    pool = Pool(torch.device("cuda", device))
    mark = torch.ones((1,), dtype=torch.int32, device=pool.device)
    for name in cases:
        case = parse(name)
        data = make(case, pool)
        for subject in subjects:
            if subject.supports(case):
                continue
            step = subject.prepare(data)
            for index in range(data.sets):
                step(index)
            cuda.synchronize()
            cuda.profiler.start()
            step(0)
            torch.bitwise_xor(mark, mark)
            cuda.synchronize()
            cuda.profiler.stop()
            print(f"pair\t{name}\t{subject.name}", flush=True)


def main(arguments: Sequence[str]) -> None:
    """The profiled process."""
    from argparse import ArgumentParser

    import torch

    from mlagen import driver

    parser = ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--ours", default="auto")
    parser.add_argument("--peers", default="none")
    parser.add_argument("--device", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.cuda.set_device(given.device)
    names = [name for name in given.peers.split(",") if name != "none"]
    found, _ = peers(names)
    kinds = [kind for kind in given.ours.split(",") if kind]
    run_once(given.cases, [*ours(kinds, None, driver.gpu(given.device)), *found], given.device)


if __name__ == "__main__":
    main(sys.argv[1:])
