"""Warp matrix multiplication `mma.sync` of the sm_80 kinds: f16 and bf16 (m16n8k8, m16n8k16), tf32, e4m3 and
e5m2.

The accumulation model is that of wgmma with the instruction's own K as the block (not compared with a GPU).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import fragments
from mlagen.emu.interfaces import Array, Binder, Bound, EmulatorError, Instruction, Vec, Warp, instruction
from mlagen.emu.mma_numerics import SM90_8BIT, Accumulation, multiply_accumulate
from mlagen.emu.numerics import f32_to_fp16, fp16_to_f32, pack16, unpack16

_SHAPE = re.compile(r"m16n8k(\d+)")
_SHAPES = {"f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8), "e4m3": (32,), "e5m2": (32,)}


@dataclass(frozen=True, slots=True)
class MmaForm:
    """What the text says. half: D and C are packed f16 pairs instead of f32."""

    name: str
    k: int
    a_type: str
    b_type: str
    half: bool

    @property
    def a_registers(self) -> int:
        """32-bit registers of A; B has half as many."""
        return 16 * self.k * fragments.OPERAND_TYPES[self.a_type][0] // 128

    @property
    def model(self) -> Accumulation:
        """How sums are rounded."""
        return SM90_8BIT if self.a_type in ("e4m3", "e5m2") else Accumulation(self.k, 25)


@instruction("mma", section="9.7.14.5 mma.sync")
def mma(ins: Instruction, bind: Binder) -> Bound:
    """D = A B + C on 16 x 8, all operands in registers."""
    form = _form(ins)
    d, a, b, c = ins.operands
    count = 2 if form.half else 4
    wanted = (count, form.a_registers, form.a_registers // 2, count)
    given = tuple(len(x.items) if isinstance(x, Vec) else 1 for x in (d, a, b, c))
    if given != wanted or not isinstance(d, Vec):
        raise EmulatorError(f"{ins.name}: D, A, B, C have {given} registers; this form takes {wanted}")
    reads = tuple(bind.value(r, "b32") for x in (a, b, c) for r in (x.items if isinstance(x, Vec) else (x,)))
    return Bound(run=partial(run_mma, form), reads=reads, writes=tuple((r, "b32") for r in d.items))


def _form(ins: Instruction) -> MmaForm:
    shape = next((m for m in map(_SHAPE.fullmatch, ins.modifiers) if m), None)
    d_type, a_type, b_type, c_type = ins.modifiers[-4:]
    if shape is None or not ins.has("row", "col") or ins.has("sp") or a_type not in _SHAPES:
        raise EmulatorError(f"{ins.name} has no emulation; m16n8k* .row.col of {', '.join(_SHAPES)} have")
    k, half = int(shape[1]), d_type == "f16"
    mixed = a_type != b_type and not {a_type, b_type} <= {"e4m3", "e5m2"}
    if k not in _SHAPES[a_type] or d_type != c_type or d_type not in ("f16", "f32") or mixed:
        raise EmulatorError(
            f"{ins.name}: no such combination; .{a_type} has K {_SHAPES[a_type]} and C has the type of D"
        )
    if half and a_type in ("bf16", "tf32"):
        raise EmulatorError(f"{ins.name}: .{a_type} has .f32 accumulators only")
    return MmaForm(f"mma.sync (line {ins.line})", k, a_type, b_type, half)


def run_mma(form: MmaForm, warp: Warp, lanes: npt.NDArray[np.bool_], *registers: Array) -> tuple[Array, ...]:
    """The D registers: register 2h + p of lane 4q + c is row 8h + q, column 2c + p."""
    if not lanes.all():
        raise EmulatorError(
            f"{form.name}: {int(lanes.sum())} of 32 lanes execute it; .sync.aligned needs all"
        )
    n = form.a_registers
    a, b, c = registers[:n], registers[n : n + n // 2], registers[n + n // 2 :]
    if form.half:
        c = tuple(half for pair in c for half in _widen(pair))
    accumulator = fragments.accumulator_matrix(c)
    a_values = fragments.to_float(fragments.a_matrix(a, form.a_type), form.a_type)
    b_values = fragments.to_float(fragments.b_matrix(b, form.b_type), form.b_type)
    d = multiply_accumulate(a_values, b_values, accumulator, form.model if warp.machine.exact else None)
    out = fragments.accumulator_registers(d)
    if form.half:
        halves = f32_to_fp16(out.view(np.float32))
        return tuple(pack16(halves[i + 1], halves[i]) for i in (0, 2))
    return tuple(out)


def _widen(pair: Array) -> tuple[Array, Array]:
    """The two f16 of each register as f32 bits, low one first."""
    high, low = unpack16(pair)
    return fp16_to_f32(low).view(np.uint32), fp16_to_f32(high).view(np.uint32)
