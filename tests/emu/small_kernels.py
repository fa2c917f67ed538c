"""PTX of small kernels, and running them: what the tests of single instructions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlagen.emu.emulator import Emulator, LaunchResult

HEADER = """.version 8.8
.target {arch}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""

SCHEDULES = ("eager", "lazy", "random:1", "random:2", "lockstep", "starve:1")

THREAD = """
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mad.lo.s32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd2, %r4, 4;
  add.s64 %rd3, %rd1, %rd2;
  mov.u32 %r5, smem;
  shl.b32 %r6, %r1, 2;
  add.s32 %r7, %r5, %r6;
"""
"""%r1 thread, %r2 CTA, %r4 global thread, %rd3 its output word, %r5 shared memory, %r7 the thread's word in
it.
"""

MBARRIER = """
  add.s32 %r20, %r5, 1024;
  setp.ne.u32 %p20, %r1, 0;
  @%p20 bra READY;
  mbarrier.init.shared::cta.b64 [%r20], {count};
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
"""
WAIT = """
WAIT{n}:
  mbarrier.try_wait.parity.shared::cta.b64 %p21, [%r20], {parity};
  @!%p21 bra WAIT{n};
"""


def kernel(body: str, params: Sequence[str] = (), arch: str = "sm_90a", registers: str = "") -> str:
    """A module with one kernel `k`. params: declarations such as ".u64 out". Plenty of registers are
    declared.
    """
    declared = ", ".join(f".param {p}" for p in params)
    return f"""{HEADER.format(arch=arch)}
.visible .entry k({declared})
{{
  .reg .pred %p<32>;
  .reg .b16 %h<64>;
  .reg .b32 %r<512>;
  .reg .b64 %rd<256>;
  .reg .f32 %f<512>;
  {registers}
{body}
  ret;
}}
"""


def run(
    text: str,
    arrays: Sequence[Any],
    extra: Sequence[Any] = (),
    *,
    block: int = 128,
    grid: int = 1,
    cluster: int = 1,
    dynamic_shared: int = 65536,
    **options: Any,
) -> LaunchResult:
    """Run `k` with the addresses of the arrays, then the extra arguments, as parameters."""
    emulator = Emulator(text)
    args = [emulator.array(a) for a in arrays]
    return emulator.launch(
        "k",
        grid=grid,
        block=block,
        cluster=cluster,
        dynamic_shared=dynamic_shared,
        args=[*args, *extra],
        **options,
    )


def thread_zero_loads(source: str, size: int, offset: int = 0, barrier: int = 0) -> str:
    """Thread 0 initialises the mbarrier at smem + barrier and loads bytes of %rd<source> to smem + offset;
    everybody waits.
    """
    return f"""
  mov.u32 %r500, smem;
  add.u32 %r501, %r500, {barrier};
  add.u32 %r502, %r500, {offset};
  mov.u32 %r503, %tid.x;
  setp.ne.u32 %p30, %r503, 0;
  @%p30 bra LOADED_{barrier}_{offset};
  mbarrier.init.shared::cta.b64 [%r501], 1;
  fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r501], {size};
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r502], [{source}], {size}, [%r501];
LOADED_{barrier}_{offset}:
  bar.sync 0;
WAIT_{barrier}_{offset}:
  mbarrier.try_wait.parity.shared::cta.b64 %p31, [%r501], 0;
  @!%p31 bra WAIT_{barrier}_{offset};
"""


def bf16(rng: np.random.Generator, *shape: int, spread: int = 3) -> np.ndarray:
    """Random bf16 bits with exponents spread over 2**+-spread."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
    return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def words(body: str, threads: int = 64, ctas: int = 1, inputs: Any = (), **options: Any) -> np.ndarray:
    """Run a body after THREAD; the output words."""
    params = [".u64 out", *(f".u64 in{i}" for i in range(len(inputs)))]
    out = np.full(threads * ctas, 0xFFFFFFFF, np.uint32)
    run(kernel(THREAD + body, params), [out, *inputs], block=threads, grid=ctas, **options)
    return out
