"""Which headers a kernel can reach: all that its include lines could mean, in any branch of any condition."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:[<"]([^>"\n]+)[>"]|(\w[^\n]*))', re.MULTILINE)
_CALL = re.compile(r"\w+\((\w+)\)\s*(?:/[/*].*)?")


def closure(own: Sequence[Path], roots: Sequence[Path], files: Iterable[str]) -> list[str] | None:
    """Files that are reachable from our headers through include lines, in any branch and any include folder.

    Args:
        own: headers to start from.
        roots: include folders.
        files: all files of the packages; a computed include `M(x)` reaches every one of them that is named x.

    Returns:
        Paths without the own headers, sorted; None if an include line cannot be told, so that all files
        count.

    Raises:
        OSError: a file cannot be read.
    """
    named: dict[str, list[str]] = {}
    for file in files:
        named.setdefault(file.rpartition("/")[2], []).append(file)
    start = [os.path.normpath(path) for path in own]
    seen, open_ = set(start), list(start)
    while open_:
        file = open_.pop()
        text = Path(file).read_text(encoding="utf-8", errors="replace")
        for name, computed in _INCLUDE.findall(text):
            if name:
                places = [os.path.normpath(f"{root}/{name}") for root in (os.path.dirname(file), *roots)]  # noqa: PTH120
                found = [place for place in places if place in seen or os.path.isfile(place)]  # noqa: PTH113
            elif (call := _CALL.fullmatch(computed.rstrip())) is not None:
                found = named.get(call[1], [])
            else:
                return None
            open_ += [place for place in dict.fromkeys(found) if place not in seen]
            seen.update(found)
    return sorted(seen.difference(start))
