"""What a build says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of a report. Bytes; seconds of CPU. `status` is "compiled", "cached" or "failed"."""

    name: str
    status: str
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    smem_bytes: int = 0
    cubin_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    folder: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a build did, in the order of the specs.

    Attributes:
        rows: one row a kernel.
        seconds: wall time of the whole build.
    """

    rows: tuple[Row, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Row, ...]:
        """Rows without a kernel."""
        return tuple(row for row in self.rows if row.status == "failed")
