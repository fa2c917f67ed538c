"""TMEM layouts: each is a bijection, has the documented corners, and agrees with CuTe where CuTe has it."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu import tmem_layouts
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tmem_layouts import accumulator_blocks, transfer_places

ROWS = {"A": 128, "B": 64, "C": 64, "D": 128, "E": 64, "F": 64, "G": 32}


def places(layout: str, n: int, offset: int = 0) -> dict[tuple[int, int], tuple[int, int]]:
    """(row, column) of D -> (lane, column) of TMEM."""
    out = {}
    for block in accumulator_blocks(layout, n, offset):
        for i, row in enumerate(range(block.rows.start, block.rows.stop)):
            for column in range(block.columns.start, block.columns.stop):
                out[row, column] = (block.lanes[i], column - block.columns.start)
    return out


@pytest.mark.parametrize("layout", "ABCDEFG")
def test_every_element_has_a_place_of_its_own(layout: str) -> None:
    found = places(layout, 64)
    assert set(found) == {(r, c) for r in range(ROWS[layout]) for c in range(64)}
    assert len(set(found.values())) == len(found)
    assert max(c for _, c in found.values()) + 1 == tmem_layouts.accumulator_columns(layout, 64)


@pytest.mark.parametrize(
    "layout, row, column, lane, tmem_column",
    [
        ("A", 127, 63, 127, 63),
        ("B", 3, 31, 3, 31),
        ("B", 3, 32, 67, 0),
        ("D", 77, 5, 77, 5),
        ("E", 63, 63, 127, 31),
        ("F", 17, 9, 33, 9),
        ("C", 63, 0, 111, 0),
        ("G", 31, 16, 63, 0),
        ("G", 0, 63, 96, 15),
    ],
)
def test_corners(layout: str, row: int, column: int, lane: int, tmem_column: int) -> None:
    assert places(layout, 64)[row, column] == (lane, tmem_column)


def test_half_lane_offset() -> None:
    assert places("F", 8, 16)[17, 0] == (49, 0)
    with pytest.raises(EmulatorError, match="lane 16"):
        accumulator_blocks("D", 8, 16)
    with pytest.raises(EmulatorError, match="lane 8"):
        accumulator_blocks("F", 8, 8)


@pytest.mark.parametrize(
    "m, group, ws, letter",
    [
        (256, 2, False, "A"),
        (128, 2, False, "B"),
        (128, 1, False, "D"),
        (64, 1, True, "E"),
        (64, 1, False, "F"),
        (32, 1, True, "G"),
        (128, 1, True, "D"),
    ],
)
def test_letters(m: int, group: int, ws: bool, letter: str) -> None:
    assert tmem_layouts.layout_of(m, group, ws) == letter


def test_combinations_without_a_layout() -> None:
    assert tmem_layouts.layout_of(128, 2, False, sparse=True) == "C"
    for m, group, ws in ((32, 1, False), (64, 2, False), (128, 2, True)):
        with pytest.raises(EmulatorError, match="no data-path layout"):
            tmem_layouts.layout_of(m, group, ws)


@pytest.mark.parametrize(
    "shape, registers, lanes, columns",
    [
        ("32x32b", 4, 32, 4),
        ("16x64b", 4, 16, 8),
        ("16x128b", 8, 16, 16),
        ("16x256b", 8, 16, 16),
        ("16x32bx2", 2, 16, 4),
    ],
)
def test_transfers_cover_their_area_once(shape: str, registers: int, lanes: int, columns: int) -> None:
    at = set(zip(*(x.reshape(-1).tolist() for x in transfer_places(shape, registers, 2)), strict=True))
    assert at == {(lane, column) for lane in range(lanes) for column in range(columns)}


def cute_bits(shape: tuple[int, ...], stride: tuple[int, ...], index: int) -> int:
    """A CuTe layout at a linear index."""
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        total += index % extent * step
        index //= extent
    return total


@pytest.mark.parametrize(
    "shape, registers, threads, values, row_bits",
    [
        # thread and value layouts of CuTe's Copy_Traits for SM100_TMEM_LOAD_16dp{64,128,256}b2x and
        # 32dp32b1x, in bits
        ("16x64b", 2, ((2, 2, 8), (1024, 32, 128)), ((32, 2), (1, 64)), 128),
        ("16x128b", 4, ((4, 8), (32, 256)), ((32, 2, 2), (1, 2048, 128)), 256),
        ("16x256b", 8, ((4, 8), (64, 512)), ((64, 2, 2), (1, 4096, 256)), 512),
        ("32x32b", 1, ((32,), (32,)), ((32,), (1,)), 32),
    ],
)
def test_transfers_agree_with_cute(shape: str, registers: int, threads, values, row_bits: int) -> None:  # type: ignore[no-untyped-def]
    lanes, columns = transfer_places(shape, registers)
    for thread in range(32):
        for register in range(registers):
            bit = cute_bits(*threads, thread) + cute_bits(*values, 32 * register)
            assert divmod(bit, row_bits) == (lanes[register, thread], 32 * columns[register, thread])


def test_register_counts() -> None:
    assert [tmem_layouts.register_count(s, 4) for s in tmem_layouts.SHAPES] == [4, 4, 8, 16, 4]
    for shape, repeats in (("32x32b", 256), ("16x256b", 64), ("16x128b", 3), ("8x32b", 1)):
        with pytest.raises(EmulatorError):
            tmem_layouts.register_count(shape, repeats)


def test_warp_quarters() -> None:
    assert tmem_layouts.warp_lane(6, 64) == (64, False)
    assert tmem_layouts.warp_lane(6, 80) == (80, False)
    assert tmem_layouts.warp_lane(6, 16) == (80, True)
    assert tmem_layouts.warp_lane(0, 0) == (0, False)
    with pytest.raises(EmulatorError, match="reaches lanes 64 to 95"):
        tmem_layouts.warp_lane(6, 96)


@pytest.mark.parametrize("name", list(tmem_layouts.COPY_SHAPES))
def test_copies_fill_different_lanes(name: str) -> None:
    shape = tmem_layouts.COPY_SHAPES[name]
    lanes = [lane for copy in shape.copies for lane in copy]
    assert all(len(copy) == shape.rows for copy in shape.copies)
    assert len(set(lanes)) == len(lanes) == (4 if shape.rows == 4 else 128)


def test_granules() -> None:
    assert tmem_layouts.granules(np.arange(20, 40)).tolist() == [16, 32]
