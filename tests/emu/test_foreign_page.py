"""The page about foreign PTX: its files, commands and programs, run in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mlagen.emu.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "foreign_ptx.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    names: dict[str, Any] = {}
    done = {"ptx": 0, "sh": 0, "python": 0}
    for match in re.finditer(r"^```(ptx|sh|python)\n(.*?)^```$", text, re.M | re.S):
        kind, code = match.groups()
        if kind == "ptx":
            file = re.findall(r"`(\w+\.ptx)`", text[: match.start()])[-1]
            Path(file).write_text(code)
        elif kind == "python":
            exec(compile(code, str(PAGE), "exec"), names)
        else:
            for line in code.splitlines():
                words = shlex.split(line)
                if words[:3] != ["python", "-m", "mlagen.emu"]:
                    continue
                assert main(words[3:]) == 0
        done[kind] += 1
    assert done == {"ptx": 2, "sh": 3, "python": 5}
