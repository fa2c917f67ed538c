"""Shared-memory matrix descriptors of wgmma and tcgen05, and the instruction descriptor of tcgen05.mma.

A matrix descriptor names a canonical layout; `operand_addresses` turns it into the byte address of every
element. Both generations share the layouts and differ in the position of the swizzle field.

Bits of the matrix descriptor: 0-13 start / 16, 16-29 leading offset / 16, 32-45 stride offset / 16, 49-51
base offset; sm_90: 62-63 swizzle (0 none, 1 128B, 2 64B, 3 32B); sm_100: 46-48 constant 1, 52 leading-offset
mode, 61-63 swizzle (0 none, 1 128B with 32-byte atoms, 2 128B, 4 64B, 6 32B). PTX ISA: "Matrix-Descriptor
Format" and "Strides" (wgmma), "Shared memory descriptor" and "Canonical layouts" (tcgen05).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tensormap import Swizzle
from mlagen.emu.tma_boxes import swizzle_address

Addresses = npt.NDArray[np.int32]
K_BYTES = 32  # one instruction takes 32 bytes of K from every row: 16 x 16 bit, 32 x 8 bit, 8 x 32 bit
_ROW_BYTES = {
    Swizzle.NONE: 16,
    Swizzle.B32: 32,
    Swizzle.B64: 64,
    Swizzle.B128: 128,
    Swizzle.B128_ATOM_32B: 128,
}
_SM90_SWIZZLE = {0: Swizzle.NONE, 1: Swizzle.B128, 2: Swizzle.B64, 3: Swizzle.B32}
_SM100_SWIZZLE = {0: Swizzle.NONE, 1: Swizzle.B128_ATOM_32B, 2: Swizzle.B128, 4: Swizzle.B64, 6: Swizzle.B32}


class DescriptorError(EmulatorError):
    """A descriptor with fields that are reserved, contradict the instruction, or have no emulation."""


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """start, leading, stride: bytes (multiples of 16; the start is an address within the CTA's shared
    memory).
    """

    start: int
    leading: int
    stride: int
    swizzle: Swizzle

    def __str__(self) -> str:
        sizes = f"start {self.start:#x}, leading {self.leading}, stride {self.stride}"
        return f"{sizes}, swizzle {self.swizzle.name}"


def _common(bits: int, swizzle: Swizzle) -> MatrixDescriptor:
    if bits >> 49 & 7:
        raise DescriptorError(
            f"matrix descriptor {bits:#018x}: base offset {bits >> 49 & 7} has no emulation; "
            "start the swizzle pattern at a multiple of its size (1024, 512 or 256 bytes) and use 0"
        )
    return MatrixDescriptor(
        (bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, swizzle
    )


@lru_cache(maxsize=4096)
def decode_sm90(bits: int) -> MatrixDescriptor:
    """The wgmma matrix descriptor in 64 bits. Raises DescriptorError for a base offset (no emulation)."""
    reserved = bits & (3 << 14 | 3 << 30 | 7 << 46 | 0x3FF << 52)
    if reserved:
        raise DescriptorError(f"matrix descriptor {bits:#018x}: reserved bits {reserved:#x} are set")
    return _common(bits, _SM90_SWIZZLE[bits >> 62])


@lru_cache(maxsize=4096)
def decode_sm100(bits: int) -> MatrixDescriptor:
    """The tcgen05 matrix descriptor in 64 bits. Raises DescriptorError for what it forbids or has no
    emulation.
    """
    if bits >> 46 & 7 != 1:
        raise DescriptorError(
            f"matrix descriptor {bits:#018x}: bits 46-48 are {bits >> 46 & 7}; tcgen05 needs the constant 1"
        )
    if bits >> 52 & 1:
        raise DescriptorError(
            f"matrix descriptor {bits:#018x}: absolute leading offsets (bit 52) have no emulation"
        )
    swizzle = _SM100_SWIZZLE.get(bits >> 61)
    if swizzle is None:
        raise DescriptorError(
            f"matrix descriptor {bits:#018x}: swizzle code {bits >> 61}; legal are 0, 1, 2, 4, 6"
        )
    reserved = bits & (3 << 14 | 3 << 30 | 0xFF << 53)
    if reserved:
        raise DescriptorError(f"matrix descriptor {bits:#018x}: reserved bits {reserved:#x} are set")
    return _common(bits, swizzle)


# ---------------------------------------------------------------- canonical layouts
@lru_cache(maxsize=4096)
def operand_addresses(
    descriptor: MatrixDescriptor, rows: int, columns: int, element_size: int, mn_major: bool
) -> Addresses:
    """Byte address of element (row, k) of a rows x columns operand, swizzled; int32 (rows, columns),
    read-only.

    rows run along M or N. mn_major: neighbours along M (N) are contiguous, else neighbours along K.
    Raises DescriptorError when the layout cannot hold the operand.
    """
    row = np.arange(rows, dtype=np.int32)[:, None]
    k = np.arange(columns, dtype=np.int32)[None, :]
    if mn_major:
        offset = _mn_major(descriptor, row, k, element_size)
    else:
        offset = _k_major(descriptor, row, k * element_size, element_size)
    addresses = np.ascontiguousarray(swizzle_address(descriptor.start + offset, descriptor.swizzle))
    addresses.setflags(write=False)
    return addresses


def _k_major(d: MatrixDescriptor, row: Addresses, k_bytes: Addresses, size: int) -> Addresses:
    """8 rows of one swizzle width, repeated every `stride`; without swizzle 8 x 16-byte cores, `leading`
    apart along K.
    """
    width = _ROW_BYTES[d.swizzle]
    if d.swizzle == Swizzle.B128_ATOM_32B:
        raise DescriptorError(f"K-major operand ({d}): swizzle with 32-byte atoms exists for MN-major only")
    if d.swizzle == Swizzle.NONE:
        return (row % 8) * 16 + (row // 8) * d.stride + (k_bytes // 16) * d.leading + k_bytes % 16
    span = int(k_bytes.max()) + size
    if span > width:
        raise DescriptorError(f"K-major operand ({d}): K spans {span} bytes, the layout holds {width}")
    return (row % 8) * width + (row // 8) * d.stride + k_bytes


def _mn_major(d: MatrixDescriptor, row: Addresses, k: Addresses, size: int) -> Addresses:
    """One swizzle width along M (N), repeated every `leading`; 8 of them along K, repeated every `stride`.

    Without swizzle the two offsets change roles.
    """
    width = _ROW_BYTES[d.swizzle]
    per_line = width // size
    lines = 4 if d.swizzle == Swizzle.B128_ATOM_32B else 8
    along, across = (d.stride, d.leading) if d.swizzle == Swizzle.NONE else (d.leading, d.stride)
    return (row % per_line) * size + (row // per_line) * along + (k % lines) * width + (k // lines) * across


@lru_cache(maxsize=4096)
def touched_words(
    descriptor: MatrixDescriptor, rows: int, columns: int, element_size: int, mn_major: bool
) -> npt.NDArray[np.int64]:
    """Sorted byte offsets of the 4-byte words that an operand lies in, for the race and proxy checks;
    read-only.
    """
    addresses = operand_addresses(descriptor, rows, columns, element_size, mn_major)
    words = np.unique(addresses >> 2).astype(np.int64) << 2
    words.setflags(write=False)
    return words


# ---------------------------------------------------------------- instruction descriptor of tcgen05.mma
@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """What tcgen05.mma multiplies. a_type, b_type: "f16", "bf16", "e4m3", "e5m2", ...; d_type: "f16" or
    "f32".
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str
    a_mn_major: bool
    b_mn_major: bool
    a_negated: bool
    b_negated: bool

    @property
    def k(self) -> int:
        """Columns of A and B that one instruction takes."""
        return K_BYTES // self.element_size

    @property
    def element_size(self) -> int:
        """Bytes of one operand element in shared memory (narrower types are padded to a byte)."""
        return {"f16": 2, "tf32": 4}.get(self.kind, 1)


_TYPES = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
}
_NO_TRANSPOSE = ("e2m3", "e3m2", "e2m1")


def decode_instruction(bits: int, kind: str) -> InstructionDescriptor:
    """The 32-bit instruction descriptor for a kind ("f16", "tf32", "f8f6f4").

    Raises DescriptorError for illegal types, reserved bits, and for sparsity, saturation and B shifts (no
    emulation).
    """
    types = _TYPES.get(kind)
    if types is None:
        raise DescriptorError(f"tcgen05.mma .kind::{kind} has no emulation; known are {', '.join(_TYPES)}")
    where = f"instruction descriptor {bits:#010x} (.kind::{kind})"
    if bits & 0b1111:
        raise DescriptorError(f"{where}: sparsity and saturation (bits 0-3) have no emulation")
    if bits >> 30 & 3:
        raise DescriptorError(f"{where}: a shift of B (bits 30-31) has no emulation")
    if bits & (1 << 6 | 1 << 23 | 1 << 29):
        raise DescriptorError(f"{where}: reserved bits {bits & (1 << 6 | 1 << 23 | 1 << 29):#x} are set")
    a_type, b_type = types.get(bits >> 7 & 7), types.get(bits >> 10 & 7)
    d_type = {0: "f16", 1: "f32"}.get(bits >> 4 & 3)
    if a_type is None or b_type is None or d_type is None or (d_type == "f16" and a_type in ("bf16", "tf32")):
        raise DescriptorError(
            f"{where}: type codes D {bits >> 4 & 3}, A {bits >> 7 & 7}, B {bits >> 10 & 7}; "
            f"A and B are one of {types}, D is 1 (f32) or, but for bf16 and tf32, 0 (f16)"
        )
    if kind == "f16" and a_type != b_type:
        raise DescriptorError(f"{where}: A is {a_type} and B is {b_type}; this kind takes one type for both")
    a_major, b_major = bool(bits >> 15 & 1), bool(bits >> 16 & 1)
    if (a_major and a_type in _NO_TRANSPOSE) or (b_major and b_type in _NO_TRANSPOSE):
        raise DescriptorError(f"{where}: 4- and 6-bit operands are K-major only")
    return InstructionDescriptor(
        kind, (bits >> 24 & 31) * 16, (bits >> 17 & 63) * 8, a_type, b_type, d_type, a_major, b_major,
        bool(bits >> 13 & 1), bool(bits >> 14 & 1),
    )  # fmt: skip


def check_shape(d: InstructionDescriptor, cta_group: int, ws: bool, a_in_tmem: bool = False) -> None:
    """Refuse an M, N, cta_group, .ws combination that tcgen05.mma does not have, naming the legal ones.

    PTX ISA, "Matrix Shape" (tcgen05): one CTA M 64 with N 8..256 by 8, M 128 with N 16..256 by 16 (some
    versions of the table allow steps of 8, which kernels should not rely on); two CTAs M 128 and 256 with N
    16..256 by 16, by 32 with A in TMEM; .ws M 32, 64, 128 with N 64, 128, 256 and one CTA. Raises
    DescriptorError.
    """
    if ws:
        if cta_group != 1:
            raise DescriptorError(".ws exists for cta_group::1 only")
        if d.m in (32, 64, 128) and d.n in (64, 128, 256):
            return
        raise DescriptorError(
            f"tcgen05.mma.ws with M={d.m} N={d.n}; legal are M 32, 64, 128 with N 64, 128, 256"
        )
    step = 32 if a_in_tmem else 16
    legal = {64: 8, 128: 16} if cta_group == 1 else {128: step, 256: step}
    by = legal.get(d.m)
    if by is not None and by <= d.n <= 256 and d.n % by == 0:
        return
    text = "; ".join(f"M {m} with N {n}..256 by {n}" for m, n in legal.items())
    raise DescriptorError(
        f"tcgen05.mma.cta_group::{cta_group}.kind::{d.kind} with M={d.m} N={d.n}; legal are {text}"
    )
