"""Tensor maps: from a TensorMapSpec of the plan and the cache's strides to the 128 bytes that TMA reads."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from mlagen.driver import api, call
from mlagen.errors import InputError
from mlagen.layout import CacheView, Layout
from mlagen.plan.model import TensorMapDim, TensorMapSpec
from mlagen.spec import DType

MAP_BYTES = 128
MAP_ALIGN = 64
ELEMENT_BYTES = 2
MAX_CACHED = 512


@dataclass(frozen=True, slots=True)
class TensorMap:
    """All arguments of one encoding. Hashable: the key of the cache.

    Attributes:
        name: kernel parameter.
        address: first byte.
        dtype: element type.
        extents: elements along each dimension, innermost first.
        strides: bytes along each dimension but the innermost.
        box: elements of one copy along each dimension.
        swizzle: bytes of the swizzle pattern, 0 for none.
    """

    name: str
    address: int
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class AlignedBytes:
    """Memory of our own whose address is a multiple of `align`; the driver copies kernel parameters from
    it.
    """

    __slots__ = ("_owner", "address", "nbytes")

    def __init__(self, nbytes: int, align: int = MAP_ALIGN) -> None:
        self._owner = ctypes.create_string_buffer(nbytes + align)
        start = ctypes.addressof(self._owner)
        self.address = start + -start % align
        self.nbytes = nbytes

    def write(self, data: bytes) -> None:
        """Copies `data` to the start."""
        if len(data) > self.nbytes:
            raise ValueError(f"{len(data)} B do not fit {self.nbytes} B")
        ctypes.memmove(self.address, data, len(data))

    def read(self) -> bytes:
        """All bytes."""
        return ctypes.string_at(self.address, self.nbytes)


def tensor_map(spec: TensorMapSpec, layout: Layout, pointers: dict[str, int]) -> TensorMap:
    """The numbers of one map for one call.

    Args:
        spec: the plan's row; `tensor` is "latent" or "rope".
        layout: strides and page count of the cache.
        pointers: addresses by argument name.
    """
    view = layout.latent if spec.tensor == "latent" else layout.rope
    return TensorMap(
        name=spec.name,
        address=pointers[view.tensor] + view.byte_offset,
        dtype=layout.dtype,
        extents=tuple(layout.pages if dim.extent is None else dim.extent for dim in spec.dims),
        strides=tuple(_stride_bytes(dim, view) for dim in spec.dims[1:]),
        box=spec.box,
        swizzle=spec.swizzle,
    )


def _stride_bytes(dim: TensorMapDim, view: CacheView) -> int:
    unit = {"element": ELEMENT_BYTES, "row": view.row_bytes, "page": view.page_bytes}[dim.stride_of]
    return unit * dim.stride_times


def encode(tensor_map: TensorMap) -> bytes:
    """The encoded descriptor.

    The wrapper object of the bindings may store it at an address that is not a multiple of 64; the bytes are
    copied out, and the caller hands them to the kernel from aligned memory.

    Raises:
        DeviceError: no driver.
        InputError: the driver refuses the numbers.
    """
    driver = api()
    short = {DType.BF16: "BFLOAT16", DType.FP16: "FLOAT16"}[tensor_map.dtype]
    swizzle = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}[tensor_map.swizzle]
    rank = len(tensor_map.extents)
    result = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{short}"),
        rank,
        tensor_map.address,
        [driver.cuuint64_t(extent) for extent in tensor_map.extents],
        [driver.cuuint64_t(stride) for stride in tensor_map.strides],
        [driver.cuuint32_t(extent) for extent in tensor_map.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(result[0]) == int(driver.CUresult.CUDA_ERROR_INVALID_VALUE):
        raise InputError(
            f"TMA cannot describe this cache: {tensor_map}. Extents must be 1..2^32, strides multiples of "
            f"16 B below "
            "2^40 B, the address a multiple of 16 B"
        )
    encoded = call(result, "cuTensorMapEncodeTiled")
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


class TensorMapCache:
    """Encoded maps in aligned memory, the least recently used dropped first. Thread safe."""

    def __init__(self, capacity: int = MAX_CACHED) -> None:
        self.capacity = capacity
        self._maps: OrderedDict[Any, AlignedBytes] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, tensor_map: TensorMap) -> AlignedBytes:
        """The encoded map, 128 bytes at a multiple of 64. It stays valid while the caller holds the
        object.
        """
        with self._lock:
            known = self._maps.get(tensor_map)
            if known is not None:
                self._maps.move_to_end(tensor_map)
                return known
            made = AlignedBytes(MAP_BYTES)
            made.write(encode(tensor_map))
            self._maps[tensor_map] = made
            while len(self._maps) > self.capacity:
                self._maps.popitem(last=False)
            return made
