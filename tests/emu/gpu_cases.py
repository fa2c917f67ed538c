"""Small kernels whose results on a GPU are recorded and must come out of the emulator bit for bit.

Inputs are deterministic, so that only digests of the outputs are kept. `record_gpu.py` runs the cases on a
GPU, `test_recorded.py` on the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlagen.emu.tensormap import ElementType, Fill, Swizzle
from tests.emu import test_mma_sync, test_tma, test_wgmma
from tests.emu.small_kernels import kernel


@dataclass
class Case:
    """One launch. args: "in0" (an input), "out" (the output), "map" (the tensor map, over in0) or a number,
    one per parameter.

    ulps: how far results may be from the recorded ones, in units of the last place of fp32; 0 asks for equal
    bits.
    """

    name: str
    ptx: str
    inputs: list[np.ndarray]
    output: tuple[tuple[int, ...], Any]
    args: list[str | int]
    block: int = 128
    grid: int = 1
    cluster: int = 1
    dynamic_shared: int = 65536
    map: dict[str, Any] = field(default_factory=dict)
    ulps: int = 0


def wgmma_cases() -> list[Case]:
    """Every form, then bf16 with widely spread exponents, subnormal and special operands."""
    out = []
    for form in test_wgmma.FORMS:
        out.append(_wgmma(f"wgmma {form}", form, test_wgmma.operands(form)))
    plain = test_wgmma.Form(64)
    for spread in (8, 20, 40):
        out.append(_wgmma(f"wgmma spread {spread}", plain, test_wgmma.operands(plain, spread, spread)))
    rng = np.random.default_rng(9)
    tiny = tuple(rng.integers(0, 0x100, (64, 16)).astype(np.uint16) for _ in range(2))
    large = (tiny[0], (rng.integers(0x7000, 0x7F00, (64, 16))).astype(np.uint16))
    any_bits = tuple(rng.integers(0, 0x10000, (64, 16)).astype(np.uint16) for _ in range(2))
    for name, pair in (("subnormal", tiny), ("subnormal times large", large), ("any bits", any_bits)):
        out.append(_wgmma(f"wgmma {name}", plain, pair))
    return out


def _wgmma(name: str, form: test_wgmma.Form, operands: Sequence[np.ndarray]) -> Case:
    image, a_desc, b_desc = test_wgmma.lay_out(form, operands[0], operands[1])
    ptx = kernel(test_wgmma.body(form, count=5), test_wgmma.PARAMS)
    fragments = test_wgmma.a_fragments(operands[0])
    args: list[str | int] = ["in0", "in1", "out", a_desc, b_desc]
    return Case(name, ptx, [image, fragments], ((128, form.n // 2), np.float32), args)


def mma_sync_cases() -> list[Case]:
    """Every kind of mma.sync with f32 accumulators."""
    out = []
    for kind, k in test_mma_sync.CASES:
        if kind.startswith("e"):
            continue  # not on sm_90
        rng = np.random.default_rng(k)
        a, b = test_mma_sync.operand(rng, kind, 16, k), test_mma_sync.operand(rng, kind, 8, k)
        c = test_mma_sync.c_registers(rng.standard_normal((16, 8)).astype(np.float32))
        registers = test_mma_sync.a_registers(a)
        ptx = test_mma_sync.text(k, f"f32.{kind}.{kind}.f32", registers.shape[1], 4)
        inputs = [registers, test_mma_sync.b_registers(b), c]
        args: list[str | int] = ["in0", "in1", "in2", "out"]
        out.append(Case(f"mma.sync {kind} k{k}", ptx, inputs, ((32, 4), np.float32), args, block=32))
    return out


def tma_cases() -> list[Case]:
    """Shared memory as a tensor-map load leaves it, for ranks, swizzles and boxes that leave the tensor."""
    out = []
    for rank in range(1, 6):
        for swizzle in (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128):
            extents, box, at = (20, 6, 5, 4, 3)[:rank], (8, 4, 4, 2, 2)[:rank], (16, 4, -1, 2, 1)[:rank]
            tensor = np.arange(np.prod((32, *extents[1:])), dtype=np.float32).reshape(*extents[:0:-1], 32)
            size = int(np.prod(box)) * 4
            ins = test_tma.LOAD.format(rank=rank) + f" [%r11], [%rd3, {{{', '.join(map(str, at))}}}], [%r10];"
            where = {
                "element": ElementType.FLOAT32,
                "extents": extents,
                "strides": tensor.strides[::-1][1:],
                "box": box,
            }
            out.append(_tma(f"tma {rank}d {swizzle.name}", ins, tensor, size, {**where, "swizzle": swizzle}))
    cache = np.arange(3 * 16 * 576, dtype=np.uint16).reshape(3, 16, 576)
    pages = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 8, 8, 2, 3),
        "strides": (1152, 128, 8 * 1152, 16 * 1152),
        "box": (64, 8, 4, 2, 1),
        "swizzle": Swizzle.B128,
    }
    for page in (2, 3, -1):
        ins = test_tma.LOAD.format(rank=5) + f" [%r11], [%rd3, {{0, 0, 4, 0, {page}}}], [%r10];"
        out.append(_tma(f"tma page {page}", ins, cache, 16 * 512, pages))
    nan = {**pages, "fill": Fill.NAN}
    ins = test_tma.LOAD.format(rank=5) + " [%r11], [%rd3, {32, 0, 0, 0, 0}], [%r10];"
    out.append(_tma("tma NaN fill", ins, cache.view(np.uint16), 16 * 512, nan))
    return out


def _tma(name: str, instruction: str, tensor: np.ndarray, size: int, where: dict[str, Any]) -> Case:
    ptx = kernel(test_tma.load_body(instruction, size, size), test_tma.PARAMS)
    out = ((1, size), np.uint8)
    return Case(name, ptx, [tensor], out, ["out", "map"], block=32, dynamic_shared=32768, map=where)


_UNARY = {
    "cvt.rn.bf16x2": ("cvt.rn.bf16x2.f32 %r3, %f1, %f2;", 0),
    "cvt.rz.bf16x2": ("cvt.rz.bf16x2.f32 %r3, %f1, %f2;", 0),
    "cvt.rn.relu.bf16x2": ("cvt.rn.relu.bf16x2.f32 %r3, %f1, %f2;", 0),
    "cvt.rn.f16x2": ("cvt.rn.f16x2.f32 %r3, %f1, %f2;", 0),
    "cvt.rz.f16x2": ("cvt.rz.f16x2.f32 %r3, %f1, %f2;", 0),
    "cvt.rn.satfinite.e4m3x2": ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r3, %h1;", 0),
    "cvt.rn.satfinite.e5m2x2": ("cvt.rn.satfinite.e5m2x2.f32 %h1, %f1, %f2; cvt.u32.u16 %r3, %h1;", 0),
    "fma.rn": ("fma.rn.f32 %f3, %f1, %f2, %f1; mov.b32 %r3, %f3;", 0),
    "fma.rn.ftz": ("fma.rn.ftz.f32 %f3, %f1, %f2, %f1; mov.b32 %r3, %f3;", 0),
    "mul.ftz": ("mul.ftz.f32 %f3, %f1, %f2; mov.b32 %r3, %f3;", 0),
    "ex2.approx.ftz": ("ex2.approx.ftz.f32 %f3, %f1; mov.b32 %r3, %f3;", 4),
    "lg2.approx.ftz": ("lg2.approx.ftz.f32 %f3, %f1; mov.b32 %r3, %f3;", 8),
    "rcp.approx.ftz": ("rcp.approx.ftz.f32 %f3, %f1; mov.b32 %r3, %f3;", 2),
}


def arithmetic_cases() -> list[Case]:
    """Conversions and arithmetic on 4096 pairs of fp32: random bits, and values of moderate size."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, (2048, 2), dtype=np.uint32)
    moderate = (rng.standard_normal((2048, 2)) * np.exp2(rng.integers(-20, 20, (2048, 2)))).astype(np.float32)
    pairs = np.concatenate([bits, moderate.view(np.uint32)])
    out = []
    for name, (text, ulps) in _UNARY.items():
        given = pairs
        if name.startswith("ex2"):
            given = rng.uniform(-130, 20, (4096, 2)).astype(np.float32).view(np.uint32)
        elif name.startswith("lg2"):
            given = np.abs(moderate).repeat(2, 0).view(np.uint32)
        body = f"""
  ld.param.u64 %rd1, [pairs];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r1, %r1, 128, %r2;
  mad.wide.u32 %rd3, %r1, 8, %rd1;
  mad.wide.u32 %rd4, %r1, 4, %rd2;
  ld.global.v2.f32 {{%f1, %f2}}, [%rd3];
  {text}
  st.global.u32 [%rd4], %r3;"""
        ptx = kernel(body, (".u64 pairs", ".u64 out"))
        case = Case(
            name, ptx, [given], ((4096,), np.uint32), ["in0", "out"], grid=32, dynamic_shared=0, ulps=ulps
        )
        out.append(case)
    return out


def all_cases() -> list[Case]:
    """Every case, by name."""
    cases = wgmma_cases() + mma_sync_cases() + tma_cases() + arithmetic_cases()
    assert len({c.name for c in cases}) == len(cases)
    return cases


def tensor_maps() -> dict[str, dict[str, Any]]:
    """Arguments of cuTensorMapEncodeTiled whose 128 bytes are recorded (the address is replaced)."""
    base: dict[str, Any] = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 8, 8, 8, 1000),
        "strides": (1152, 128, 9216, 73728),
        "box": (64, 8, 4, 8, 1),
        "swizzle": Swizzle.B128,
    }
    found = {
        "latent 5d": base,
        "large strides": {**base, "strides": (2**32 + 16, 2**36 + 32, 2**38 + 48, 2**39 + 64)},
        "element strides": {**base, "element_strides": (1, 2, 3, 4, 8)},
        "NaN fill": {**base, "fill": Fill.NAN},
        "large extents": {**base, "extents": (2**32, 2**31, 5, 2**20, 2**32 - 1)},
    }
    found |= {f"promotion {i}": {**base, "l2_promotion": i} for i in range(4)}
    for element in ElementType:
        box = (8, 8)
        found[f"2d {element.name}"] = {
            "element": element,
            "extents": (64, 64),
            "strides": (1024,),
            "box": box if element else (16, 8),
        }
    for swizzle in (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128):
        one = {
            "element": ElementType.UINT8,
            "extents": (32,),
            "strides": (),
            "box": (16,),
            "swizzle": swizzle,
        }
        found[f"1d {swizzle.name}"] = one
    return found
