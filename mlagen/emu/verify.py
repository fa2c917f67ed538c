"""`mlagen verify --emulate`: kernels against fp64 on the emulator, with the sanitizers' findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mlagen.casework import Case, draw, split_counts
from mlagen.emu.checks import CheckOptions
from mlagen.emu.findings import LINTS, Finding, Findings
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.emu.profile import Profile, profile
from mlagen.spec import KernelSpec
from mlagen.verify import CaseResult, run_case, run_poisoned

LENGTHS = (0, 1, 64, 65, 200)


@dataclass(frozen=True, slots=True)
class EmulatedCase:
    """One case on the emulator.

    Attributes:
        title: what is special about it.
        result: how close the answer came; None when the kernel did not get to its end.
        findings: of the sanitizers, with the number of times; lints included.
        error: why the kernel did not get to its end, or an empty string.
        seconds: run time of all launches.
        instructions: warp-instructions of all launches.
    """

    title: str
    result: CaseResult | None
    findings: tuple[tuple[Finding, int], ...]
    error: str
    seconds: float
    instructions: int

    @property
    def ok(self) -> bool:
        """Right, repeatable, and nothing found but lints."""
        clean = all(f.kind in LINTS for f, _ in self.findings)
        return self.result is not None and self.result.ok and clean and not self.error

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        margin = {} if self.result is None else asdict(self.result.margin)
        return {
            "title": self.title,
            "ok": self.ok,
            **margin,
            "findings": [{**asdict(f), "times": n} for f, n in self.findings],
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "instructions": self.instructions,
        }


def emulated_cases(spec: KernelSpec) -> dict[str, Case]:
    """A short list for the emulator: empty rows, page and block edges, splits, token counts, strides, large
    logits.
    """
    base = Case(LENGTHS, h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value)
    cases = {
        "one token": base,
        "one piece a row": base.but(splits=1, seed=1),
        "two tokens, causal": base.but(s_q=2, seed=4, lengths=(0, 65, 130)),
        "large logits": base.but(logit_std=100.0, seed=6, lengths=(129, 64)),
        "strided views": base.but(layout="strided", s_q=2, seed=7, lengths=(66,)),
        "pair of caches": base.but(layout="pair", seed=8, lengths=(130, 3)),
    }
    if spec.max_split > 1:
        counts = split_counts(LENGTHS, spec.max_split)
        cases["most pieces"] = base.but(splits=spec.max_split, seed=2, lengths=(300, 70))
        cases["device split counts"] = base.but(splits=counts, seed=3)
    return cases


def run_emulated(spec: KernelSpec, title: str, case: Case, options: EmulatorOptions) -> EmulatedCase:
    """One case, run twice as on a GPU."""
    options = EmulatorOptions(options.schedule, options.sms, options.checks, options.exact, False)
    launcher = EmulatorLauncher(options)
    result: CaseResult | None = None
    error = ""
    try:
        result = run_case(spec, title, draw(case, "cpu"), launcher)
    except EmulatorError as problem:
        error = str(problem)
    found = Findings()
    for launch in launcher.results:
        found.merge(launch.findings)
    return EmulatedCase(
        title,
        result,
        tuple(found.counts.items()),
        error,
        sum(r.seconds for r in launcher.results),
        sum(r.instructions for r in launcher.results),
    )


def emulate_each(
    spec: KernelSpec | str, options: EmulatorOptions, cases: dict[str, Case] | None = None
) -> Iterator[EmulatedCase]:
    """Every case of a kernel, one result at a time.

    Raises:
        SpecError, ToolchainError, CompileError, CacheError: the kernel cannot be built.
    """
    spec = KernelSpec.from_name(spec) if isinstance(spec, str) else spec
    for title, case in (cases or emulated_cases(spec)).items():
        yield run_emulated(spec, title, case, options)


def kernel_profile(spec: KernelSpec, blocks: int = 6) -> tuple[Profile, int]:
    """What a kernel does for one KV block in its steady state, and for how many blocks that was counted.

    Two launches of one row differ by `blocks` blocks; the difference leaves prologue and epilogue out.

    Raises:
        SpecError, ToolchainError, CompileError, CacheError: the kernel cannot be built.
        EmulatorError: it does not run.
    """
    tiles = -(-spec.h_q // 64)
    sms = -(-tiles // spec.cta_group) * spec.cta_group
    checks = CheckOptions(race=True, proxy=False, unwritten=False, strict=False)
    found = []
    for count in (4, 4 + blocks):
        launcher = EmulatorLauncher(
            EmulatorOptions(sms=sms, checks=checks, exact=False, fail_on_findings=False)
        )
        case = Case((64 * count,), h_q=spec.h_q, page_size=spec.page_size, dtype=spec.q_dtype.value, splits=1)
        run_poisoned(spec, draw(case, "cpu"), launcher)
        found.append(profile(launcher.results[-1].machine))
    return found[1].minus(found[0]), blocks


def report(rows: list[EmulatedCase], echo: Callable[[str], None]) -> None:
    """Print results to read."""
    for row in rows:
        verdict = "ok" if row.ok else "FAILED"
        margin = "" if row.result is None else f"  {row.result.margin}"
        repeat = "" if row.result is None or row.result.repeatable else "  NOT REPEATABLE"
        counts = f"{row.instructions:>9} instructions {row.seconds:6.2f} s"
        echo(f"{verdict:7}{row.title:24}{counts}{margin}{repeat}")
        if row.error:
            echo("  " + row.error.replace("\n", "\n  "))
    seen = Findings()
    for row in rows:
        for finding, times in row.findings:
            seen.add(finding, finding.where.split(", ", 1)[-1], times)
    if seen.counts:
        echo("\nfindings of the sanitizers:\n" + seen.text(40))
