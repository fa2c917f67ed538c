"""Every driver call, with the argument types that the library passes, gets as far as looking for libcuda.

The bindings convert arguments before they open the library, so a wrong type shows without a GPU.
"""

from __future__ import annotations

import ctypes

import pytest

driver = pytest.importorskip("cuda.bindings.driver")

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pass
else:
    pytest.skip("libcuda is installed here; the calls would run", allow_module_level=True)


def calls():
    config = driver.CUlaunchConfig()
    config.hStream = 5
    function, context = driver.CUfunction(8), driver.CUcontext(8)
    pointers = (ctypes.c_void_p * 3)()
    words = [driver.cuuint64_t(16)] * 2
    smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    return {
        "cuInit": (0,),
        "cuDeviceGetCount": (),
        "cuDeviceGet": (0,),
        "cuDeviceGetName": (128, driver.CUdevice(0)),
        "cuDeviceGetAttribute": (
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            driver.CUdevice(0),
        ),
        "cuDevicePrimaryCtxRetain": (driver.CUdevice(0),),
        "cuCtxGetCurrent": (),
        "cuCtxPushCurrent": (context,),
        "cuCtxPopCurrent": (),
        "cuThreadExchangeStreamCaptureMode": (driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,),
        "cuModuleLoadData": (b"cubin",),
        "cuModuleGetFunction": (driver.CUmodule(8), b"name"),
        "cuFuncSetAttribute": (function, smem, 221216),
        "cuOccupancyMaxActiveClusters": (function, config),
        "cuStreamIsCapturing": (5,),
        "cuStreamGetCaptureInfo": (5,),
        "cuStreamGetId": (5,),
        "cuMemAlloc": (4096,),
        "cuStreamCreate": (int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING),),
        "cuMemsetD8Async": (driver.CUdeviceptr(4096), 0, 4096, driver.CUstream(8)),
        "cuStreamSynchronize": (driver.CUstream(8),),
        "cuStreamDestroy": (driver.CUstream(8),),
        "cuTensorMapEncodeTiled": (
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3,
            4096,
            [driver.cuuint64_t(64)] * 3,
            words,
            [driver.cuuint32_t(8)] * 3,
            [driver.cuuint32_t(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        "cuLaunchKernelEx": (config, function, ctypes.addressof(pointers), 0),
    }


@pytest.mark.parametrize("name", calls())
def test_argument_types(name):
    with pytest.raises(RuntimeError, match=r"libcuda|driver library"):
        getattr(driver, name)(*calls()[name])


def test_wrong_types_would_show():
    config = driver.CUlaunchConfig()
    with pytest.raises(TypeError):
        driver.cuLaunchKernelEx(config, driver.CUfunction(8), 1.5, 0)


def test_the_fake_covers_the_same_calls():
    from fakes import FakeDriver

    assert {name for name in vars(FakeDriver) if name.startswith("cu")} == set(calls()) - {"cuInit"}
