"""Record what a GPU does with the cases of `gpu_cases`: `python -m tests.emu.record_gpu [--keep FOLDER]
[--only TEXT]`.

Writes `recorded/<compute capability>.json`: a digest of each output (the values themselves where the emulator
need not be exact) and the bytes of tensor maps. --keep stores all outputs as .npy files, to look at
differences.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from mlagen import driver
from tests.emu.gpu_cases import Case, all_cases, tensor_maps

FOLDER = Path(__file__).parent / "recorded"


def encode(api: Any, address: int, given: dict[str, Any]) -> bytes:
    """The 128 bytes of cuTensorMapEncodeTiled."""
    rank = len(given["extents"])
    result = api.cuTensorMapEncodeTiled(
        api.CUtensorMapDataType(int(given["element"])),
        rank,
        address,
        [api.cuuint64_t(e) for e in given["extents"]],
        [api.cuuint64_t(s) for s in given["strides"]],
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


def run(api: Any, case: Case) -> np.ndarray:
    """The output of a case."""
    module = driver.call(api.cuModuleLoadData(case.ptx.encode() + b"\0"), f"cuModuleLoadData of {case.name}")
    function = driver.call(api.cuModuleGetFunction(module, b"k"), "cuModuleGetFunction")
    limit = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.call(api.cuFuncSetAttribute(function, limit, case.dynamic_shared), "cuFuncSetAttribute")
    out = np.zeros(*case.output)
    places = {f"in{i}": upload(api, data) for i, data in enumerate(case.inputs)} | {"out": upload(api, out)}
    kept: list[Any] = []
    for arg in case.args:
        if arg == "map":
            buffer = ctypes.create_string_buffer(128 + 64)
            start = -ctypes.addressof(buffer) % 64
            ctypes.memmove(ctypes.addressof(buffer) + start, encode(api, places["in0"], case.map), 128)
            kept.append((buffer, ctypes.addressof(buffer) + start))
        else:
            value = ctypes.c_uint64(places[arg] if isinstance(arg, str) else arg)
            kept.append((value, ctypes.addressof(value)))
    pointers = (ctypes.c_void_p * len(kept))(*(address for _, address in kept))
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = case.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = case.block, 1, 1
    config.sharedMemBytes = case.dynamic_shared
    driver.call(
        api.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0), f"to launch {case.name}"
    )
    driver.call(api.cuCtxSynchronize(), f"after {case.name}")
    driver.call(api.cuMemcpyDtoH(out.ctypes.data, places["out"], out.nbytes), "cuMemcpyDtoH")
    for address in places.values():
        driver.call(api.cuMemFree(address), "cuMemFree")
    driver.call(api.cuModuleUnload(module), "cuModuleUnload")
    return out


def record(case: Case, out: np.ndarray) -> dict[str, Any]:
    """What is kept of an output."""
    entry: dict[str, Any] = {"sha256": hashlib.sha256(out.tobytes()).hexdigest()}
    if case.ulps:
        entry["values"] = base64.b64encode(out.tobytes()).decode()
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder for all outputs as .npy")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    options = parser.parse_args()
    gpu = driver.gpu(0)
    major, minor = gpu.compute_capability
    found: dict[str, Any] = {"gpu": gpu.name, "cases": {}, "tensor_maps": {}}
    with driver.current(gpu) as api:
        found["driver"] = int(driver.call(api.cuDriverGetVersion(), "cuDriverGetVersion"))
        for case in all_cases():
            if options.only not in case.name:
                continue
            out = run(api, case)
            found["cases"][case.name] = record(case, out)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                np.save(options.keep / f"{case.name.replace('/', '_')}.npy", out)
            print(case.name, found["cases"][case.name]["sha256"][:12])
        for name, given in tensor_maps().items():
            found["tensor_maps"][name] = encode(api, 1 << 40, given).hex()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"sm_{major}{minor}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
