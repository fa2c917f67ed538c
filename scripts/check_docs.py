"""Checks the documentation against the project; exits 1 and names every fault.

- links and anchors between documents lead somewhere, and paths in `backquotes` exist
- Python blocks parse, and run if their fence says ```python run
- JSON and TOML blocks parse, and `mlagen ...` lines in shell blocks name real subcommands and options
- docs/env_vars.md has one row for every setting, with its kind and default, and no other
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from mlagen import settings
from mlagen.cli import group

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:mlagen|templates|generated|tests|scripts|docs|\.ci)/[\w./*<>-]*)`")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_ROW = re.compile(r"^\| `(MLAGEN_[A-Z_]+)` \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: words after the fence, text, line of the fence."""

    words: tuple[str, ...]
    text: str
    line: int


def documents(root: Path = ROOT) -> list[Path]:
    """Every Markdown file of the project."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document."""
    for match in _FENCE.finditer(text):
        yield Block(tuple(match[1].split()), match[2], text[: match.start()].count("\n") + 1)


def anchors(text: str) -> set[str]:
    """The anchors that headings make, the way a repository browser spells them."""
    plain = (
        re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in _HEADING.findall(_FENCE.sub("", text))
    )
    return {heading.replace(" ", "-") for heading in plain}


def check_links(path: Path, text: str) -> Iterator[str]:
    """Dead links, anchors and paths of one document."""
    prose = _FENCE.sub("", text)
    for target in _LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = path.parent / name
        if name and not place.exists():
            yield f"{path.relative_to(ROOT)}: link to {target}: no such file"
        elif anchor and anchor not in anchors(place.read_text(encoding="utf-8") if name else text):
            yield f"{path.relative_to(ROOT)}: link to {target}: no such heading"
    for name in _PATH.findall(prose):
        if "<" not in name and not (
            list(ROOT.glob(name.rstrip("/"))) if "*" in name else (ROOT / name).exists()
        ):
            yield f"{path.relative_to(ROOT)}: `{name}` does not exist"


def check_blocks(path: Path, text: str) -> Iterator[str]:
    """Blocks of one document that do not parse or do not run."""
    for block in blocks(text):
        where = f"{path.relative_to(ROOT)}:{block.line}"
        kind = block.words[0] if block.words else ""
        try:
            if kind == "python":
                ast.parse(block.text)
                if "run" in block.words:
                    yield from run(where, block.text)
            elif kind == "json":
                json.loads(block.text)
            elif kind == "toml":
                tomllib.loads(block.text)
            elif kind in ("sh", "bash", "shell"):
                yield from check_shell(where, block.text)
        except (SyntaxError, ValueError) as error:
            yield f"{where}: {kind} block does not parse: {error}"


def run(where: str, text: str) -> Iterator[str]:
    """Runs a Python block in a process of its own."""
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{where}: block fails: {done.stderr.strip().splitlines()[-1]}"


def check_shell(where: str, text: str) -> Iterator[str]:
    """Shell syntax, and the subcommands and options of `mlagen` lines."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"{where}: shell block does not parse: {done.stderr.strip()}"
        return
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            words = words[1:]
        if words[:1] == ["mlagen"] and len(words) > 1 and not words[1].startswith("-"):
            yield from check_command(where, words[1:])


def check_command(where: str, words: list[str]) -> Iterator[str]:
    """The words after `mlagen`: a subcommand and options that it has."""
    context = click.Context(group)
    command = group.get_command(context, words[0])
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        command, rest = command.get_command(context, rest[0]), rest[1:]
    if command is None:
        yield f"{where}: mlagen has no command {' '.join(words[:2])}"
        return
    if command.context_settings.get("ignore_unknown_options"):
        return
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {
        "--help"
    }
    for word in rest:
        if word.startswith("--") and word.split("=")[0] not in known:
            yield f"{where}: mlagen {words[0]} has no option {word}"


def check_settings(root: Path = ROOT) -> Iterator[str]:
    """Rows of docs/env_vars.md against the rows of mlagen/settings.py."""
    text = (root / "docs" / "env_vars.md").read_text(encoding="utf-8")
    documented = {name: (kind.strip(), default.strip()) for name, kind, default in _ROW.findall(text)}
    rows = {row.variable: (row.kind, show_default(row.default)) for row in settings.rows()}
    for name in sorted(rows.keys() - documented.keys()):
        yield f"docs/env_vars.md: {name} is missing"
    for name in sorted(documented.keys() - rows.keys()):
        yield f"docs/env_vars.md: {name} is no setting"
    for name in sorted(rows.keys() & documented.keys()):
        if rows[name] != documented[name]:
            yield f"docs/env_vars.md: {name} is {rows[name]}, documented as {documented[name]}"


def show_default(value: object) -> str:
    """A default as the table spells it."""
    if isinstance(value, bool):
        return str(int(value))
    return "-" if value in (None, ()) else str(value)


def faults() -> list[str]:
    """Everything that is wrong, in the order of the documents."""
    found: list[str] = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        found += [*check_links(path, text), *check_blocks(path, text)]
    return [*found, *check_settings()]


def main() -> int:
    found = faults()
    print("\n".join(found) if found else f"{len(documents())} documents are in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
