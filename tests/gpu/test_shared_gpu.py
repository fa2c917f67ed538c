"""Several processes on one GPU, which then works for one after the other, each kernel cut off anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cases
import pytest

PROGRAM = Path(__file__).with_name("busy_process.py")
PROCESSES, CALLS, SECONDS = 4, 2000, 60


@pytest.mark.parametrize("mode", ["direct", "merged"])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_processes_share_a_gpu(cta_group, mode):
    """None of them comes to a stop, and all are right."""
    kernel = cases.spec("bf16", 128, 64, 64, cta_group)
    command = [sys.executable, str(PROGRAM), kernel.name, mode, str(CALLS)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        assert [process.wait(SECONDS) for process in running] == [0] * PROCESSES
    finally:
        for process in running:
            process.kill()
            process.wait()
