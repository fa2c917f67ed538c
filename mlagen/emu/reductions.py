"""The operations of bulk reductions (`cp.reduce.async.bulk`, with or without a tensor map), on bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import Array, EmulatorError
from mlagen.emu.numerics import bf16_to_f32, f32_to_bf16
from mlagen.emu.tensormap import ElementType

Bytes = npt.NDArray[np.uint8]

#: PTX type -> numpy type of the bits
NUMPY_TYPES: dict[str, Any] = {
    "u8": np.uint8,
    "s8": np.int8,
    "u16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "b32": np.uint32,
    "u64": np.uint64,
    "s64": np.int64,
    "b64": np.uint64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}
TENSOR_TYPES = {
    ElementType.UINT8: "u8",
    ElementType.UINT16: "u16",
    ElementType.UINT32: "u32",
    ElementType.INT32: "s32",
    ElementType.UINT64: "u64",
    ElementType.INT64: "s64",
    ElementType.FLOAT16: "f16",
    ElementType.BFLOAT16: "bf16",
    ElementType.FLOAT32: "f32",
    ElementType.FLOAT32_FTZ: "f32",
    ElementType.FLOAT64: "f64",
    ElementType.TFLOAT32: "f32",
    ElementType.TFLOAT32_FTZ: "f32",
}


def _increment(old: Array, new: Array) -> Array:
    result: Array = np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    return result


def _decrement(old: Array, new: Array) -> Array:
    result: Array = np.where((old == 0) | (old > new), new, old - old.dtype.type(1))
    return result


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _increment,
    "dec": _decrement,
}
OPERATION_NAMES = tuple(_OPERATIONS)
_FLOAT_OPERATIONS = ("add", "min", "max")


def check_reduction(operation: str, ptx_type: str) -> None:
    """EmulatorError for a combination that no bulk reduction has."""
    if operation not in _OPERATIONS or ptx_type not in NUMPY_TYPES:
        raise EmulatorError(f"bulk reduction .{operation} on .{ptx_type} has no emulation")
    if ptx_type in ("f16", "bf16", "f32", "f64") and operation not in _FLOAT_OPERATIONS:
        raise EmulatorError(
            f"bulk reduction .{operation} on .{ptx_type}: floating-point types have add, min and max"
        )


def reduce_bytes(operation: str, ptx_type: str, old: Bytes, new: Bytes) -> Bytes:
    """old <op> new, elementwise, of two byte arrays of one shape whose last dimension is whole elements."""
    check_reduction(operation, ptx_type)
    kind = NUMPY_TYPES[ptx_type]
    a, b = (np.ascontiguousarray(x).view(kind) for x in (old, new))
    with np.errstate(all="ignore"):
        if ptx_type == "bf16":
            result: Array = f32_to_bf16(_OPERATIONS[operation](bf16_to_f32(a), bf16_to_f32(b)))
        else:
            result = _OPERATIONS[operation](a, b).astype(kind)
    return np.ascontiguousarray(result).view(np.uint8)
