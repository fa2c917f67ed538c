"""Options of the test run. That this file lies here also puts tests/ on the import path."""

from __future__ import annotations

import contextlib
import os
from typing import Any

with contextlib.suppress(ImportError):  # the GPU tests do without it
    from hypothesis import settings

    # A busy machine is no failure: no example has a time limit of its own.
    settings.register_profile("mlagen", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("mlagen")


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("mlagen")
    group.addoption(
        "--grid",
        choices=("quick", "full"),
        default="quick",
        help="GPU tests: about 25 kernels, or all of them",
    )
