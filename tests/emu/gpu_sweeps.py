"""Every mantissa through the special-function unit: what `ex2`, `lg2` and `rcp` give, for finding out how
it rounds. Nothing of this is a test; `record_gpu --sweeps FOLDER` stores the differences from the
correctly rounded values, compressed.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from mlagen import driver
from tests.emu.gpu_launch import download, launch
from tests.emu.small_kernels import kernel

COUNT = 1 << 23
OPERATIONS: dict[str, Any] = {
    "ex2.approx.ftz.f32": np.exp2,
    "lg2.approx.ftz.f32": np.log2,
    "rcp.approx.ftz.f32": np.reciprocal,
}
OCTAVES = {
    "ex2.approx.ftz.f32": (0x3F800000, 0xBF800000, 0x3F000000, 0x3E800000, 0x40000000, 0x34000000),
    "lg2.approx.ftz.f32": (0x3F800000, 0x3F000000, 0x40000000),
    "rcp.approx.ftz.f32": (0x3F800000, 0x3F000000),
}
"""First bit pattern of each octave of 2^23 values."""

BODY = """
  ld.param.u32 %r10, [first];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r1, %r1, 256, %r2;
  mad.wide.u32 %rd4, %r1, 4, %rd2;
  add.u32 %r3, %r1, %r10;
  mov.b32 %f1, %r3;
  {op} %f2, %f1;
  st.global.f32 [%rd4], %f2;"""


def sweep(api: Any, operation: str, first: int) -> np.ndarray:
    """Results of one octave, uint32 (COUNT,)."""
    out = np.zeros(COUNT, np.uint32)
    address = int(driver.call(api.cuMemAlloc(out.nbytes), "cuMemAlloc"))
    text = kernel(BODY.format(op=operation), (".u32 first", ".u64 out"))
    args = [first.to_bytes(4, "little"), address.to_bytes(8, "little")]
    module = launch(api, text.encode() + b"\0", "k", args, grid=COUNT // 256, block=256, cluster=1, shared=0)
    download(api, out, address)
    driver.call(api.cuMemFree(address), "cuMemFree")
    driver.call(api.cuModuleUnload(module), "cuModuleUnload")
    return out


def differences(operation: str, first: int, got: np.ndarray) -> bytes:
    """Compressed int32 differences from rounded fp64 values in units of the last place, low bytes first."""
    x = (np.arange(COUNT, dtype=np.uint32) + np.uint32(first)).view(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        want = OPERATIONS[operation](x).astype(np.float32).view(np.int32)
    delta = got.view(np.int32) - want
    return zlib.compress(np.ascontiguousarray(delta.view(np.uint8).reshape(-1, 4).T).tobytes(), 1)
