"""Recorded launches of scalar and warp-wide instructions: each thread applies one to its own operands."""

from __future__ import annotations

import re

import numpy as np

from tests.emu.gpu_case import Case
from tests.emu.small_kernels import kernel

COUNT = 4096
EDGES = (0, 1, 2, 31, 32, 33, 63, 64, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFF, 0x8000, 0x7FFF)
FLOAT_EDGES = (
    0x0,
    0x80000000,
    0x3F800000,
    0xBF800000,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0xFFC12345,
    0x7F800001,
    0x1,
    0x80000001,
    0x7FFFFF,
    0x807FFFFF,
    0x800000,
    0x80800000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x33800000,
    0x4B000000,
    0x4F000000,
    0xCF000000,
    0x477FE000,
    0x477FF000,
    0x33000000,
    0x38800000,
    0x387FFFFF,
)

BODY = """
  ld.param.u64 %rd1, [operands];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r1, %r1, 128, %r2;
  mad.wide.u32 %rd3, %r1, 24, %rd1;
  mad.wide.u32 %rd4, %r1, 8, %rd2;
  ld.global.u64 %rd5, [%rd3];
  ld.global.u64 %rd6, [%rd3+8];
  ld.global.u64 %rd7, [%rd3+16];
  cvt.u32.u64 %r4, %rd5;
  cvt.u32.u64 %r5, %rd6;
  cvt.u32.u64 %r6, %rd7;
  mov.b32 %f1, %r4;
  mov.b32 %f2, %r5;
  mov.b32 %f3, %r6;
  cvt.u16.u32 %h1, %r4;
  cvt.u16.u32 %h2, %r5;
  and.b32 %r7, %r6, 1;
  setp.ne.u32 %p1, %r7, 0;
  and.b32 %r7, %r6, 2;
  setp.ne.u32 %p2, %r7, 0;
  mov.u64 %rd9, 0;
  {text}
  {close}
  st.global.u64 [%rd4], %rd9;"""
"""Operands: %rd5-7, %r4-6 and %f1-3 (their low halves), %h1-2, %p1-2. Result: %rd9, or %r3, %f4, %h3, %p3."""

CLOSE = {
    "%rd9": "",
    "%r3": "cvt.u64.u32 %rd9, %r3;",
    "%f4": "mov.b32 %r3, %f4; cvt.u64.u32 %rd9, %r3;",
    "%h3": "cvt.u64.u16 %rd9, %h3;",
    "%p3": "selp.u64 %rd9, 1, 0, %p3;",
}

INTEGER = """
add.s32 %r3, %r4, %r5; | sub.s32 %r3, %r4, %r5; | mul.lo.s32 %r3, %r4, %r5; | mul.hi.s32 %r3, %r4, %r5;
mul.hi.u32 %r3, %r4, %r5; | mad.lo.s32 %r3, %r4, %r5, %r6; | mul.wide.s32 %rd9, %r4, %r5;
mul.wide.u32 %rd9, %r4, %r5; | mul.lo.s64 %rd9, %rd5, %rd6; | mul.lo.s16 %h3, %h1, %h2;
mul.wide.u16 %r3, %h1, %h2; | add.s64 %rd9, %rd5, %rd6; | sub.s64 %rd9, %rd5, %rd6;
mad.lo.s64 %rd9, %rd5, %rd6, %rd7; | max.s32 %r3, %r4, %r5; | max.u32 %r3, %r4, %r5;
min.s32 %r3, %r4, %r5; | min.u32 %r3, %r4, %r5; | neg.s32 %r3, %r4; | abs.s32 %r3, %r4;
and.b16 %h3, %h1, %h2; | and.b32 %r3, %r4, %r5; | and.b64 %rd9, %rd5, %rd6; | and.pred %p3, %p1, %p2;
or.pred %p3, %p1, %p2; | xor.pred %p3, %p1, %p2; | not.pred %p3, %p1; | mov.pred %p3, %p1;
or.b32 %r3, %r4, %r5; | or.b64 %rd9, %rd5, %rd6; | xor.b32 %r3, %r4, %r5; | xor.b64 %rd9, %rd5, %rd6;
not.b32 %r3, %r4; | bfi.b32 %r3, %r4, %r5, 1, 31; | bfi.b32 %r3, %r4, %r5, %r6, %r7;
bfe.u32 %r3, %r4, %r5, %r6; | bfe.s32 %r3, %r4, %r5, %r6; | clz.b32 %r3, %r4; | popc.b32 %r3, %r4;
brev.b32 %r3, %r4; | bfind.u32 %r3, %r4; | bfind.shiftamt.u32 %r3, %r4; | prmt.b32 %r3, %r4, %r5, %r6;
prmt.b32.ecl %r3, %r4, %r5, %r6; | add.sat.s32 %r3, %r4, %r5; | lop3.b32 %r3, %r4, %r5, %r6, 0xE8;
shf.l.wrap.b32 %r3, %r4, %r5, %r6; | shf.r.clamp.b32 %r3, %r4, %r5, %r6; | selp.b32 %r3, %r4, %r5, %p1;
selp.f32 %f4, %f1, %f2, %p1; | selp.s32 %r3, %r4, %r5, %p1; | selp.u16 %h3, %h1, %h2, %p1;
selp.u32 %r3, %r4, %r5, %p1; | cvt.s64.s32 %rd9, %r4; | cvt.u16.u32 %h3, %r4; | cvt.u32.u16 %r3, %h1;
cvt.u32.u64 %r3, %rd5; | cvt.u64.u32 %rd9, %r4; | cvt.rn.f32.s32 %f4, %r4; | cvt.rn.f32.u32 %f4, %r4;
mov.b32 %r3, %r4; | mov.f32 %f4, %f1; | mov.u16 %h3, %h1; | setp.eq.b16 %p3, %h1, %h2;
setp.eq.b32 %p3, %r4, %r5; | setp.eq.s16 %p3, %h1, %h2; | setp.eq.s32 %p3, %r4, %r5;
setp.eq.s64 %p3, %rd5, %rd6; | setp.ge.s32 %p3, %r4, %r5; | setp.ge.u32 %p3, %r4, %r5;
setp.gt.s32 %p3, %r4, %r5; | setp.gt.s64 %p3, %rd5, %rd6; | setp.gt.u32 %p3, %r4, %r5;
setp.le.s32 %p3, %r4, %r5; | setp.le.s64 %p3, %rd5, %rd6; | setp.lt.s32 %p3, %r4, %r5;
setp.lt.u32 %p3, %r4, %r5; | setp.ne.b32 %p3, %r4, %r5; | setp.ne.s16 %p3, %h1, %h2;
setp.ne.s32 %p3, %r4, %r5; | setp.ne.s64 %p3, %rd5, %rd6; | mov.b64 %rd9, {%r4, %r5};
mov.b32 {%h3, %h4}, %r4;
"""
SHIFTS = """
shl.b32 %r3, %r4, %r5; | shl.b64 %rd9, %rd5, %r5; | shr.s32 %r3, %r4, %r5; | shr.u32 %r3, %r4, %r5;
shr.u64 %rd9, %rd5, %r5; | shr.s64 %rd9, %rd5, %r5; | shr.u16 %h3, %h1, %r5; | shl.b16 %h3, %h1, %r5;
"""
DIVISIONS = (
    "div.s32 %r3, %r4, %r5; | div.u32 %r3, %r4, %r5; | rem.s32 %r3, %r4, %r5; | rem.u32 %r3, %r4, %r5;"
)
FLOAT = """
add.f32 %f4, %f1, %f2; | sub.f32 %f4, %f1, %f2; | mul.f32 %f4, %f1, %f2; | fma.rn.f32 %f4, %f1, %f2, %f3;
neg.f32 %f4, %f1; | add.ftz.f32 %f4, %f1, %f2; | mul.ftz.f32 %f4, %f1, %f2;
fma.rn.ftz.f32 %f4, %f1, %f2, %f3; | abs.f32 %f4, %f1; | sub.ftz.f32 %f4, %f1, %f2;
add.rz.f32 %f4, %f1, %f2; | mul.rz.f32 %f4, %f1, %f2; | fma.rz.f32 %f4, %f1, %f2, %f3;
max.f32 %f4, %f1, %f2; | min.f32 %f4, %f1, %f2; | max.ftz.f32 %f4, %f1, %f2; | min.ftz.f32 %f4, %f1, %f2;
max.NaN.f32 %f4, %f1, %f2; | neg.ftz.f32 %f4, %f1; | setp.eq.f32 %p3, %f1, %f2;
setp.lt.f32 %p3, %f1, %f2; | setp.gt.f32 %p3, %f1, %f2; | setp.neu.f32 %p3, %f1, %f2;
setp.equ.f32 %p3, %f1, %f2; | setp.nan.f32 %p3, %f1, %f2; | setp.ne.f32 %p3, %f1, %f2;
setp.lt.ftz.f32 %p3, %f1, %f2; | cvt.rn.bf16x2.f32 %r3, %f1, %f2; | cvt.rz.bf16x2.f32 %r3, %f1, %f2;
cvt.rn.relu.bf16x2.f32 %r3, %f1, %f2; | cvt.rn.f16x2.f32 %r3, %f1, %f2; | cvt.rz.f16x2.f32 %r3, %f1, %f2;
cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f2; | cvt.rn.bf16.f32 %h3, %f1;
cvt.rn.satfinite.e5m2x2.f32 %h3, %f1, %f2; | cvt.rn.f16.f32 %h3, %f1; | cvt.f32.f16 %f4, %h1;
cvt.rzi.s32.f32 %r3, %f1; | cvt.rni.s32.f32 %r3, %f1; | cvt.rzi.u32.f32 %r3, %f1;
cvt.rni.f32.f32 %f4, %f1; | cvt.f32.bf16 %f4, %h1; | cvt.rn.f16x2.e4m3x2 %r3, %h1;
fma.rn.bf16x2 %r3, %r4, %r5, %r6; | mul.bf16x2 %r3, %r4, %r5; | add.f16x2 %r3, %r4, %r5;
mul.f16x2 %r3, %r4, %r5; | fma.rn.f16x2 %r3, %r4, %r5, %r6; | max.bf16x2 %r3, %r4, %r5;
min.f16x2 %r3, %r4, %r5; | div.rn.f32 %f4, %f1, %f2; | sqrt.rn.f32 %f4, %f1; | rcp.rn.f32 %f4, %f1;
testp.finite.f32 %p3, %f1; | copysign.f32 %f4, %f1, %f2;
"""
APPROXIMATE = {
    "ex2.approx.ftz.f32 %f4, %f1;": (2, 0.0),
    "ex2.approx.f32 %f4, %f1;": (2, 0.0),
    "lg2.approx.ftz.f32 %f4, %f1;": (2, 2.0**-22),
    "lg2.approx.f32 %f4, %f1;": (2, 2.0**-22),
    "rcp.approx.ftz.f32 %f4, %f1;": (1, 0.0),
    "rcp.approx.f32 %f4, %f1;": (1, 0.0),
    "div.approx.f32 %f4, %f1, %f2;": (2, 0.0),
    "div.approx.ftz.f32 %f4, %f1, %f2;": (2, 0.0),
    "rsqrt.approx.ftz.f32 %f4, %f1;": (2, 0.0),
    "sqrt.approx.ftz.f32 %f4, %f1;": (2, 0.0),
    "tanh.approx.f32 %f4, %f1;": (2**13, 0.0),
}
"""How far the emulator's rounded results may be from a GPU's: ulps, or an absolute difference."""

WARP = """
shfl.sync.bfly.b32 %r3|%p3, %r4, 16, 31, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.bfly.b32 %r3|%p3, %r4, 3, 0x1807, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.bfly.b32 %r3|%p3, %r4, %r5, %r6, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.idx.b32 %r3|%p3, %r4, %r5, 31, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.idx.b32 %r3|%p3, %r4, %r5, %r6, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.up.b32 %r3|%p3, %r4, 1, 0, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.up.b32 %r3|%p3, %r4, %r5, %r6, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
shfl.sync.down.b32 %r3|%p3, %r4, %r5, %r6, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
vote.sync.all.pred %p3, %p1, -1; | vote.sync.any.pred %p3, %p1, -1; | vote.sync.ballot.b32 %r3, %p1, -1;
vote.sync.uni.pred %p3, %p1, -1; | match.any.sync.b32 %r3, %r7, -1; | redux.sync.add.s32 %r3, %r4, -1;
redux.sync.max.u32 %r3, %r4, -1; | redux.sync.max.s32 %r3, %r4, -1;
redux.sync.min.u32 %r3, %r4, -1; | redux.sync.min.s32 %r3, %r4, -1; | redux.sync.or.b32 %r3, %r4, -1;
elect.sync %r3|%p3, -1; selp.u32 %r8, 1, 0, %p3; mov.b64 %rd9, {%r3, %r8};
activemask.b32 %r3;
"""


CARRY = """
add.cc.u32 %r8, %r4, %r5; addc.cc.u32 %r9, %r6, %r7; mov.b64 %rd9, {%r8, %r9};
sub.cc.u32 %r8, %r4, %r5; subc.u32 %r9, %r6, %r7; mov.b64 %rd9, {%r8, %r9};
mad.lo.cc.u32 %r8, %r4, %r5, %r6; madc.hi.cc.u32 %r9, %r4, %r5, %r6; mov.b64 %rd9, {%r8, %r9};
"""


def forms(block: str) -> list[str]:
    """The instruction texts of a block above."""
    out: list[str] = []
    for line in block.strip().splitlines():
        out += [line] if "|%p" in line or ".cc" in line else [part for part in line.split(" | ") if part]
    return out


def _words(rng: np.random.Generator, edges: tuple[int, ...]) -> np.ndarray:
    """(COUNT, 3) 64-bit operands: random bits; an eighth have edge values in either half."""
    words = rng.integers(0, 2**32, (COUNT, 3, 2), dtype=np.uint32)
    chosen = rng.random(words.shape) < 0.125
    words[chosen] = rng.choice(np.array(edges, np.uint32), int(chosen.sum()))
    words[::16, 1] = words[::16, 0]
    return words.view(np.uint64).reshape(COUNT, 3)


def _floats(rng: np.random.Generator) -> np.ndarray:
    """(COUNT, 3) operands whose low halves are fp32: edges, random bits, and values of moderate size."""
    words = _words(rng, FLOAT_EDGES).view(np.uint32).reshape(COUNT, 3, 2)
    moderate = rng.standard_normal((COUNT // 2, 3)) * np.exp2(rng.integers(-20, 20, (COUNT // 2, 3)))
    words[: COUNT // 2, :, 0] = moderate.astype(np.float32).view(np.uint32)
    pairs = np.stack(np.meshgrid(FLOAT_EDGES, FLOAT_EDGES), -1).reshape(-1, 2).astype(np.uint32)
    words[-len(pairs) :, :2, 0] = pairs
    return words.view(np.uint64).reshape(COUNT, 3)


def _result(text: str) -> str:
    """The register with the result."""
    if "%rd9" in text:
        return "%rd9"
    target = text.split(None, 1)[1].lstrip("{")
    return next(name for name in CLOSE if target.startswith(name))


def _case(text: str, operands: np.ndarray, ulps: int = 0) -> Case:
    name = text.split(";")[0].strip()
    close = CLOSE[_result(text)]
    ptx = kernel(BODY.replace("{text}", text).replace("{close}", close), (".u64 operands", ".u64 out"))
    args: list[str | int] = ["in0", "out"]
    shape = ((COUNT,), np.uint64)
    case = Case(name, ptx, [operands], shape, args, grid=COUNT // 128, dynamic_shared=0, ulps=ulps)
    packed = re.match(r"(?:add|mul|fma|min|max)\.(?:rn\.)?(b?f16x2) ", name)
    case.floats = packed[1] if packed else "f32" if close.startswith("mov.b32 %r3, %f4") else ""
    return case


def scalar_cases() -> list[Case]:
    """Every form above on COUNT operand triples."""
    rng = np.random.default_rng(5)
    words = _words(rng, EDGES)
    amounts = words.copy()
    amounts.view(np.uint32).reshape(COUNT, 3, 2)[::2, 1, 0] %= 70
    divisors = words.copy()
    low = divisors.view(np.uint32).reshape(COUNT, 3, 2)[:, :2, 0]
    low[::3] &= 0xFFFF
    low[:, 1] += low[:, 1] == 0
    low[(low == (0x80000000, 0xFFFFFFFF)).all(axis=1)] = 1
    floats = _floats(rng)
    lanes = words.copy()
    lanes.view(np.uint32).reshape(COUNT, 3, 2)[::2, 1, 0] %= 40
    given = {INTEGER: words, CARRY: words, SHIFTS: amounts, DIVISIONS: divisors, FLOAT: floats, WARP: lanes}
    cases = [_case(text, operands) for block, operands in given.items() for text in forms(block)]
    for text, (ulps, absolute) in APPROXIMATE.items():
        cases.append(_case(text, _approximate(rng, text, floats), ulps))
        cases[-1].absolute = absolute
    cases += [_case(text, _uniform(lanes)) for text in forms(WARP) if text.startswith("vote")]
    for case in cases[-4:]:
        case.name += " uniform"
    return cases


def _uniform(lanes: np.ndarray) -> np.ndarray:
    """Operands whose last word is equal in each warp."""
    out = lanes.copy()
    out[:, 2] = np.repeat(out[::32, 2], 32)
    return out


def _approximate(rng: np.random.Generator, text: str, floats: np.ndarray) -> np.ndarray:
    out = floats.copy()
    low = out.view(np.uint32).reshape(COUNT, 3, 2)[:, 0, 0]
    if text.startswith("ex2"):
        low[: COUNT // 2] = rng.uniform(-150, 130, COUNT // 2).astype(np.float32).view(np.uint32)
    if text.startswith(("lg2", "rsqrt", "sqrt")):
        low[: COUNT // 2] &= 0x7FFFFFFF
    return out
