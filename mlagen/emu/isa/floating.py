"""Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5), and the opcodes that it shares with integers."""

from __future__ import annotations

import numpy as np

from mlagen.emu.helpers import fma32_directed, helper
from mlagen.emu.interfaces import Array, Binder, Inline, Instruction, UnknownInstructionError, instruction
from mlagen.emu.isa.integer import integer_division, integer_sum
from mlagen.emu.numerics import bf16_to_f32, f32_to_bf16
from mlagen.emu.types import is_float

PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
_SYMBOL = {"add": "+", "sub": "-", "mul": "*"}


@helper
def saturate(x: Array) -> Array:
    """`.sat`: clamp to [0, 1], NaN to +0."""
    clamped: Array = np.clip(np.where(np.isnan(x), x.dtype.type(0), x), x.dtype.type(0), x.dtype.type(1))
    return clamped


@helper
def as_bf16(bits: Array) -> Array:
    """bf16 bits (uint16, or pairs in uint32) as float32, in the order of memory."""
    return bf16_to_f32(np.ascontiguousarray(bits).view(np.uint16))


@helper
def to_bf16(values: Array, kind: type) -> Array:
    """float32 as bf16 bits, viewed as uint16 or uint32."""
    bits: Array = np.ascontiguousarray(f32_to_bf16(values)).view(kind)
    return bits


@helper
def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float64 with one rounding (exact rational arithmetic where it matters)."""
    from fractions import Fraction

    out = a * b + c
    for i in range(len(out)):
        if np.isfinite(a[i]) and np.isfinite(b[i]) and np.isfinite(c[i]) and np.isfinite(out[i]):
            exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
            if exact != 0:
                out[i] = exact.numerator / exact.denominator
    return out


@helper
def fma32_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 rounded to odd, for a later rounding to bf16."""
    low, high = fma32_directed(a, b, c, "rm"), fma32_directed(a, b, c, "rp")
    bits = np.where(np.abs(low) < np.abs(high), low, high).view(np.uint32)
    odd: Array = np.where((low != high) & np.isfinite(low) & np.isfinite(high), bits | np.uint32(1), bits)
    return odd.view(np.float32)


@helper
def divide_approximately(a: Array, b: Array) -> Array:
    """a / b of float32, but zero, and NaN for an infinite a, where |b| is above 2**126 and finite."""
    quotient: Array = a / b
    beyond = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    if not beyond.any():
        return quotient
    zero = np.copysign(np.float32(0), a) * np.sign(b)
    return np.where(beyond & ~np.isnan(a), np.where(np.isinf(a), np.float32(np.nan), zero), quotient)


_DIRECTED = {
    "add": "fma32_directed({0},ONE,{1},MODE)",
    "sub": "fma32_directed({0},ONE,-{1},MODE)",
    "mul": "fma32_directed({0},{1},MINUS_ZERO,MODE)",
    "fma": "fma32_directed({0},{1},{2},MODE)",
}


def _rounding(ins: Instruction) -> str | None:
    """The directed rounding mode of an instruction, if it has one."""
    found = [m for m in ins.modifiers if m in ("rz", "rm", "rp")]
    if found and (ins.op not in _DIRECTED or ins.modifiers[-1] != "f32"):
        raise UnknownInstructionError(found[0])
    return found[0] if found else None


def finish(ins: Instruction, code: str, kind: str) -> Inline:
    """Apply .ftz and .sat to a result of an f32, f64 or f16 operation."""
    if "ftz" in ins.modifiers and kind in ("f32", "f32x2"):
        code = f"flush({code})"
    if "sat" in ins.modifiers:
        code = f"saturate({code})"
    return Inline(code, kind, ins.operands[0])


def sources(ins: Instruction, bind: Binder, kind: str) -> list[str]:
    """Sources of a scalar float operation, flushed with .ftz."""
    codes = [bind.value(o, kind).code for o in ins.operands[1:]]
    return [f"flush({c})" for c in codes] if "ftz" in ins.modifiers and kind == "f32" else codes


def elementwise(ins: Instruction, bind: Binder, template: str) -> Inline:
    """A float operation of any format. template: numpy code with {0} {1} {2} for the sources; computed in
    float32 for bf16.
    """
    mode = _rounding(ins)
    if mode is not None:
        template = _DIRECTED[ins.op].replace("MODE", repr(mode))
    kind = ins.modifiers[-1]
    if kind in ("f32", "f64", "f16"):
        return finish(ins, template.format(*sources(ins, bind, kind)), kind)
    if kind in ("bf16", "bf16x2"):
        codes = [f"as_bf16({bind.value(o, kind).code})" for o in ins.operands[1:]]
        narrow = "u16" if kind == "bf16" else "u32"
        return Inline(f"to_bf16({template.format(*codes)},{narrow})", kind, ins.operands[0])
    if kind in ("f32x2", "f16x2"):
        inner, outer = PACKED[kind], "u64" if kind == "f32x2" else "u32"
        codes = [f"{bind.value(o, kind).code}.view({inner})" for o in ins.operands[1:]]
        if "ftz" in ins.modifiers and kind == "f32x2":
            return Inline(
                f"flush({template.format(*(f'flush({c})' for c in codes))}).view({outer})",
                kind,
                ins.operands[0],
            )
        return Inline(f"({template.format(*codes)}).view({outer})", kind, ins.operands[0])
    raise UnknownInstructionError(kind)


@instruction("add", "sub", section="9.7.1.1, 9.7.3.3, 9.7.4.1 add, sub")
def add_sub(ins: Instruction, bind: Binder) -> Inline:
    """Sum or difference."""
    if ins.modifiers[-1][0] in "us":
        return integer_sum(ins, bind, _SYMBOL[ins.op])
    return elementwise(ins, bind, "({0}" + _SYMBOL[ins.op] + "{1})")


@instruction("mul", section="9.7.3.5, 9.7.4.3 mul")
def mul_float(ins: Instruction, bind: Binder) -> Inline:
    """Product of floats."""
    return elementwise(ins, bind, "({0}*{1})")


@instruction("fma", "mad", section="9.7.3.6, 9.7.4.4 fma")
def fma(ins: Instruction, bind: Binder) -> Inline:
    """a * b + c, rounded once."""
    kind = ins.modifiers[-1]
    if kind in ("f32", "f32x2"):
        return elementwise(ins, bind, "fma32({0},{1},{2})")
    if kind == "f64":
        return elementwise(ins, bind, "fma64({0},{1},{2})")
    relu = "relu" in ins.modifiers
    if kind in ("f16", "f16x2"):
        code = "({0}.astype(f64)*{1}.astype(f64)+{2}.astype(f64)).astype(f16)"
        return elementwise(ins, bind, f"np.maximum({code},f16(0))" if relu else code)
    code = "fma32_odd({0},{1},{2})"
    return elementwise(ins, bind, f"np.maximum({code},f32(0))" if relu else code)


@instruction("neg", section="9.7.1.11, 9.7.3.10 neg")
def neg(ins: Instruction, bind: Binder) -> Inline:
    """Negation; of a float it flips the sign bit, NaN included."""
    return elementwise(ins, bind, "(-{0})") if not _integer(ins) else _unary_integer(ins, bind, "(-{0})")


@instruction("abs", section="9.7.1.10, 9.7.3.9 abs")
def absolute(ins: Instruction, bind: Binder) -> Inline:
    """Absolute value."""
    return (
        elementwise(ins, bind, "np.abs({0})")
        if not _integer(ins)
        else _unary_integer(ins, bind, "np.abs({0})")
    )


def _integer(ins: Instruction) -> bool:
    return ins.modifiers[-1][0] in "us"


def _unary_integer(ins: Instruction, bind: Binder, template: str) -> Inline:
    kind = ins.modifiers[-1]
    return Inline(template.format(bind.value(ins.operands[1], kind).code), kind, ins.operands[0])


@helper
def extreme(a: Array, b: Array, largest: bool, propagate: bool) -> Array:
    """`max`/`min` of floats: a NaN loses unless `.NaN`; +0 is larger than -0."""
    pick = np.fmax if largest else np.fmin
    result: Array = pick(a, b)
    zeros = (a == 0) & (b == 0)
    if zeros.any():
        negative = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
        result = np.where(zeros, np.where(negative, a.dtype.type(-0.0), a.dtype.type(0)), result)
    if propagate:
        result = np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)
    return result


@instruction("max", "min", section="9.7.1.8, 9.7.3.11 min, max")
def max_min(ins: Instruction, bind: Binder) -> Inline:
    """Larger or smaller of two (or three) values."""
    kind = ins.modifiers[-1]
    largest = ins.op == "max"
    if kind[0] in "us":
        a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
        if kind.endswith("x2"):
            half = "u16" if kind == "u16x2" else "i16"
            return Inline(
                f"np.{ins.op}imum({a}.view({half}),{b}.view({half})).view(u32)", kind, ins.operands[0]
            )
        if "relu" in ins.modifiers:
            return Inline(f"np.maximum(np.{ins.op}imum({a},{b}),0)", kind, ins.operands[0])
        return Inline(f"np.{ins.op}imum({a},{b})", kind, ins.operands[0])
    if "xorsign" in ins.modifiers:
        raise UnknownInstructionError("xorsign")
    nan = "NaN" in ins.modifiers
    template = f"extreme({{0}},{{1}},{largest},{nan})"
    if len(ins.operands) == 4:
        template = f"extreme({template},{{2}},{largest},{nan})"
    return elementwise(ins, bind, template)


@instruction("div", section="9.7.1.9, 9.7.3.8 div")
def div(ins: Instruction, bind: Binder) -> Inline:
    """Quotient. `.approx` and `.full` give the correctly rounded result, which is within their bounds."""
    if ins.modifiers[-1][0] in "us":
        return integer_division(ins, bind)
    return elementwise(ins, bind, "divide_approximately({0},{1})" if ins.has("approx") else "({0}/{1})")


def _approximate(ins: Instruction, bind: Binder, template: str) -> Inline:
    """A unary function that is computed in float64 and rounded once."""
    kind = ins.modifiers[-1]
    if kind == "f64":
        return elementwise(ins, bind, template.replace("_64", ""))
    if kind in ("f16", "f16x2"):
        return elementwise(ins, bind, template.replace("_64", ".astype(f64)") + ".astype(f16)")
    return elementwise(ins, bind, template.replace("_64", ".astype(f64)") + ".astype(f32)")


@instruction("ex2", section="9.7.3.21, 9.7.4.10 ex2")
def ex2(ins: Instruction, bind: Binder) -> Inline:
    """2 to a power; hardware's `.approx` differs from this by at most 2 ulp."""
    return _approximate(ins, bind, "np.exp2({0}_64)")


@instruction("lg2", section="9.7.3.20 lg2")
def lg2(ins: Instruction, bind: Binder) -> Inline:
    """Binary logarithm; hardware's `.approx` has an absolute error of up to 2**-22."""
    return _approximate(ins, bind, "np.log2({0}_64)")


@instruction("rcp", section="9.7.3.13 rcp")
def rcp(ins: Instruction, bind: Binder) -> Inline:
    """Reciprocal."""
    return _approximate(ins, bind, "(1/{0}_64)")


@instruction("sqrt", section="9.7.3.15 sqrt")
def sqrt(ins: Instruction, bind: Binder) -> Inline:
    """Square root."""
    return _approximate(ins, bind, "np.sqrt({0}_64)")


@instruction("rsqrt", section="9.7.3.16 rsqrt")
def rsqrt(ins: Instruction, bind: Binder) -> Inline:
    """Reciprocal square root."""
    return _approximate(ins, bind, "(1/np.sqrt({0}_64))")


@instruction("sin", section="9.7.3.18 sin")
def sin(ins: Instruction, bind: Binder) -> Inline:
    """Sine."""
    return _approximate(ins, bind, "np.sin({0}_64)")


@instruction("cos", section="9.7.3.19 cos")
def cos(ins: Instruction, bind: Binder) -> Inline:
    """Cosine."""
    return _approximate(ins, bind, "np.cos({0}_64)")


@instruction("tanh", section="9.7.3.22 tanh")
def tanh(ins: Instruction, bind: Binder) -> Inline:
    """Hyperbolic tangent."""
    return _approximate(ins, bind, "np.tanh({0}_64)")


@instruction("copysign", section="9.7.3.2 copysign")
def copysign(ins: Instruction, bind: Binder) -> Inline:
    """The magnitude of b with the sign of a."""
    kind = ins.modifiers[-1]
    a, b = (bind.value(o, kind).code for o in ins.operands[1:3])
    return Inline(f"np.copysign({b},{a})", kind, ins.operands[0])


@instruction("testp", section="9.7.3.1 testp")
def testp(ins: Instruction, bind: Binder) -> Inline:
    """A property of a float."""
    kind = ins.modifiers[-1]
    if not is_float(kind):
        raise UnknownInstructionError(kind)
    a = bind.value(ins.operands[1], kind).code
    tiny = f"np.finfo({a}.dtype).tiny"
    tests = {
        "finite": f"np.isfinite({a})",
        "infinite": f"np.isinf({a})",
        "number": f"~isnan({a})",
        "notanumber": f"isnan({a})",
        "normal": f"(np.isfinite({a})&(np.abs({a})>={tiny}))",
        "subnormal": f"((np.abs({a})<{tiny})&({a}!=0))",
    }
    return Inline(tests[ins.modifiers[0]], "pred", ins.operands[0])
