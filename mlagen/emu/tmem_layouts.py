"""Where tcgen05 instructions keep things in tensor memory: data-path layouts, shapes of ld and st, shapes of
cp.

Tensor memory of a CTA is 128 lanes x 512 columns of 32 bits; an address is lane << 16 | column. Warp w of a
CTA reaches lanes 32 (w % 4) to 32 (w % 4) + 31. PTX ISA: "Data Path Layout Organization" (tcgen05),
"tcgen05.ld", "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from mlagen.emu.interfaces import EmulatorError

LANES = 128
COLUMNS = 512
QUARTER = 32
GRANULE = 16
"""Lanes that the race check tells apart: no layout or shape divides 16 neighbouring lanes."""

Lanes = npt.NDArray[np.int64]


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


# ---------------------------------------------------------------- accumulators
@dataclass(frozen=True, slots=True)
class Block:
    """Rows of D (of this CTA) and columns that lie side by side: element (row, column) is in lane lanes[row -
    first row], at the same distance from the first column of the block as in D.
    """

    rows: slice
    columns: slice
    lanes: tuple[int, ...]

    def lane_array(self) -> Lanes:
        """lanes as an array."""
        return _lane_array(self.lanes)


@cache
def _lane_array(lanes: tuple[int, ...]) -> Lanes:
    array = np.array(lanes, np.int64)
    array.setflags(write=False)
    return array


def layout_of(m: int, cta_group: int, ws: bool, sparse: bool = False) -> str:
    """The letter of the data-path layout that an MMA of this M uses. EmulatorError when there is none.

    A: two CTAs M 256. B: two CTAs M 128. C: the same with sparse A. D: one CTA M 128. E: .ws M 64. F: M 64.
    G: .ws M 32.
    """
    if ws and cta_group == 1:
        found = {32: "G", 64: "E", 128: "D"}.get(m)
    elif ws:
        found = None
    elif cta_group == 2:
        found = {128: "C" if sparse else "B", 256: "A"}.get(m)
    else:
        found = {64: "F", 128: "D"}.get(m)
    if found is None:
        raise EmulatorError(f"no data-path layout for M={m}, cta_group::{cta_group}{', .ws' if ws else ''}")
    return found


@cache
def accumulator_blocks(layout: str, n: int, lane_offset: int = 0) -> tuple[Block, ...]:
    """The blocks of a layout for the rows of one CTA and N columns.

    lane_offset: 16 puts the 64 rows of layouts C and F into the upper half of each warp's lanes; 0 otherwise.
    EmulatorError for an offset that the layout does not have.
    """
    if lane_offset and (layout not in "CF" or lane_offset != GRANULE):
        raise EmulatorError(
            f"lane {lane_offset} as the start of an accumulator of layout {layout}; 0 is allowed"
        )
    if layout in "AD":
        return (Block(slice(0, 128), slice(0, n), tuple(range(128))),)
    if layout in "BE":
        return tuple(
            Block(slice(0, 64), slice(i * n // 2, (i + 1) * n // 2), tuple(range(64 * i, 64 * i + 64)))
            for i in range(2)
        )
    if layout in "CF":
        lanes = tuple(32 * (row // 16) + lane_offset + row % 16 for row in range(64))
        return (Block(slice(0, 64), slice(0, n), lanes),)
    if layout == "G":
        return tuple(
            Block(slice(0, 32), slice(i * n // 4, (i + 1) * n // 4), tuple(range(32 * i, 32 * i + 32)))
            for i in range(4)
        )
    raise EmulatorError(f"no data-path layout {layout!r}; A to G exist")


def accumulator_columns(layout: str, n: int) -> int:
    """Columns of tensor memory that an accumulator of N columns takes."""
    return {"B": n // 2, "E": n // 2, "G": n // 4}.get(layout, n)


# ---------------------------------------------------------------- tcgen05.ld and tcgen05.st
_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
_MOST_REPEATS = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
SHAPES = tuple(_REGISTERS)


def register_count(shape: str, repeats: int) -> int:
    """32-bit registers of each thread for `.shape.xN`; EmulatorError for a repeat count that the shape does
    not have.
    """
    if shape not in _REGISTERS:
        raise EmulatorError(f"tcgen05.ld/st .{shape} has no emulation; {', '.join(SHAPES)} have")
    if repeats & (repeats - 1) or not 1 <= repeats <= _MOST_REPEATS[shape]:
        raise EmulatorError(
            f"tcgen05.ld/st .{shape}.x{repeats}: the count is a power of two up to {_MOST_REPEATS[shape]}"
        )
    return _REGISTERS[shape] * repeats


@cache
def transfer_places(shape: str, registers: int, split: int = 0) -> tuple[Lanes, Lanes]:
    """(lanes, columns) of register i of thread t, both (registers, 32), relative to the address of the
    instruction.

    split: column distance of the two halves of 16x32bx2.
    """
    i, t = np.arange(registers)[:, None], np.arange(32)[None, :]
    if shape == "32x32b":
        lanes, columns = t, i
    elif shape == "16x32bx2":
        lanes, columns = t % 16, i + np.where(t >= 16, split, 0)
    elif shape == "16x64b":
        lanes, columns = t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * i
    elif shape == "16x128b":
        lanes, columns = t // 4 + 8 * (i % 2), t % 4 + 4 * (i // 2)
    elif shape == "16x256b":
        lanes, columns = t // 4 + 8 * (i // 2 % 2), i % 2 + 2 * (t % 4) + 8 * (i // 4)
    else:
        raise EmulatorError(f"tcgen05.ld/st .{shape} has no emulation; {', '.join(SHAPES)} have")
    places = tuple(
        np.ascontiguousarray(np.broadcast_to(x, (registers, 32))).astype(np.int64) for x in (lanes, columns)
    )
    for place in places:
        place.setflags(write=False)
    return places[0], places[1]


@cache
def packed_places(shape: str, registers: int, split: int = 0) -> tuple[Lanes, Lanes]:
    """(lanes, columns) of the 16-bit halves of the registers with `.pack::16b` and `.unpack::16b`, both
    (2 registers, 32), low halves first: word w of a row is columns 2 w and 2 w + 1. split: in columns.
    """
    lanes, words = transfer_places(shape, registers)
    first = 2 * words
    if shape == "16x32bx2":
        first = first + np.where(np.arange(32) >= 16, split, 0)
    return lanes.repeat(2, axis=0), np.stack([first, first + 1], axis=1).reshape(2 * registers, 32)


@cache
def transfer_columns(shape: str, registers: int, split: int = 0) -> Lanes:
    """The columns that an instruction touches, relative to its address, each once."""
    return np.unique(transfer_places(shape, registers, split)[1])


def warp_lane(warp: int, lane: int) -> tuple[int, bool]:
    """(first lane that an instruction of a warp reaches with this lane field, whether the field names another
    quarter).

    The lane field is relative to the warp's quarter or absolute. Hardware ignores the quarter that it names;
    the ISA text asks for the warp's own. EmulatorError when it names neither the own quarter nor quarter 0.
    """
    quarter, within = divmod(lane, QUARTER)
    own = warp % 4
    if quarter not in (0, own):
        raise EmulatorError(
            f"tcgen05.ld/st at lane {lane} by warp {warp}, "
            f"which reaches lanes {QUARTER * own} to {QUARTER * own + 31}"
        )
    return QUARTER * own + within, quarter != own


# ---------------------------------------------------------------- tcgen05.cp
@dataclass(frozen=True, slots=True)
class CopyShape:
    """tcgen05.cp: rows x columns of 32-bit words from shared memory; copies[c][row] is the lane of copy c of
    a row.
    """

    rows: int
    columns: int
    copies: tuple[tuple[int, ...], ...]


COPY_SHAPES = {
    "128x256b": CopyShape(128, 8, (tuple(range(128)),)),
    "128x128b": CopyShape(128, 4, (tuple(range(128)),)),
    "4x256b": CopyShape(4, 8, ((0, 32, 64, 96),)),
    "64x128b.warpx2::02_13": CopyShape(64, 4, (tuple(range(64)), tuple(range(64, 128)))),
    "64x128b.warpx2::01_23": CopyShape(
        64, 4, tuple(tuple(64 * (r // 32) + 32 * c + r % 32 for r in range(64)) for c in range(2))
    ),
    "32x128b.warpx4": CopyShape(32, 4, tuple(tuple(range(32 * c, 32 * c + 32)) for c in range(4))),
}


def granules(lanes: Lanes) -> Lanes:
    """First lanes of the groups of 16 that these lanes lie in, each once: what the race check is told."""
    return _granules(np.ascontiguousarray(lanes, np.int64).tobytes())


@cache
def _granules(lanes: bytes) -> Lanes:
    found = np.unique(np.frombuffer(lanes, np.int64) // GRANULE) * GRANULE
    found.setflags(write=False)
    return found
