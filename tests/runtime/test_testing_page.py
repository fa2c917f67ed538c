"""The table of kept faults in docs/testing.md: complete, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import cases

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([A-F]\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def numbers(letter: str, *spans: tuple[int, int]) -> list[str]:
    return [f"{letter}{number}" for first, last in spans for number in range(first, last + 1)]


KEPT = [
    *numbers("A", (1, 7), (10, 10), (13, 18), (20, 20), (23, 23), (25, 25), (28, 28)),
    *numbers("B", (1, 26)),
    *numbers("C", (1, 12)),
    *numbers("E", (1, 29)),
    *numbers("F", (1, 7)),
]


def test_every_fault_has_its_tests():
    rows = dict(ROW.findall((ROOT / "docs" / "testing.md").read_text(encoding="utf-8")))
    assert list(rows) == KEPT
    for fault, cell in rows.items():
        names = re.findall(r"`([\w/.]+)::(\w+)`", cell)
        assert names, fault
        for path, function in names:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
                fault,
                path,
                function,
            )


def test_grids_are_what_the_page_says():
    full, quick = cases.full_specs(), cases.quick_specs()
    large = [spec for spec in full if spec.page_size in cases.PAGES]
    assert len(large) == len(set(large)) == 540 and len(quick) == len(set(quick)) == 25
    for field in ("q_dtype", "h_q", "page_size", "max_split", "cta_group"):
        assert {getattr(spec, field) for spec in quick} == {getattr(spec, field) for spec in full}, field
    assert all(len(list(cases.calls(spec))) == 9 for spec in quick)
    splits = {case.splits is None for _, case in cases.calls(quick[0])}
    assert splits == {True, False}
    assert {case.logit_std for _, case in cases.calls(quick[0])} == set(cases.LOGIT_STDS)
