"""Fixtures of the GPU tests: they skip themselves without a GPU, build all kernels first, and end a hang.

Where a process was when it hung is also in `mlagen-hang-PID.txt` in the folder for temporary files, since
the standard error of a worker of pytest-xdist is lost.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cases
import pytest

WATCHDOG_SECONDS = 180
_HERE = Path(__file__).parent


def _why_not() -> str:
    """Why GPU tests cannot run here; empty if they can."""
    from mlagen import driver, heuristics
    from mlagen.errors import DeviceError

    try:
        heuristics.arch_of(driver.gpu(0))
    except DeviceError as error:
        return str(error)
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "this torch was built without CUDA"


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    mine = [item for item in items if _HERE in item.path.parents]
    if not mine:
        return
    reason = _why_not()
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_generate_tests(metafunc: Any) -> None:
    if "kernel" in metafunc.fixturenames:
        specs = cases.grid_specs(metafunc.config.getoption("--grid"))
        metafunc.parametrize("kernel", specs, ids=[spec.name.removeprefix("mla_decode_") for spec in specs])


@pytest.fixture(autouse=True)
def watchdog(request: Any) -> Iterator[None]:
    """A kernel that never ends cannot be stopped from Python: the process says where it is and exits."""
    with (Path(tempfile.gettempdir()) / f"mlagen-hang-{os.getpid()}.txt").open("w") as log:
        print(request.node.nodeid, file=log, flush=True)
        faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=log)
        yield
        faulthandler.cancel_dump_traceback_later()
    Path(log.name).unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def built_kernels(request: Any) -> Any:
    """Builds every kernel of the grid in parallel before the first test."""
    from mlagen.build import build

    specs = cases.grid_specs(request.config.getoption("--grid")) + cases.extra_specs()
    faulthandler.cancel_dump_traceback_later()
    report = build(specs, jobs=os.cpu_count())
    assert not report.failed, "\n".join(f"{row.name}: {row.error}" for row in report.failed)
    return report
