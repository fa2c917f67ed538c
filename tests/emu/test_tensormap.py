"""Tensor maps: every documented limit, the 128-byte form, and boxes against a per-element implementation."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest

from mlagen.emu import tensormap, tma_boxes
from mlagen.emu.tensormap import ElementType, Fill, Swizzle, TensorMap, TensorMapError

GOOD: dict[str, Any] = {
    "element": ElementType.BFLOAT16, "address": 0x7000_0000_0000, "extents": (64, 8, 8, 8, 5),
    "strides": (1152, 128, 9216, 73728), "box": (64, 8, 4, 8, 1), "swizzle": Swizzle.B128,
}  # fmt: skip


def encode(**changes: Any) -> bytes:
    return tensormap.encode_tiled(**{**GOOD, **changes})


def test_round_trip_of_every_field() -> None:
    t = tensormap.decode(encode(element_strides=(1, 2, 1, 1, 8), l2_promotion=2, fill=Fill.NAN))
    assert t == TensorMap(
        ElementType.BFLOAT16, 0x7000_0000_0000, (64, 8, 8, 8, 5), (1152, 128, 9216, 73728), (64, 8, 4, 8, 1),
        (1, 2, 1, 1, 8), Swizzle.B128, Fill.NAN, 2,
    )  # fmt: skip
    assert t.box_bytes == 64 * 4 * 4 * 8 * 2


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("element", list(ElementType))
@pytest.mark.parametrize("swizzle", list(Swizzle))
def test_round_trip_of_types_ranks_swizzles(rank: int, element: ElementType, swizzle: Swizzle) -> None:
    size = {1: 16, 2: 16, 4: 8, 8: 4}[tensormap.TensorMap(element, 0, (1,), (), (1,), (1,)).element_size]
    extents, strides = (2**32, 7, 1, 2**31, 3)[:rank], (2**40 - 16, 16, 2**36, 48)[: rank - 1]
    box = (size, 256, 1, 5, 2)[:rank]
    t = tensormap.decode(tensormap.encode_tiled(element, 1 << 46, extents, strides, box, swizzle=swizzle))
    assert (t.element, t.extents, t.strides, t.box, t.swizzle) == (element, extents, strides, box, swizzle)


def test_hardware_words() -> None:
    """Positions that host code which packs maps inline relies on."""
    w = struct.unpack("<16Q", encode(extents=(64, 8, 8, 8, 1000), strides=(1152, 128, 9216, 2**36 + 16)))
    assert w[0] == 0x7000_0000_0000
    assert (w[1] >> 4) & 7 == 4 and (w[1] >> 7) & 15 == 10 and (w[1] >> 13) & 3 == 3 and w[1] & 15 == 0
    assert w[1] >> 32 == 1152 // 16
    assert w[2] == (128 // 16) | (9216 // 16) << 32
    assert w[3] & 0xFFFFFFFF == 1 and w[3] >> 44 == 1
    assert (w[4], w[5]) == (63 | 7 << 32, 7 | 7 << 32)
    assert w[6] & 0xFFFFFFFF == 999 and w[6] >> 56 == 63
    assert w[7] == 7 | 3 << 8 | 7 << 16
    assert w[8:] == (64 * 8 * 4 * 8 * 2, 1024, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"address": 0x7000_0000_0008}, ("address", "16", "8 bytes past")),
        ({"extents": ()}, ("rank is 0", "1..5")),
        ({"extents": (1,) * 6}, ("rank is 6", "1..5")),
        ({"strides": (1152,)}, ("number of strides", "exactly 4")),
        ({"box": (64,)}, ("number of box", "exactly 5")),
        ({"element_strides": (1, 1)}, ("number of element strides", "exactly 5")),
        ({"extents": (64, 0, 8, 8, 5)}, ("extent 1 is 0", "2**32")),
        ({"extents": (64, 8, 8, 8, 2**32 + 1)}, ("extent 4", "2**32")),
        ({"strides": (1154, 128, 9216, 73728)}, ("stride 1 is 1154", "multiple of 16", "1168 would work")),
        ({"strides": (1152, 128, 9216, 2**40)}, ("stride 4", "below 2**40", "1 less")),
        ({"box": (64, 257, 1, 1, 1)}, ("box 1 is 257", "256")),
        ({"box": (64, 8, 4, 0, 1)}, ("box 3 is 0", "1..256")),
        ({"box": (4, 8, 4, 1, 1)}, ("inner box is 8 bytes", "16 would work")),
        ({"box": (72, 8, 4, 1, 1)}, ("inner box is 144 bytes", "128 bytes with this swizzle", "16 less")),
        ({"box": (64, 8, 4, 1, 1), "swizzle": Swizzle.B64}, ("64 bytes with this swizzle",)),
        ({"box": (32, 8, 4, 1, 1), "swizzle": Swizzle.B32}, ("32 bytes with this swizzle",)),
        ({"element_strides": (1, 9, 1, 1, 1)}, ("element stride 1 is 9", "1..8")),
        ({"element_strides": (0, 1, 1, 1, 1)}, ("element stride 0 is 0",)),
        ({"interleave": 1}, ("interleave",)),
        ({"swizzle": 5}, ("swizzle is 5",)),
        ({"element": 13}, ("element type is 13", "sub-byte")),
        ({"element": ElementType.UINT16, "fill": Fill.NAN}, ("fill", "UINT16", "zero fill")),
        ({"l2_promotion": 4}, ("L2 promotion is 4",)),
    ],
)
def test_every_limit_is_refused_with_a_reason(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(TensorMapError) as caught:
        encode(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_bytes_that_are_no_tiled_map_are_refused() -> None:
    with pytest.raises(TensorMapError, match="no tensor map"):
        tensormap.decode(bytes(128))
    with pytest.raises(TensorMapError, match="127 bytes"):
        tensormap.decode(bytes(127))
    im2col = bytearray(encode())
    im2col[8] |= 1
    with pytest.raises(TensorMapError, match="im2col"):
        tensormap.decode(bytes(im2col))


def element_addresses(t: TensorMap, coordinates: tuple[int, ...]) -> list[int | None]:
    """Global byte address of every element of the box in shared-memory order; None out of bounds."""
    out: list[int | None] = []
    strides = (t.element_size, *t.strides)
    for index in itertools.product(*(range(n) for n in t.counts[::-1])):
        at = [c + i * s for c, i, s in zip(coordinates, index[::-1], t.element_strides, strict=True)]
        inside = all(0 <= a < e for a, e in zip(at, t.extents, strict=True))
        out.append(t.address + sum(a * s for a, s in zip(at, strides, strict=True)) if inside else None)
    return out


def box_elements(t: TensorMap, box: tma_boxes.Box) -> list[int | None]:
    """The same from a `Box`."""
    out: list[int | None] = []
    for row, inside in zip(box.rows.tolist(), box.inside.tolist(), strict=True):
        for byte in range(0, box.row_bytes, t.element_size):
            out.append(row + byte if inside and box.first <= byte < box.last else None)
    return out


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("shift", [-3, 0, 2, 100])
def test_boxes_agree_with_per_element_addresses(rank: int, shift: int) -> None:
    t = TensorMap(
        ElementType.FLOAT16, 1 << 40, (21, 5, 4, 3, 6)[:rank], (64, 16, 4096, 1 << 30)[: rank - 1],
        (16, 4, 3, 2, 3)[:rank], (1, 1, 2, 1, 3)[:rank],
    )  # fmt: skip
    for coordinates in ((shift,) * rank, (8,) + (shift,) * (rank - 1), (shift,) + (1,) * (rank - 1)):
        box = tma_boxes.tile_box(t, coordinates)
        assert box_elements(t, box) == element_addresses(t, coordinates)
        assert box.bytes == t.box_bytes


def test_gather4_takes_rows_and_zero_fills_the_ones_out_of_bounds() -> None:
    t = TensorMap(ElementType.BFLOAT16, 4096, (576, 100), (1152,), (64, 1), (1, 1))
    box = tma_boxes.gather_box(t, 128, (5, -1, 99, 100))
    assert box.rows.tolist() == [4096 + 256 + 1152 * r for r in (5, -1, 99, 100)]
    assert box.inside.tolist() == [True, False, True, False]
    assert (box.row_bytes, box.first, box.last, box.bytes) == (128, 0, 128, 512)
    with pytest.raises(TensorMapError, match="rank-2"):
        tma_boxes.gather_box(tensormap.decode(encode()), 0, (0, 1, 2, 3))
    with pytest.raises(TensorMapError, match="4 row"):
        tma_boxes.gather_box(t, 0, (1, 2))
    with pytest.raises(TensorMapError, match="3 coordinates"):
        tma_boxes.tile_box(t, (0, 1, 2))


def test_page_out_of_bounds_gives_zero_rows_only() -> None:
    t = tensormap.decode(encode())
    for page in (-1, 5, 2**31 - 1, -(2**31)):
        assert not tma_boxes.tile_box(t, (0, 0, 0, 0, page)).inside.any()
    assert tma_boxes.tile_box(t, (0, 0, 4, 0, 4)).inside.all()


@pytest.mark.parametrize(
    "swizzle, width", [(Swizzle.NONE, 16), (Swizzle.B32, 32), (Swizzle.B64, 64), (Swizzle.B128, 128)]
)
def test_swizzle_moves_16_byte_chunks_within_their_row(swizzle: Swizzle, width: int) -> None:
    """PTX ISA, swizzling modes: 16-byte chunk c of the 128-byte line l goes to c ^ (l * width / 128 mod width
    / 16).
    """
    chunks = tma_boxes.shared_chunks(0x2400, 2048, swizzle)
    assert sorted(chunks.tolist()) == list(range(0x2400, 0x2C00, 16))
    for i, at in enumerate(chunks.tolist()):
        line, column = divmod((0x2400 + 16 * i) // 16, 8)
        flips = {16: 0, 32: line & 1, 64: line & 3, 128: line & 7}[width]
        assert at // 16 == line * 8 + (column ^ flips)


def test_swizzle_with_32_byte_atoms() -> None:
    at = tma_boxes.swizzle_address(np.arange(0, 1024, 32), Swizzle.B128_ATOM_32B)
    want = [128 * line + 32 * (c ^ (line & 3)) for line in range(8) for c in range(4)]
    assert at.tolist() == want


def test_misaligned_box_is_refused() -> None:
    with pytest.raises(TensorMapError, match="0x2410"):
        tma_boxes.shared_chunks(0x2410, 256, Swizzle.B128)


def test_fill_patterns() -> None:
    t = TensorMap(ElementType.BFLOAT16, 0, (8,), (), (8,), (1,))
    assert tma_boxes.fill_pattern(t).tolist() == [0, 0]
    nan = TensorMap(ElementType.FLOAT32, 0, (8,), (), (8,), (1,), fill=Fill.NAN)
    assert np.isnan(tma_boxes.fill_pattern(nan).view(np.float32)[0])
