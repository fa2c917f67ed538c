"""Tensor maps: a stand-in for `cuTensorMapEncodeTiled`, the 128-byte hardware form, and its reader.

`encode_tiled` checks every limit that the CUDA driver API documents for cuTensorMapEncodeTiled and names the
limit, the value and what would work. It differs from the driver in one point: combinations that the emulator
cannot execute (interleaved layouts, sub-byte types) are refused as well.

Hardware form, as 64-bit words (as a driver of CUDA 13 writes it for an H200; fields marked * are not
confirmed): 0 address; 1 bits 0 im2col*, 1-3 version, 4-6 rank - 1, 7-10 element type (codes of PTX
`tensormap.replace .elemtype`; tf32 is fp32 with bit 16), 11-12 interleave*, 13-14 swizzle, 15 fill, 16 tf32
rounding, 17-18 L2 promotion, 19-20 swizzle atomicity*, 32-63 stride 1 / 16; 2 strides 2 and 3; 3 stride 4,
then four bits for the top of each stride; 4-6 extents - 1; 6 bits 32-46 element strides - 1, 56-63 box 0 - 1;
7 box 1..4 - 1, one byte each. The driver notes the bytes of a box in word 8 and the alignment of its
destination in word 9, and gives version 0; host code that packs maps inline leaves them zero, with version 1.
PTX ISA: "Tensors" (5.5), "tensormap.replace".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from mlagen.emu.interfaces import EmulatorError

BYTES = 128
MAX_RANK = 5
MAX_BOX = 256
MAX_EXTENT = 2**32
MAX_STRIDE = 2**40
MAX_ELEMENT_STRIDE = 8
_INLINE_VERSION = 1


class TensorMapError(EmulatorError, ValueError):
    """A tensor map outside the documented limits, or bytes that are no tensor map."""


class ElementType(IntEnum):
    """Element types, by the numbers of CUtensorMapDataType."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12


class Swizzle(IntEnum):
    """Shared-memory swizzles, by the numbers of CUtensorMapSwizzle."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B128_ATOM_32B = 4


class Fill(IntEnum):
    """What out-of-bounds elements become, by the numbers of CUtensorMapFloatOOBfill."""

    ZERO = 0
    NAN = 1


_SIZES = dict(zip(ElementType, (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4), strict=True))
_FLOATING = frozenset(e for e in ElementType if e >= ElementType.FLOAT16)
_HARDWARE_CODE = {
    **{ElementType(i): i for i in range(8)},
    ElementType.FLOAT32_FTZ: 8,
    ElementType.FLOAT64: 9,
    ElementType.BFLOAT16: 10,
    ElementType.TFLOAT32: 7,
    ElementType.TFLOAT32_FTZ: 8,
}
_TF32 = (ElementType.TFLOAT32, ElementType.TFLOAT32_FTZ)
_FROM_HARDWARE_CODE = {code: element for element, code in _HARDWARE_CODE.items() if element not in _TF32}
_FROM_HARDWARE_CODE |= {11: ElementType.TFLOAT32, 12: ElementType.TFLOAT32_FTZ}
_ALIGNMENT_NOTE = {Swizzle.NONE: 16, Swizzle.B32: 256, Swizzle.B64: 512, Swizzle.B128: 1024,
                   Swizzle.B128_ATOM_32B: 1024}  # fmt: skip
SWIZZLE_SPAN = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128, Swizzle.B128_ATOM_32B: 128}
"""Bytes after which the pattern of a swizzle begins anew, the most that a row of a box may have."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tiled tensor map. Innermost dimension first.

    address: generic address. extents, box, element_strides: elements. strides: bytes, of dimensions 1.. (the
    innermost is dense).
    """

    element: ElementType
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    fill: Fill = Fill.ZERO
    l2_promotion: int = 0

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.extents)

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        return _SIZES[self.element]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that one box moves along each dimension: ceil(box / element stride)."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that a load of one box writes to shared memory and counts on the mbarrier."""
        total = self.element_size
        for n in self.counts:
            total *= n
        return total


def _refuse(what: str, value: object, limit: str, help: str) -> TensorMapError:
    return TensorMapError(f"tensor map: {what} is {value}; the limit is {limit}; {help}")


def encode_tiled(
    element: ElementType | int,
    address: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int] | None = None,
    *,
    interleave: int = 0,
    swizzle: Swizzle | int = Swizzle.NONE,
    l2_promotion: int = 0,
    fill: Fill | int = Fill.ZERO,
) -> bytes:
    """The 128 bytes that cuTensorMapEncodeTiled would write, with its parameters and enum numbers.

    extents, box, element_strides: elements, innermost dimension first, one per dimension (rank 1 to 5).
    strides: bytes, one per dimension but the innermost. Raises TensorMapError for every documented limit.
    """
    rank = len(extents)
    if not 1 <= rank <= MAX_RANK:
        raise _refuse("rank", rank, f"1..{MAX_RANK}", "fold dimensions")
    steps = tuple(element_strides) if element_strides is not None else (1,) * rank
    for name, values, want in (
        ("strides", strides, rank - 1),
        ("box", box, rank),
        ("element strides", steps, rank),
    ):
        if len(values) != want:
            raise _refuse(f"number of {name}", len(values), f"exactly {want} for rank {rank}", f"give {want}")
    if interleave:
        raise _refuse("interleave", interleave, "0 (none)", "the emulator has no interleaved layouts")
    if not 0 <= l2_promotion <= 3:
        raise _refuse("L2 promotion", l2_promotion, "0..3", "use 0")
    kind = _element(element)
    tensor_map = TensorMap(
        kind,
        address,
        tuple(extents),
        tuple(strides),
        tuple(box),
        (1, *steps[1:]),
        _swizzle(swizzle),
        Fill(fill),
        l2_promotion,
    )
    _check_addresses(tensor_map)
    _check_box(tensor_map, steps)
    return _pack(tensor_map)


def _element(element: ElementType | int) -> ElementType:
    try:
        return ElementType(element)
    except ValueError:
        raise _refuse(
            "element type", int(element), "0..12", "the emulator has no sub-byte element types"
        ) from None


def _swizzle(swizzle: Swizzle | int) -> Swizzle:
    try:
        return Swizzle(swizzle)
    except ValueError:
        raise _refuse(
            "swizzle", int(swizzle), "0..4", "the 8-byte flip and 64-byte atom forms have no emulation"
        ) from None


def _check_addresses(t: TensorMap) -> None:
    """Limits on globalAddress, globalDim, globalStrides and the fill mode."""
    if t.address % 16 or t.address < 0:
        raise _refuse(
            "address", hex(t.address), "a multiple of 16 bytes", f"it is {t.address % 16} bytes past one"
        )
    for i, extent in enumerate(t.extents):
        if not 1 <= extent <= MAX_EXTENT:
            raise _refuse(f"extent {i}", extent, "1..2**32", "split the tensor")
    for i, stride in enumerate(t.strides, start=1):
        if stride % 16 or stride < 0:
            raise _refuse(
                f"stride {i}",
                f"{stride} bytes",
                "a multiple of 16 bytes",
                f"{stride + -stride % 16} would work",
            )
        if stride >= MAX_STRIDE:
            raise _refuse(
                f"stride {i}",
                f"{stride} bytes",
                f"below 2**40, {stride - MAX_STRIDE + 1} less",
                "split the tensor",
            )
    if t.fill == Fill.NAN and t.element not in _FLOATING:
        raise _refuse("fill", "NaN", f"a floating-point type, not {t.element.name}", "use zero fill")


def _check_box(t: TensorMap, steps: Sequence[int]) -> None:
    """Limits on boxDim and elementStrides, and of the swizzle on the inner box dimension."""
    for i, (extent, step) in enumerate(zip(t.box, steps, strict=True)):
        if not 1 <= extent <= MAX_BOX:
            raise _refuse(f"box {i}", extent, f"1..{MAX_BOX}", "use several boxes")
        if not 1 <= step <= MAX_ELEMENT_STRIDE:
            raise _refuse(f"element stride {i}", step, f"1..{MAX_ELEMENT_STRIDE}", "use 1")
    inner = t.box[0] * t.element_size
    if inner % 16:
        raise _refuse(
            "inner box", f"{inner} bytes", "a multiple of 16 bytes", f"{inner + -inner % 16} would work"
        )
    span = SWIZZLE_SPAN.get(t.swizzle)
    if span is not None and inner > span:
        raise _refuse(
            "inner box",
            f"{inner} bytes",
            f"{span} bytes with this swizzle, {inner - span} less",
            "use several boxes",
        )


def _pack(t: TensorMap) -> bytes:
    """The hardware form of a checked map."""
    scaled = [s // 16 for s in t.strides] + [0] * (4 - len(t.strides))
    extents = [e - 1 for e in t.extents] + [0] * (MAX_RANK - t.rank)
    box = [b - 1 for b in t.box] + [0] * (MAX_RANK - t.rank)
    steps = sum((s - 1) << (3 * i) for i, s in enumerate(t.element_strides))
    atom = t.swizzle == Swizzle.B128_ATOM_32B
    head = (
        (t.rank - 1) << 4 | _HARDWARE_CODE[t.element] << 7 | (3 if atom else int(t.swizzle))
        << 13
        | int(t.fill) << 15 | (t.element in _TF32) << 16 | t.l2_promotion << 17 | int(atom) << 19
    )  # fmt: skip
    low = [s & 0xFFFFFFFF for s in scaled]
    high = sum((s >> 32) << (4 * i) for i, s in enumerate(scaled))
    words = [
        head,
        *low,
        high,
        *extents,
        steps | box[0] << 24,
        sum(b << (8 * i) for i, b in enumerate(box[1:])),
    ]
    loaded = [b // s for b, s in zip(t.box, t.element_strides, strict=True)]
    notes = [math.prod(loaded) * t.element_size, 0, _ALIGNMENT_NOTE[t.swizzle]]
    return struct.pack("<Q17I", t.address, *words, 0, *notes).ljust(BYTES, b"\0")


def decode(data: bytes) -> TensorMap:
    """The map in 128 bytes of the hardware form; TensorMapError for anything that the emulator cannot
    execute.
    """
    if len(data) != BYTES:
        raise TensorMapError(f"tensor map: {len(data)} bytes given; it has {BYTES}")
    address, head, s1, s2, s3, s4, high, e0, e1, e2, e3, e4, last, boxes = struct.unpack_from("<Q13I", data)
    version, noted = head >> 1 & 7, int.from_bytes(data[72:76], "little")
    if version != _INLINE_VERSION and (version or noted not in _ALIGNMENT_NOTE.values()):
        raise TensorMapError(
            f"tensor map: these 128 bytes are no tensor map (version {version}, alignment {noted}); "
            "was the pointer right?"
        )
    if head & 1:
        raise TensorMapError("tensor map: im2col mode; the emulator executes tiled maps only")
    rank = (head >> 4 & 7) + 1
    element = _FROM_HARDWARE_CODE.get((head >> 7 & 15) + 4 * (head >> 16 & 1))
    if rank > MAX_RANK or element is None or head >> 11 & 3:
        raise TensorMapError(
            f"tensor map: rank {rank}, element code {head >> 7 & 15}, interleave {head >> 11 & 3}; "
            "the emulator executes ranks 1 to 5 of whole-byte elements without interleave"
        )
    swizzle = Swizzle(head >> 13 & 3)
    if head >> 19 & 3:
        if head >> 19 & 3 != 1 or swizzle != Swizzle.B128:
            raise TensorMapError(
                f"tensor map: swizzle {swizzle.name} with atomicity code {head >> 19 & 3} has no emulation"
            )
        swizzle = Swizzle.B128_ATOM_32B
    strides = [16 * (low | (high >> (4 * i) & 15) << 32) for i, low in enumerate((s1, s2, s3, s4))]
    box = [(last >> 24) + 1] + [(boxes >> (8 * i) & 255) + 1 for i in range(4)]
    steps = [(last >> (3 * i) & 7) + 1 for i in range(MAX_RANK)]
    return TensorMap(
        element, address, tuple(e + 1 for e in (e0, e1, e2, e3, e4)[:rank]), tuple(strides[: rank - 1]),
        tuple(box[:rank]), (1, *steps[1:rank]), swizzle, Fill(head >> 15 & 1), head >> 17 & 3,
    )  # fmt: skip


_SHIFTED = {"rank": (4, 3), "elemtype": (7, 4), "interleave_layout": (11, 2), "swizzle_mode": (13, 2),
            "fill_mode": (15, 1), "swizzle_atomicity": (19, 2)}  # fmt: skip
INDEXED_FIELDS = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
"""Fields of `tensormap.replace` that take an ordinal, and how many there are of each."""
REPLACEABLE = ("global_address", *_SHIFTED, *INDEXED_FIELDS)


def replaced(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """128 bytes with one field of PTX `tensormap.replace.tile` set; the others stay as they are.

    Args:
        data: a tensor map.
        field: one of REPLACEABLE.
        ordinal: which dimension, for INDEXED_FIELDS.
        value: as the instruction takes it: a rank less 1, extents and boxes in elements, strides in bytes,
            the codes of the PTX ISA for the others.

    Raises:
        TensorMapError: a value that has no place in a tensor map.
    """
    address, *words = struct.unpack("<Q30I", data)
    if field == "global_address":
        address = value
    elif field in _SHIFTED:
        at, bits = _SHIFTED[field]
        if value >> bits:
            raise _refuse(field, value, f"it has {bits} bits", "see the tables of tensormap.replace")
        words[0] = words[0] & ~(((1 << bits) - 1) << at) | value << at
    elif field == "global_dim":
        words[6 + ordinal] = value - 1 & 0xFFFFFFFF
    elif field == "global_stride":
        if value % 16 or value >= MAX_STRIDE:
            raise _refuse(field, value, f"a multiple of 16 below {MAX_STRIDE} is needed", "pad the rows")
        words[1 + ordinal] = value >> 4 & 0xFFFFFFFF
        words[5] = words[5] & ~(15 << 4 * ordinal) | value >> 36 << 4 * ordinal
    elif field == "element_stride":
        words[11] = words[11] & ~(7 << 3 * ordinal) | (value - 1 & 7) << 3 * ordinal
    else:
        word, at = (11, 24) if ordinal == 0 else (12, 8 * (ordinal - 1))
        words[word] = words[word] & ~(255 << at) | (value - 1 & 255) << at
    return struct.pack("<Q30I", address, *words)
