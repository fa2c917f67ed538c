"""Kernels with one tcgen05.mma, for every layout of D and both places of A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlagen.emu import descriptors, numerics
from mlagen.emu.emulator import Emulator, LaunchResult
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

D64 = Form(128, 64, "D")
