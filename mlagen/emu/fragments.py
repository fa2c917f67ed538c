"""Register fragments of tensor-core instructions <-> matrices.

A warp's fragment is an array (registers, 32 lanes). PTX ISA: "Matrix Fragments for mma.m16n8k16" and
"Register fragments and shared memory matrix layouts" (wgmma): both use the same 8-row core, so the functions
serve both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import Array, EmulatorError
from mlagen.emu.numerics import (
    Float32,
    bf16_to_f32,
    e4m3_to_f32,
    e5m2_to_f32,
    f32_to_fp16,
    fp16_to_f32,
    tf32_truncate,
)

#: operand type -> (bytes, numpy type of its bits)
OPERAND_TYPES: dict[str, tuple[int, Any]] = {
    "bf16": (2, np.uint16),
    "f16": (2, np.uint16),
    "e4m3": (1, np.uint8),
    "e5m2": (1, np.uint8),
    "tf32": (4, np.uint32),
}


def to_float(bits: Array, kind: str) -> Float32:
    """fp32 values of operand bits; exact (tf32 drops the bits that a tensor core drops)."""
    if kind == "bf16":
        return bf16_to_f32(bits)
    if kind == "f16":
        return fp16_to_f32(bits)
    if kind == "e4m3":
        return e4m3_to_f32(bits)
    if kind == "e5m2":
        return e5m2_to_f32(bits)
    if kind == "tf32":
        return tf32_truncate(bits.view(np.float32))
    raise EmulatorError(f"operand type .{kind} has no emulation")


def accumulator_matrix(registers: Sequence[Array]) -> Float32:
    """fp32 (16, n) of 32-bit registers, n / 2 of them: register 4j + 2h + p of lane 4q + c is (8h + q, 8j +
    2c + p).
    """
    stacked = np.concatenate(registers).view(np.float32).reshape(len(registers) // 4, 2, 2, 8, 4)
    return np.ascontiguousarray(stacked.transpose(1, 3, 0, 4, 2)).reshape(16, -1)


def accumulator_registers(matrix: Float32) -> npt.NDArray[np.uint32]:
    """The inverse of `accumulator_matrix`: uint32 (n / 2, 32)."""
    split = matrix.reshape(2, 8, -1, 4, 2).transpose(2, 0, 4, 1, 3)
    return np.ascontiguousarray(split).view(np.uint32).reshape(-1, 32)


def half_accumulator_matrix(registers: Sequence[Array]) -> Float32:
    """As `accumulator_matrix`, from n / 4 registers of f16 pairs: register 2j + h has columns 2c, 2c + 1."""
    halves = [np.asarray(r).view(np.uint16)[i::2] for r in registers for i in (0, 1)]
    return accumulator_matrix([fp16_to_f32(np.ascontiguousarray(h)).view(np.uint32) for h in halves])


def half_accumulator_registers(matrix: Float32) -> npt.NDArray[np.uint32]:
    """The inverse of `half_accumulator_matrix`, rounded to nearest even: uint32 (n / 4, 32)."""
    halves = f32_to_fp16(accumulator_registers(matrix).view(np.float32)).astype(np.uint32)
    packed: npt.NDArray[np.uint32] = halves[0::2] | halves[1::2] << np.uint32(16)
    return packed


def a_matrix(registers: Sequence[Array], kind: str) -> Array:
    """Bits of A (16, k) from 32-bit registers: register 2g + h of lane 4q + c holds row 8h + q and the
    neighbours at c of K half g.

    Four registers for 32 bytes of K, two for 16 bytes.
    """
    _, numpy_type = OPERAND_TYPES[kind]
    elements = np.concatenate(registers).view(numpy_type).reshape(len(registers) // 2, 2, 8, 4, -1)
    return np.ascontiguousarray(elements.transpose(1, 2, 0, 3, 4)).reshape(16, -1)


def b_matrix(registers: Sequence[Array], kind: str) -> Array:
    """Bits of B as (8, k), n first, from 32-bit registers: register g of lane 4q + c holds column q and the
    neighbours at c of half g.
    """
    _, numpy_type = OPERAND_TYPES[kind]
    elements = np.concatenate(registers).view(numpy_type).reshape(len(registers), 8, 4, -1)
    return np.ascontiguousarray(elements.transpose(1, 0, 2, 3)).reshape(8, -1)
