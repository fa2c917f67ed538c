"""tcgen05: products in every layout, transfers, copies, allocation, and misuse that is refused or found."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from mlagen.emu import descriptors, numerics
from mlagen.emu.emulator import Emulator, LaunchResult
from mlagen.emu.findings import SanitizerError
from mlagen.emu.fragments import to_float
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import bf16, kernel, thread_zero_loads
from tests.emu.test_tmem_layouts import places

SMEM, DATA = 1024, 1024
A_COLUMN = 256


@dataclass(frozen=True)
class Form:
    """One product. layout: the letter that D has. columns: of tensor memory that D takes in each CTA."""

    m: int
    n: int
    layout: str
    group: int = 1
    ws: bool = False
    a_tmem: bool = False
    kind: str = "f16"
    type: str = "bf16"
    a_mn: bool = False
    b_mn: bool = False
    negate: bool = False
    d_lane: int = 0
    half: bool = False

    @property
    def size(self) -> int:
        return 1 if self.kind == "f8f6f4" else 2

    @property
    def k(self) -> int:
        return 32 // self.size

    @property
    def columns(self) -> int:
        return {"B": self.n // 2, "E": self.n // 2, "G": self.n // 4}.get(self.layout, self.n)

    @property
    def idesc(self) -> int:
        code = {"bf16": 1, "f16": 0, "e4m3": 0, "e5m2": 1}[self.type]
        bits = (not self.half) << 4 | code << 7 | code << 10 | self.negate << 13
        return bits | self.a_mn << 15 | self.b_mn << 16 | (self.n >> 3) << 17 | (self.m >> 4) << 24

    def matrix(self, start: int, mn: bool) -> int:
        leading, stride = (1024, 8192) if mn else (16, 1024)
        return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | 2 << 61


def loads(columns: int) -> str:
    """Read D in pieces of 32 columns and store every lane's cells."""
    text = ""
    for first in range(0, columns, 32):
        count = min(32, columns - first)
        registers = ", ".join(f"%r{100 + i}" for i in range(count))
        stores = "".join(f"  st.global.u32 [%rd7+{4 * (first + i)}], %r{100 + i};\n" for i in range(count))
        text += f"""
  add.u32 %r20, %r13, {first};
  tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{registers}}}, [%r20];
  tcgen05.wait::ld.sync.aligned;
{stores}"""
    return text


def clear(columns: int) -> str:
    """Write zeros to D."""
    text = ""
    for first in range(0, columns, 32):
        count = min(32, columns - first)
        zeros = ", ".join(["%r90"] * count)
        text += f"  add.u32 %r20, %r13, {first};\n"
        text += f"  tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r20], {{{zeros}}};\n"
    return text


def body(form: Form, **change: str) -> str:
    """The kernel of a form; `change` replaces named pieces of it."""
    pieces = {
        "wait_st": "tcgen05.wait::st.sync.aligned;",
        "commit_wait": "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r30], 0; @!%p3 bra WAIT;",
        "before_mma": "",
        "after_mma": "",
        "dealloc": f"tcgen05.dealloc.cta_group::{form.group}.sync.aligned.b32 %r12, 512;",
        "columns": "512",
        "modifier": "",
        "cluster_sync": "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    } | change
    a = f"[%r15+{form.d_lane << 16}]" if form.a_tmem else "%rd10"
    ws = ".ws" if form.ws else ""
    op = f"tcgen05.mma{ws}.cta_group::{form.group}.kind::{form.kind}{pieces['modifier']}"
    zeros = "" if form.ws else f"{{{', '.join(['%r90'] * 4 * form.group)}}}, "
    tail = ", 0" if form.ws else ""
    mma = f"{op} [%r16], {a}, %rd11, %r17, {zeros}%p5{tail};"
    multicast = ".multicast::cluster" if form.group == 2 else ""
    mask = ", %h1" if form.group == 2 else ""
    arrive = f"mbarrier::arrive::one.shared::cluster{multicast}.b64"
    commit = f"tcgen05.commit.cta_group::{form.group}.{arrive} [%r30]{mask};"
    return f"""
  mov.u32 %r1, %tid.x;
  shr.u32 %r2, %r1, 5;
  mov.u32 %r3, %cluster_ctarank;
  ld.param.u64 %rd1, [image];
  mul.wide.u32 %rd2, %r3, 49152;
  add.s64 %rd1, %rd1, %rd2;
  ld.param.u64 %rd5, [out];
  mad.lo.u32 %r4, %r3, 128, %r1;
  mad.wide.u32 %rd7, %r4, {4 * form.columns}, %rd5;
  ld.param.u64 %rd10, [a_desc];
  ld.param.u64 %rd11, [b_desc];
  ld.param.u32 %r17, [idesc];
  ld.param.u64 %rd12, [a_cells];
  mad.wide.u32 %rd12, %r4, 32, %rd12;
  mov.u32 %r90, 0;
  mov.u16 %h1, 3;
{thread_zero_loads("%rd1", 49152, DATA)}
  mov.u32 %r31, smem;
  add.u32 %r30, %r31, 8;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r30], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  setp.ne.u32 %p2, %r2, 0;
  @%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::{form.group}.sync.aligned.shared::cta.b32 [%r31+16], {pieces["columns"]};
  tcgen05.relinquish_alloc_permit.cta_group::{form.group}.sync.aligned;
ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %r12, [%r31+16];
  shl.b32 %r14, %r2, 21;
  add.u32 %r13, %r12, %r14;
  add.u32 %r15, %r12, {A_COLUMN};
  add.u32 %r16, %r12, {form.d_lane << 16};
{clear(form.columns)}
  ld.global.v4.u32 {{%r40, %r41, %r42, %r43}}, [%rd12];
  ld.global.v4.u32 {{%r44, %r45, %r46, %r47}}, [%rd12+16];
  add.u32 %r21, %r13, {A_COLUMN};
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%r21], {{%r40, %r41, %r42, %r43, %r44, %r45, %r46, %r47}};
  {pieces["wait_st"]}
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  {pieces["cluster_sync"]}
  tcgen05.fence::after_thread_sync;
  or.b32 %r5, %r1, %r3;
  setp.ne.u32 %p4, %r5, 0;
  @%p4 bra ISSUED;
  {pieces["before_mma"]}
  setp.ne.u32 %p5, 0, 0;
  {mma}
  setp.ne.u32 %p5, 1, 0;
  {mma}
  {commit}
  {pieces["after_mma"]}
ISSUED:
  bar.warp.sync 0xffffffff;
  {pieces["commit_wait"]}
  tcgen05.fence::after_thread_sync;
{loads(form.columns)}
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  {pieces["cluster_sync"]}
  @%p2 bra DONE;
  {pieces["dealloc"]}
DONE:"""


PARAMS = (".u64 image", ".u64 out", ".u64 a_cells", ".u64 a_desc", ".u64 b_desc", ".u32 idesc")


def operands(form: Form) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(form.m + form.n)
    if form.type in ("e4m3", "e5m2"):
        narrow = getattr(numerics, f"f32_to_{form.type}")
        return tuple(narrow(rng.standard_normal((r, 32)).astype(np.float32)) for r in (form.m, form.n))  # type: ignore[return-value]
    if form.type == "f16":
        return tuple(
            rng.standard_normal((r, 16)).astype(np.float16).view(np.uint16) for r in (form.m, form.n)
        )  # type: ignore[return-value]
    return bf16(rng, form.m, 16), bf16(rng, form.n, 16)


def images(form: Form, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Shared memory of each CTA, which holds its rows of A and its part of B."""
    out = np.zeros((form.group, 49152), np.uint8)
    found = []
    for matrix, start, mn in ((a, SMEM + DATA, form.a_mn), (b, SMEM + DATA + 16384, form.b_mn)):
        bits = form.matrix(start, mn)
        rows = matrix.shape[0] // form.group
        at = descriptors.operand_addresses(descriptors.decode_sm100(bits), rows, form.k, form.size, mn)
        for cta in range(form.group):
            out[cta].view(matrix.dtype)[(at - SMEM - DATA) // form.size] = matrix[
                rows * cta : rows * (cta + 1)
            ]
        found.append(bits)
    return out, found[0], found[1]


def a_cells(form: Form, a: np.ndarray) -> np.ndarray:
    """(group, 128, 8) cells of tensor memory that hold A, once for each block of D's layout."""
    cells = np.zeros((form.group, 128, 8), np.uint32)
    rows = form.m // form.group
    words = np.ascontiguousarray(a).view(np.uint32).reshape(form.group, rows, 8)
    for (row, _), (lane, _) in places(form.layout, form.n, form.d_lane).items():
        cells[:, lane] = words[:, row]
    return cells


def launch(
    form: Form, text: str, a: np.ndarray, b: np.ndarray, cells: np.ndarray | None = None, **options: Any
) -> tuple[np.ndarray, LaunchResult]:
    image, a_desc, b_desc = images(form, a, b)
    out = np.zeros((form.group, 128, form.columns), np.uint32)
    emulator = Emulator(kernel(text, PARAMS, arch="sm_100a"))
    args = [emulator.array(x) for x in (image, out, a_cells(form, a) if cells is None else cells)]
    result = emulator.launch(
        "k",
        grid=form.group,
        cluster=form.group,
        block=128,
        dynamic_shared=65536,
        args=[*args, a_desc, b_desc, form.idesc],
        **options,
    )
    return out, result


FORMS = [
    Form(256, 128, "A", 2),
    Form(256, 256, "A", 2, b_mn=True),
    Form(128, 128, "B", 2),
    Form(128, 256, "B", 2, b_mn=True),
    Form(128, 128, "B", 2, a_tmem=True),
    Form(128, 64, "D"),
    Form(128, 256, "D", a_mn=True, b_mn=True),
    Form(128, 64, "D", a_tmem=True),
    Form(64, 128, "E", ws=True),
    Form(64, 256, "E", ws=True, b_mn=True),
    Form(64, 128, "E", ws=True, a_tmem=True),
    Form(64, 64, "F"),
    Form(64, 8, "F"),
    Form(64, 64, "F", a_tmem=True),
    Form(64, 64, "F", a_tmem=True, d_lane=16),
    Form(32, 128, "G", ws=True),
    Form(32, 64, "G", ws=True, a_tmem=True),
    Form(128, 64, "D", ws=True),
    Form(128, 64, "D", type="f16"),
    Form(128, 64, "D", negate=True),
    Form(128, 64, "D", type="f16", half=True),
    Form(128, 64, "D", kind="f8f6f4", type="e4m3"),
    Form(256, 64, "A", 2, kind="f8f6f4", type="e4m3"),
    Form(128, 64, "B", 2, kind="f8f6f4", type="e5m2"),
    Form(64, 64, "E", ws=True, a_tmem=True, kind="f8f6f4", type="e4m3"),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_product(form: Form, schedule: str) -> None:
    a, b = operands(form)
    out, result = launch(form, body(form), a, b, schedule=schedule)
    assert not result.findings.counts
    sign = -1 if form.negate else 1
    want = 2 * sign * to_float(a, form.type).astype(np.float64) @ to_float(b, form.type).astype(np.float64).T
    rows = form.m // form.group
    got = np.zeros((form.m, form.n), np.float32)
    values = out.astype(np.uint16).view(np.float16).astype(np.float32) if form.half else out.view(np.float32)
    for (row, column), (lane, place) in places(form.layout, form.n, form.d_lane).items():
        for cta in range(form.group):
            got[cta * rows + row, column] = values[cta, lane, place]
    np.testing.assert_allclose(got, want, rtol=2e-3 if form.half else 1e-5, atol=1e-2 if form.half else 1e-4)


@pytest.mark.parametrize(
    "form", [Form(128, 64, "B", 2, a_tmem=True), Form(64, 64, "E", ws=True, a_tmem=True)], ids=str
)
def test_each_half_of_the_lanes_multiplies_its_own_copy_of_a(form: Form) -> None:
    """The copies are independent: here lanes 64 to 127 hold another matrix, which gives the upper half of the
    columns.
    """
    a, b = operands(form)
    other = bf16(np.random.default_rng(77), form.m, 16)
    cells = a_cells(form, a)
    cells[:, 64:] = a_cells(form, other)[:, 64:]
    out, _ = launch(form, body(form), a, b, cells)
    rows, half = form.m // form.group, form.n // 2
    got = out.view(np.float32)
    for cta in range(form.group):
        for lanes, matrix, columns in (
            (slice(0, 64), a, slice(0, half)),
            (slice(64, 128), other, slice(half, None)),
        ):
            mine = to_float(matrix[rows * cta : rows * (cta + 1)], form.type)
            want = 2 * mine @ to_float(b[columns], form.type).T
            np.testing.assert_allclose(got[cta, lanes], want, rtol=1e-5, atol=1e-4)


D64 = Form(128, 64, "D")


@pytest.mark.parametrize(
    "change, message",
    [({"wait_st": ""}, "race"), ({"commit_wait": ""}, "race")],
)
def test_missing_waits_are_races(change: dict[str, str], message: str) -> None:
    form = replace(D64, a_tmem=True)
    with pytest.raises(SanitizerError, match=message):
        launch(form, body(form, **change), *operands(form))


def test_registers_used_before_wait_ld_are_a_lint() -> None:
    _, result = launch(D64, body(D64).replace("tcgen05.wait::ld.sync.aligned;", "", 1), *operands(D64))
    assert result.findings.kinds() == {"strict"}
    assert "before tcgen05.wait::ld" in result.findings.text()


@pytest.mark.parametrize(
    "fence, place, message",
    [
        (
            "after",
            0,
            "tcgen05.st of CTA 0 warp [0-3], but its own warp",
        ),  # between the stores and the product
        ("before", 0, "tcgen05.st of CTA 0 warp [0-3], but that one"),
        ("after", 1, "tcgen05 pipe of CTA 0, but its own warp"),  # between the commit and the loads
        ("before", 1, ""),  # nothing but the deallocation follows
    ],
)
def test_missing_tcgen05_fences_are_lints(fence: str, place: int, message: str) -> None:
    parts = body(D64).split(f"tcgen05.fence::{fence}_thread_sync;")
    assert len(parts) == 3
    text = parts[0] + ("" if place == 0 else f"tcgen05.fence::{fence}_thread_sync;") + parts[1]
    text += ("" if place == 1 else f"tcgen05.fence::{fence}_thread_sync;") + parts[2]
    _, result = launch(D64, text, *operands(D64))
    assert result.findings.kinds() == ({"strict"} if message else set())
    assert re.search(message, result.findings.text())


def test_overwriting_what_a_load_without_wait_reads_is_a_race() -> None:
    """The next product may not start before the load is known to be done."""
    extra = """
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r400}, [%r13];
  bar.sync 1;
  @%p4 bra AGAIN;
  tcgen05.mma.cta_group::1.kind::f16 [%r16], %rd10, %rd11, %r17, {%r90, %r90, %r90, %r90}, %p5;
AGAIN:
  bar.warp.sync 0xffffffff;
"""
    text = body(D64).replace("\n  @%p2 bra DONE;", extra + "\n  @%p2 bra DONE;")
    with pytest.raises(
        SanitizerError, match=r"write by tcgen05 pipe.*is not ordered after a read by tcgen05\.ld"
    ):
        launch(D64, text, *operands(D64))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"columns": "48"}, "power of two"),
        ({"columns": "16"}, "from 32"),
        ({"columns": "32"}, "not allocated"),
        ({"dealloc": "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 256;"}, "allocated are: 512 at 0"),
        ({"dealloc": "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r12, 512;"}, "one kernel uses one"),
        ({"modifier": ".block_scale"}, "no emulation"),
        ({"before_mma": "add.u32 %r16, %r16, 1048576;"}, "lane 16 as the start"),
        ({"before_mma": "xor.b32 %r17, %r17, 0x00800000;"}, "reserved"),
        ({"before_mma": "mov.u64 %rd10, 0;"}, "constant 1"),
        ({"before_mma": "add.u32 %r16, %r16, 480;"}, "columns 480 to 543"),
        ({"before_mma": "and.b32 %r17, %r17, 0xE0FFFFFF; or.b32 %r17, %r17, 0x10000000;"}, "M=256"),
        (
            {"after_mma": "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];"},
            "deadlock",
        ),
    ],
)
def test_misuse_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        launch(D64, body(D64, **change), *operands(D64))


def test_columns_left_at_exit_are_found() -> None:
    with pytest.raises(SanitizerError, match="exits with 512 columns"):
        launch(D64, body(D64, dealloc=""), *operands(D64))


def test_odd_cta_may_not_issue() -> None:
    form = Form(256, 64, "A", 2)
    text = body(form).replace("or.b32 %r5, %r1, %r3;", "xor.b32 %r6, %r3, 1; or.b32 %r5, %r1, %r6;")
    with pytest.raises(EmulatorError, match="issued by the even one"):
        launch(form, text, *operands(form))


def test_alloc_after_relinquish_and_missing_peer() -> None:
    text = body(D64).replace(
        "ALLOCATED:", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r31+16], 32;\nALLOCATED:", 1
    )
    with pytest.raises(EmulatorError, match=r"after tcgen05\.relinquish"):
        launch(D64, text, *operands(D64))
    form = Form(256, 64, "A", 2)
    text = body(form).replace(
        "  @%p2 bra ALLOCATED;", "  setp.ne.u32 %p9, %r3, 0;\n  @%p9 bra DONE;\n  @%p2 bra ALLOCATED;"
    )
    with pytest.raises(EmulatorError, match="alloc of the peer CTA"):
        launch(form, text, *operands(form))


# ---------------------------------------------------------------- transfers and copies
def transfer_kernel(store: str, load: str, registers: int, fetch: str = "", shared_bytes: str = "") -> str:
    """One warp per quarter: registers i of thread t = 1000 t + i are stored, loaded with another shape, and
    dumped.
    """
    values = "".join(f"  mad.lo.u32 %r{100 + i}, %r1, 1000, {i};\n" for i in range(registers))
    dump = "".join(f"  st.global.u32 [%rd2+{4 * i}], %r{200 + i};\n" for i in range(registers))
    return kernel(
        f"""
  mov.u32 %r1, %tid.x;
  shr.u32 %r2, %r1, 5;
  mov.u32 %r31, smem;
  ld.param.u64 %rd1, [out];
  mad.wide.u32 %rd2, %r1, {4 * registers}, %rd1;
  setp.ne.u32 %p2, %r2, 0;
  @%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r31+16], 128;
ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %r12, [%r31+16];
  shl.b32 %r14, %r2, 21;
  add.u32 %r13, %r12, %r14;
{values}{fetch}
  {store}
  tcgen05.wait::st.sync.aligned;
  {load}
  tcgen05.wait::ld.sync.aligned;
{dump}
  bar.sync 0;
  @%p2 bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 128;
DONE:""",
        (".u64 out",),
        arch="sm_100a",
    )


def vector(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def run_transfer(store: str, load: str, registers: int) -> np.ndarray:
    out = np.zeros((128, registers), np.uint32)
    emulator = Emulator(transfer_kernel(store, load, registers))
    emulator.launch("k", block=128, dynamic_shared=1024, args=[emulator.array(out)])
    return out


@pytest.mark.parametrize(
    "shape, repeats", [("32x32b", 8), ("16x64b", 8), ("16x128b", 4), ("16x256b", 2), ("16x32bx2", 8)]
)
def test_store_and_load_of_one_shape_are_inverse(shape: str, repeats: int) -> None:
    split = ", 8" if shape == "16x32bx2" else ""
    store = f"tcgen05.st.sync.aligned.{shape}.x{repeats}.b32 [%r13]{split}, {vector(100, 8)};"
    load = f"tcgen05.ld.sync.aligned.{shape}.x{repeats}.b32 {vector(200, 8)}, [%r13]{split};"
    want = 1000 * np.arange(128)[:, None] + np.arange(8)[None, :]
    np.testing.assert_array_equal(run_transfer(store, load, 8), want)


def test_shapes_agree_on_where_a_cell_is() -> None:
    """16 lanes x 8 columns stored with 16x256b.x1 (4 registers) and read with 16x64b.x4."""
    store = f"tcgen05.st.sync.aligned.16x256b.x1.b32 [%r13], {vector(100, 4)};"
    out = run_transfer(store, f"tcgen05.ld.sync.aligned.16x64b.x4.b32 {vector(200, 4)}, [%r13];", 4)
    for thread in range(32):
        for register in range(4):
            lane, column = thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register
            source, index = 4 * (lane % 8) + column // 2, column % 2 + 2 * (lane // 8)
            assert out[thread, register] == 1000 * source + index


def test_packed_transfers_put_two_columns_in_a_register() -> None:
    store = f"tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r13], {vector(100, 4)};"
    load = f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 4)}, [%r13];"
    out = run_transfer(store, load, 4)
    whole = 1000 * np.arange(128)[:, None] + np.arange(4)[None, :]
    want = np.stack([whole & 0xFFFF, whole >> 16], -1).reshape(128, 8)[:, :4]
    np.testing.assert_array_equal(out, want)
    packed = run_transfer(store, load.replace(".x4.b32", ".x4.pack::16b.b32"), 4)
    np.testing.assert_array_equal(packed, whole)


@pytest.mark.parametrize(
    "load, message",
    [
        (f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 3)}, [%r13];", "takes 4"),
        (f"tcgen05.ld.sync.aligned.32x32b.x3.b32 {vector(200, 3)}, [%r13];", "power of two"),
        (
            f"tcgen05.ld.sync.aligned.16x64b.x4.b32 {vector(200, 4)}, [%r13+1572864];",
            "leaves the warp's quarter",
        ),
        (f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 4)}, [%r13+4194304];", "which reaches lanes"),
        (f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 4)}, [%r13+126];", "not allocated"),
        (f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 4)}, [%r13+64];", "never-written"),
        (f"@%p2 tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {vector(200, 4)}, [%r13];", "half split"),
    ],
)
def test_illegal_transfers(load: str, message: str) -> None:
    store = f"tcgen05.st.sync.aligned.32x32b.x4.b32 [%r13], {vector(100, 4)};"
    with pytest.raises(EmulatorError, match=message):
        run_transfer(store, load, 4)


def test_lane_field_zero_in_every_warp_is_noted() -> None:
    store = f"tcgen05.st.sync.aligned.32x32b.x4.b32 [%r12], {vector(100, 4)};"
    load = f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector(200, 4)}, [%r12];"
    np.testing.assert_array_equal(
        run_transfer(store, load, 4), 1000 * np.arange(128)[:, None] + np.arange(4)[None, :]
    )


COPY_BODY = """
  mov.u32 %r1, %tid.x;
  shr.u32 %r2, %r1, 5;
  ld.param.u64 %rd1, [image];
  ld.param.u64 %rd5, [out];
  mad.wide.u32 %rd7, %r1, 32, %rd5;
  ld.param.u64 %rd10, [desc];
{load}
  mov.u32 %r31, smem;
  add.u32 %r30, %r31, 8;
  setp.ne.u32 %p2, %r2, 0;
  @%p2 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r31+16], 32;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r30], 1;
  @%p1 fence.mbarrier_init.release.cluster;
ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %r12, [%r31+16];
  setp.ne.u32 %p3, %r1, 0;
  @%p3 bra ISSUED;
  tcgen05.cp.cta_group::1.{shape} [%r12], %rd10;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];
ISSUED:
  bar.warp.sync 0xffffffff;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r30], 0;
  @!%p4 bra WAIT;
  tcgen05.fence::after_thread_sync;
  shl.b32 %r14, %r2, 21;
  add.u32 %r13, %r12, %r14;
  tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {registers}, [%r13];
  tcgen05.wait::ld.sync.aligned;
  {stores}
  bar.sync 0;
  @%p2 bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 32;
DONE:"""


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize(
    "shape, rows, columns",
    [
        ("128x256b", 128, 8),
        ("128x128b", 128, 4),
        ("4x256b", 4, 8),
        ("32x128b.warpx4", 32, 4),
        ("64x128b.warpx2::02_13", 64, 4),
        ("64x128b.warpx2::01_23", 64, 4),
    ],
)
def test_copy_from_shared_memory(shape: str, rows: int, columns: int, schedule: str) -> None:
    """An unswizzled K-major image: 8 rows x 16 bytes are contiguous, then the next 16 bytes, then the next 8
    rows.
    """
    words = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    image = np.zeros((16384 // 4,), np.uint32)
    for row in range(rows):
        for column in range(columns):
            image[(row // 8 * 256 + column // 4 * 128 + row % 8 * 16) // 4 + column % 4] = words[row, column]
    descriptor = (SMEM + DATA) >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46
    stores = "".join(f"  st.global.u32 [%rd7+{4 * i}], %r{200 + i};\n" for i in range(columns))
    text = COPY_BODY.format(
        load=thread_zero_loads("%rd1", 16384, DATA),
        shape=shape,
        columns=columns,
        registers=vector(200, columns),
        stores=stores,
    )
    out = np.zeros((128, 8), np.uint32)
    emulator = Emulator(kernel(text, (".u64 image", ".u64 out", ".u64 desc"), arch="sm_100a"))
    args = [emulator.array(image), emulator.array(out), descriptor]
    emulator.launch(
        "k", block=128, dynamic_shared=32768, args=args, schedule=schedule, fail_on_findings=shape != "4x256b"
    )
    for lane in range(128):
        row = {
            "4x256b": lane // 32,
            "32x128b.warpx4": lane % 32,
            "64x128b.warpx2::02_13": lane % 64,
            "64x128b.warpx2::01_23": 32 * (lane // 64) + lane % 32,
        }.get(shape, lane)
        if shape != "4x256b" or lane % 32 == 0:
            np.testing.assert_array_equal(out[lane, :columns], words[row])
