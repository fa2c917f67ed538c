"""What this GPU reaches in this run: reading memory, and a large matrix product in a burst and sustained."""

from __future__ import annotations

import ctypes
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from mlagen import driver
from mlagen.bench.clock import Effort, time_steps
from mlagen.bench.data import Pool
from mlagen.bench.sampler import Sensors

MATRIX = 8192
READ_REPEATS = 8
_THREADS, _BLOCKS_A_SM, _LOADS = 512, 2, 8
_SOURCE = """
extern "C" __global__ void __launch_bounds__(THREADS)
mlagen_read(const uint4* data, unsigned long long count, unsigned* sink) {
  unsigned long long const stride = 1ull * gridDim.x * blockDim.x;
  unsigned long long i = 1ull * blockIdx.x * blockDim.x + threadIdx.x;
  unsigned folded = 0;
  for (; i + (LOADS - 1) * stride < count; i += LOADS * stride) {
    uint4 got[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; ++k) {
      uint4& v = got[k];
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + i + k * stride));
    }
#pragma unroll
    for (int k = 0; k < LOADS; ++k) folded ^= got[k].x ^ got[k].y ^ got[k].z ^ got[k].w;
  }
  if (folded == 0x9E3779B9u) *sink = folded;
}
"""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured limits; None where one could not be measured.

    Attributes:
        read_tb_per_s: a kernel that only reads, over all of the pool.
        matmul_tflops: bf16 8192^3 through torch, in a burst.
        matmul_tflops_sustained: the same without pauses.
        matmul_clocks, matmul_sustained_clocks: readings, see mlagen.bench.sampler.
        problems: why something is missing.
    """

    read_tb_per_s: float | None
    matmul_tflops: float | None
    matmul_tflops_sustained: float | None
    matmul_clocks: dict[str, float]
    matmul_sustained_clocks: dict[str, float]
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a JSON line."""
        return asdict(self)


def measure_ceilings(pool: Pool, gpu: driver.Gpu, sensors: Sensors, effort: Effort) -> Ceilings:
    """Measures the limits of the GPU. What fails is None, with its reason."""
    problems = []
    read, timing = None, None
    try:
        read = read_bandwidth(pool.rows("bf16"), gpu)
    except Exception as error:  # a limit that cannot be measured must not end the benchmark
        problems.append(f"read bandwidth: {type(error).__name__}: {error}")
    try:
        timing = _matmul(pool.device, sensors, effort)
    except Exception as error:  # see above
        problems.append(f"matmul: {type(error).__name__}: {error}")
    flop = 2 * MATRIX**3

    def rate(us: float | None) -> float | None:
        return None if us is None else flop / us / 1e6

    return Ceilings(
        read_tb_per_s=read,
        matmul_tflops=None if timing is None else rate(timing.median),
        matmul_tflops_sustained=None if timing is None else rate(timing.sustained),
        matmul_clocks={} if timing is None else timing.clocks,
        matmul_sustained_clocks={} if timing is None else timing.sustained_clocks,
        problems=tuple(problems),
    )


def _matmul(device: Any, sensors: Sensors, effort: Effort) -> Any:
    import torch

    def random() -> Any:
        return torch.randn((MATRIX, MATRIX), device=device).to(torch.bfloat16)

    left, right = [random() for _ in range(3)], [random() for _ in range(3)]
    out = torch.empty_like(left[0])
    return time_steps(lambda index: torch.mm(left[index], right[index], out=out), 3, sensors, effort)


def compile_reader(gpu: driver.Gpu) -> bytes:
    """The cubin of the read-only kernel.

    Raises:
        RuntimeError: the compiler is missing or refuses it.
    """
    from cuda.bindings import nvrtc

    major, minor = gpu.compute_capability
    status, program = nvrtc.nvrtcCreateProgram(_SOURCE.encode(), b"read.cu", 0, [], [])
    if int(status):
        raise RuntimeError(f"nvrtcCreateProgram: {status}")
    try:
        options = [f"--gpu-architecture=sm_{major}{minor}", f"-DTHREADS={_THREADS}", f"-DLOADS={_LOADS}"]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [text.encode() for text in options])
        if int(status):
            raise RuntimeError(f"the compiler refused the read kernel: {status}")
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytes(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin


def read_bandwidth(data: Any, gpu: driver.Gpu) -> float:
    """TB/s of reading a tensor once from end to end, the median of the faster half of a few times.

    Raises:
        RuntimeError, DeviceError: the kernel cannot be built or launched.
    """
    import torch

    cubin = compile_reader(gpu)
    api, sink = driver.api(), torch.zeros((1,), dtype=torch.int32, device=data.device)
    nbytes = data.numel() * data.element_size()
    values = (
        ctypes.c_void_p(data.data_ptr()),
        ctypes.c_uint64(nbytes // 16),
        ctypes.c_void_p(sink.data_ptr()),
    )
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    cuda: Any = torch.cuda
    with driver.current(gpu):
        module = driver.call(api.cuModuleLoadData(cubin), "to load the read kernel")
        function = driver.call(api.cuModuleGetFunction(module, b"mlagen_read"), "cuModuleGetFunction")
        stream = int(cuda.current_stream(gpu.ordinal).cuda_stream)
        blocks, times = gpu.sm_count * _BLOCKS_A_SM, []
        time.sleep(0.2)
        for _ in range(READ_REPEATS):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            launched = api.cuLaunchKernel(
                function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0
            )
            driver.call(launched, "to launch the read kernel")
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
    return float(nbytes / statistics.median(sorted(times)[: READ_REPEATS // 2]) / 1e6)
