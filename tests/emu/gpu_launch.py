"""Running recorded launches on a GPU through the driver."""

from __future__ import annotations

import ctypes
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from mlagen import driver
from tests.emu.gpu_case import Case, fill


def encode(api: Any, address: int, given: dict[str, Any]) -> bytes:
    """The 128 bytes of cuTensorMapEncodeTiled."""
    rank = len(given["extents"])
    result = api.cuTensorMapEncodeTiled(
        api.CUtensorMapDataType(int(given["element"])),
        rank,
        address,
        [api.cuuint64_t(e) for e in given["extents"]],
        [api.cuuint64_t(s) for s in given["strides"] or (0,)],
        [api.cuuint32_t(b) for b in given["box"]],
        [api.cuuint32_t(s) for s in given.get("element_strides", (1,) * rank)],
        api.CUtensorMapInterleave(0),
        api.CUtensorMapSwizzle(int(given.get("swizzle", 0))),
        api.CUtensorMapL2promotion(given.get("l2_promotion", 0)),
        api.CUtensorMapFloatOOBfill(int(given.get("fill", 0))),
    )
    encoded = driver.call(result, "cuTensorMapEncodeTiled")
    return ctypes.string_at(int(encoded.getPtr()), 128)


def upload(api: Any, data: np.ndarray) -> int:
    """A copy of an array on the GPU; its address."""
    flat = np.ascontiguousarray(data)
    address = int(driver.call(api.cuMemAlloc(max(flat.nbytes, 256)), "cuMemAlloc"))
    driver.call(api.cuMemcpyHtoD(address, flat.ctypes.data, flat.nbytes), "cuMemcpyHtoD")
    return address


def download(api: Any, out: np.ndarray, address: int) -> None:
    """Copy an array back and wait for everything before it."""
    driver.call(api.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes), "cuMemcpyDtoH")


def launch(
    api: Any, image: bytes, entry: str, args: list[bytes], *, grid: int, block: int, cluster: int, shared: int
) -> Any:
    """Load an image, launch one of its kernels and wait for its end; gives the module, to be unloaded."""
    module = driver.call(api.cuModuleLoadData(image), f"cuModuleLoadData of {entry}")
    function = driver.call(api.cuModuleGetFunction(module, entry.encode()), "cuModuleGetFunction")
    limit = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.call(api.cuFuncSetAttribute(function, limit, shared), "cuFuncSetAttribute")
    kept = []
    for arg in args:
        buffer = ctypes.create_string_buffer(len(arg) + 64)
        start = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 64
        ctypes.memmove(start, arg, len(arg))
        kept.append((buffer, start))
    pointers = (ctypes.c_void_p * len(kept))(*(address for _, address in kept))
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = shared
    if cluster > 1:
        attribute = api.CUlaunchAttribute()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = cluster
        attribute.value.clusterDim.y = 1
        attribute.value.clusterDim.z = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    driver.call(api.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0), f"to launch {entry}")
    driver.call(api.cuCtxSynchronize(), f"after {entry}")
    return module


def run_case(api: Any, case: Case) -> np.ndarray:
    """The output of a case."""
    out = np.zeros(*case.output)
    places = {f"in{i}": upload(api, data) for i, data in enumerate(case.inputs)} | {"out": upload(api, out)}
    args = []
    for arg in case.args:
        if arg == "map":
            args.append(encode(api, places["in0"], case.map))
        else:
            args.append((places[arg] if isinstance(arg, str) else arg).to_bytes(8, "little"))
    shape = {"grid": case.grid, "block": case.block, "cluster": case.cluster, "shared": case.dynamic_shared}
    module = launch(api, case.ptx.encode() + b"\0", "k", args, **shape)
    download(api, out, places["out"])
    for address in places.values():
        driver.call(api.cuMemFree(address), "cuMemFree")
    driver.call(api.cuModuleUnload(module), "cuModuleUnload")
    return out


def run_kernel(api: Any, folder: Path, name: str, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Outputs (bytes) of a kernel that `gpu_kernels` prepared; its PTX where there is no cubin."""
    binary = folder / f"{name}.cubin"
    ptx = lzma.decompress((folder / f"{name}.ptx.xz").read_bytes())
    memory = np.zeros(given["bytes"], np.uint8)
    fill(memory, given["recipe"])
    base = upload(api, memory)
    args = []
    for arg in given["args"]:
        if "map" in arg:
            numbers = {**arg["map"], "l2_promotion": 3}
            args.append(encode(api, base + numbers["address"], numbers))
            continue
        data = bytearray.fromhex(arg["hex"])
        for offset in arg["pointers"]:
            value = int.from_bytes(data[offset : offset + 8], "little") + base
            data[offset : offset + 8] = value.to_bytes(8, "little")
        args.append(bytes(data))
    image = binary.read_bytes() if binary.exists() else ptx + b"\0"
    shape = {k: given[k] for k in ("grid", "block", "cluster")}
    module = launch(api, image, given["entry"], args, shared=given["dynamic_shared"], **shape)
    download(api, memory, base)
    driver.call(api.cuMemFree(base), "cuMemFree")
    driver.call(api.cuModuleUnload(module), "cuModuleUnload")
    return {n: memory[at : at + size].copy() for n, at, size in given["outputs"]}
