"""Instruction forms: what has to be validated one by one, and the evidence that there is.

A form is the full opcode, and for tensor instructions also where their operands come from:
`wgmma.mma_async.(...) ss a=k b=mn`, `tcgen05.mma.(...) ts`. Evidence for a form:

* a recorded launch of a GPU whose PTX has it (`recorded/`): class "h200";
* a run of a kernel of others whose result is known to be right (`foreign_runs.json`): class "foreign";
* agreement with CuTe's constant expressions and the text of the PTX ISA (`by_reading.toml`): class "reading".
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mlagen.emu.interfaces import Imm, Instruction, Mem, Vec
from mlagen.emu.parser import parse_module
from mlagen.emu.ptx import Function
from tests.emu.gpu_cases import all_cases

HERE = Path(__file__).parent
_CONTROL = {"bra", "ret", "exit", "trap", "call"}


def form(ins: Instruction) -> str:
    """The form of an instruction."""
    if ins.op == "wgmma" and "mma_async" in ins.modifiers:
        return f"{ins.name} {_wgmma(ins)}"
    if ins.name.startswith("tcgen05.mma"):
        return f"{ins.name} {'ts' if isinstance(ins.operands[1], Mem) else 'ss'}"
    return ins.name


def _wgmma(ins: Instruction) -> str:
    registers = isinstance(ins.operands[1], Vec)
    numbers = [int(o.value) for o in ins.operands[4:] if isinstance(o, Imm)]
    signs, major = numbers[:2], numbers[2:]
    text = "rs" if registers else "ss"
    names = ("b",) if registers else ("a", "b")
    text += "".join(f" {n}={'mn' if bit else 'k'}" for n, bit in zip(names, major, strict=False))
    return text + ("" if signs == [1, 1] else f" signs={signs[0]},{signs[1]}")


def forms(instructions: Iterable[Instruction]) -> set[str]:
    """The forms of some instructions; branches and the end of a kernel are none."""
    return {form(ins) for ins in instructions if ins.op not in _CONTROL}


def module_forms(text: str) -> set[str]:
    """All forms of a PTX text."""
    functions: Iterable[Function] = parse_module(text).functions.values()
    return {f for function in functions for f in forms(function.instructions)}


@cache
def recorded_forms() -> frozenset[str]:
    """Forms in recorded launches of single instructions."""
    names: set[str] = set()
    for path in (HERE / "recorded").glob("sm_*.json"):
        names |= set(json.loads(path.read_text())["cases"])
    return frozenset(f for case in all_cases() if case.name in names for f in module_forms(case.ptx))


@cache
def foreign_forms() -> dict[str, frozenset[str]]:
    """Forms that each right run of a kernel of others executed, by its name."""
    path = HERE / "foreign_runs.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    return {run["name"]: frozenset(run["forms"]) for run in runs if run["right"]}


@cache
def forms_by_reading() -> dict[str, str]:
    """Form -> what it was compared with."""
    found: dict[str, str] = tomllib.loads((HERE / "by_reading.toml").read_text())["forms"]
    return found


def evidence(wanted: str) -> str | None:
    """The best class of evidence for a form: "h200", "foreign", "reading", or None."""
    if wanted in recorded_forms():
        return "h200"
    if any(wanted in found for found in foreign_forms().values()):
        return "foreign"
    return "reading" if wanted in forms_by_reading() else None
