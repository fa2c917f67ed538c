"""`python -m mlagen.emu mutate NAME`: the mutation score of a kernel."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from mlagen.emu.mutation_score import KernelScore, summary
from mlagen.spec import KernelSpec

LEAST = 0.95
"""Share of the mutants that are not equivalent which must be caught."""


def add_parser(commands: Any) -> None:
    """The command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "mutate",
        help="mutation score of a kernel of mlagen",
        description="Removes or weakens one synchronisation instruction of a kernel at a time and says what "
        f"notices it. Exit status 0 if at least {LEAST:.0%} of the mutants are caught that the table of "
        "equivalents does not name.",
    )
    parser.add_argument("name", help="kernel name")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, always the same")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--out", type=Path, metavar="FILE", help="verdicts; goes on where the file ends")


def run(options: argparse.Namespace) -> int:
    """Judge the mutants; 1 if too many are missed."""
    score = KernelScore(KernelSpec.from_name(options.name))
    head = {
        "kernel": options.name,
        "ptx": hashlib.sha256(score.text.encode()).hexdigest()[:16],
        "cases": [f"{c.title}: lengths {c.case.lengths}, s_q {c.case.s_q}, {c.sms} SMs" for c in score.cases],
        "schedules": list(score.schedules),
    }
    rows = _known(options.out, head)
    if options.out is not None and not rows:
        options.out.write_text(json.dumps(head) + "\n")
    known = {row["key"] for row in rows}
    for judged in score.judged(sample=options.sample, seed=options.seed, known=known):
        row = judged.as_dict()
        rows.append(row)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(
            f"{row['outcome']:10} {row['key']:14} {row['instruction']:48} {row.get('by', '')}",
            file=sys.stderr,
        )
    print(summary(rows))
    caught = sum(row["outcome"] == "caught" for row in rows)
    counted = sum(row["outcome"] != "equivalent" for row in rows)
    return int(caught < LEAST * counted)


def _known(path: Path | None, head: dict[str, Any]) -> list[dict[str, Any]]:
    """Verdicts of an earlier run of the same PTX in the same way; none if there are not any."""
    if path is None or not path.exists():
        return []
    first, *rows = [json.loads(line) for line in path.read_text().splitlines()] or [None]
    return rows if first == json.loads(json.dumps(head)) else []
