"""Reading SASS in tests."""

from __future__ import annotations

import re

from mlagen.sass import disassemble


def functions(cubin: bytes) -> dict[str, str]:
    """SASS by function."""
    parts = re.split(r"^\s*//-+ \.text\.(\S+)\s+-+$", disassemble(cubin), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def count(text: str, mnemonic: str) -> int:
    """Instructions whose whole mnemonic, with all its suffixes, matches a pattern."""
    line = rf"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?{mnemonic}\s"
    return len(re.findall(line, text, re.MULTILINE))
