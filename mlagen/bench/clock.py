"""Timing whole steps: a CUDA graph with one call for each page set, replayed in bursts after pauses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlagen import driver
from mlagen.bench.sampler import Sampler, Sensors, medians

BURST_MS = 25.0
LEAST_REPLAYS, MOST_REPLAYS = 5, 200
MOST_LONG_REPLAYS = 20000


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a case is measured.

    Attributes:
        pause: seconds of rest before each burst, so that the power limit does not bite.
        bursts: bursts of about BURST_MS.
        sustain: seconds of back-to-back replays at the end, 0 for none.
    """

    pause: float = 0.4
    bursts: int = 2
    sustain: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one step over all replays.

    Attributes:
        median, least, p10, p90: of all replays of all bursts.
        bursts: median of each burst.
        replays, steps_a_replay: how many there were.
        nodes_a_step: nodes of the graph for one step: its launches, copies and fills; None if not known.
        sustained: median of the last third of a long run, None if there was none.
        clocks: readings during the bursts, see mlagen.bench.sampler.
        sustained_clocks: readings late in the long run.
    """

    median: float
    least: float
    p10: float
    p90: float
    bursts: tuple[float, ...]
    replays: int
    steps_a_replay: int
    nodes_a_step: float | None
    sustained: float | None
    clocks: dict[str, float]
    sustained_clocks: dict[str, float]


def capture(step: Callable[[int], Any], sets: int) -> tuple[Any, int, int | None, Any]:
    """Captures `step(i)` for all sets in one graph; twice each where there are few.

    Returns:
        The graph, the steps and the nodes in it, and the stream that it was captured on.
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
        nodes = captured_nodes(int(stream.cuda_stream))
    return graph, rounds * sets, nodes, stream


def captured_nodes(stream: int) -> int | None:
    """Nodes of the graph that a stream is capturing now, None where the driver does not tell."""
    try:
        api = driver.api()
        graph = driver.call(api.cuStreamGetCaptureInfo(stream), "cuStreamGetCaptureInfo")[2]
        return int(driver.call(api.cuGraphGetNodes(graph), "cuGraphGetNodes")[1])
    except Exception:  # a number for the report; nothing depends on it
        return None


def time_steps(step: Callable[[int], Any], sets: int, sensors: Sensors, effort: Effort) -> Timing:
    """Times `step(i)` for i in 0..sets-1, captured in one graph.

    Args:
        step: launches one decode step on page set i on the current stream; nothing else may be launched.
        sets: page sets.
        sensors: of the GPU.
        effort: how long.
    """
    import torch

    graph, steps, nodes, stream = capture(step, sets)
    with torch.cuda.stream(stream):
        replay_ms = min(_replay(graph, 3, 1)[0]) / 1e3
        count = int(max(LEAST_REPLAYS, min(MOST_REPLAYS, BURST_MS / replay_ms)))
        samples, readings = [], []
        for _ in range(effort.bursts):
            time.sleep(effort.pause)
            times, reading = _replay(graph, count + 1, steps, sensors)
            samples.append(times[1:])
            readings.append(reading)
        sustained, late = None, {}
        if effort.sustain:
            replays = int(max(10, min(MOST_LONG_REPLAYS, effort.sustain * 1e3 / replay_ms)))
            with Sampler(sensors) as sampler:
                long, _ = _replay(graph, replays, steps)
            sustained, late = statistics.median(long[-(len(long) // 3) :]), sampler.late()
    every = sorted(value for burst in samples for value in burst)
    return Timing(
        median=statistics.median(every),
        least=every[0],
        p10=every[len(every) // 10],
        p90=every[len(every) * 9 // 10],
        bursts=tuple(statistics.median(burst) for burst in samples),
        replays=len(every),
        steps_a_replay=steps,
        nodes_a_step=None if nodes is None else nodes / steps,
        sustained=sustained,
        clocks=medians(readings),
        sustained_clocks=late,
    )


def _replay(
    graph: Any, count: int, steps: int, sensors: Sensors | None = None
) -> tuple[list[float], dict[str, float]]:
    """Microseconds of one step in each of `count` replays, and a reading while they run."""
    import torch

    cuda: Any = torch.cuda
    events = [cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for index in range(count):
        graph.replay()
        events[index + 1].record()
    reading = sensors.read() if sensors is not None and sensors.fast else {}
    events[count].synchronize()
    if sensors is not None and not sensors.fast:
        reading = sensors.read()
    times = [events[index].elapsed_time(events[index + 1]) * 1e3 / steps for index in range(count)]
    return times, reading


def time_host(call: Callable[[], Any], *, rounds: int = 30, calls: int = 50) -> dict[str, float]:
    """Microseconds that the host spends in one eager call, the GPU not waited for.

    Args:
        call: launches one step.
        rounds: groups of calls; the GPU is waited for between them, outside the time.
        calls: calls of a group, few enough that the launch queue never fills.

    Returns:
        median, least and p90 of the groups' means, and of single calls the median.
    """
    import torch

    for _ in range(20):
        call()
    means, single = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        means.append((time.perf_counter() - start) / calls * 1e6)
        torch.cuda.synchronize()
        for _ in range(5):
            start = time.perf_counter()
            call()
            single.append((time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
    means.sort()
    return {
        "host_us_median": statistics.median(means),
        "host_us_least": means[0],
        "host_us_p90": means[len(means) * 9 // 10],
        "host_us_single_median": statistics.median(single),
    }
