"""The CUDA driver through cuda-python, once libcuda is found. Importing this file touches nothing."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlagen.errors import DeviceError

_LOCK = threading.Lock()
_API: Any = None
_GPUS: dict[int, Gpu] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """One device of this process, with its primary context retained for the life of the process.

    Attributes:
        ordinal: device number as torch and the driver count them.
        context: CUcontext handle of the primary context, as an int.
        name: marketing name.
        compute_capability: (major, minor).
        sm_count: multiprocessors.
    """

    ordinal: int
    context: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int


def api() -> Any:
    """The module cuda.bindings.driver, with libcuda present and the driver initialised.

    A driver call without libcuda can hang for ever on some paths, so the library is looked for first.

    Raises:
        DeviceError: no driver library, no cuda-python, or no GPU that the driver can use.
    """
    global _API
    if _API is not None:
        return _API
    with _LOCK:
        if _API is None:
            find_libcuda()
            try:
                import cuda.bindings.driver as module
            except ImportError as error:
                raise DeviceError(
                    "the package cuda-bindings is not installed; it carries the launch calls. "
                    "Install it with: pip install 'mlagen[compile]'"
                ) from error
            call(module.cuInit(0), "cuInit")
            _API = module
    return _API


def find_libcuda() -> None:
    """Looks for the driver's library by opening it.

    Raises:
        DeviceError: it is not there.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(
            f"no GPU can be used: the NVIDIA driver library {name} was not found ({error}). "
            "Building and inspecting kernels needs no GPU; running them needs a machine with the driver "
            "installed"
        ) from error


def call(result: tuple[Any, ...], what: str) -> Any:
    """Unpacks what a driver call returned.

    Args:
        result: (status, values...).
        what: the call, for the message.

    Returns:
        None, the one value, or a tuple of the values.

    Raises:
        DeviceError: the status is not success.
    """
    status = result[0]
    if int(status) != 0:
        name = getattr(status, "name", str(status))
        raise DeviceError(f"the driver refused {what}: {name} ({int(status)}){_hint(name)}")
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


_HINTS = {
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible to this process; check CUDA_VISIBLE_DEVICES and nvidia-smi",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the kernel was built for another architecture",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": (
        "the grid does not fit the multiprocessors that this process may use; "
        "a limit set by MPS or a green context is not supported"
    ),
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": (
        "the legacy default stream cannot be used while another stream is being captured; "
        "call inside torch.cuda.graph or on a side stream"
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": "the GPU has no memory left for the kernel's code or its counters",
}


def _hint(name: str) -> str:
    return f"; {_HINTS[name]}" if name in _HINTS else ""


def gpu(ordinal: int) -> Gpu:
    """The device with this number. Its primary context is retained once and kept.

    Raises:
        DeviceError: no driver, or no such device.
    """
    known = _GPUS.get(ordinal)
    if known is not None:
        return known
    driver = api()
    count = call(driver.cuDeviceGetCount(), "cuDeviceGetCount")
    if not 0 <= ordinal < count:
        raise DeviceError(
            f"device {ordinal} was asked for; this process sees {count} GPU(s), numbered from 0"
        )
    with _LOCK:
        if ordinal not in _GPUS:
            _GPUS[ordinal] = _open(driver, ordinal)
    return _GPUS[ordinal]


def _open(driver: Any, ordinal: int) -> Gpu:
    handle = call(driver.cuDeviceGet(ordinal), f"cuDeviceGet({ordinal})")
    attribute = driver.CUdevice_attribute

    def read(which: Any) -> int:
        return int(call(driver.cuDeviceGetAttribute(which, handle), f"cuDeviceGetAttribute({which.name})"))

    name = call(driver.cuDeviceGetName(128, handle), "cuDeviceGetName")
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Gpu(
        ordinal=ordinal,
        context=int(call(driver.cuDevicePrimaryCtxRetain(handle), "cuDevicePrimaryCtxRetain")),
        name=text.split("\0")[0],
        compute_capability=(
            read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        sm_count=read(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
    )


@contextmanager
def current(device: Gpu) -> Iterator[Any]:
    """Makes the device's primary context current for the block and restores what was current before.

    Yields:
        The driver module.
    """
    driver = api()
    if int(call(driver.cuCtxGetCurrent(), "cuCtxGetCurrent") or 0) == device.context:
        yield driver
        return
    call(driver.cuCtxPushCurrent(driver.CUcontext(device.context)), "cuCtxPushCurrent")
    try:
        yield driver
    finally:
        call(driver.cuCtxPopCurrent(), "cuCtxPopCurrent")


@contextmanager
def outside_capture(driver: Any) -> Iterator[None]:
    """Lets this thread allocate and load modules although a stream capture is going on somewhere."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = call(driver.cuThreadExchangeStreamCaptureMode(mode), "cuThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        call(driver.cuThreadExchangeStreamCaptureMode(before), "cuThreadExchangeStreamCaptureMode")


def capture_id(driver: Any, stream: int) -> int:
    """Number of the capture that the stream is part of, unique in the process; 0 when it is not capturing.

    Raises:
        DeviceError: the stream cannot be used now, or its capture has been invalidated.
    """
    status = driver.CUstreamCaptureStatus
    state = call(driver.cuStreamIsCapturing(stream), "cuStreamIsCapturing")
    if state == status.CU_STREAM_CAPTURE_STATUS_NONE:
        return 0
    if state == status.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
        raise DeviceError(
            "the stream capture in progress was invalidated by an earlier call; end it and capture again"
        )
    info = call(driver.cuStreamGetCaptureInfo(stream), "cuStreamGetCaptureInfo")
    return int(info[1])
