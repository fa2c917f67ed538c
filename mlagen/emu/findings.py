"""What the sanitizers found, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mlagen.emu.interfaces import EmulatorError

LINTS = frozenset({"strict", "note"})
"""Kinds of findings that do not make a run fail: rules of the ISA text that hardware is known not to need."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. kind: "race", "proxy", "unwritten", "mbarrier", "phase", "wgmma", "fence", "overlay",
    "strict", "note".
    """

    kind: str
    message: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n    at {self.where}"


@dataclass(slots=True)
class Findings:
    """All findings of a run, each once, with the number of times that it came up.

    Findings of one kind at one instruction with messages that differ only in numbers are one: the first is
    kept.
    """

    counts: dict[Finding, int] = field(default_factory=dict)
    first: dict[tuple[str, object, str], Finding] = field(default_factory=dict)

    def add(self, finding: Finding, place: object, times: int = 1) -> None:
        """Count one finding. place: identifies the instruction."""
        key = (finding.kind, place, re.sub(r"0x[0-9a-f]+|\d+", "", finding.message))
        kept = self.first.setdefault(key, finding)
        self.counts[kept] = self.counts.get(kept, 0) + times

    def merge(self, other: Findings) -> None:
        """Add the findings of another run."""
        for (_, place, _), finding in other.first.items():
            self.add(finding, place, other.counts[finding])

    @property
    def errors(self) -> list[Finding]:
        """Findings that make a run fail."""
        return [f for f in self.counts if f.kind not in LINTS]

    @property
    def lints(self) -> list[Finding]:
        """Findings that do not."""
        return [f for f in self.counts if f.kind in LINTS]

    def kinds(self) -> set[str]:
        """The kinds that came up."""
        return {f.kind for f in self.counts}

    def text(self, limit: int = 20) -> str:
        """A report to read."""
        lines = [f"{f} ({n} times)" if n > 1 else str(f) for f, n in list(self.counts.items())[:limit]]
        if len(self.counts) > limit:
            lines.append(f"and {len(self.counts) - limit} more")
        return "\n".join(lines)


class SanitizerError(EmulatorError):
    """A run ended, and sanitizers found something; `.findings` has it all."""

    def __init__(self, findings: Findings) -> None:
        super().__init__("the sanitizers found:\n" + findings.text())
        self.findings = findings
