"""Running a kernel on a GPU: load the cubin, fill the parameters that the plan describes, launch.

What is kept, and by which key:

* one loaded module for each (spec, GPU), with its shared-memory attribute set at the load;
* one prepared call for each (kernel, layout): parameter struct, launch configuration and pointer array are
  filled once, and a call writes a dozen fields and launches. The stream is asked for on every call.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mlagen.arguments import call_values, layout_values
from mlagen.counters import pool
from mlagen.driver import api, call, current, gpu
from mlagen.launch_shape import LaunchShape, launch_shape, workspace_bytes
from mlagen.layout import Layout, check_work
from mlagen.loaded import LoadedKernel, check_gpu, launch_config, load_kernel
from mlagen.plan import make_plan
from mlagen.plan.params import packer
from mlagen.problem import Problem
from mlagen.spec import KernelSpec
from mlagen.tma import AlignedBytes, TensorMapCache, tensor_map

MAX_PREPARED = 512
_MAX_MAPS_A_CALL = 64


@dataclass(frozen=True, slots=True)
class Outputs:
    """Device addresses of what one call writes; 0 for an LSE that nobody wants and for scratch not needed."""

    out: int
    lse: int
    workspace: int


class Launcher(Protocol):
    """The last hop. A GPU is one; an emulator takes the same plan, parameters and tensor maps.

    Addresses in `problem.pointers` and `outputs` are those of the tensors of the call (`problem.tensors`),
    whatever kind of memory they are in.
    """

    def decode(self, spec: KernelSpec, problem: Problem, outputs: Outputs) -> None:
        """Runs the main kernel for a call with at least one row.

        Raises:
            DeviceError: the kernel cannot run here.
        """
        ...

    def schedule(self, spec: KernelSpec, problem: Problem, rows: int, count: int, capacity: int) -> None:
        """Runs the read-back kernel: int32 rows of 6 to address `rows`, their number added to address
        `count`.
        """
        ...

    def workspace_bytes(self, spec: KernelSpec, batch: int, s_q: int) -> int:
        """Bytes of scratch that `decode` needs."""
        ...


class PreparedCall:
    """Everything about a launch that does not change between calls of one layout. Thread safe."""

    def __init__(
        self,
        kernel: LoadedKernel,
        layout: Layout,
        shape: LaunchShape,
        maps: TensorMapCache,
        driver: Any,
    ) -> None:
        plan = kernel.plan
        entry = next(entry for entry in plan.entries if entry.suffix == "")
        self.kernel = kernel
        self.layout = layout
        self.shape = shape
        self.partial_lse_offset = self.shape.partial_lse_offset
        self.function = kernel.functions[""]
        self.config = launch_config(driver, entry, plan, self.shape.ctas)
        self.params = AlignedBytes(plan.params_bytes)
        self.fields: Any = packer(plan.params).from_address(self.params.address)
        for name, value in layout_values(layout, self.shape).items():
            setattr(self.fields, name, value)
        self.template = self.params.read()
        self.driver = driver
        self._maps = maps
        self._encoded: dict[tuple[int, ...], list[AlignedBytes]] = {}
        self._pointers = (ctypes.c_void_p * (1 + len(plan.tensor_maps)))()
        self._pointers[0] = self.params.address
        self._pointer_array = ctypes.addressof(self._pointers)
        self._stream: int | None = None
        self._lock = threading.Lock()

    def encoded_maps(self, pointers: dict[str, int]) -> list[AlignedBytes]:
        """The tensor maps of a cache at these addresses, in the order of the plan."""
        with self._lock:
            return self._tensor_maps(pointers)

    def _tensor_maps(self, pointers: dict[str, int]) -> list[AlignedBytes]:
        key = (pointers[self.layout.latent.tensor], pointers[self.layout.rope.tensor])
        known = self._encoded.get(key)
        if known is None:
            rows = self.kernel.plan.tensor_maps
            known = [self._maps.get(tensor_map(row, self.layout, pointers)) for row in rows]
            if len(self._encoded) >= _MAX_MAPS_A_CALL:
                self._encoded.clear()
            self._encoded[key] = known
        return known

    def launch(self, problem: Problem, outputs: Outputs, counters: int, stream: int) -> None:
        """Fills in one call and launches it. The context must be current.

        Raises:
            DeviceError: the driver refuses the launch.
        """
        values = call_values(
            problem,
            out=outputs.out,
            lse=outputs.lse,
            workspace=outputs.workspace,
            partial_lse_offset=self.partial_lse_offset,
            counters=counters,
        )
        with self._lock:
            fields = self.fields
            for name, value in values.items():
                setattr(fields, name, value)
            for index, encoded in enumerate(self._tensor_maps(problem.pointers), start=1):
                self._pointers[index] = encoded.address
            self._start(self._pointer_array, stream)

    def start(
        self, pointer_array: int, stream: int, complete: Callable[[int, Any], None], buffers: Any
    ) -> None:
        """Launches with the parameters that an array of pointers gives. The context must be current.

        Args:
            pointer_array: address of the pointers to the parameters.
            stream: handle.
            complete: called with stream and buffers before the launch, alone with these parameters.
            buffers: what the call writes to.

        Raises:
            DeviceError: the driver refuses the launch.
        """
        with self._lock:
            complete(stream, buffers)
            self._start(pointer_array, stream)

    def _start(self, pointer_array: int, stream: int) -> None:
        if stream != self._stream:
            self.config.hStream = stream
            self._stream = stream
        result = self.driver.cuLaunchKernelEx(self.config, self.function, pointer_array, 0)
        if int(result[0]):
            call(result, f"to launch {self.kernel.plan.name} with {self.shape.ctas} blocks")


class CudaLauncher:
    """The Launcher of one GPU.

    Args:
        ordinal: device number.
        artifacts: from a spec to its cubin; by default the library's cache and compiler.
        stream: from a call to the stream handle to launch on; by default torch's current stream.

    Raises:
        DeviceError: no driver, no such GPU.
    """

    def __init__(
        self,
        ordinal: int,
        *,
        artifacts: Callable[[KernelSpec], bytes] | None = None,
        stream: Callable[[Problem], int] | None = None,
    ) -> None:
        self.device = gpu(ordinal)
        self._artifacts = artifacts or _cubin
        self._stream = stream or current_stream
        self._kernels: dict[KernelSpec, LoadedKernel] = {}
        self._prepared: OrderedDict[tuple[int, Layout], PreparedCall] = OrderedDict()
        self._maps = TensorMapCache()
        self._lock = threading.Lock()
        self.ready: dict[tuple[Any, ...], Any] = {}  # see mlagen.warm
        self.seen: dict[tuple[Any, ...], Any] = {}

    def kernel(self, spec: KernelSpec) -> LoadedKernel:
        """The kernel, compiled and loaded if it is the first time.

        Raises:
            SpecError, ToolchainError, CompileError, CacheError: it cannot be built.
            DeviceError: it cannot run on this GPU.
        """
        known = self._kernels.get(spec)
        if known is None:
            check_gpu(spec, self.device)
            plan = make_plan(spec)
            cubin = self._artifacts(spec)
            with self._lock:
                known = self._kernels.get(spec)
                if known is None:
                    known = self._kernels[spec] = load_kernel(plan, cubin, self.device)
        return known

    def prepared(self, spec: KernelSpec, layout: Layout) -> PreparedCall:
        """The prepared call of a layout; the least recently made is dropped above MAX_PREPARED.

        Raises:
            InputError: more work than one launch can count.
        """
        # By the spec's identity, since its hash takes longer than all else; equal specs share a kernel and
        # go by the identity of the one that it was loaded with, which lives as long as the kernel.
        known = self._prepared.get((id(spec), layout))
        if known is not None:
            return known
        kernel = self.kernel(spec)
        key = (id(kernel.plan.spec), layout)
        known = self._prepared.get(key)
        if known is None:
            shape = kernel.shape(layout.s_q)
            check_work(layout, spec, shape.groups, shape.teams)
            known = PreparedCall(kernel, layout, shape, self._maps, api())
            with self._lock:
                self._prepared[key] = known
                while len(self._prepared) > MAX_PREPARED:
                    self._prepared.popitem(last=False)
        return known

    def decode(self, spec: KernelSpec, problem: Problem, outputs: Outputs) -> None:
        """See Launcher."""
        prepared = self.prepared(spec, problem.layout)
        stream = self._stream(problem)
        with current(self.device) as driver:
            counters = pool(self.device).slot(driver, stream) if spec.max_split > 1 else 0
            prepared.launch(problem, outputs, counters, stream)

    def schedule(self, spec: KernelSpec, problem: Problem, rows: int, count: int, capacity: int) -> None:
        """See Launcher."""
        kernel = self.kernel(spec)
        plan = kernel.plan
        entry = next(entry for entry in plan.entries if entry.suffix == "_schedule")
        shape = kernel.shape(problem.layout.s_q)
        values: dict[str, int | float] = {field.name: 0 for field in plan.params}
        values |= layout_values(problem.layout, shape)
        values |= call_values(problem, out=0, lse=0, workspace=0, partial_lse_offset=0, counters=0)
        params = packer(plan.params)(**values)
        extra = [ctypes.c_void_p(rows), ctypes.c_void_p(count), ctypes.c_int32(capacity)]
        pointers = (ctypes.c_void_p * (1 + len(extra)))(
            *[ctypes.addressof(value) for value in (params, *extra)]
        )
        with current(self.device) as driver:
            config = launch_config(driver, entry, plan, shape.ctas)
            config.hStream = self._stream(problem)
            function = kernel.functions["_schedule"]
            result = driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0)
        call(result, f"to launch {plan.name}_schedule")

    def workspace_bytes(self, spec: KernelSpec, batch: int, s_q: int) -> int:
        """See Launcher. Needs no compiled kernel: it counts the units that the GPU can hold at most."""
        if batch == 0:
            return 0
        return workspace_bytes(spec, launch_shape(spec, s_q, self.device.sm_count // spec.cta_group))


def _cubin(spec: KernelSpec) -> bytes:
    from mlagen.build import load_artifact

    return load_artifact(spec).cubin


def current_stream(problem: Problem) -> int:
    """Handle of torch's current stream on the device of the call; the legacy default stream without torch."""
    return stream_of(problem.like, problem.layout.device)


def stream_of(tensor: Any, device: int) -> int:
    """Handle of torch's current stream on a device; the legacy default stream for what is no torch tensor."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream)


LAUNCHERS: dict[int, CudaLauncher] = {}
_LOCK = threading.Lock()


def launcher(ordinal: int) -> CudaLauncher:
    """The launcher of one GPU of this process; made when first asked for.

    Raises:
        DeviceError: no driver, no such GPU.
    """
    known = LAUNCHERS.get(ordinal)
    if known is None:
        gpu(ordinal)
        with _LOCK:
            known = LAUNCHERS.get(ordinal)
            if known is None:
                known = LAUNCHERS[ordinal] = CudaLauncher(ordinal)
    return known
