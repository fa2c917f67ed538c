"""wgmma: every operand form against a matrix product, the fragment layouts, and the misuse that the sanitizer
finds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from mlagen.emu import descriptors, numerics
from mlagen.emu.emulator import LaunchResult
from mlagen.emu.findings import SanitizerError
from mlagen.emu.fragments import to_float
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.mma_numerics import SM90_8BIT, SM90_16BIT, multiply_accumulate
from tests.emu.small_kernels import bf16, kernel, run, thread_zero_loads

SMEM = 1024  # where the emulator puts dynamic shared memory
DATA = 1024  # offset of the operands in it


@dataclass(frozen=True)
class Form:
    """One wgmma form. sw: swizzle code of the descriptor (0 none, 1 128B, 2 64B, 3 32B)."""

    n: int
    type: str = "bf16"
    registers: bool = False
    a_mn: bool = False
    b_mn: bool = False
    sw: int = 1
    signs: tuple[int, int] = (1, 1)
    half: bool = False

    @property
    def registers_of_d(self) -> int:
        return self.n // 4 if self.half else self.n // 2

    @property
    def size(self) -> int:
        return 1 if self.type.startswith("e") else 2

    @property
    def k(self) -> int:
        return 32 // self.size

    def descriptor(self, start: int, mn: bool) -> int:
        width = {0: 16, 1: 128, 2: 64, 3: 32}[self.sw]
        # K-major: 8 rows of a width are contiguous, `stride` to the next 8; MN-major: an 8-line block, then
        # the next along MN
        leading, stride = (8 * width, 64 * width) if mn else (16, 8 * width)
        if self.sw == 0:
            leading, stride = (2048, 128) if mn else (128, 256)
        return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | self.sw << 62


def body(
    form: Form,
    count: int = 2,
    wait: str = "wgmma.wait_group.sync.aligned 0;",
    between: str = "",
    fence: bool = True,
) -> str:
    """Load the operands' image, run `count` wgmmas on the same operands, store the accumulators of each
    thread.
    """
    half = form.registers_of_d
    d = ", ".join(f"%{'r' if form.half else 'f'}{200 + i if form.half else i}" for i in range(half))
    a = "{%r100, %r101, %r102, %r103}" if form.registers else "%rd10"
    trans = (
        ""
        if form.size == 1
        else f", {int(form.b_mn)}"
        if form.registers
        else f", {int(form.a_mn)}, {int(form.b_mn)}"
    )
    k = f"m64n{form.n}k{form.k}.{'f16' if form.half else 'f32'}.{form.type}.{form.type}"
    mma = (
        f"wgmma.mma_async.sync.aligned.{k} {{{d}}}, {a}, %rd11, %p1, {form.signs[0]}, {form.signs[1]}{trans};"
    )
    loads = (
        "".join(f"  ld.global.u32 %r{100 + i}, [%rd3+{4 * i}];\n" for i in range(4)) if form.registers else ""
    )
    stores = "".join(f"  st.global.b32 [%rd4+{4 * i}], {name};\n" for i, name in enumerate(d.split(", ")))
    return f"""
  ld.param.u64 %rd1, [image];
  ld.param.u64 %rd2, [a_registers];
  ld.param.u64 %rd5, [out];
  ld.param.u64 %rd10, [a_desc];
  ld.param.u64 %rd11, [b_desc];
  mov.u32 %r60, smem;
  sub.u32 %r60, %r60, {SMEM};
  shr.u32 %r60, %r60, 4;
  cvt.u64.u32 %rd60, %r60;
  add.s64 %rd10, %rd10, %rd60;
  add.s64 %rd11, %rd11, %rd60;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd6, %r1, 16;
  add.s64 %rd3, %rd2, %rd6;
  mul.wide.u32 %rd7, %r1, {4 * half};
  add.s64 %rd4, %rd5, %rd7;
{thread_zero_loads("%rd1", 49152, DATA)}
{loads}
  {"wgmma.fence.sync.aligned;" if fence else ""}
  setp.ne.u32 %p1, 0, 0;
  {mma}
  {between}
  setp.ne.u32 %p1, 1, 0;
{f"  {mma}" * (count - 1)}
  wgmma.commit_group.sync.aligned;
  {wait}
{stores}"""


PARAMS = (".u64 image", ".u64 a_registers", ".u64 out", ".u64 a_desc", ".u64 b_desc")


def lay_out(form: Form, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Shared-memory image with A and B in their canonical layouts, and both descriptors."""
    image = np.zeros(49152, np.uint8)
    found = []
    for matrix, start, mn in ((a, SMEM + DATA, form.a_mn), (b, SMEM + DATA + 16384, form.b_mn)):
        bits = form.descriptor(start, mn)
        addresses = descriptors.operand_addresses(
            descriptors.decode_sm90(bits), matrix.shape[0], form.k, form.size, mn
        )
        image.view(matrix.dtype)[(addresses - SMEM - DATA) // form.size] = matrix
        found.append(bits)
    return image, found[0], found[1]


def a_fragments(a: np.ndarray) -> np.ndarray:
    """(128, 4) 32-bit A registers of each thread, as the PTX ISA shows them: row, then K neighbours."""
    per = 4 // a.itemsize
    out = np.zeros((128, 4, per), a.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(4):
            row = 16 * warp + lane // 4 + 8 * (i % 2)
            first = per * (lane % 4) + a.shape[1] // 2 * (i // 2)
            out[thread, i] = a[row, first : first + per]
    return out.reshape(128, -1).view(np.uint32)


def d_matrix(out: np.ndarray, n: int) -> np.ndarray:
    """(64, n) from the accumulators of 128 threads."""
    d = np.zeros((64, n), np.float32)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(n // 2):
            d[16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2] = out[
                thread, i
            ]
    return d


def operands(form: Form, seed: int = 0, spread: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if form.type == "e4m3":
        return tuple(
            numerics.f32_to_e4m3(rng.standard_normal((m, 32)).astype(np.float32)) for m in (64, form.n)
        )  # type: ignore[return-value]
    if form.type == "f16":
        return tuple(rng.standard_normal((m, 16)).astype(np.float16).view(np.uint16) for m in (64, form.n))  # type: ignore[return-value]
    return bf16(rng, 64, 16, spread=spread), bf16(rng, form.n, 16, spread=spread)


FORMS = [
    Form(64),
    Form(64, registers=True),
    Form(256, b_mn=True),
    Form(256, registers=True, b_mn=True),
    Form(8),
    Form(256),
    Form(64, a_mn=True),
    Form(64, a_mn=True, b_mn=True),
    Form(64, sw=0),
    Form(64, sw=0, a_mn=True, b_mn=True),
    Form(32, sw=2),
    Form(64, sw=2, b_mn=True),
    Form(64, sw=3),
    Form(64, sw=3, a_mn=True),
    Form(64, "f16"),
    Form(128, "f16", registers=True),
    Form(64, "e4m3"),
    Form(64, "e4m3", registers=True),
    Form(64, signs=(-1, 1)),
    Form(64, signs=(-1, -1)),
    Form(24, registers=True),
    Form(64, "f16", half=True),
    Form(32, "e4m3", half=True),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_product(form: Form, schedule: str) -> None:
    a, b = operands(form)
    image, a_desc, b_desc = lay_out(form, a, b)
    out = np.zeros((128, form.registers_of_d), np.float32)
    text = kernel(body(form), PARAMS)
    run(text, [image, a_fragments(a), out], [a_desc, b_desc], schedule=schedule)
    a_values, b_values = (
        to_float(a, form.type) * np.float32(form.signs[0] * form.signs[1]),
        to_float(b, form.type),
    )
    want = np.zeros((64, form.n), np.float32)
    for _ in range(2):
        want = multiply_accumulate(a_values, b_values, want, SM90_8BIT if form.size == 1 else SM90_16BIT)
        if form.half:
            want = want.astype(np.float16).astype(np.float32)
    if form.half:
        out = np.ascontiguousarray(out).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(d_matrix(out, form.n), want)
    assert np.abs(want).max() > 1


def attempt(text_body: str, **options: object) -> LaunchResult:
    form = Form(64)
    a, b = operands(form)
    image, a_desc, b_desc = lay_out(form, a, b)
    out = np.zeros((128, 32), np.float32)
    return run(kernel(text_body, PARAMS), [image, a_fragments(a), out], [a_desc, b_desc], **options)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"wait": ""}, "before its wgmma.wait_group"),
        ({"wait": "wgmma.wait_group.sync.aligned 1;"}, "before its wgmma.wait_group"),
        ({"between": "mov.f32 %f3, 0f00000000;"}, "accumulator registers of an unfinished"),
        ({"fence": False}, "no wgmma.fence before"),
    ],
)
def test_misuse_is_found(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SanitizerError, match=message):
        attempt(body(Form(64), **changes))  # type: ignore[arg-type]


def test_registers_written_after_the_fence_are_found() -> None:
    """An error where the wgmma reads them; a lint for accumulators that it overwrites."""
    text = body(Form(64)).replace(
        "wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.f32 %f5, 0f3f800000;"
    )
    result = attempt(text)
    assert result.findings.kinds() == {"strict"}
    reading = text.replace("setp.ne.u32 %p1, 0, 0;", "setp.ne.u32 %p1, 1, 0;")
    with pytest.raises(SanitizerError, match=r"written after the last wgmma\.fence"):
        attempt(reading)


def test_a_registers_may_not_change_while_in_use() -> None:
    form = Form(64, registers=True)
    a, b = operands(form)
    image, a_desc, b_desc = lay_out(form, a, b)
    text = kernel(body(form, between="mov.u32 %r101, 0;"), PARAMS)
    with pytest.raises(SanitizerError, match="A operand registers"):
        run(text, [image, a_fragments(a), np.zeros((128, 32), np.float32)], [a_desc, b_desc])


def test_wait_group_waits_for_the_whole_warpgroup() -> None:
    """A warp that waits cannot pass before the other three have issued; here they never do."""
    text = body(Form(64)).replace(
        "wgmma.fence.sync.aligned;", "setp.gt.u32 %p9, %r1, 31; @%p9 bra DONE; wgmma.fence.sync.aligned;"
    )
    with pytest.raises(EmulatorError, match="not yet issued by all four warps"):
        attempt(text + "\nDONE:\n")


@pytest.mark.parametrize(
    "old, new, message",
    [
        (".m64n64k16.", ".m64n60k16.", "multiple of 8"),
        (".m64n64k16.", ".m64n64k32.", "K is 16"),
        (".m64n64k16.", ".m64n72k16.", "N=72 takes 36"),
        (".f32.bf16.bf16", ".f16.bf16.bf16", "f32 accumulators"),
        ("%p1, 1, 1, 0, 0;", "%p1, 1, 1, 0;", "4 are needed"),
        ("%p1, 1, 1, 0, 0;", "%p1, 1, 2, 0, 0;", "signs"),
    ],
)
def test_illegal_text_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        attempt(body(Form(64)).replace(old, new))


def test_divergent_warp_is_refused() -> None:
    text = body(Form(64)).replace(
        "wgmma.fence.sync.aligned;", "setp.eq.u32 %p9, %r1, 5; @%p9 bra DONE; wgmma.fence.sync.aligned;"
    )
    with pytest.raises(EmulatorError, match="31 of 32 lanes"):
        attempt(text + "\nDONE:\n")


@pytest.mark.parametrize("fence, found", [("", True), ("fence.proxy.async.shared::cta;", False)])
def test_generic_stores_need_a_proxy_fence(fence: str, found: bool) -> None:
    store = f"setp.eq.u32 %p9, %r1, 0; @%p9 st.shared.u32 [smem+{DATA}], %r1; {fence} bar.sync 0;"
    text = body(Form(64)).replace("wgmma.fence.sync.aligned;", store + " wgmma.fence.sync.aligned;")
    if not found:
        attempt(text)
        return
    with pytest.raises(SanitizerError, match=r"without a fence\.proxy\.async"):
        attempt(text)
