"""One run of the benchmark: limits of the GPU, then every case on every subject, line by line."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlagen import __version__, driver
from mlagen.bench.cases import BenchCase
from mlagen.bench.clock import Effort
from mlagen.bench.measure import Measurement, expect, measure
from mlagen.bench.results import Line
from mlagen.bench.roofline import machine_named
from mlagen.bench.sampler import Sensors
from mlagen.bench.subjects import Ours, Subject
from mlagen.errors import DeviceError
from mlagen.spec import KernelSpec


@dataclass(frozen=True, slots=True)
class Order:
    """What a run measures.

    Attributes:
        cases: in order.
        ours: our subjects.
        peers: other subjects; they see only the cases that mean the same to them.
        gpu: where.
        effort: how long each case is measured.
        host: whether the host's part of an eager call is timed too.
        ceilings: whether the limits of the GPU are measured first.
        command: the command line, for the record.
        emit: gets every line as it is made.
        commit: for the record; asked of git if None.
        budget: seconds after which no further case is begun, 0 for no end.
    """

    cases: Sequence[BenchCase]
    ours: Sequence[Ours]
    peers: Sequence[Subject]
    gpu: driver.Gpu
    effort: Effort
    host: bool
    ceilings: bool
    command: str
    emit: Callable[[Line], None]
    commit: str | None = None
    budget: float = 0.0
    started: float = field(default_factory=time.monotonic)


def kernels(cases: Sequence[BenchCase], subjects: Sequence[Ours]) -> list[KernelSpec]:
    """Every kernel that our subjects need."""
    return list(dict.fromkeys(subject.spec(case) for case in cases for subject in subjects))


def surroundings(gpu: driver.Gpu, sensors: Sensors, command: str, version: str | None) -> Line:
    """What a line needs to be compared with another run."""
    import torch

    return {
        "gpu": gpu.name,
        "date": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "driver": sensors.about().get("driver") or driver_version(gpu.ordinal),
        **{name: value for name, value in sensors.about().items() if name != "driver"},
        "torch": torch.__version__,
        "cuda": getattr(torch.version, "cuda", None),
        "python": platform.python_version(),
        "mlagen": __version__,
        "commit": version or commit(),
        "command": command,
    }


def driver_version(ordinal: int) -> str | None:
    """Version of the driver as nvidia-smi gives it, None where that is not installed."""
    query = ["nvidia-smi", f"--id={ordinal}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """Commit of the checkout that this runs from, None where there is none."""
    query = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def run(order: Order) -> Iterator[Measurement]:
    """Measures every case on every subject; side by side, one case after the other.

    Raises:
        DeviceError: torch cannot use the GPU.
    """
    import torch

    from mlagen.bench.ceilings import measure_ceilings
    from mlagen.bench.data import Pool, make

    if not torch.cuda.is_available():
        raise DeviceError(f"this torch ({torch.__version__}) was built without CUDA; install a CUDA build")
    torch.cuda.set_device(order.gpu.ordinal)
    torch.backends.cuda.matmul.allow_tf32 = False
    sensors = Sensors(order.gpu.ordinal)
    about = surroundings(order.gpu, sensors, order.command, order.commit)
    pool = Pool(torch.device("cuda", order.gpu.ordinal))
    if order.ceilings:
        limits = measure_ceilings(pool, order.gpu, sensors, order.effort)
        order.emit({"kind": "ceilings", **limits.as_dict(), "about": about})
    machine = machine_named(order.gpu.name)
    for case in sorted(order.cases, key=lambda case: case.dtype):
        subjects = [
            *order.ours,
            *(peer for peer in order.peers if case.for_all and not peer.supports(case)),
        ]
        if order.budget and time.monotonic() - order.started > order.budget:
            order.emit({"kind": "skipped", "case": case.name, "about": about})
            continue
        data = make(case, pool)
        expected = expect(data)
        for subject in subjects:
            done = measure(subject, data, expected, machine, sensors, order.effort, host=order.host)
            order.emit({**done.as_dict(), "about": about})
            yield done
        del data, expected


def line_writer(output: Path | None, as_json: bool, echo: Callable[[str], None]) -> Callable[[Line], None]:
    """A function that appends each line to a file, and prints it where JSON was asked for."""

    def emit(line: Line) -> None:
        text = json.dumps(line)
        if output is not None:
            with output.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        if as_json:
            echo(text)

    return emit


def short(line: dict[str, Any]) -> str:
    """A line about one measurement, for the terminal."""
    start = f"{line.get('case', '')} {line.get('subject', line['kind'])}:"
    if "us_median" not in line:
        return f"{start} {line.get('error') or 'not measured'}"
    clocks = line.get("clocks") or {}
    text = f"{start} {line['us_median']:.1f} us ({line['us_p10']:.1f}..{line['us_p90']:.1f})"
    text += f" {clocks.get('sm_mhz', 0):.0f} MHz"
    if line.get("us_sustained"):
        text += f", sustained {line['us_sustained']:.1f} us"
    if line.get("host_us_median"):
        text += f", host {line['host_us_median']:.1f} us"
    return text
