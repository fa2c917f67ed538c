"""Descriptor fields, refusals, and canonical layouts against data laid out by a tensor map."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu import descriptors, tma_boxes
from mlagen.emu.descriptors import DescriptorError, MatrixDescriptor
from mlagen.emu.tensormap import Swizzle

BF16_F32 = 1 << 4 | 1 << 7 | 1 << 10


def matrix(start: int, leading: int, stride: int) -> int:
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32


@pytest.mark.parametrize(
    "code, swizzle", [(0, Swizzle.NONE), (1, Swizzle.B128), (2, Swizzle.B64), (3, Swizzle.B32)]
)
def test_sm90_fields(code: int, swizzle: Swizzle) -> None:
    d = descriptors.decode_sm90(matrix(0x38400, 1024, 4096) | code << 62)
    assert d == MatrixDescriptor(0x38400, 1024, 4096, swizzle)


@pytest.mark.parametrize(
    "code, swizzle",
    [(0, Swizzle.NONE), (1, Swizzle.B128_ATOM_32B), (2, Swizzle.B128), (4, Swizzle.B64), (6, Swizzle.B32)],
)
def test_sm100_fields(code: int, swizzle: Swizzle) -> None:
    d = descriptors.decode_sm100(matrix(0x1C0, 16, 0x3FFF0) | 1 << 46 | code << 61)
    assert d == MatrixDescriptor(0x1C0, 16, 0x3FFF0, swizzle)


@pytest.mark.parametrize(
    "bits, word", [(1 << 49, "base offset 1"), (1 << 14, "reserved"), (1 << 55, "reserved")]
)
def test_sm90_refusals(bits: int, word: str) -> None:
    with pytest.raises(DescriptorError, match=word):
        descriptors.decode_sm90(bits)


@pytest.mark.parametrize(
    "bits, word",
    [
        (0, "constant 1"),
        (2 << 46, "constant 1"),
        (1 << 46 | 3 << 61, "swizzle code 3"),
        (1 << 46 | 1 << 52, "bit 52"),
        (1 << 46 | 5 << 49, "base offset 5"),
        (1 << 46 | 1 << 54, "reserved"),
    ],
)
def test_sm100_refusals(bits: int, word: str) -> None:
    with pytest.raises(DescriptorError, match=word):
        descriptors.decode_sm100(bits)


def test_layouts_that_cannot_hold_the_operand() -> None:
    wide = MatrixDescriptor(0, 0, 256, Swizzle.B32)
    with pytest.raises(DescriptorError, match="spans 64 bytes"):
        descriptors.operand_addresses(wide, 8, 32, 2, False)
    with pytest.raises(DescriptorError, match="MN-major only"):
        descriptors.operand_addresses(MatrixDescriptor(0, 0, 0, Swizzle.B128_ATOM_32B), 8, 16, 2, False)


@pytest.mark.parametrize("k_step", range(4))
def test_k_major_operand_finds_what_a_swizzled_box_wrote(k_step: int) -> None:
    """64 rows x 64 bf16 columns written by a SWIZZLE_128B box are read back 16 columns at a time."""
    base, memory = 0x4400, np.zeros(0x8000, np.uint16)
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    memory.view(np.uint64).reshape(-1, 2)[tma_boxes.shared_chunks(base, 8192, Swizzle.B128) >> 4] = (
        values.view(np.uint64).reshape(-1, 2)
    )
    d = MatrixDescriptor(base + 32 * k_step, 16, 1024, Swizzle.B128)
    addresses = descriptors.operand_addresses(d, 64, 16, 2, False)
    np.testing.assert_array_equal(memory[addresses >> 1], values[:, 16 * k_step : 16 * k_step + 16])


@pytest.mark.parametrize("k_step", range(4))
def test_mn_major_operand_of_column_tiles_in_row_groups(k_step: int) -> None:
    """The latent tile of our kernels: 64 keys x 256 columns as [row group 8][column tile 4][8 rows][64
    columns], read with leading offset 1024 and stride offset 4096 as 256 x 16 (columns x keys).
    """
    base, memory = 0x2000, np.zeros(0x8000, np.uint16)
    values = np.arange(64 * 256, dtype=np.uint16).reshape(64, 256)  # keys, columns
    boxed = values.reshape(8, 8, 4, 64).transpose(0, 2, 1, 3)  # group, tile, row, column
    chunks = tma_boxes.shared_chunks(base, values.nbytes, Swizzle.B128)
    memory.view(np.uint64).reshape(-1, 2)[chunks >> 4] = (
        np.ascontiguousarray(boxed).view(np.uint64).reshape(-1, 2)
    )
    d = descriptors.decode_sm90(matrix(base + 8192 * k_step, 1024, 4096) | 1 << 62)
    addresses = descriptors.operand_addresses(d, 256, 16, 2, True)
    np.testing.assert_array_equal(memory[addresses >> 1], values[16 * k_step : 16 * k_step + 16].T)


def test_touched_words_cover_the_operand_once() -> None:
    d = MatrixDescriptor(0x400, 1024, 4096, Swizzle.B128)
    words = descriptors.touched_words(d, 256, 16, 2, True)
    assert words.size == 256 * 16 * 2 // 4 == np.unique(words).size
    assert (words % 4 == 0).all() and words.min() >= 0x400


def test_instruction_descriptor_fields() -> None:
    bits = BF16_F32 | 1 << 13 | 1 << 14 | 1 << 16 | (256 >> 3) << 17 | (128 >> 4) << 24
    d = descriptors.decode_instruction(bits, "f16")
    assert (d.m, d.n, d.k, d.element_size) == (128, 256, 16, 2)
    assert (d.a_mn_major, d.b_mn_major, d.a_negated, d.b_negated) == (False, True, True, True)


@pytest.mark.parametrize(
    "bits, kind, word",
    [
        (BF16_F32 | 4, "f16", "sparsity"),
        (BF16_F32 | 1 << 30, "f16", "shift"),
        (BF16_F32 | 1 << 6, "f16", "reserved"),
        (BF16_F32 & ~(3 << 4), "f16", "type codes"),
        (1 << 4 | 1 << 7, "f16", "one type for both"),
        (BF16_F32, "i8", "kind::i8"),
        (1 << 4 | 2 << 7, "f8f6f4", "type codes"),
        (1 << 4 | 5 << 7 | 1 << 15, "f8f6f4", "K-major only"),
    ],
)
def test_instruction_descriptor_refusals(bits: int, kind: str, word: str) -> None:
    with pytest.raises(DescriptorError, match=word):
        descriptors.decode_instruction(bits, kind)


@pytest.mark.parametrize(
    "m, n, group, ws, tmem, good",
    [
        (64, 8, 1, False, False, True),
        (64, 256, 1, False, False, True),
        (128, 8, 1, False, False, False),
        (128, 16, 1, False, True, True),
        (256, 64, 1, False, False, False),
        (64, 64, 2, False, False, False),
        (128, 16, 2, False, False, True),
        (256, 16, 2, False, True, False),
        (256, 32, 2, False, True, True),
        (32, 64, 1, True, False, True),
        (32, 32, 1, True, False, False),
        (64, 64, 2, True, False, False),
        (128, 0, 1, False, False, False),
        (64, 264, 1, False, False, False),
    ],
)
def test_shapes(m: int, n: int, group: int, ws: bool, tmem: bool, good: bool) -> None:
    d = descriptors.decode_instruction(BF16_F32 | (n >> 3) << 17 | (m >> 4) << 24, "f16")
    if good:
        descriptors.check_shape(d, group, ws, tmem)
    else:
        with pytest.raises(DescriptorError):
            descriptors.check_shape(d, group, ws, tmem)
