"""What decides a source text, named without rendering it: the plan, the templates and the code that prints.

Rendering is a function of these alone (a test renders with every one of them changed), so a kernel is found
by its recipe and the template engine is needed only to compile.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from mlagen import paths
from mlagen.plan.model import Plan

# Everything that a template can reach from `plan` is defined in these files.
PRINTERS = ("render.py", "spec.py", "plan/model.py")


def recipe_of(plan: Plan) -> str:
    """Digest of everything that decides the source of a plan. Files are read anew at every call."""
    total = hashlib.sha256(repr(plan).encode())
    root = paths.template_root()
    package = Path(__file__).resolve().parent
    rows = [(path.relative_to(root).as_posix(), path) for path in root.glob("*.j2")]
    rows += [(path.relative_to(root).as_posix(), path) for path in (root / "macros").glob("*.j2")]
    rows += [(name, package / name) for name in PRINTERS]
    for name, path in sorted(rows):
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def recipe_of_text(source: str) -> str:
    """Recipe of a source that was not rendered (MLAGEN_OVERRIDE_DIR): the text itself."""
    return hashlib.sha256(b"text\0" + source.encode()).hexdigest()
