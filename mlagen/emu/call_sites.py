"""Where in the C++ source a PTX line comes from, through every inlined call (`.loc` with `inlined_at`).

PTX ISA 11.5.3 (.loc) and 11.5.4 (.file); function names lie in the section `.debug_str`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:\\.|[^"\\])*)"', re.M)
_LOC = re.compile(
    r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:,\s*function_name\s+([$\w]+)(?:\s*\+\s*\d+)?,"
    r"\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_STRING = re.compile(r"^(\$L__info_string\d+):\s*\n((?:\s*\.b8[^\n]*\n)+)", re.M)
_SKIPPED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|T\d*_")

Position = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of inlining. function: its plain name. file: path as the compiler wrote it."""

    function: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """The source line with single spaces; empty when the file is not there."""
        lines = _source_lines(self.file)
        return lines[self.line - 1] if self.line <= len(lines) else ""


@cache
def _source_lines(file: str) -> tuple[str, ...]:
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(" ".join(line.split()) for line in text.splitlines())


def plain_name(mangled: str) -> str:
    """The last part of a mangled C++ name, without scope, template and function arguments."""
    if not mangled.startswith("_Z"):
        return mangled
    position, depth, name = 2, 0, ""
    nested = mangled.startswith("_ZN")
    while position < len(mangled):
        rest = mangled[position:]
        skipped = _SKIPPED.match(rest)
        length = re.match(r"\d+", rest)
        if length:
            start = position + length.end()
            if depth <= nested:
                name = mangled[start : start + int(length.group())]
            position = start + int(length.group())
        elif skipped:
            position += skipped.end()
        else:
            depth += (rest[0] in "NIXJ") - (rest[0] == "E")
            position += 1
        if name and depth == 0:
            break
    return name or mangled


def call_chains(text: str, entry: str) -> dict[int, tuple[Frame, ...]]:
    """PTX line -> the frames it comes from, innermost first; lines before the first `.loc` are absent.

    Args:
        text: PTX with line information.
        entry: name of the kernel, for code that is not inlined.
    """
    files = {int(number): name for number, name in _FILE.findall(text)}
    names = {
        label: plain_name(bytes(int(b) for b in re.findall(r"\d+", body.replace("b8", ""))[:-1]).decode())
        for label, body in _STRING.findall(text)
    }
    known: dict[Position, tuple[Frame, ...]] = {}
    found: dict[int, tuple[Frame, ...]] = {}
    current: tuple[Frame, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        loc = _LOC.match(line)
        if loc is None:
            if current:
                found[number] = current
            continue
        file, row, column = (int(v) for v in loc.group(1, 2, 3))
        caller: tuple[Frame, ...] = ()
        if loc.group(4):
            at = tuple(int(v) for v in loc.group(5, 6, 7))
            caller = known.get((at[0], at[1], at[2]), ())
        function = names.get(loc.group(4) or "", entry)
        current = (Frame(function, files.get(file, str(file)), row), *caller)
        known[file, row, column] = current
    return found
