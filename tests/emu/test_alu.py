"""Arithmetic, logic, comparison and conversion instructions against expectations written with Python integers
and fractions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.emu.small_kernels import kernel, run

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
LETTER = {1: "h", 2: "h", 4: "r", 8: "rd"}
INTEGERS = [
    0, 1, 2, 3, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x12345678, 0x7FFFFFFF,
    0x80000000, 0xFFFFFFFF, 0xDEADBEEF, 0x0F0F0F0F, 0x123456789ABCDEF0, 0x8000000000000000,
    0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 5, 100, 0xAAAAAAAA, 0x55555555, 64, 63, 17, 255,
]  # fmt: skip
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 1.5, 3.25, 1e-3, -7.75, 1e10, -1e10, 3e38, 1e-40, -1e-40, math.inf, -math.inf,
    math.nan, 0.1, 0.2, 1 / 3, 123456.789, 2.0**-126, 2.0**24, 2.0**24 + 2, 0.5, 0.75, 2.5, -2.5,
    65504.0, 65520.0, 448.0, 464.0, 1e-7,
]  # fmt: skip


def size_of(kind: str) -> int:
    """Bytes of a PTX type name such as `u32` or `f16x2`."""
    if kind.endswith("x2"):
        return 2 * size_of(kind[:-2]) if not kind.startswith(("e4m3", "e5m2", "ue8m0")) else 2
    return SIZES[kind.lstrip("usbf")]


def execute(text: str, out: str, kinds: list[str], values: list[np.ndarray]) -> np.ndarray:
    """Run one instruction for 32 lanes: sources in %a, %b, %c..., the result in %d; bits as uint64."""
    loads, registers = "", ""
    params = [".u64 out"]
    for i, kind in enumerate(kinds):
        name, size = "abcd"[i] if i < 3 else "e", size_of(kind)
        register = f"%{'xyzw'[i]}"
        params.append(f".u64 in{i}")
        registers += f".reg .b{max(8 * size, 16)} {register};\n  "
        loads += (
            f"  ld.param.u64 %rd1, [in{i}];\n  add.u64 %rd1, %rd1, %rd0;\n  ld.global.b64 %rd2, [%rd1];\n"
        )
        loads += (
            f"  cvt.u{max(8 * size, 16)}.u64 {register}, %rd2;\n"
            if size < 8
            else f"  mov.b64 {register}, %rd2;\n"
        )
        del name
    if out == "pred":
        registers += ".reg .pred %d;"
        store = "  selp.u64 %rd3, 1, 0, %d;\n"
    else:
        size = max(size_of(out), 2)
        registers += f".reg .b{8 * size} %d;"
        store = f"  cvt.u64.u{8 * size} %rd3, %d;\n" if size < 8 else "  mov.b64 %rd3, %d;\n"
    body = f"""
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd0, %r0, 8;
{loads}
  {text}
{store}
  ld.param.u64 %rd4, [out];
  add.u64 %rd4, %rd4, %rd0;
  st.global.b64 [%rd4], %rd3;
"""
    result = np.zeros(32, np.uint64)
    run(kernel(body, params, registers=registers), [result, *values], block=32, dynamic_shared=0)
    return result


def bits_of(values: list[float], kind: str) -> np.ndarray:
    """Floats as bits of a scalar float type."""
    code = {"f32": ("<f", "<I"), "f64": ("<d", "<Q"), "f16": ("<e", "<H")}[kind]
    packed = []
    for v in values:
        try:
            packed.append(struct.unpack(code[1], struct.pack(code[0], v))[0])
        except OverflowError:
            packed.append(struct.unpack(code[1], struct.pack(code[0], math.copysign(math.inf, v)))[0])
    return np.array(packed, np.uint64)


def value_of(bits: int, kind: str) -> float:
    """A float from its bits."""
    code = {"f32": ("<f", "<I"), "f64": ("<d", "<Q"), "f16": ("<e", "<H")}[kind]
    return float(struct.unpack(code[0], struct.pack(code[1], int(bits)))[0])


def signed(value: int, bits: int) -> int:
    """Two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def integers(kind: str, shift: int) -> np.ndarray:
    """32 test values, rotated, cut to the type's width."""
    bits = 8 * size_of(kind)
    rotated = INTEGERS[shift:] + INTEGERS[:shift]
    return np.array([v & ((1 << bits) - 1) for v in rotated], np.uint64)


def as_kind(value: int, kind: str) -> int:
    """An unsigned pattern as the value of an integer type."""
    return signed(value, 8 * size_of(kind)) if kind[0] == "s" else int(value)


def truncated_division(a: int, b: int) -> int:
    """C division."""
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


INTEGER_CASES: list[tuple[str, str, list[str], Callable[..., int]]] = []
for _t in ("u16", "s16", "u32", "s32", "u64", "s64"):
    INTEGER_CASES += [
        (f"add.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a + b),
        (f"sub.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a - b),
        (f"mul.lo.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a * b),
        (f"mad.lo.{_t} %d, %x, %y, %z;", _t, [_t, _t, _t], lambda a, b, c: a * b + c),
        (f"max.{_t} %d, %x, %y;", _t, [_t, _t], max),
        (f"min.{_t} %d, %x, %y;", _t, [_t, _t], min),
        (f"mul.hi.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b, n=int(_t[1:]): (a * b) >> n),
        (f"setp.lt.{_t} %d, %x, %y;", "pred", [_t, _t], lambda a, b: int(a < b)),
        (f"setp.ge.{_t} %d, %x, %y;", "pred", [_t, _t], lambda a, b: int(a >= b)),
        (f"setp.eq.{_t} %d, %x, %y;", "pred", [_t, _t], lambda a, b: int(a == b)),
        (f"sad.{_t} %d, %x, %y, %z;", "u" + _t[1:], [_t, _t, "u" + _t[1:]], lambda a, b, c: c + abs(a - b)),
    ]
for _t in ("u16", "s16", "u32", "s32"):
    _w = _t[0] + str(2 * int(_t[1:]))
    INTEGER_CASES += [
        (f"mul.wide.{_t} %d, %x, %y;", _w, [_t, _t], lambda a, b: a * b),
        (f"mad.wide.{_t} %d, %x, %y, %z;", _w, [_t, _t, _w], lambda a, b, c: a * b + c),
    ]
for _t in ("b16", "b32", "b64"):
    INTEGER_CASES += [
        (f"and.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a & b),
        (f"or.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a | b),
        (f"xor.{_t} %d, %x, %y;", _t, [_t, _t], lambda a, b: a ^ b),
        (f"not.{_t} %d, %x;", _t, [_t], lambda a: ~a),
        (f"cnot.{_t} %d, %x;", _t, [_t], lambda a: int(a == 0)),
        (f"shl.{_t} %d, %x, %y;", _t, [_t, "u32"], lambda a, n: a << min(n, 64)),
    ]
for _t in ("u16", "s16", "u32", "s32", "u64", "s64"):
    INTEGER_CASES.append((f"shr.{_t} %d, %x, %y;", _t, [_t, "u32"], lambda a, n: a >> min(n, 64)))
for _t in ("s16", "s32", "s64"):
    INTEGER_CASES += [
        (f"neg.{_t} %d, %x;", _t, [_t], lambda a: -a),
        (f"abs.{_t} %d, %x;", _t, [_t], abs),
    ]
INTEGER_CASES += [
    ("shl.b32 %d, %x, 5;", "b32", ["b32"], lambda a: a << 5),
    ("shr.s32 %d, %x, 31;", "s32", ["s32"], lambda a: a >> 31),
    ("popc.b32 %d, %x;", "u32", ["b32"], lambda a: bin(a).count("1")),
    ("popc.b64 %d, %x;", "u32", ["b64"], lambda a: bin(a).count("1")),
    ("clz.b32 %d, %x;", "u32", ["b32"], lambda a: 32 - a.bit_length()),
    ("clz.b64 %d, %x;", "u32", ["b64"], lambda a: 64 - a.bit_length()),
    ("brev.b32 %d, %x;", "b32", ["b32"], lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64 %d, %x;", "b64", ["b64"], lambda a: int(f"{a:064b}"[::-1], 2)),
    ("bfind.u32 %d, %x;", "u32", ["u32"], lambda a: a.bit_length() - 1),
    ("bfind.s32 %d, %x;", "u32", ["s32"], lambda a: (a if a >= 0 else ~a).bit_length() - 1),
    ("bfind.u64 %d, %x;", "u32", ["u64"], lambda a: a.bit_length() - 1),
    ("bfind.shiftamt.u32 %d, %x;", "u32", ["u32"], lambda a: 32 - a.bit_length() if a else -1),
    ("bfe.u32 %d, %x, 4, 8;", "u32", ["u32"], lambda a: (a >> 4) & 255),
    ("bfe.s32 %d, %x, 28, 8;", "s32", ["s32"], lambda a: a >> 28),
    ("bfe.u64 %d, %x, 60, 3;", "u64", ["u64"], lambda a: (a >> 60) & 7),
    ("bfi.b32 %d, %x, %y, 8, 4;", "b32", ["b32", "b32"], lambda a, b: (b & ~0xF00) | ((a & 15) << 8)),
    ("bfi.b64 %d, %x, %y, 32, 32;", "b64", ["b64", "b64"], lambda a, b: (b & 0xFFFFFFFF) | (a << 32)),
    ("lop3.b32 %d, %x, %y, %z, 0xEA;", "b32", ["b32"] * 3, lambda a, b, c: (a & b) | c),
    ("lop3.b32 %d, %x, %y, %z, 0x96;", "b32", ["b32"] * 3, lambda a, b, c: a ^ b ^ c),
    ("shf.l.wrap.b32 %d, %x, %y, %z;", "b32", ["b32"] * 3, lambda a, b, n: ((b << 32 | a) << (n & 31)) >> 32),
    ("shf.r.clamp.b32 %d, %x, %y, %z;", "b32", ["b32"] * 3, lambda a, b, n: (b << 32 | a) >> min(n, 32)),
    ("prmt.b32 %d, %x, %y, 0x5410;", "b32", ["b32"] * 2, lambda a, b: (a & 0xFFFF) | ((b & 0xFFFF) << 16)),
    ("prmt.b32 %d, %x, %y, 0x0123;", "b32", ["b32"] * 2,
     lambda a, b: int.from_bytes(a.to_bytes(4, "little"), "big")),
    ("mul24.lo.u32 %d, %x, %y;", "u32", ["u32"] * 2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    ("bmsk.clamp.b32 %d, %x, %y;", "b32", ["u32"] * 2, lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32)),
    ("selp.b32 %d, %x, %y, 1;", "b32", ["b32"] * 2, lambda a, b: a),
    ("slct.u32.s32 %d, %x, %y, %z;", "u32", ["u32", "u32", "s32"], lambda a, b, c: a if c >= 0 else b),
    ("set.lt.u32.s32 %d, %x, %y;", "u32", ["s32"] * 2, lambda a, b: -1 if a < b else 0),
    ("cvt.s64.s32 %d, %x;", "s64", ["s32"], lambda a: a),
    ("cvt.u64.u32 %d, %x;", "u64", ["u32"], lambda a: a),
    ("cvt.u32.u64 %d, %x;", "u32", ["u64"], lambda a: a),
    ("cvt.s32.s8 %d, %x;", "s32", ["s16"], lambda a: signed(a, 8)),
    ("cvt.u16.u32 %d, %x;", "u16", ["u32"], lambda a: a),
    ("cvt.sat.u8.s32 %d, %x;", "u16", ["s32"], lambda a: min(max(a, 0), 255)),
    ("cvt.sat.s16.s32 %d, %x;", "s16", ["s32"], lambda a: min(max(a, -32768), 32767)),
    ("dp4a.u32.u32 %d, %x, %y, %z;", "u32", ["u32"] * 3,
     lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4))),
    ("fns.b32 %d, %x, 0, 2;", "b32", ["b32"],
     lambda a: ([i for i in range(32) if a >> i & 1][1:2] or [-1])[0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "out", "kinds", "expected"), INTEGER_CASES, ids=[c[0] for c in INTEGER_CASES]
)
def test_integer(text: str, out: str, kinds: list[str], expected: Callable[..., int]) -> None:
    shifts = (0, 5, 11)
    values = [integers(kind, shifts[i]) for i, kind in enumerate(kinds)]
    result = execute(text, out, kinds, values)
    mask = 1 if out == "pred" else (1 << max(8 * size_of(out), 16)) - 1
    for lane in range(32):
        given = [as_kind(int(v[lane]), kind) for v, kind in zip(values, kinds, strict=True)]
        assert int(result[lane]) & mask == expected(*given) & mask, (lane, given)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", ["div", "rem"])
def test_division(op: str, kind: str) -> None:
    a, b = integers(kind, 0), integers(kind, 9)
    b = np.where(b == 0, np.uint64(3), b)
    result = execute(f"{op}.{kind} %d, %x, %y;", kind, [kind, kind], [a, b])
    mask = (1 << 8 * size_of(kind)) - 1
    for lane in range(32):
        x, y = as_kind(int(a[lane]), kind), as_kind(int(b[lane]), kind)
        quotient = truncated_division(x, y)
        want = quotient if op == "div" else x - quotient * y
        assert int(result[lane]) & mask == want & mask, (lane, x, y)


def rounded(value: Fraction, kind: str = "f32") -> float:
    """The nearest even float of an exact value, without double rounding."""
    if value == 0:
        return 0.0
    digits, low, high = {
        "f32": (24, -149, 128),
        "f64": (53, -1074, 1024),
        "f16": (11, -24, 16),
        "bf16": (8, -133, 128),
    }[kind]
    exponent = math.frexp(float(value))[1] if abs(value) < Fraction(2) ** 1000 else 1000
    while abs(value) >= Fraction(2) ** exponent:
        exponent += 1
    while abs(value) < Fraction(2) ** (exponent - 1):
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits, low)
    count = value / unit
    floor = count.numerator // count.denominator
    rest = count - floor
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor & 1):
        floor += 1
    result = floor * unit
    return math.copysign(math.inf, value) if abs(result) >= Fraction(2) ** high else float(result)


def finite_lanes(*values: np.ndarray) -> list[int]:
    """Lanes where all float32 values are finite."""
    return [i for i in range(32) if all(math.isfinite(value_of(int(v[i]), "f32")) for v in values)]


FLOAT_CASES: list[tuple[str, int, Callable[..., Fraction]]] = [
    ("add.f32 %d, %x, %y;", 2, lambda a, b: a + b),
    ("sub.f32 %d, %x, %y;", 2, lambda a, b: a - b),
    ("mul.rn.f32 %d, %x, %y;", 2, lambda a, b: a * b),
    ("fma.rn.f32 %d, %x, %y, %z;", 3, lambda a, b, c: a * b + c),
]


@pytest.mark.parametrize(("text", "count", "expected"), FLOAT_CASES, ids=[c[0] for c in FLOAT_CASES])
def test_float32_is_rounded_once(text: str, count: int, expected: Callable[..., Fraction]) -> None:
    rng = np.random.default_rng(3)
    drawn = [
        (rng.standard_normal(32) * 2.0 ** rng.integers(-30, 30, 32)).astype(np.float32) for _ in range(count)
    ]
    tables = [
        [bits_of((FLOATS[7 * i :] + FLOATS)[:32], "f32") for i in range(count)],
        [d.view(np.uint32).astype(np.uint64) for d in drawn],
    ]
    for values in tables:
        result = execute(text, "f32", ["f32"] * count, values)
        for lane in finite_lanes(*values):
            exact = expected(*(Fraction(value_of(int(v[lane]), "f32")) for v in values))
            if exact != 0:
                assert value_of(int(result[lane]), "f32") == rounded(exact), lane


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(mode: str) -> None:
    rng = np.random.default_rng(4)
    values = [(rng.standard_normal(32) * 2.0 ** rng.integers(-8, 8, 32)).astype(np.float32) for _ in range(3)]
    bits = [v.view(np.uint32).astype(np.uint64) for v in values]
    for text, exact in (
        ("fma.{}.f32 %d, %x, %y, %z;", lambda a, b, c: a * b + c),
        ("add.{}.f32 %d, %x, %y;", lambda a, b, c: a + b),
        ("mul.{}.f32 %d, %x, %y;", lambda a, b, c: a * b),
    ):
        count = 3 if "fma" in text else 2
        result = execute(text.format(mode), "f32", ["f32"] * count, bits[:count])
        for lane in range(32):
            want = exact(*(Fraction(float(v[lane])) for v in values))
            got = Fraction(value_of(int(result[lane]), "f32"))
            step = abs(Fraction(float(np.spacing(np.float32(got)))))
            assert abs(got - want) <= step
            assert {"rm": got <= want, "rp": got >= want, "rz": abs(got) <= abs(want)}[mode], lane


def test_flush_to_zero() -> None:
    values = [bits_of(FLOATS, "f32"), bits_of([1.0] * 32, "f32")]
    result = execute("mul.ftz.f32 %d, %x, %y;", "f32", ["f32", "f32"], values)
    for lane, x in enumerate(FLOATS):
        if math.isfinite(x):
            want = math.copysign(0.0, x) if abs(np.float32(x)) < 2.0**-126 else float(np.float32(x))
            assert bits_of([value_of(int(result[lane]), "f32")], "f32")[0] == bits_of([want], "f32")[0]


@pytest.mark.parametrize("op", ["max", "min"])
def test_float_extremes_drop_nan(op: str) -> None:
    a, b = FLOATS, FLOATS[13:] + FLOATS[:13]
    result = execute(f"{op}.f32 %d, %x, %y;", "f32", ["f32", "f32"], [bits_of(a, "f32"), bits_of(b, "f32")])
    for lane in range(32):
        x, y = float(np.float32(a[lane])), float(np.float32(b[lane]))
        got = value_of(int(result[lane]), "f32")
        if math.isnan(x) or math.isnan(y):
            other = y if math.isnan(x) else x
            assert got == other or (math.isnan(got) and math.isnan(other))
        else:
            assert got == (max if op == "max" else min)(x, y)


@pytest.mark.parametrize(
    "compare", ["eq", "ne", "lt", "gt", "le", "ge", "equ", "neu", "ltu", "gtu", "leu", "geu", "num", "nan"]
)
def test_float_comparison(compare: str) -> None:
    a, b = FLOATS, [*FLOATS[:8], *FLOATS[15:16], *FLOATS[9:16], *FLOATS[15:], math.nan][:32]
    b = (b + FLOATS)[:32]
    result = execute(
        f"setp.{compare}.f32 %d, %x, %y;", "pred", ["f32", "f32"], [bits_of(a, "f32"), bits_of(b, "f32")]
    )
    plain = compare[:-1] if compare.endswith("u") and compare != "nu" else compare
    operators: dict[str, Callable[[float, float], bool]] = {
        "eq": lambda x, y: x == y, "ne": lambda x, y: x != y,
        "lt": lambda x, y: x < y, "gt": lambda x, y: x > y,
        "le": lambda x, y: x <= y, "ge": lambda x, y: x >= y,
    }  # fmt: skip
    for lane in range(32):
        x, y = np.float32(a[lane]), np.float32(b[lane])
        unordered = bool(np.isnan(x) or np.isnan(y))
        if compare in ("num", "nan"):
            want = unordered if compare == "nan" else not unordered
        elif unordered:
            want = compare.endswith("u")
        else:
            want = bool(operators[plain](x, y))
        assert int(result[lane]) == int(want), (lane, x, y)


@pytest.mark.parametrize(
    ("text", "function", "ulps"),
    [
        ("ex2.approx.f32 %d, %x;", lambda x: 2.0**x if abs(x) < 120 else None, 1),
        ("lg2.approx.f32 %d, %x;", lambda x: math.log2(x) if x > 0 else None, 1),
        ("rcp.rn.f32 %d, %x;", lambda x: 1 / x if x else None, 0.5001),
        ("sqrt.rn.f32 %d, %x;", lambda x: math.sqrt(x) if x >= 0 else None, 0.5001),
        ("rsqrt.approx.f32 %d, %x;", lambda x: 1 / math.sqrt(x) if x > 0 else None, 1),
        ("tanh.approx.f32 %d, %x;", math.tanh, 1),
        ("sin.approx.f32 %d, %x;", lambda x: math.sin(x) if abs(x) < 100 else None, 2),
        ("cos.approx.f32 %d, %x;", lambda x: math.cos(x) if abs(x) < 100 else None, 2),
    ],
)
def test_special_functions(text: str, function: Callable[[float], float | None], ulps: float) -> None:
    values = [v for v in FLOATS if math.isfinite(v)]
    values = (values * 2)[:32]
    result = execute(text, "f32", ["f32"], [bits_of(values, "f32")])
    for lane, v in enumerate(values):
        want = function(float(np.float32(v)))
        if want is not None and 2.0**-120 < abs(want) < 2.0**127:
            assert abs(value_of(int(result[lane]), "f32") - want) <= ulps * float(
                np.spacing(np.float32(abs(want)))
            ), v


def test_float_to_integer_clamps() -> None:
    for kind, mode, function in (
        ("s32", "rzi", math.trunc),
        ("s32", "rni", round),
        ("u32", "rmi", math.floor),
        ("s64", "rpi", math.ceil),
    ):
        result = execute(f"cvt.{mode}.{kind}.f32 %d, %x;", kind, ["f32"], [bits_of(FLOATS, "f32")])
        bits = 8 * size_of(kind)
        low, high = (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        for lane, v in enumerate(FLOATS):
            if math.isnan(v):
                continue
            x = float(np.float32(v))
            want = (high if x > 0 else low) if math.isinf(x) else min(max(function(x), low), high)
            assert as_kind(int(result[lane]) & ((1 << bits) - 1), kind) == want, (kind, mode, v)


def test_integer_to_float_rounds() -> None:
    values = integers("s64", 0)
    for mode in ("rn", "rz"):
        result = execute(f"cvt.{mode}.f32.s64 %d, %x;", "f32", ["s64"], [values])
        for lane in range(32):
            exact = Fraction(signed(int(values[lane]), 64))
            got = Fraction(value_of(int(result[lane]), "f32"))
            if mode == "rn":
                assert float(got) == rounded(exact)
            else:
                assert abs(got) <= abs(exact) and abs(exact - got) <= abs(
                    Fraction(float(np.spacing(np.float32(got))))
                )


@pytest.mark.parametrize(("kind", "to"), [("f16", "f16"), ("bf16", "bf16")])
def test_narrowing_rounds_to_nearest_even(kind: str, to: str) -> None:
    values = bits_of(FLOATS, "f32")
    result = execute(f"cvt.rn.{to}.f32 %d, %x;", "b16", ["f32"], [values])
    for lane in range(32):
        x = value_of(int(values[lane]), "f32")
        if math.isfinite(x):
            bits = int(result[lane]) & 0xFFFF
            got = value_of(bits, "f16") if kind == "f16" else value_of(bits << 16, "f32")
            want = rounded(Fraction(x), kind)
            assert got == want, x


def test_pairs_put_the_first_source_high() -> None:
    a, b = bits_of([1.5] * 32, "f32"), bits_of([-2.0] * 32, "f32")
    for kind, high, low in (("bf16x2", 0x3FC0, 0xC000), ("f16x2", 0x3E00, 0xC000)):
        result = execute(f"cvt.rn.{kind}.f32 %d, %x, %y;", "b32", ["f32", "f32"], [a, b])
        assert int(result[0]) == high << 16 | low
    result = execute("cvt.rn.satfinite.e4m3x2.f32 %d, %x, %y;", "b16", ["f32", "f32"], [a, b])
    assert int(result[0]) & 0xFFFF == 0x3C << 8 | 0xC0
    result = execute("cvt.rn.f16x2.e4m3x2 %d, %x;", "b32", ["b16"], [np.full(32, 0x3CC0, np.uint64)])
    assert int(result[0]) == 0x3E00 << 16 | 0xC000


def test_packed_arithmetic() -> None:
    pair = np.full(32, 0x3F80_0000 << 32 | 0x4000_0000, np.uint64)
    result = execute("add.f32x2 %d, %x, %y;", "b64", ["b64", "b64"], [pair, pair])
    assert int(result[0]) == 0x4000_0000 << 32 | 0x4080_0000
    result = execute("fma.rn.f32x2 %d, %x, %y, %z;", "b64", ["b64"] * 3, [pair] * 3)
    assert int(result[0]) == 0x4000_0000 << 32 | 0x40C0_0000
    half = np.full(32, 0x3C00_4000, np.uint64)
    assert int(execute("mul.f16x2 %d, %x, %y;", "b32", ["b32"] * 2, [half] * 2)[0]) == 0x3C00_4400
    brain = np.full(32, 0x3F80_4000, np.uint64)
    assert int(execute("mul.bf16x2 %d, %x, %y;", "b32", ["b32"] * 2, [brain] * 2)[0]) == 0x3F80_4080
    assert (
        int(
            execute("fma.rn.bf16 %d, %x, %y, %z;", "b16", ["b16"] * 3, [np.full(32, 0x4000, np.uint64)] * 3)[
                0
            ]
        )
        == 0x40C0
    )


def test_copysign_and_testp() -> None:
    a, b = bits_of([-1.0] * 32, "f32"), bits_of(FLOATS, "f32")
    result = execute("copysign.f32 %d, %x, %y;", "f32", ["f32", "f32"], [a, b])
    assert all(
        int(r) >> 31 == 1 and int(r) & 0x7FFFFFFF == int(v) & 0x7FFFFFFF
        for r, v in zip(result, b, strict=True)
    )
    for name, test in (("finite", math.isfinite), ("infinite", math.isinf), ("notanumber", math.isnan)):
        result = execute(f"testp.{name}.f32 %d, %x;", "pred", ["f32"], [b])
        assert [bool(r) for r in result] == [test(float(np.float32(v))) for v in FLOATS]


def test_pack_and_unpack() -> None:
    value = integers("b64", 14)
    text = "{ .reg .b32 lo, hi; mov.b64 {lo, hi}, %x; mov.b64 %d, {hi, lo}; }"
    result = execute(text, "b64", ["b64"], [value])
    assert all(
        int(r) == (int(v) >> 32 | (int(v) & 0xFFFFFFFF) << 32) for r, v in zip(result, value, strict=True)
    )
    text = "{ .reg .b16 a0, a1, a2, a3; mov.b64 {a0, a1, a2, a3}, %x; mov.b64 %d, {a3, a2, a1, a0}; }"
    result = execute(text, "b64", ["b64"], [value])
    swapped = [
        int.from_bytes(struct.pack("<4H", *struct.unpack("<4H", struct.pack("<Q", int(v)))[::-1]), "little")
        for v in value
    ]
    assert [int(r) for r in result] == swapped


def test_set_predicate_pairs_and_combinations() -> None:
    a, b = integers("u32", 0), integers("u32", 3)
    text = (
        "{ .reg .pred p, q, s; setp.lt.u32 s, %x, 32; setp.lt.and.u32 p|q, %x, %y, s; "
        "selp.u32 %d, 1, 0, p; @q add.u32 %d, %d, 2; }"
    )
    result = execute(text, "u32", ["u32", "u32"], [a, b])
    for lane in range(32):
        less, small = int(a[lane]) < int(b[lane]), int(a[lane]) < 32
        assert int(result[lane]) == int(less and small) + 2 * int((not less) and small)


def test_unknown_forms_name_line_and_source() -> None:
    from mlagen.emu.interfaces import UnknownInstructionError

    body = "  .loc 1 77 3\n  frobnicate.b32 %r1, %r2;\n"
    text = kernel(body, []) + '\n.file 1 "wonder.cu"\n'
    with pytest.raises(UnknownInstructionError, match=r"frobnicate\.b32 \(PTX line \d+, wonder\.cu:77\)"):
        run(text, [], block=32)


def test_predicated_instructions_leave_other_lanes_alone() -> None:
    """A predicated instruction leaves the other lanes alone."""
    a = integers("u32", 0)
    text = "{ .reg .pred p; setp.lt.u32 p, %x, 32; mov.u32 %d, 9; @!p mov.u32 %d, %x; }"
    result = execute(text, "u32", ["u32"], [a])
    assert [int(r) for r in result] == [9 if int(v) < 32 else int(v) for v in a]
