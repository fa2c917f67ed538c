"""Where the shipped files are, in a checkout and in an installed wheel. The package folder is only read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from mlagen.errors import ToolchainError

_PACKAGE = Path(__file__).resolve().parent
SKELETON = "base.cu.j2"


@cache
def template_root() -> Path:
    """The folder `templates/` with the skeleton, the macros and the C++ headers.

    Raises:
        ToolchainError: neither beside the package (checkout) nor inside it (wheel).
    """
    candidates = (_PACKAGE / "templates", _PACKAGE.parent / "templates")
    for candidate in candidates:
        if (candidate / SKELETON).is_file():
            return candidate
    raise ToolchainError(
        f"templates/{SKELETON} is missing. Looked in: {', '.join(map(str, candidates))}. "
        "The installation is incomplete: reinstall mlagen"
    )


def include_root() -> Path:
    """The folder that holds `mlagen/**/*.cuh`, to be put on the compiler's include path."""
    return template_root() / "include"


def shipped_file() -> Path:
    """The data file with the shipped set and the presets."""
    return _PACKAGE / "shipped.toml"
