"""Recorded launches of memory, barrier and cluster instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlagen.emu.tensormap import ElementType, Swizzle, encode_tiled
from tests.emu import test_tensormap_replace, test_tma
from tests.emu.gpu_case import Case
from tests.emu.small_kernels import kernel

WORDS = 16
"""32-bit words of each thread, in and out."""

HEAD = """
  ld.param.u64 %rd1, [given];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mad.wide.u32 %rd3, %r4, 64, %rd1;
  mad.wide.u32 %rd4, %r4, 64, %rd2;
  mov.u32 %r5, smem;
  shl.b32 %r6, %r1, 6;
  add.u32 %r6, %r6, %r5;
  add.u32 %r6, %r6, 256;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd3];
  ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%rd3+16];
  mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0; mov.u32 %r23, 0;
  mov.u32 %r24, 0; mov.u32 %r25, 0; mov.u32 %r26, 0; mov.u32 %r27, 0;
"""
TAIL = """
  st.global.v4.u32 [%rd4], {%r20, %r21, %r22, %r23};
  st.global.v4.u32 [%rd4+16], {%r24, %r25, %r26, %r27};"""
"""Threads hold 8 words in %r10-17 and give 8 words in %r20-27; %r6 is their 64 bytes of shared memory,
%rd3 and %rd4 their 64 bytes of input and output."""

FILL = """
  st.shared.v4.u32 [%r6], {%r10, %r11, %r12, %r13}; st.shared.v4.u32 [%r6+16], {%r14, %r15, %r16, %r17};
  st.shared.v4.u32 [%r6+32], {%r11, %r13, %r15, %r17}; st.shared.v4.u32 [%r6+48], {%r10, %r12, %r14, %r16};
  bar.sync 0;
"""
READ = """
  bar.sync 0;
  ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6]; ld.shared.v4.u32 {%r24, %r25, %r26, %r27}, [%r6+16];"""

SINGLE = {
    "ld.shared.u8": FILL
    + """
  ld.shared.u8 %r20, [%r6+1]; ld.shared.s8 %r21, [%r6+2]; ld.shared.u16 %r22, [%r6+4];
  ld.shared.s16 %r23, [%r6+6];""",
    "ld.shared.v2.u32": FILL
    + """
  ld.shared.v2.u32 {%r21, %r20}, [%r6+8]; ld.shared.v2.f32 {%f1, %f2}, [%r6]; mov.b32 %r22, %f1;
  mov.b32 %r23, %f2; ld.shared.f32 %f3, [%r6+16]; mov.b32 %r24, %f3; ld.shared.s32 %r25, [%r6+4];""",
    "ld.shared.v4.u32": FILL + READ,
    "st.shared.u32": FILL
    + """
  st.shared.u32 [%r6], %r17; mov.b32 %f1, %r16; st.shared.f32 [%r6+4], %f1;
  st.shared.v2.u32 [%r6+8], {%r15, %r14}; mov.b32 %f2, %r10; st.shared.v2.f32 [%r6+16], {%f1, %f2};
  cvt.u16.u32 %h1, %r11; st.shared.u8 [%r6+25], %h1; st.shared.u16 [%r6+30], %h1;"""
    + READ,
    "ld.global.cg.v4.u32": """
  ld.global.cg.v4.u32 {%r20, %r21, %r22, %r23}, [%rd3+16]; ld.global.cg.f32 %f1, [%rd3+4];
  mov.b32 %r24, %f1; ld.global.nc.b32 %r25, [%rd3+8]; ld.global.nc.s32 %r26, [%rd3+12];
  ld.acquire.gpu.global.u32 %r27, [%rd3+20];""",
    "st.global.cg.v4.u32": """
  st.global.cg.v4.u32 [%rd4], {%r13, %r12, %r11, %r10}; mov.b32 %f1, %r14;
  st.global.cg.f32 [%rd4+32], %f1; st.global.f32 [%rd4+36], %f1; st.global.u32 [%rd4+40], %r15;
  membar.gl; ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%rd4];""",
    "cp.async.cg.shared.global": """
  cp.async.cg.shared.global [%r6], [%rd3], 16; cp.async.cg.shared.global [%r6+16], [%rd3+16], 16;
  cp.async.wait_all;"""
    + READ,
    "cp.async.ca.shared.global zero fill": FILL
    + """
  cp.async.ca.shared.global [%r6], [%rd3+16], 8, 3; cp.async.cg.shared.global [%r6+16], [%rd3], 16, 5;
  cp.async.commit_group; cp.async.wait_group 0;"""
    + READ,
    "atom.global": """
  atom.global.add.u32 %r20, [%rd3], 1; atom.exch.acq_rel.gpu.global.b32 %r21, [%rd3], %r12;
  atom.add.acq_rel.gpu.global.u32 %r22, [%rd3], %r13; ld.acquire.gpu.global.u32 %r23, [%rd3];
  atom.global.max.s32 %r24, [%rd3+4], %r12; atom.global.cas.b32 %r25, [%rd3+8], %r12, %r13;
  mov.b32 %f1, 0f3FC00000; mov.u32 %r8, 0x3F800000; st.global.u32 [%rd3+12], %r8;
  atom.global.add.f32 %f2, [%rd3+12], %f1; mov.b32 %r26, %f2; ld.global.cg.u32 %r27, [%rd3+12];""",
    "bar.red.or.pred": """
  mov.u32 %r7, 5; mov.u32 %r8, 128; and.b32 %r9, %r10, 127; setp.eq.u32 %p1, %r9, 3;
  bar.red.or.pred %p2, %r7, %r8, %p1; selp.u32 %r20, 1, 2, %p2; setp.eq.u32 %p1, %r9, 999;
  bar.red.or.pred %p2, %r7, %r8, %p1; selp.u32 %r21, 1, 2, %p2;""",
    "ld.global.nc.v4.b32": """
  prefetch.global.L2 [%rd3]; ld.global.nc.v4.b32 {%r20, %r21, %r22, %r23}, [%rd3+16];
  st.shared.v4.b32 [%r6], {%r20, %r21, %r22, %r23}; cvt.u64.u32 %rd8, %r6; cvta.shared.u64 %rd8, %rd8;
  ld.u32 %r24, [%rd8+4]; ld.u32 %r25, [%rd3+8];
  cvt.u16.u32 %h1, %r11; st.shared.b16 [%r6+18], %h1; st.shared.b16 [%r6+16], %h1;
  ld.shared.u32 %r26, [%r6+16]; ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r6]; mov.b32 %r27, %f3;""",
    "bar.warp.sync": """
  st.shared.u32 [%r6], %r10; bar.warp.sync -1; xor.b32 %r7, %r6, 64; ld.shared.u32 %r20, [%r7];""",
    "named bar.sync": """
  sub.u32 %r6, %r6, 256; st.shared.u32 [%r6], %r10; mov.u32 %r7, 3; mov.u32 %r8, 128;
  bar.sync %r7, %r8; sub.u32 %r7, %r6, %r5; xor.b32 %r7, %r7, 4096; add.u32 %r7, %r7, %r5;
  ld.shared.u32 %r20, [%r7];""",
    "setmaxnreg": """
  setmaxnreg.dec.sync.aligned.u32 40; bar.sync 0; setmaxnreg.inc.sync.aligned.u32 168;
  mov.u32 %r20, 7;""",
}


def _matrix(name: str, store: bool) -> str:
    """ldmatrix or stmatrix in a form; rows of 16 bytes, 8 of each matrix, scattered by an XOR."""
    count = int(name.split(".x")[1][0])
    registers = ", ".join(f"%r{(10 if store else 20) + i}" for i in range(count))
    where = """
  mov.u32 %r30, %r5; add.u32 %r30, %r30, 256; and.b32 %r31, %r1, 31; shl.b32 %r31, %r31, 4;
  shr.u32 %r32, %r1, 5; shl.b32 %r32, %r32, 11; add.u32 %r30, %r30, %r31;
  add.u32 %r30, %r30, %r32; xor.b32 %r30, %r30, 64;
"""
    ordered = f"{name} [%r30], {{{registers}}};" if store else f"{name} {{{registers}}}, [%r30];"
    return FILL + where + ordered + (READ if store else "")


MATRICES = {
    form.format(n, t): _matrix(form.format(n, t), form.startswith("st"))
    for form in ("stmatrix.sync.aligned.m8n8.x{}{}.shared.b16", "ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16")
    for n in (1, 2, 4)
    for t in ("", ".trans")
}

PHASES = (
    "mbarrier.arrive.shared::cta.b64 _, [%r5];",
    "mbarrier.arrive.shared::cta.b64 _, [%r5];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 64;",
    "mbarrier.arrive.shared::cta.b64 _, [%r5], 1;",
    "mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%r5], 24;",
    "mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%r5], 40;",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r5], 16;",
    "mbarrier.arrive.shared::cta.b64 _, [%r5], 2;",
    "mbarrier.complete_tx.shared::cta.relaxed.cta.b64 [%r5], 16;",
    "mbarrier.arrive_drop.shared::cta.b64 _, [%r5];",
    "mbarrier.arrive.shared::cta.b64 _, [%r5];",
    "mbarrier.arrive.shared::cta.b64 _, [%r5];",
    "mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd20, [%r5], 0;",
)
"""What one thread does to an mbarrier of two arrivals; after each step both parities are tested."""


def _mbarrier() -> str:
    """Bit 2 i + p of %r20 (and of %r21 by try_wait): whether the phase of parity p is over after step i."""
    text = "@%p9 bra AFTER; mbarrier.init.shared::cta.b64 [%r5], 2;\n"
    for step, action in enumerate(PHASES[:-1]):
        text += f"  {action}\n"
        for parity in (0, 1):
            bit = 1 << (2 * step + parity)
            text += f"  mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r5], {parity};\n"
            text += f"  @%p1 or.b32 %r20, %r20, {bit};\n"
            text += f"  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], {parity}, 100;\n"
            text += f"  @%p1 or.b32 %r21, %r21, {bit};\n"
    return "setp.ne.u32 %p9, %r1, 0;\n" + text + "AFTER:"


PARAMETERS = """
  ld.param.u32 %r20, [pair]; ld.param.v2.u32 {%r22, %r21}, [pair]; ld.param.f32 %f1, [pair+4];
  mov.b32 %r23, %f1; cvta.to.global.u64 %rd8, %rd3; ld.global.u32 %r24, [%rd8];"""

PAIR = """
  mov.u32 %r40, %cluster_ctarank; xor.b32 %r41, %r40, 1;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r5], {arrivals};
  @%p1 fence.mbarrier_init.release.cluster;
  {expect}
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r42, %r6, %r41; mapa.shared::cluster.u32 %r43, %r5, %r41;
  {text}
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;
  @!%p2 bra WAIT;
"""
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {};"
LEAVE = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes"


def _pair(arrivals: int, expect: str, text: str, after: str) -> str:
    return PAIR.format(arrivals=arrivals, expect=expect, text=text) + after + LEAVE


CLUSTER = {
    "st.async v4": _pair(
        1,
        EXPECT.format(2048),
        ASYNC + ".v4.b32 [%r42], {%r10, %r11, %r12, %r13}, [%r43];",
        "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6];",
    ),
    "st.async b32": _pair(
        1,
        EXPECT.format(1024),
        f"{ASYNC}.b32 [%r42], %r10, [%r43]; {ASYNC}.b32 [%r42+8], %r11, [%r43];",
        "ld.shared.u32 %r20, [%r6]; ld.shared.u32 %r21, [%r6+8];",
    ),
    "mbarrier.arrive.expect_tx.shared::cluster": _pair(
        1,
        "",
        f"""
  @%p1 mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r43], 512;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  {ASYNC}.b32 [%r42], %r10, [%r43];""",
        "ld.shared.u32 %r20, [%r6];",
    ),
    "mbarrier.arrive.shared::cluster": _pair(
        128,
        "",
        "st.shared::cluster.u32 [%r42], %r12; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r43];",
        "ld.shared.u32 %r20, [%r6];",
    ),
    "mapa": _pair(
        128,
        "",
        "mbarrier.arrive.shared::cluster.b64 _, [%r43];",
        """
  sub.u32 %r20, %r42, %r6; sub.u32 %r21, %r43, %r5; mapa.shared::cluster.u32 %r22, %r5, %r40;
  mov.u32 %r23, %cluster_nctarank; getctarank.shared::cluster.u32 %r24, %r42;
  mov.u32 %r25, %cluster_ctaid.x; mov.u32 %r26, %clusterid.x; sub.u32 %r22, %r22, %r5;""",
    ),
    "ld.shared::cluster": _pair(
        128,
        "",
        "st.shared.u32 [%r6], %r13; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r43];",
        "ld.shared::cluster.u32 %r20, [%r42];",
    ),
    "cp.async.bulk shared to shared": _pair(
        1,
        EXPECT.format(8192),
        FILL
        + """
  fence.proxy.async.shared::cta; bar.sync 0; add.u32 %r44, %r42, 32768;
  @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r44], [%r6], 8192, [%r43];
""",
        "ld.shared.u32 %r20, [%r6+32768];",
    ),
}


def memory_cases() -> list[Case]:
    """Instructions of one CTA, then of pairs of CTAs, then multicast loads."""
    rng = np.random.default_rng(11)
    given = rng.integers(0, 2**32, (256, WORDS), dtype=np.uint32)
    out = []
    for name, text in {**SINGLE, **MATRICES, "mbarrier phases": _mbarrier()}.items():
        ptx = kernel(HEAD + text + TAIL, (".u64 given", ".u64 out"))
        if name == "setmaxnreg":
            ptx = ptx.replace("\n{\n", "\n.maxntid 128\n.minnctapersm 1\n.maxnreg 168\n{\n", 1)
        out.append(Case(name, ptx, [given], ((128, WORDS), np.uint32), ["in0", "out"]))
    ptx = kernel(HEAD + PARAMETERS + TAIL, (".u64 given", ".u64 out", ".u64 pair"))
    out.append(Case("ld.param", ptx, [given], ((128, WORDS), np.uint32), ["in0", "out", 0x3FC0000012345678]))
    for name, text in CLUSTER.items():
        ptx = kernel(HEAD + text + TAIL, (".u64 given", ".u64 out"))
        case = Case(name, ptx, [given], ((256, WORDS), np.uint32), ["in0", "out"], grid=2, cluster=2)
        out.append(case)
    return out + multicast_cases() + own_tma_cases() + replace_cases()


def replace_cases() -> list[Case]:
    """Tensor maps with one field replaced, in shared memory."""
    source = np.frombuffer(encode_tiled(**test_tensormap_replace.BASE), np.uint8).copy()
    source[8] |= 2  # as host code packs it inline: version 1, and nothing behind the words that copies read
    source[64:] = 0
    out = []
    for field, value, _ in test_tensormap_replace.FIELDS:
        ptx = test_tensormap_replace.replace_text(field, value, "shared::cta")
        name = f"tensormap.replace {field.split('.')[0]} {value}"
        out.append(Case(name, ptx, [source], ((128,), np.uint8), ["in0", "out"], 32, dynamic_shared=1024))
    return out


def _tma(name: str, text: str, tensor: np.ndarray, size: int, where: dict[str, Any], **body: Any) -> Case:
    cluster = body.pop("cluster", 1)
    ptx = kernel(test_tma.load_body(text, size, size, **body), test_tma.PARAMS)
    out: tuple[tuple[int, ...], Any] = ((cluster, size), np.uint8)
    return Case(
        name, ptx, [tensor], out, ["out", "map"], block=32, grid=cluster, cluster=cluster,
        dynamic_shared=32768, map=where,
    )  # fmt: skip


ROPE: dict[str, Any] = {
    "element": ElementType.FLOAT16,
    "extents": (64, 8, 8, 3),
    "strides": (1152, 8 * 1152, 64 * 1152),
    "box": (64, 8, 8, 1),
    "swizzle": Swizzle.B128,
}
"""The map of the rope part of a page: 64 columns, 8 rows, row groups, pages."""


def multicast_cases() -> list[Case]:
    """Each CTA of a pair loads one half and gives it to both, as our kernels share a tile."""
    cache = np.arange(3 * 64 * 576, dtype=np.uint16).reshape(3, 64, 576)
    where = _pages(64)
    half = "mul.lo.u32 %r21, %r2, {step}; add.u32 %r20, %r11, %r21; mul.lo.u32 %r22, %r2, 4;"
    load = test_tma.LOAD.format(rank=5) + (
        ".multicast::cluster.L2::cache_hint [%r20], [%rd3, {0, 0, %r22, 0, 1}], [%r10], %h1, %rd9;"
    )
    before = half.format(step=64 * 128 // 2) + "mov.u16 %h1, 3; mov.u64 %rd9, 0x1000000000000000;"
    box = {**where, "box": (64, 8, 4, 1, 1)}
    size = 2 * 64 * 128 // 2
    rope = test_tma.LOAD.format(rank=4) + (
        ".multicast::cluster.L2::cache_hint [%r20], [%rd3, {0, 0, %r22, 1}], [%r10], %h1, %rd9;"
    )
    return [
        _tma("tma multicast", load, cache, size, box, before=before, cluster=2),
        _tma(
            "tma multicast rope", rope, cache, size, {**ROPE, "box": (64, 8, 4, 1)}, before=before, cluster=2
        ),
    ]


def _pages(page: int) -> dict[str, Any]:
    """The latent map of our kernels: 64 columns, 8 rows, 8 column tiles, row groups of a page, pages."""
    return {
        "element": ElementType.BFLOAT16,
        "extents": (64, 8, 8, page // 8, 3),
        "strides": (1152, 128, 8 * 1152, page * 1152),
        "box": (64, 8, 4, page // 8, 1),
        "swizzle": Swizzle.B128,
    }


def own_tma_cases() -> list[Case]:
    """The boxes of our kernels: pages of 8 to 64 rows, the rope part, beyond the last page."""
    out = []
    hint = "mov.u64 %rd9, 0x14F0000000000000; prefetch.tensormap [%rd3];"
    for page in (8, 16, 32):
        cache = np.arange(3 * page * 576, dtype=np.uint16).reshape(3, page, 576)
        for at in (1, 3):
            load = test_tma.LOAD.format(rank=5) + (
                f".L2::cache_hint [%r11], [%rd3, {{0, 0, 4, 0, {at}}}], [%r10], %rd9;"
            )
            out.append(
                _tma(f"tma latent page of {page} at {at}", load, cache, page * 512, _pages(page), before=hint)
            )
    cache = np.arange(3 * 64 * 576, dtype=np.uint16).reshape(3, 64, 576)
    for at in (2, 3, -1):
        load = (
            test_tma.LOAD.format(rank=4) + f".L2::cache_hint [%r11], [%rd3, {{0, 0, 0, {at}}}], [%r10], %rd9;"
        )
        out.append(_tma(f"tma rope page at {at}", load, cache, 64 * 128, ROPE, before=hint))
    return out
