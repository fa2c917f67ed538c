"""Small kernels whose results on a GPU are recorded and must come out of the emulator bit for bit.

Inputs are deterministic, so that only digests of the outputs are kept. `record_gpu.py` runs the cases on a
GPU, `test_recorded.py` on the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlagen.emu.tensormap import SWIZZLE_SPAN, ElementType, Fill, Swizzle
from tests.emu import test_mma_sync, test_tma, test_wgmma
from tests.emu.gpu_case import Case
from tests.emu.gpu_memory import memory_cases
from tests.emu.gpu_scalar import scalar_cases
from tests.emu.small_kernels import kernel


def wgmma_cases() -> list[Case]:
    """Every form, then bf16 with widely spread exponents, subnormal and special operands."""
    out = []
    for form in test_wgmma.FORMS:
        out.append(_wgmma(f"wgmma {form}", form, test_wgmma.operands(form)))
    half = test_wgmma.Form(64, "f16")
    plain = test_wgmma.Form(64)
    for form in (test_wgmma.Form(64, "f16", registers=True), test_wgmma.Form(256, "f16", b_mn=True)):
        out.append(_wgmma(f"wgmma {form}", form, test_wgmma.operands(form)))
    for spread in (8, 20, 40):
        out.append(_wgmma(f"wgmma spread {spread}", plain, test_wgmma.operands(plain, spread, spread)))
    rng = np.random.default_rng(9)
    tiny = tuple(rng.integers(0, 0x100, (64, 16)).astype(np.uint16) for _ in range(2))
    large = (tiny[0], (rng.integers(0x7000, 0x7F00, (64, 16))).astype(np.uint16))
    any_bits = tuple(rng.integers(0, 0x10000, (64, 16)).astype(np.uint16) for _ in range(2))
    finite = tuple(bits & 0xBFFF for bits in any_bits)
    opposed = test_wgmma.operands(plain, 3, 8)
    opposed[1][:, 8:] = opposed[1][:, :8] ^ 0x8000
    opposed[0][:, 8:] = opposed[0][:, :8] + 1
    pairs = {"subnormal": tiny, "subnormal times large": large, "any bits": any_bits, "cancelling": opposed}
    out += [_wgmma(f"wgmma {name}", plain, pair) for name, pair in pairs.items()]
    pairs = {"any bits": any_bits, "any finite bits": finite, "subnormal": tiny, "cancelling": opposed}
    pairs["subnormal times large"] = (tiny[0], large[1] & 0xFBFF)
    out += [_wgmma(f"wgmma f16 {name}", half, pair) for name, pair in pairs.items()]
    for kind in ("e4m3", "e5m2"):
        form = test_wgmma.Form(64, kind)
        bits = tuple(rng.integers(0, 0x100, (64, 32)).astype(np.uint8) & 0xBB for _ in range(2))
        out.append(_wgmma(f"wgmma {kind} any finite bits", form, bits))
    return out


def _wgmma(name: str, form: test_wgmma.Form, operands: Sequence[np.ndarray]) -> Case:
    image, a_desc, b_desc = test_wgmma.lay_out(form, operands[0], operands[1])
    ptx = kernel(test_wgmma.body(form, count=5), test_wgmma.PARAMS)
    fragments = test_wgmma.a_fragments(operands[0])
    args: list[str | int] = ["in0", "in1", "out", a_desc, b_desc]
    name = name.replace(", half=False", "")  # recorded before there was that field
    return Case(name, ptx, [image, fragments], ((128, form.registers_of_d), np.float32), args)


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
    """Shared memory as a load leaves it: ranks, swizzles, boxes that leave the tensor, narrow boxes."""
    out = []
    for rank in range(1, 6):
        for swizzle in (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128):
            span = SWIZZLE_SPAN.get(swizzle, 32)
            out.append(_ranked(f"tma {rank}d {swizzle.name} {span}", rank, swizzle, span))
            if span > 32 and rank > 1:
                out.append(_ranked(f"tma {rank}d {swizzle.name} 32", rank, swizzle, 32))
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
    for element, size in ((ElementType.FLOAT16, 2), (ElementType.FLOAT32, 4), (ElementType.FLOAT64, 8)):
        source = np.ones((8, 64), f"f{size}")
        where = {"element": element, "extents": (64, 8), "strides": (64 * size,), "box": (16, 4)}
        ins = test_tma.LOAD.format(rank=2) + " [%r11], [%rd3, {60, 6}], [%r10];"
        out.append(_tma(f"tma NaN fill {element.name}", ins, source, 64 * size, {**where, "fill": Fill.NAN}))
    return out


def _ranked(name: str, rank: int, swizzle: Swizzle, row: int) -> Case:
    """A load of fp32 boxes with rows of `row` bytes, the last of which leave the tensor on several sides."""
    wide = row // 4
    extents, box = (5 * wide // 2, 6, 5, 4, 3)[:rank], (wide, 4, 4, 2, 2)[:rank]
    at = (2 * wide, 4, -1, 2, 1)[:rank]
    tensor = np.arange(np.prod((128, *extents[1:])), dtype=np.float32).reshape(*extents[:0:-1], 128)
    size = int(np.prod(box)) * 4
    dump = size * max(SWIZZLE_SPAN.get(swizzle, row) // row, 1)
    ins = test_tma.LOAD.format(rank=rank) + f" [%r11], [%rd3, {{{', '.join(map(str, at))}}}], [%r10];"
    where = {"element": ElementType.FLOAT32, "extents": extents, "strides": tensor.strides[::-1][1:]}
    return _tma(
        name, ins, tensor, size, {**where, "box": box, "swizzle": swizzle}, dump, test_tma.clear(16384)
    )


def _tma(
    name: str,
    instruction: str,
    tensor: np.ndarray,
    size: int,
    where: dict[str, Any],
    dump: int = 0,
    before: str = "",
) -> Case:
    ptx = kernel(test_tma.load_body(instruction, size, dump or size, before=before), test_tma.PARAMS)
    out = ((1, dump or size), np.uint8)
    return Case(name, ptx, [tensor], out, ["out", "map"], block=32, dynamic_shared=32768, map=where)


def all_cases() -> list[Case]:
    """Every case, by name."""
    cases = wgmma_cases() + mma_sync_cases() + tma_cases() + memory_cases() + scalar_cases()
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
    found |= {
        f"swizzle {swizzle.name}": {
            **base,
            "swizzle": swizzle,
            "box": (SWIZZLE_SPAN.get(swizzle, 16) // 2, 8, 4, 8, 1),
        }
        for swizzle in (Swizzle.NONE, Swizzle.B32, Swizzle.B64)
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
