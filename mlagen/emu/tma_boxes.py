"""Where the bytes of a tensor-map box lie in global and in shared memory.

PTX ISA: "Tensor Access Modes" (tile, tile::gather4), "Swizzling Modes", "Bounding Box", "Traversal-Stride".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlagen.emu.tensormap import SWIZZLE_SPAN, Fill, Swizzle, TensorMap, TensorMapError

Offsets = npt.NDArray[np.int64]
CHUNK = 16  # bytes that no swizzle takes apart
GATHER_ROWS = 4
BOX_ALIGNMENT = 128  # of a box in shared memory, for every layout without interleave


@dataclass(frozen=True, slots=True)
class Box:
    """One box: rows of `row_bytes` bytes, contiguous in global memory, densely packed in shared memory.

    rows: int64 (n,), global address of byte 0 of each row, also of rows that are out of bounds. inside: bool
    (n,), rows in bounds. first, last: bytes [first, last) of each row are in bounds along the innermost
    dimension.
    """

    rows: Offsets
    inside: npt.NDArray[np.bool_]
    row_bytes: int
    first: int
    last: int

    @property
    def bytes(self) -> int:
        """Bytes in shared memory, in bounds or not."""
        return self.rows.size * self.row_bytes


def tile_box(t: TensorMap, coordinates: Sequence[int]) -> Box:
    """The box at signed element coordinates, innermost first. Rows are in shared-memory order (dimension 1
    fastest).
    """
    if len(coordinates) != t.rank:
        raise TensorMapError(f"tensor map of rank {t.rank} used with {len(coordinates)} coordinates")
    relative, positions = _relative_rows(t)
    start = t.address
    inside = np.ones(relative.size, np.bool_)
    for d in range(1, t.rank):
        start += coordinates[d] * t.strides[d - 1]
        step = t.element_strides[d]
        if coordinates[d] < 0 or coordinates[d] + (t.counts[d] - 1) * step >= t.extents[d]:
            at = positions[d - 1] + coordinates[d]
            inside &= (at >= 0) & (at < t.extents[d])
    return _with_columns(t, coordinates[0], relative + start, inside)


def gather_box(t: TensorMap, column: int, rows: Sequence[int]) -> Box:
    """The box of tile::gather4 (and scatter4): four rows of a rank-2 map whose box is (columns, 1)."""
    if t.rank != 2 or t.box[1] != 1:
        raise TensorMapError(
            f"gather4 needs a rank-2 tensor map with a box of 1 row, not rank {t.rank} and box {t.box}"
        )
    if len(rows) != GATHER_ROWS:
        raise TensorMapError(f"gather4 takes {GATHER_ROWS} row coordinates; {len(rows)} were given")
    at = np.array(rows, np.int64)
    return _with_columns(t, column, t.address + at * t.strides[0], (at >= 0) & (at < t.extents[1]))


def _with_columns(t: TensorMap, column: int, rows: Offsets, inside: npt.NDArray[np.bool_]) -> Box:
    """Adds the innermost coordinate: its byte offset, and which part of each row is in bounds."""
    size, count = t.element_size, t.box[0]
    first = min(max(-column, 0), count)
    last = max(min(t.extents[0] - column, count), first)
    return Box(rows + column * size, inside, count * size, first * size, last * size)


@lru_cache(maxsize=256)
def _relative_rows(t: TensorMap) -> tuple[Offsets, tuple[Offsets, ...]]:
    """Byte offset of every row from the first, and its element position along dimensions 1.. (all (n,))."""
    counts = t.counts[1:]
    grid = np.indices(counts[::-1]).reshape(len(counts), -1)[::-1] if counts else np.zeros((0, 1), np.int64)
    positions = tuple(grid[d].astype(np.int64) * t.element_strides[d + 1] for d in range(len(counts)))
    offsets = np.zeros(grid.shape[1], np.int64)
    for position, stride in zip(positions, t.strides, strict=True):
        offsets += position * stride
    return offsets, positions


# ---------------------------------------------------------------- shared memory
def swizzle_address(address: Any, swizzle: Swizzle) -> Any:
    """The swizzled form of shared-memory byte addresses (integers or integer arrays; absolute, not relative
    to the tile).
    """
    if swizzle == Swizzle.B128:
        return address ^ ((address >> 3) & 0x70)
    if swizzle == Swizzle.B64:
        return address ^ ((address >> 3) & 0x30)
    if swizzle == Swizzle.B32:
        return address ^ ((address >> 3) & 0x10)
    if swizzle == Swizzle.B128_ATOM_32B:
        return address ^ ((address >> 2) & 0x60)
    return address


@lru_cache(maxsize=4096)
def shared_chunks(offset: int, size: int, swizzle: Swizzle, row: int = 0) -> npt.NDArray[np.uint64]:
    """Byte offsets in shared memory of the 16-byte chunks of a box of `size` bytes at `offset`, in box order;
    read-only.

    row: bytes of a row of the box. Rows shorter than the span of the swizzle (32, 64 or 128 bytes) begin at
    multiples of the span, and nothing is written in between: so does an H200. 0: no gaps.

    TensorMapError when the box is misaligned.
    """
    if offset % BOX_ALIGNMENT:
        raise TensorMapError(
            f"shared-memory address {offset:#x} of a tensor-map box: not a multiple of {BOX_ALIGNMENT} bytes"
        )
    places = np.arange(0, size, CHUNK, dtype=np.uint64)
    span = SWIZZLE_SPAN.get(swizzle, 0)
    if 0 < row < span:
        places = places // np.uint64(row) * np.uint64(span) + places % np.uint64(row)
    chunks: npt.NDArray[np.uint64] = swizzle_address(places + np.uint64(offset), swizzle)
    chunks.setflags(write=False)
    return chunks


def fill_pattern(t: TensorMap) -> npt.NDArray[np.uint8]:
    """Bytes of one out-of-bounds element: zero, or the NaN of its type."""
    if t.fill == Fill.ZERO:
        return np.zeros(t.element_size, np.uint8)
    nan = {2: 0x7FF7, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[t.element_size]
    return np.frombuffer(nan.to_bytes(t.element_size, "little"), np.uint8)
