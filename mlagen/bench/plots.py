"""Plots of measured lines: roofline, time against length and batch, cost of splits. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mlagen.bench.cases import parse
from mlagen.bench.results import Line, is_ours, timed
from mlagen.bench.roofline import H200, Machine, machine_named
from mlagen.errors import MlagenError

SIZE = (8.0, 5.0)


def write_plots(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Draws every plot that the lines have points for.

    Args:
        lines: of a run, see mlagen.bench.results.
        folder: is made if it is not there.

    Raises:
        MlagenError: matplotlib is not installed.
    """
    try:
        matplotlib = import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise MlagenError(f"plots need matplotlib ({error}): pip install 'mlagen[plots]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    draw: dict[str, Callable[[Any, Sequence[Line]], bool]] = {
        "roofline": roofline,
        "length": lambda axes, rows: against(axes, rows, "length"),
        "batch": lambda axes, rows: against(axes, rows, "batch"),
        "splits": splits,
    }
    written = []
    for name, function in draw.items():
        figure, axes = pyplot.subplots(figsize=SIZE)
        if function(axes, lines):
            figure.tight_layout()
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=130)
            written.append(path)
        pyplot.close(figure)
    return written


def roofline(axes: Any, lines: Sequence[Line]) -> bool:
    """Rate against FLOP per needed byte, every case of every subject, under the measured limits."""
    points: dict[str, list[tuple[float, float]]] = {}
    for subjects in timed(lines).values():
        for name, line in subjects.items():
            points.setdefault(name, []).append((line["flop"] / line["bytes_needed"], line["tflops"]))
    if not points:
        return False
    machine = _machine(lines)
    intensity = [1, machine.flop_per_second / machine.bytes_per_second, 1000]
    rate = [min(machine.bytes_per_second * x, machine.flop_per_second) / 1e12 for x in intensity]
    axes.plot(intensity, rate, color="black", linewidth=1, label="measured limits")
    for name, values in sorted(points.items()):
        x, y = zip(*values, strict=True)
        axes.scatter(x, y, s=26 if name.startswith("mlagen") else 12, label=name)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per needed byte", ylabel="TFLOP/s")
    axes.legend(fontsize=7)
    return True


def against(axes: Any, lines: Sequence[Line], what: str) -> bool:
    """Time of a step against length or batch, all else equal, one curve a subject and head count."""
    curves: dict[tuple[int, str], dict[int, float]] = {}
    for name, subjects in timed(lines).items():
        case = parse(name)
        batch, longest = len(case.lengths), max(case.lengths)
        plain = case.for_all and len(set(case.lengths)) == 1 and (case.s_q, case.page_size) == (1, 64)
        fixed = longest == 4096 if what == "batch" else batch == 32
        if not plain or not fixed:
            continue
        for subject, line in subjects.items():
            curve = curves.setdefault((case.h_q, subject), {})
            curve[batch if what == "batch" else longest] = line["us_median"]
    curves = {key: curve for key, curve in curves.items() if len(curve) > 2}
    for (heads, subject), curve in sorted(curves.items()):
        x = sorted(curve)
        axes.plot(
            x, [curve[value] for value in x], marker="o", markersize=3, label=f"{subject}, {heads} heads"
        )
    if curves:
        where = "rows of 4096 keys" if what == "batch" else "keys of each of 32 rows"
        axes.set(xscale="log", yscale="log", xlabel=where, ylabel="us a step")
        axes.legend(fontsize=7)
    return bool(curves)


def splits(axes: Any, lines: Sequence[Line]) -> bool:
    """Time with every row cut into k pieces over the time with one, our subjects."""
    found: dict[str, dict[int, float]] = {}
    for name, subjects in timed(lines).items():
        case = parse(name)
        if not case.splits or case.max_split:
            continue
        shape = name[: name.rindex("s")]
        for subject, line in subjects.items():
            if is_ours(line):
                found.setdefault(f"{shape} {subject}", {})[case.splits] = line["us_median"]
    curves = {label: curve for label, curve in found.items() if 1 in curve and len(curve) > 1}
    for label, curve in sorted(curves.items()):
        x = sorted(curve)
        axes.plot(x, [curve[value] / curve[1] for value in x], marker="o", markersize=3, label=label)
    if curves:
        axes.set(xscale="log", xlabel="pieces of every row", ylabel="time over that of one piece")
        axes.legend(fontsize=7)
    return bool(curves)


def _machine(lines: Sequence[Line]) -> Machine:
    names = [line["about"]["gpu"] for line in lines if "about" in line]
    return (machine_named(names[-1]) if names else None) or H200
