"""Options of the test run. That this file lies here also puts tests/ on the import path."""

from __future__ import annotations

from typing import Any


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("mlagen")
    group.addoption(
        "--grid",
        choices=("quick", "full"),
        default="quick",
        help="GPU tests: about 25 kernels, or all of them",
    )
