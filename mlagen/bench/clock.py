"""Timing whole steps: a CUDA graph with one call for each page set, replayed in bursts after pauses."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BURST_MS = 25.0
LEAST_REPLAYS, MOST_REPLAYS = 5, 200
SMI_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one step over all replays.

    Attributes:
        median, least, p10, p90: of all replays of all bursts.
        bursts: median of each burst.
        replays, steps_a_replay: how many there were.
        sustained: median of the last third of a long run, None if there was none.
        clocks: what nvidia-smi said right after the last burst.
    """

    median: float
    least: float
    p10: float
    p90: float
    bursts: tuple[float, ...]
    replays: int
    steps_a_replay: int
    sustained: float | None
    clocks: dict[str, str]


def clocks(device: int) -> dict[str, str]:
    """Clocks, power and temperature now, as nvidia-smi names them; empty where it is not installed."""
    command = [
        "nvidia-smi",
        f"--id={device}",
        f"--query-gpu={','.join(SMI_FIELDS)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(SMI_FIELDS, (part.strip() for part in text.splitlines()[0].split(",")), strict=False))


def time_steps(
    step: Callable[[int], Any],
    sets: int,
    *,
    device: int,
    bursts: int = 2,
    pause: float = 0.4,
    sustain: float = 0.0,
) -> Timing:
    """Times `step(i)` for i in 0..sets-1, captured in one graph.

    Args:
        step: launches one decode step on page set i on the current stream; nothing else may be launched.
        sets: page sets.
        device: number of the GPU, for nvidia-smi.
        bursts: bursts of about 25 ms, each after a pause so that the power limit does not bite.
        pause: seconds before each burst.
        sustain: seconds of back-to-back replays at the end, 0 for none.
    """
    import torch

    cuda: Any = torch.cuda
    stream = cuda.Stream()
    with torch.cuda.stream(stream):
        for index in range(min(sets, 3)):
            step(index)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = 2 if sets < 4 else 1
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(rounds):
            for index in range(sets):
                step(index)
    steps = rounds * sets
    with torch.cuda.stream(stream):
        replay_ms = min(_replay(graph, 3, 1)) / 1e3
        count = int(max(LEAST_REPLAYS, min(MOST_REPLAYS, BURST_MS / replay_ms)))
        samples = []
        for _ in range(bursts):
            time.sleep(pause)
            samples.append(_replay(graph, count + 1, steps)[1:])
        now = clocks(device)
        sustained = None
        if sustain:
            long = _replay(graph, int(max(10, min(20000, sustain * 1e3 / replay_ms))), steps)
            sustained = statistics.median(long[-(len(long) // 3) :])
            now = clocks(device)
    every = sorted(value for burst in samples for value in burst)
    return Timing(
        median=statistics.median(every),
        least=every[0],
        p10=every[len(every) // 10],
        p90=every[len(every) * 9 // 10],
        bursts=tuple(statistics.median(burst) for burst in samples),
        replays=len(every),
        steps_a_replay=steps,
        sustained=sustained,
        clocks=now,
    )


def _replay(graph: Any, count: int, steps: int) -> list[float]:
    """Microseconds of one step in each of `count` replays."""
    import torch

    cuda: Any = torch.cuda
    events = [cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for index in range(count):
        graph.replay()
        events[index + 1].record()
    events[count].synchronize()
    return [events[index].elapsed_time(events[index + 1]) * 1e3 / steps for index in range(count)]
