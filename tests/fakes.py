"""Stand-ins for what a machine without a GPU lacks: tensors on a GPU, and the CUDA driver."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from mlagen import driver as driver_module
from mlagen.tensors import contiguous_strides

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1}


@dataclass(eq=False)
class FakeTensor:
    """Shape, strides, dtype, device and address, like a torch tensor on a GPU."""

    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"
    device: str = "cuda:0"
    strides: tuple[int, ...] | None = None
    pointer: int = 0x10000000
    made: list[FakeTensor] = field(default_factory=list)

    def stride(self) -> tuple[int, ...]:
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    def get_device(self) -> int:
        return int(self.device.partition(":")[2] or 0) if self.device.startswith("cuda") else -1

    def data_ptr(self) -> int:
        return self.pointer

    def new_empty(self, shape: tuple[int, ...], dtype: Any = None) -> FakeTensor:
        made = FakeTensor(tuple(shape), str(dtype or self.dtype), self.device, pointer=0x70000000)
        made.pointer += 0x1000000 * len(self.made)
        self.made.append(made)
        return made


def arguments(
    batch: int = 2,
    s_q: int = 1,
    h_q: int = 16,
    page_size: int = 64,
    pages: int = 10,
    width: int = 4,
    **other: Any,
) -> dict[str, Any]:
    """Keyword arguments of mla_decode that break no rule; entries of `other` replace or add some."""
    made: dict[str, Any] = {
        "q": FakeTensor((batch, s_q, h_q, 576), pointer=0x10000000),
        "kv_cache": FakeTensor((pages, page_size, 576), pointer=0x20000000),
        "block_table": FakeTensor((batch, width), "torch.int32", pointer=0x30000000),
        "cache_seqlens": FakeTensor((batch,), "torch.int32", pointer=0x31000000),
        "softmax_scale": 0.1,
    }
    return {**made, **other}


class FakeDriver:
    """Types and enums of cuda.bindings.driver with functions that record what they were given."""

    def __init__(self, devices: int = 1, capability: tuple[int, int] = (9, 0), sm_count: int = 132) -> None:
        import cuda.bindings.driver as real

        self.real = real
        self.ok = (real.CUresult.CUDA_SUCCESS,)
        self.devices, self.capability, self.sm_count = devices, capability, sm_count
        self.log: list[tuple[Any, ...]] = []
        self.launches: list[dict[str, Any]] = []
        self.fail: dict[str, Any] = {}
        self.context_stack: list[int] = [0xC0]
        self.capturing: dict[int, int] = {}
        self.memory = 0x40000000
        self.memory_set: list[tuple[int, int, int]] = []
        self.mode = real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self.clusters = 66
        self.map_bytes_read: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if name.startswith("cu") and name[2].isupper():
            raise AssertionError(f"the fake driver has no {name}")
        return value

    def _result(self, what: str, *values: Any) -> tuple[Any, ...]:
        if what in self.fail:
            return (self.fail[what], *([None] * len(values)))
        return (*self.ok, *values)

    def cuDeviceGetCount(self) -> Any:
        return self._result("cuDeviceGetCount", self.devices)

    def cuDeviceGet(self, ordinal: int) -> Any:
        return self._result("cuDeviceGet", ordinal)

    def cuDeviceGetName(self, length: int, device: Any) -> Any:
        return self._result("cuDeviceGetName", b"Fake H200\0\0")

    def cuDeviceGetAttribute(self, which: Any, device: Any) -> Any:
        values = {
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": self.sm_count,
        }
        return self._result("cuDeviceGetAttribute", values[which.name])

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        self.log.append(("retain", int(device)))
        return self._result("cuDevicePrimaryCtxRetain", self.real.CUcontext(0xC0 + int(device)))

    def cuCtxGetCurrent(self) -> Any:
        return self._result("cuCtxGetCurrent", self.real.CUcontext(self.context_stack[-1]))

    def cuCtxPushCurrent(self, context: Any) -> Any:
        self.context_stack.append(int(context))
        return self._result("cuCtxPushCurrent")

    def cuCtxPopCurrent(self) -> Any:
        return self._result("cuCtxPopCurrent", self.real.CUcontext(self.context_stack.pop()))

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before, self.mode = self.mode, mode
        return self._result("cuThreadExchangeStreamCaptureMode", before)

    def cuModuleLoadData(self, image: bytes) -> Any:
        self.log.append(("load", image, self.context_stack[-1], self.mode.name))
        return self._result("cuModuleLoadData", len(self.log))

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        return self._result("cuModuleGetFunction", (module, name.decode()))

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> Any:
        self.log.append(("attribute", function[1], attribute.name, value, self.context_stack[-1]))
        return self._result("cuFuncSetAttribute")

    def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> Any:
        self.log.append(("clusters", config.gridDimX, config.sharedMemBytes))
        return self._result("cuOccupancyMaxActiveClusters", self.clusters)

    def cuStreamIsCapturing(self, stream: int) -> Any:
        status = self.real.CUstreamCaptureStatus
        active = self.capturing.get(stream)
        state = status.CU_STREAM_CAPTURE_STATUS_ACTIVE if active else status.CU_STREAM_CAPTURE_STATUS_NONE
        return self._result("cuStreamIsCapturing", state)

    def cuStreamGetCaptureInfo(self, stream: int) -> Any:
        status = self.real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        number = self.real.cuuint64_t(self.capturing[stream])
        return self._result("cuStreamGetCaptureInfo", status, number, None, [], [], 0)

    def cuStreamGetId(self, stream: int) -> Any:
        return self._result("cuStreamGetId", 1000 + stream)

    def cuMemAlloc(self, nbytes: int) -> Any:
        self.log.append(("alloc", nbytes, self.mode.name))
        self.memory += 0x100000
        return self._result("cuMemAlloc", self.real.CUdeviceptr(self.memory))

    def cuStreamCreate(self, flags: int) -> Any:
        self.log.append(("stream", flags))
        return self._result("cuStreamCreate", self.real.CUstream(0x5EED))

    def cuMemsetD8Async(self, base: Any, value: int, nbytes: int, stream: Any) -> Any:
        self.memory_set.append((int(base), value, nbytes))
        self.log.append(("memset", int(stream)))
        return self._result("cuMemsetD8Async")

    def cuStreamSynchronize(self, stream: Any) -> Any:
        self.log.append(("sync", int(stream)))
        return self._result("cuStreamSynchronize")

    def cuStreamDestroy(self, stream: Any) -> Any:
        return self._result("cuStreamDestroy")

    def cuTensorMapEncodeTiled(self, dtype: Any, rank: int, address: int, *rest: Any) -> Any:
        extents, strides, box, steps, interleave, swizzle, promotion, _fill = rest
        lists = [[int(value) for value in values] for values in (extents, strides, box, steps)]
        # The real binding refuses plain ints in these lists.
        assert all(type(value) is self.real.cuuint64_t for value in (*extents, *strides))
        assert all(type(value) is self.real.cuuint32_t for value in (*box, *steps))
        self.log.append(
            ("encode", dtype.name, rank, address, *lists, interleave.name, swizzle.name, promotion.name)
        )
        made = self.real.CUtensorMap()
        made.opaque = [self.real.cuuint64_t(address + index) for index in range(16)]
        return self._result("cuTensorMapEncodeTiled", made)

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> Any:
        attributes = {}
        for attribute in config.attrs:
            name = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_")
            dims = attribute.value.clusterDim
            attributes[name] = (
                attribute.value.cooperative if name == "COOPERATIVE" else (dims.x, dims.y, dims.z)
            )
        self.launches.append(
            {
                "function": function[1],
                "grid": (config.gridDimX, config.gridDimY, config.gridDimZ),
                "block": (config.blockDimX, config.blockDimY, config.blockDimZ),
                "smem": config.sharedMemBytes,
                "stream": int(config.hStream),
                "attributes": attributes,
                "count": config.numAttrs,
                "context": self.context_stack[-1],
                "pointers": pointers,
                "extra": extra,
            }
        )
        return self._result("cuLaunchKernelEx")

    def parameter(self, index: int, nbytes: int) -> bytes:
        """Bytes of one kernel parameter of the last launch (its memory is still held by the library)."""
        address = ctypes.c_void_p.from_address(self.launches[-1]["pointers"] + 8 * index).value
        assert address is not None
        return ctypes.string_at(address, nbytes)

    def parameter_address(self, index: int) -> int:
        """Address of one kernel parameter of the last launch."""
        return ctypes.c_void_p.from_address(self.launches[-1]["pointers"] + 8 * index).value or 0


def install(monkeypatch: Any, fake: FakeDriver) -> FakeDriver:
    """Makes the library use the fake driver, with nothing remembered from before."""
    from mlagen import counters, runtime

    monkeypatch.setattr(driver_module, "_API", fake)
    monkeypatch.setattr(driver_module, "_GPUS", {})
    monkeypatch.setattr(counters, "_POOLS", {})
    monkeypatch.setattr(runtime, "LAUNCHERS", {})
    return fake
