"""From measured lines of our kernels to a table of choices, see mlagen.heuristics.

The variant with the least geometric mean over the cases of a head count wins its row. A variant that is not
the plain one (1SM, default tuning) must be faster by MARGIN.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlagen import heuristics
from mlagen.bench.cases import parse
from mlagen.bench.results import Line, geometric_mean, is_ours
from mlagen.errors import InputError
from mlagen.heuristics import Row, Table
from mlagen.spec import Arch, Tuning

MARGIN = 0.005
MOST_HEADS = 128
SHAPES = ("b1k8192", "b16k4096", "b64k2048", "b128k4096", "b32k16384")


@dataclass(frozen=True, slots=True)
class Variant:
    """What can be chosen for one shape."""

    cta_group: int
    tuning: Tuning = Tuning()

    @property
    def plain(self) -> bool:
        """1SM with the default tuning."""
        return self == Variant(1)

    @property
    def label(self) -> str:
        """`1sm`, or with a tuning `1sm piece_cost=3`."""
        return f"{self.cta_group}sm" + ("" if self.tuning == Tuning() else f" {self.tuning.text}")


@dataclass(slots=True)
class Group:
    """Times of one head count and token count: variant -> case -> microseconds."""

    heads: int
    s_q: int
    times: dict[Variant, dict[str, float]] = field(default_factory=dict)


def case_names(heads: Iterable[int], tokens: Iterable[int], page_size: int, dtype: str) -> list[str]:
    """The cases that decide about head counts and token counts."""
    suffix = ("" if page_size == 64 else f"p{page_size}") + ("" if dtype == "bf16" else dtype)
    return [
        f"{shape}h{h}" + ("" if s_q == 1 else f"q{s_q}") + suffix
        for h in heads
        for s_q in tokens
        for shape in SHAPES
    ]


def grouped(lines: Iterable[Line]) -> list[Group]:
    """Times of our kernels by head and token count; lines without a time, a variant or a free split are left
    out.
    """
    groups: dict[tuple[int, int], Group] = {}
    for line in lines:
        if line.get("kind", "time") != "time" or "us_median" not in line or not is_ours(line):
            continue
        case = parse(line["case"])
        if not case.for_all or "cta_group" not in line:
            continue
        variant = Variant(line["cta_group"], Tuning(**line.get("tuning", {})))
        group = groups.setdefault((case.h_q, case.s_q), Group(case.h_q, case.s_q))
        group.times.setdefault(variant, {})[case.name] = line["us_median"]
    return [groups[key] for key in sorted(groups)]


def winner(group: Group) -> tuple[Variant, str]:
    """The variant of a group and the reason in words. Only cases that all variants have are compared."""
    shared = set.intersection(*(set(times) for times in group.times.values()))
    if not shared:
        raise InputError(f"{group.heads} heads, s_q {group.s_q}: no case was measured with every variant")
    means = {
        variant: geometric_mean([times[case] for case in sorted(shared)]) or 0.0
        for variant, times in group.times.items()
    }
    best = min(means, key=lambda variant: means[variant] * (1 - MARGIN if variant.plain else 1))
    others = {variant: mean / means[best] - 1 for variant, mean in means.items() if variant != best}
    if not others:
        return best, f"the only variant that was measured, on {len(shared)} cases"
    compared = ", ".join(f"{variant.label} {100 * more:+.1f} %" for variant, more in sorted_by(others))
    return best, f"least geometric mean over {len(shared)} cases; the others: {compared}"


def sorted_by(others: dict[Variant, float]) -> list[tuple[Variant, float]]:
    """Variants by how much slower they are."""
    return sorted(others.items(), key=lambda item: item[1])


def table_from(
    lines: Sequence[Line], *, arch: Arch, max_split: int, source: str, page_size: int | None = None
) -> Table:
    """A table from the lines of a run.

    Each measured head count serves the counts up to it from the next smaller one on, the largest all above
    it. Rows name s_q only if several were measured.

    Args:
        lines: with our subjects as variants, see Ours.facts.
        arch: of the GPU.
        max_split: of the table.
        source: where the table is kept.
        page_size: rows serve only this one; None for any.

    Raises:
        InputError: there is no time of one of our kernels.
    """
    groups = grouped(lines)
    about: Line = next((line["about"] for line in reversed(lines) if "about" in line), {})
    if not groups:
        raise InputError("no line has a time of one of our kernels; measure with --ours 1,2 first")
    several = len({group.s_q for group in groups}) > 1
    rows = []
    for group in groups:
        smaller = [other.heads for other in groups if other.s_q == group.s_q and other.heads < group.heads]
        larger = any(other.s_q == group.s_q and other.heads > group.heads for other in groups)
        best, reason = winner(group)
        cases = sorted({case for times in group.times.values() for case in times})
        rows.append(
            Row(
                least_heads=max(smaller, default=0) + 1,
                most_heads=group.heads if larger else MOST_HEADS,
                s_q=group.s_q if several else None,
                page_size=page_size,
                cta_group=best.cta_group,
                tuning=best.tuning,
                reason=reason,
                measured_us={
                    case: {
                        variant.label: round(times[case], 2)
                        for variant, times in group.times.items()
                        if case in times
                    }
                    for case in cases
                },
            )
        )
    rows += _rest(rows, several)
    return Table(
        gpu=str(about.get("gpu", "")),
        arch=arch,
        date=str(about.get("date", ""))[:10],
        command=str(about.get("command", "")),
        driver=str(about.get("driver", "")),
        commit=str(about.get("commit", "")),
        max_split=max_split,
        rows=tuple(rows),
        source=source,
    )


def _rest(rows: Sequence[Row], several: bool) -> list[Row]:
    """Rows for token counts that were not measured: as the largest one that was."""
    if not several:
        return []
    most = max(row.s_q or 1 for row in rows)
    return [
        Row(
            least_heads=row.least_heads,
            most_heads=row.most_heads,
            page_size=row.page_size,
            cta_group=row.cta_group,
            tuning=row.tuning,
            reason=f"s_q not measured; as s_q {most}",
        )
        for row in rows
        if row.s_q == most
    ]


def save(table: Table, path: Path) -> None:
    """Puts a table into a file, in place of the one of the same GPU for the same page sizes; tables for one
    page size come first. Appears at once or not at all.

    Raises:
        OSError: the file cannot be written.
        SpecError: the file is there but holds something else.
    """
    known = heuristics.read_tables(path) if path.exists() else ()
    tables = [table, *(item for item in known if _subject(item) != _subject(table))]
    tables.sort(key=lambda item: None in _subject(item)[2])
    data = {"schema": heuristics.SCHEMA, "tables": [heuristics.as_json(item) for item in tables]}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
    heuristics.forget()


def _subject(table: Table) -> tuple[str, Arch, frozenset[int | None]]:
    return table.gpu, table.arch, frozenset(row.page_size for row in table.rows)
