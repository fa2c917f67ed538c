"""Which kernel serves a call: a lookup in measured tables.

The choice depends only on what is static for a served model: heads, tokens a step, page size, dtype and GPU,
never on batch or lengths, so a warmed-up server meets no kernel that it has not loaded.

The tables are data: `heuristics.json` beside this file, made from benchmark runs, and what `mlagen tune`
measured on this machine, which comes first. Each names GPU, date and command. One `max_split` serves a whole
table: a larger static bound costs nothing when few pieces are used, and a single long row wants a piece on
every multiprocessor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mlagen.cache import private_root
from mlagen.driver import Gpu
from mlagen.errors import DeviceError, SpecError
from mlagen.hardware import limits
from mlagen.log import warn_once
from mlagen.problem import Problem
from mlagen.spec import Arch, DType, KernelSpec, Tuning

SCHEMA = 1
MAX_SPLIT_LIMIT = 256
SHIPPED = Path(__file__).with_name("heuristics.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table; the first that fits a call decides.

    Attributes:
        most_heads: the row serves head counts up to this one.
        least_heads: and from this one.
        s_q: only this number of tokens a row; None for any.
        page_size: only this page size; None for any.
        cta_group: 1 or 2.
        tuning: of the kernel.
        reason: why, in words.
        measured_us: case -> variant -> microseconds of a step.
    """

    most_heads: int
    cta_group: int
    reason: str
    least_heads: int = 1
    s_q: int | None = None
    page_size: int | None = None
    tuning: Tuning = Tuning()
    measured_us: dict[str, dict[str, float]] = field(default_factory=dict, hash=False)

    def fits(self, h_q: int, s_q: int, page_size: int) -> bool:
        """Whether the row serves these numbers."""
        return (
            self.least_heads <= h_q <= self.most_heads
            and self.s_q in (None, s_q)
            and self.page_size in (None, page_size)
        )


@dataclass(frozen=True, slots=True)
class Table:
    """What was measured on one GPU.

    Attributes:
        gpu: the driver's name of it.
        arch: its architecture.
        date, command, driver, commit: of the measurement.
        max_split: static bound of the pieces of a row, for all rows.
        rows: in order.
        source: file that the table is from.
    """

    gpu: str
    arch: Arch
    date: str
    command: str
    driver: str
    commit: str
    max_split: int
    rows: tuple[Row, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel and why it was chosen.

    Attributes:
        spec: the kernel.
        table, row: where the choice stands.
        raised: max_split was raised above the table's for a host split count.
    """

    spec: KernelSpec
    table: Table
    row: Row
    raised: bool

    def why(self) -> str:
        """The reason in a few lines, with date, GPU and command of the measurement."""
        table, row = self.table, self.row
        lines = [
            f"kernel  {self.spec.name}",
            f"row     heads {row.least_heads}..{row.most_heads}"
            + ("" if row.s_q is None else f", s_q {row.s_q}")
            + ("" if row.page_size is None else f", page {row.page_size}")
            + f" -> {row.cta_group}SM, {row.tuning.text}",
            f"why     {row.reason}",
            f"split   max_split {self.spec.max_split}: "
            + (
                f"raised above {table.max_split} for the split count that was asked for"
                if self.raised
                else "for all rows of the table; a larger static bound costs nothing"
            ),
            f"table   {table.gpu}, {table.date}, driver {table.driver}, commit {table.commit}",
            f"        {table.source}",
            f"command {table.command}",
        ]
        for case, variants in row.measured_us.items():
            lines.append(f"        {case}: " + ", ".join(f"{k} {v:.1f} us" for k, v in variants.items()))
        return "\n".join(lines)


def tuned_file() -> Path | None:
    """Where `mlagen tune` keeps its tables: in the private cache folder; None where there is none."""
    root = private_root()
    return None if root is None else root.path / "heuristics.json"


def read_tables(path: Path) -> tuple[Table, ...]:
    """The tables of one file.

    Raises:
        OSError: it cannot be read.
        SpecError: it is not such a file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise SpecError(f"{path} has schema {data['schema']!r}; this version reads {SCHEMA}")
        return tuple(_table(item, str(path)) for item in data["tables"])
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is not a table of measurements: {type(error).__name__}: {error}") from None


def _table(item: dict[str, Any], source: str) -> Table:
    rows = tuple(Row(**{**row, "tuning": Tuning(**row.get("tuning", {}))}) for row in item["rows"])
    return Table(**{**item, "arch": Arch(item["arch"]), "rows": rows, "source": source})


def as_json(table: Table) -> dict[str, Any]:
    """The inverse of reading: plain values of one table, without what is default."""
    rows = []
    for row in table.rows:
        changed = {
            name: getattr(row.tuning, name)
            for name in row.tuning.__dataclass_fields__
            if getattr(row.tuning, name) != getattr(Tuning(), name)
        }
        plain = {
            "least_heads": row.least_heads if row.least_heads > 1 else None,
            "most_heads": row.most_heads,
            "s_q": row.s_q,
            "page_size": row.page_size,
            "cta_group": row.cta_group,
            "tuning": changed or None,
            "reason": row.reason,
            "measured_us": row.measured_us or None,
        }
        rows.append({name: value for name, value in plain.items() if value is not None})
    keys = ("gpu", "date", "command", "driver", "commit", "max_split")
    return {**{name: getattr(table, name) for name in keys}, "arch": str(table.arch), "rows": rows}


@cache
def tables() -> tuple[Table, ...]:
    """All tables, those measured on this machine first. Read once a process; see `forget`."""
    found: list[Table] = []
    path = tuned_file()
    if path is not None and path.exists():
        try:
            found += read_tables(path)
        except (OSError, SpecError) as error:
            warn_once(f"the tables of `mlagen tune` are left out: {error}. Run it again, or remove the file")
    return (*found, *read_tables(SHIPPED))


def forget() -> None:
    """Makes the next choice read the tables again."""
    tables.cache_clear()
    pick.cache_clear()
    arch_of.cache_clear()


@lru_cache(maxsize=64)
def arch_of(device: Gpu) -> Arch:
    """The architecture to build for.

    Raises:
        DeviceError: no family serves this GPU.
    """
    arches = dict.fromkeys(table.arch for table in tables())
    for arch in arches:
        if limits(arch).compute_capability == device.compute_capability:
            return arch
    served = ", ".join(f"{'.'.join(map(str, limits(arch).compute_capability))} ({arch})" for arch in arches)
    raise DeviceError(
        f"device {device.ordinal} is a {device.name} with compute capability "
        f"{'.'.join(map(str, device.compute_capability))}; kernels exist for {served}"
    )


def choose(problem: Problem, device: Gpu) -> KernelSpec:
    """The kernel for a call on a GPU.

    A host split count above the table's bound raises the bound to the next power of two.

    Raises:
        DeviceError: no family serves this GPU.
    """
    layout, splits = problem.layout, problem.uniform_splits
    arch = arch_of(device)
    return pick(arch, device.name, layout.dtype, layout.h_q, layout.page_size, layout.s_q, splits).spec


@lru_cache(maxsize=1024)
def pick(
    arch: Arch, gpu: str, dtype: DType, h_q: int, page_size: int, s_q: int = 1, splits: int = 0
) -> Choice:
    """The kernel for the static numbers of a call, from the first table of this very GPU that has a row for
    it, else from one of the same architecture.

    Args:
        arch: architecture.
        gpu: the driver's name of the GPU, or "" for any.
        dtype, h_q, page_size, s_q: of the call.
        splits: pieces asked for by a host count, 0 for none.

    Raises:
        SpecError: no table has a row for these numbers.
    """
    same = [table for table in tables() if table.arch == arch]
    for table in sorted(same, key=lambda table: table.gpu != gpu):
        for row in table.rows:
            if not row.fits(h_q, s_q, page_size):
                continue
            max_split = table.max_split
            while max_split < min(splits, MAX_SPLIT_LIMIT):
                max_split *= 2
            spec = KernelSpec(arch, dtype, dtype, h_q, page_size, max_split, row.cta_group, row.tuning)
            return Choice(spec, table, row, max_split > table.max_split)
    raise SpecError(f"no table has a row for {arch} with h_q={h_q}, s_q={s_q}, page_size={page_size}")
