"""Machine code as text, through the disassembler package. For people and for tests."""

from __future__ import annotations

import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from mlagen.errors import ToolchainError

_DISTRIBUTION = "nvidia-cuda-nvdisasm"


def disassembler() -> Path:
    """The program nvdisasm of the installed package.

    Raises:
        ToolchainError: the package is not installed.
    """
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ToolchainError(
            f"{_DISTRIBUTION} is not installed. Install: pip install {_DISTRIBUTION}"
        ) from None
    for entry in distribution.files or ():
        if entry.name in ("nvdisasm", "nvdisasm.exe"):
            return Path(str(distribution.locate_file(entry)))
    raise ToolchainError(f"{_DISTRIBUTION} {distribution.version} has no nvdisasm; reinstall it")


def disassemble(cubin: bytes) -> str:
    """SASS text of a cubin.

    Raises:
        ToolchainError: the disassembler is missing or refuses the cubin.
    """
    program = disassembler()
    with tempfile.TemporaryDirectory(prefix="mlagen-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"nvdisasm failed with status {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout
