"""From measured lines to a kept result: one row a case, ours against the best peer, the mean of the ratios.

Works on the JSON lines alone, so a result can be made again from a kept file, without a GPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mlagen.bench.subjects import OURS
from mlagen.errors import InputError

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """The lines of one or more runs.

    Raises:
        InputError: it cannot be read, or a line is not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} does not hold lines of `mlagen bench --output`: {type(error).__name__}: {error}"
        ) from None


def is_ours(line: Line) -> bool:
    """Whether a line is about a kernel of this library."""
    return str(line["subject"]).split()[0] == OURS


def timed(lines: Iterable[Line], cases: Sequence[str] | None = None) -> dict[str, dict[str, Line]]:
    """Case -> subject -> the last line with a time and no error, in the order of the cases."""
    found: dict[str, dict[str, Line]] = {name: {} for name in cases or ()}
    for line in lines:
        if line.get("kind", "time") != "time" or line.get("error") or "us_median" not in line:
            continue
        if cases is None or line["case"] in found:
            found.setdefault(line["case"], {})[line["subject"]] = line
    return found


def best_peer(subjects: dict[str, Line]) -> Line | None:
    """The fastest line that is not ours."""
    return min(
        (line for line in subjects.values() if not is_ours(line)),
        key=lambda line: float(line["us_median"]),
        default=None,
    )


def row(case: str, subjects: dict[str, Line], ours: str) -> Line:
    """One case: our time, every peer's, the best one's, and their ratio. What is missing is None."""
    own, peer = subjects.get(ours), best_peer(subjects)
    made: Line = {"case": case, "us": None, "best_peer": None, "best_peer_us": None, "ratio": None}
    if peer is not None:
        made |= {"best_peer": peer["subject"], "best_peer_us": round(peer["us_median"], 3)}
    if own is not None:
        made |= {
            "us": round(own["us_median"], 3),
            "us_p10": round(own["us_p10"], 3),
            "us_p90": round(own["us_p90"], 3),
            "kernel": own.get("kernel"),
            "tflops": round(own["tflops"], 1),
            "tb_per_s_needed": round(own["tb_per_s_needed"], 3),
            "floor_us": None if own.get("floor_us") is None else round(own["floor_us"], 2),
            "clocks": own.get("clocks"),
        }
    if own is not None and peer is not None:
        made["ratio"] = round(peer["us_median"] / own["us_median"], 4)
    made["subjects_us"] = {name: round(line["us_median"], 3) for name, line in sorted(subjects.items())}
    return made


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean, None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def our_subject(lines: Iterable[Line]) -> str:
    """The subject that stands for this library: the kernel that a call gets, else the only one of ours."""
    found = {str(line["subject"]) for line in lines if "us_median" in line and is_ours(line)}
    return next(iter(found)) if len(found) == 1 else OURS


def summary(lines: Sequence[Line], cases: Sequence[str]) -> Line:
    """The kept result of a suite.

    Args:
        lines: of one run.
        cases: names of the suite's cases; each is a row, measured or not.

    Returns:
        rows (see `row`), geometric_mean and least_ratio over the rows with both times, rows_below_1,
        complete, the ceilings of the run and its surroundings.
    """
    by_case, ours = timed(lines, cases), our_subject(lines)
    rows = [row(case, by_case[case], ours) for case in cases]
    ratios = [line["ratio"] for line in rows if line["ratio"] is not None]
    about: Line = next((line["about"] for line in reversed(lines) if "about" in line), {})
    ceilings = [line for line in lines if line.get("kind") == "ceilings"]
    mean = geometric_mean(ratios)
    return {
        **about,
        "ours": ours,
        "complete": len(ratios) == len(cases),
        "geometric_mean": None if mean is None else round(mean, 4),
        "least_ratio": min(ratios, default=None),
        "rows_below_1": [line["case"] for line in rows if line["ratio"] is not None and line["ratio"] < 1],
        "wrong": sorted({f"{line['case']} {line['subject']}" for line in lines if line.get("error")}),
        "ceilings": {k: v for k, v in ceilings[-1].items() if k not in ("kind", "about")}
        if ceilings
        else None,
        "rows": rows,
    }


def write_summary(path: Path, made: Line) -> None:
    """Writes a kept result, one line a row."""
    head = {name: value for name, value in made.items() if name != "rows"}
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n'
    text += ",\n".join("  " + json.dumps(line) for line in made["rows"]) + "\n ]\n}\n"
    path.write_text(text, encoding="utf-8")
