"""Conversions (PTX ISA 9.7.9.21 cvt)."""

from __future__ import annotations

import numpy as np

from mlagen.emu import numerics
from mlagen.emu.helpers import helper, pack
from mlagen.emu.interfaces import Array, Binder, Inline, Instruction, UnknownInstructionError, instruction
from mlagen.emu.types import NUMPY, is_float, short_name, size_of

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOATS = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def _rounding(ins: Instruction, default: str = "rn") -> str:
    found = [m for m in ins.modifiers if m in ("rn", "rz", "rm", "rp", "rna", "rs")]
    return found[0] if found else default


@helper
def to_integer(x: Array, rounding: str, kind: str) -> Array:
    """Float to integer: rounded, clamped to the range, NaN to zero (32 bits and less) or to the smallest
    number.
    """
    target = NUMPY[kind]
    info = np.iinfo(target)
    rounded = _ROUND[rounding](x.astype(np.float64))
    nan = np.isnan(rounded)
    rounded = np.where(nan, 0.0, rounded)
    low, high = rounded <= float(info.min), rounded >= float(info.max)
    inside = np.where(low | high, 0.0, rounded).astype(target)
    result: Array = np.where(low, target(info.min), np.where(high, target(info.max), inside))
    if info.bits == 64:
        result = np.where(nan, target(1 << 63) if info.min == 0 else target(info.min), result)
    return result


@helper
def clamp_integer(x: Array, kind: str) -> Array:
    """Integer to integer with `.sat`."""
    target = NUMPY[kind]
    info = np.iinfo(target)
    values = [min(max(int(v), int(info.min)), int(info.max)) for v in x]
    result: Array = np.array(values, target)
    return result


@helper
def f16_pair(high: Array, low: Array, rounding: str, relu: bool) -> Array:
    """Two float32 as f16x2, the first in the high half."""
    return pack(
        [numerics.f32_to_fp16(low, rounding, relu), numerics.f32_to_fp16(high, rounding, relu)], np.uint32
    )


@helper
def bf16_pair(high: Array, low: Array, rounding: str, relu: bool) -> Array:
    """Two float32 as bf16x2, the first in the high half."""
    return pack(
        [numerics.f32_to_bf16(low, rounding, relu), numerics.f32_to_bf16(high, rounding, relu)], np.uint32
    )


@helper
def byte_pair(high: Array, low: Array) -> Array:
    """Two bytes as one uint16."""
    return pack([low.astype(np.uint8), high.astype(np.uint8)], np.uint16)


@helper
def low_byte(x: Array) -> Array:
    """The lower byte of a uint16."""
    result: Array = (x & np.uint16(255)).astype(np.uint8)
    return result


@helper
def high_byte(x: Array) -> Array:
    """The upper byte of a uint16."""
    result: Array = (x >> np.uint16(8)).astype(np.uint8)
    return result


for _function in (
    numerics.f32_to_bf16,
    numerics.f32_to_fp16,
    numerics.f32_to_e4m3,
    numerics.f32_to_e5m2,
    numerics.f32_to_ue8m0,
    numerics.e4m3_to_f32,
    numerics.e5m2_to_f32,
    numerics.ue8m0_to_f32,
):
    helper(_function)


def _to_pair(ins: Instruction, bind: Binder, kind: str) -> Inline:
    """f32 pairs to a packed type."""
    high, low = (bind.value(o, "f32").code for o in ins.operands[1:3])
    rounding, relu = _rounding(ins), "relu" in ins.modifiers
    if kind in ("f16x2", "bf16x2"):
        return Inline(f"{kind[:-2]}_pair({high},{low},{rounding!r},{relu})", kind, ins.operands[0])
    if kind in ("e4m3x2", "e5m2x2"):
        name = f"f32_to_{kind[:-2]}"
        if relu:
            high, low = f"np.maximum({high},f32(0))", f"np.maximum({low},f32(0))"
        return Inline(f"byte_pair({name}({high}),{name}({low}))", "b16", ins.operands[0])
    if kind == "ue8m0x2":
        return Inline(
            f"byte_pair(f32_to_ue8m0({high},{rounding!r}),f32_to_ue8m0({low},{rounding!r}))",
            "b16",
            ins.operands[0],
        )
    raise UnknownInstructionError(kind)


def _from_pair(ins: Instruction, bind: Binder, kind: str, source: str) -> Inline:
    """A packed 8-bit pair to f16x2 or bf16x2, or f16x2 to a packed 8-bit pair."""
    code = bind.value(ins.operands[1], "b16").code
    if source in ("e4m3x2", "e5m2x2") and kind == "f16x2":
        name = f"{source[:-2]}_to_f32"
        return Inline(
            f"f16_pair({name}(high_byte({code})),{name}(low_byte({code})),'rn',{'relu' in ins.modifiers})",
            kind,
            ins.operands[0],
        )
    if source == "ue8m0x2" and kind == "bf16x2":
        return Inline(
            f"bf16_pair(ue8m0_to_f32(high_byte({code})),ue8m0_to_f32(low_byte({code})),'rz',False)",
            kind,
            ins.operands[0],
        )
    raise UnknownInstructionError(source)


def _to_float(ins: Instruction, bind: Binder, kind: str, source: str) -> Inline:
    """Float or integer to a scalar float."""
    rounding = _rounding(ins)
    code = (
        f"as_bf16({bind.value(ins.operands[1], 'bf16').code})"
        if source == "bf16"
        else bind.value(ins.operands[1], source).code
    )
    if "ftz" in ins.modifiers and source == "f32":
        code = f"flush({code})"
    if kind in ("bf16", "f16"):
        if source in ("f32", "bf16", "f16"):
            name = "f32_to_bf16" if kind == "bf16" else "f32_to_fp16"
            relu = "relu" in ins.modifiers
            return Inline(f"{name}({code}.astype(f32),{rounding!r},{relu})", "b16", ins.operands[0])
        return Inline(
            f"f32_to_bf16({code}.astype(f32))" if kind == "bf16" else f"{code}.astype(f16).view(u16)",
            "b16",
            ins.operands[0],
        )
    integral = [m for m in ins.modifiers if m in _ROUND]
    if integral:
        code = f"np.{_ROUND[integral[0]].__name__}({code})"
    if rounding != "rn" and (size_of(source) > size_of(kind) or not (is_float(source) or source == "bf16")):
        code = f"round_toward({code},{rounding!r},{short_name(kind)})"
    code = f"{code}.astype({short_name(kind)})"
    if "ftz" in ins.modifiers and kind == "f32":
        code = f"flush({code})"
    return Inline(f"saturate({code})" if "sat" in ins.modifiers else code, kind, ins.operands[0])


@helper
def round_toward(x: Array, rounding: str, kind: type) -> Array:
    """Values of a narrower float type: x rounded toward zero (rz), minus (rm) or plus infinity (rp)."""
    near: Array = x.astype(kind)
    if x.dtype.kind == "f":
        high, low = near.astype(np.float64) > x, near.astype(np.float64) < x
    else:
        exact = [int(n) - int(v) for n, v in zip(near, x, strict=True)]
        high, low = np.array([e > 0 for e in exact]), np.array([e < 0 for e in exact])
    positive = x > 0
    down = high & (positive | (rounding == "rm")) & (rounding != "rp")
    up = low & (~positive | (rounding == "rp")) & (rounding != "rm")
    result: Array = np.where(
        down, np.nextafter(near, kind(-np.inf)), np.where(up, np.nextafter(near, kind(np.inf)), near)
    )
    return result


@instruction("cvt", section="9.7.9.21 cvt")
def cvt(ins: Instruction, bind: Binder) -> Inline:
    """Convert one type to another."""
    kind, source = ins.modifiers[-2], ins.modifiers[-1]
    if kind == "satfinite" or "rs" in ins.modifiers:
        raise UnknownInstructionError(ins.name)
    if kind.endswith("x2") and source == "f32":
        return _to_pair(ins, bind, kind)
    if source in ("e4m3x2", "e5m2x2", "ue8m0x2"):
        return _from_pair(ins, bind, kind, source)
    if kind in ("e4m3x2", "e5m2x2") and source == "f16x2":
        code = bind.value(ins.operands[1], "f16x2").code
        name = f"f32_to_{kind[:-2]}"
        halves = f"{code}.view(f16)"
        return Inline(
            f"byte_pair({name}({halves}[1::2].astype(f32)),{name}({halves}[0::2].astype(f32)))",
            "b16",
            ins.operands[0],
        )
    if kind == "tf32" and source == "f32":
        rounded = f"(({bind.value(ins.operands[1], 'b32').code}+u32(0x1000))&u32(0xffffe000))"
        return Inline(rounded, "b32", ins.operands[0])
    if kind in _FLOATS:
        return _to_float(ins, bind, kind, source)
    name = short_name(kind)
    if source in _FLOATS:
        code = (
            f"as_bf16({bind.value(ins.operands[1], 'bf16').code})"
            if source == "bf16"
            else bind.value(ins.operands[1], source).code
        )
        mode = [m for m in ins.modifiers if m in _ROUND]
        if "ftz" in ins.modifiers and source == "f32":
            code = f"flush({code})"
        rounding = mode[0] if mode else "rni"
        return Inline(f"to_integer({code},{rounding!r},{name!r})", kind, ins.operands[0])
    code = bind.value(ins.operands[1], source).code
    if "sat" in ins.modifiers:
        return Inline(f"clamp_integer({code},{name!r})", kind, ins.operands[0])
    return Inline(f"{code}.astype({name})", kind, ins.operands[0])
