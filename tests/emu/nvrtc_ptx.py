"""PTX of CUDA sources through NVRTC, with CuTe's and the toolkit's headers from the environment."""

from __future__ import annotations

import site
from functools import cache
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
PACKAGES = Path(site.getsitepackages()[0])
INCLUDES = [
    PACKAGES / p
    for p in ("cutlass_library/source/include", "nvidia/cu13/include", "nvidia/cu13/include/cccl")
]


@cache
def compile_to_ptx(source: str, arch: str, *options: str) -> str:
    """PTX for a virtual architecture such as compute_100a; the compiler's log is the failure message."""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], [])
    given = [
        f"--gpu-architecture={arch}",
        "-std=c++17",
        "-default-device",
        *(f"-I{p}" for p in INCLUDES),
        *options,
    ]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(given), [o.encode() for o in given])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()[:4000]
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.rstrip(b"\0").decode()
