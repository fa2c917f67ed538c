"""Bulk copies, with and without tensor maps, against slices of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.emu import tma_boxes
from mlagen.emu.emulator import Emulator
from mlagen.emu.findings import SanitizerError
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tensormap import SWIZZLE_SPAN, ElementType, Swizzle, decode, encode_tiled
from tests.emu.small_kernels import kernel

BUFFER = 1024  # offset of the data in dynamic shared memory; the mbarrier is at 0


def load_body(
    instruction: str, size: int, dump: int, *, before: str = "", issue: str = "setp.eq.u32 %p1, %r1, 0;"
) -> str:
    """The threads of %p1 of each CTA issue a load (the others of the CTA wait); all bytes are copied to
    out[cta].
    """
    return f"""
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r10, smem;
  add.u32 %r11, %r10, {BUFFER};
  ld.param.u64 %rd1, [out];
  mul.wide.u32 %rd2, %r2, {dump};
  add.s64 %rd1, %rd1, %rd2;
  cvta.param.u64 %rd3, map;
  setp.eq.u32 %p3, %r1, 0;
  @%p3 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p3 fence.mbarrier_init.release.cluster;
  @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {size};
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  {before}
  {issue}
  @%p1 {instruction}
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
  @!%p2 bra WAIT;
  mov.u32 %r3, %r1;
COPY:
  setp.ge.u32 %p4, %r3, {dump // 4};
  @%p4 bra END;
  shl.b32 %r4, %r3, 2;
  add.u32 %r5, %r11, %r4;
  ld.shared.u32 %r6, [%r5];
  cvt.u64.u32 %rd4, %r4;
  add.s64 %rd5, %rd1, %rd4;
  st.global.u32 [%rd5], %r6;
  add.u32 %r3, %r3, 32;
  bra COPY;
END:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;"""


PARAMS = (".u64 out", ".align 64 .b8 map[128]")


def load(
    source: np.ndarray,
    map_args: dict[str, Any],
    instruction: str,
    size: int,
    *,
    cluster: int = 1,
    dump: int | None = None,
    **body: Any,
) -> np.ndarray:
    """Run a load from `source`; the bytes that each CTA found in shared memory, (cluster, dump)."""
    schedule = body.pop("schedule", "eager")
    dump = dump or size
    text = kernel(load_body(instruction, size, dump, **body), PARAMS)
    emulator = Emulator(text)
    array = emulator.array(source)
    out = np.zeros((cluster, dump), np.uint8)
    data = encode_tiled(address=array.address, **map_args)
    emulator.launch(
        "k",
        grid=cluster,
        block=32,
        cluster=cluster,
        dynamic_shared=32768,
        args=[emulator.array(out), data],
        schedule=schedule,
    )
    return out


def unswizzle(data: np.ndarray, swizzle: Swizzle) -> np.ndarray:
    """Bytes in box order of an image that starts at shared address 2048 (of the emulator's dynamic memory
    plus BUFFER).
    """
    chunks = tma_boxes.shared_chunks(1024 + BUFFER, data.size, swizzle).astype(np.int64) - 1024 - BUFFER
    return data.reshape(-1, 16)[chunks // 16].reshape(-1)


LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
LOAD_2D = LOAD.format(rank=2) + " [%r11], [%rd3, {0, 0}], [%r10];"
LOAD_2D = LOAD.format(rank=2) + " [%r11], [%rd3, {0, 0}], [%r10];"


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random:1"])
@pytest.mark.parametrize("page", [0, 2, 3, -1])
def test_pages_of_latent_rows_5d(page: int, schedule: str) -> None:
    """The map of our kernels: 64 columns, 8 rows, 8 column tiles, row groups, pages; page 3 and -1 do not
    exist.
    """
    cache = np.arange(3 * 16 * 576, dtype=np.uint16).reshape(3, 16, 576)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 8, 8, 2, 3),
        "strides": (1152, 128, 8 * 1152, 16 * 1152),
        "box": (64, 8, 4, 2, 1),
        "swizzle": Swizzle.B128,
    }
    ins = f"{LOAD.format(rank=5)} [%r11], [%rd3, {{0, 0, 4, 0, {page}}}], [%r10];"
    out = load(cache, args, ins, 16 * 512, schedule=schedule)
    got = unswizzle(out[0], Swizzle.B128).view(np.uint16).reshape(2, 4, 8, 64)
    if page in (0, 2):
        want = cache[page, :, 256:512].reshape(2, 8, 4, 64).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(got, want)
    else:
        assert not got.any()


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_every_rank_and_swizzle(rank: int, swizzle: Swizzle) -> None:
    wide = SWIZZLE_SPAN.get(swizzle, 32) // 4
    extents, box = (20, 6, 5, 4, 3)[:rank], (wide, 4, 3, 2, 2)[:rank]
    tensor = np.arange(np.prod((32, *extents[1:])), dtype=np.float32).reshape(*extents[:0:-1], 32)
    strides = [s for s in tensor.strides[::-1][1:]]
    at = [16, 4, -1, 2, 1][:rank]
    coordinates = ", ".join(map(str, at))
    size = int(np.prod(box)) * 4
    args = {
        "element": ElementType.FLOAT32,
        "extents": extents,
        "strides": strides,
        "box": box,
        "swizzle": swizzle,
    }
    ins = f"{LOAD.format(rank=rank)} [%r11], [%rd3, {{{coordinates}}}], [%r10];"
    got = unswizzle(load(tensor, args, ins, size)[0], swizzle).view(np.float32).reshape(box[::-1])
    padded = np.pad(tensor[..., : extents[0]], [(8, 8)] * (rank - 1) + [(8, 32)])
    where = tuple(slice(a + 8, a + 8 + b) for a, b in zip(at[::-1], box[::-1], strict=True))
    np.testing.assert_array_equal(got, padded[where])


@pytest.mark.parametrize("swizzle", [Swizzle.B64, Swizzle.B128])
def test_rows_narrower_than_the_swizzle_begin_at_its_multiples(swizzle: Swizzle) -> None:
    """Measured on an H200: a row of 32 bytes and then nothing up to the next multiple of the span."""
    span = SWIZZLE_SPAN[swizzle]
    tensor = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    args = {"element": ElementType.FLOAT32, "extents": (32, 8), "strides": (128,), "box": (8, 8)}
    out = load(tensor, {**args, "swizzle": swizzle}, LOAD_2D, 256, dump=8 * span, before=clear(8 * span))
    rows = unswizzle(out[0], swizzle).view(np.float32).reshape(8, span // 4)
    np.testing.assert_array_equal(rows[:, :8], tensor[:, :8])
    assert not rows[:, 8:].any()


def clear(size: int) -> str:
    """Zeros in the buffer."""
    return f"""
  mov.u32 %r30, %r1;
ZERO:
  shl.b32 %r31, %r30, 2; add.u32 %r31, %r31, %r11; mov.u32 %r32, 0; st.shared.u32 [%r31], %r32;
  add.u32 %r30, %r30, 32; setp.lt.u32 %p7, %r30, {size // 4};
  @%p7 bra ZERO;
  fence.proxy.async.shared::cta; bar.warp.sync -1;"""


@pytest.mark.parametrize("mask, ranks", [(0b11, (0, 1)), (0b10, (1,)), (0b01, (0,))])
def test_multicast_writes_and_signals_every_cta_of_the_mask(mask: int, ranks: tuple[int, ...]) -> None:
    tensor = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    mc = f"{LOAD.format(rank=2)}.multicast::cluster [%r11], [%rd3, {{0, 16}}], [%r10], %h1;"
    issue = "setp.eq.u32 %p1, %r1, 0; setp.eq.and.u32 %p1, %r2, 0, %p1;"
    own = (
        ""
        if ranks == (0, 1)
        else f"setp.eq.u32 %p5, %r2, {1 - ranks[0]}; and.pred %p5, %p5, %p3; @%p5 {LOAD_2D}"
    )
    out = load(tensor, args, mc, 1024, cluster=2, before=f"mov.u16 %h1, {mask}; {own}", issue=issue)
    for rank in range(2):
        first = 16 if rank in ranks else 0
        want = tensor[first : first + 8]
        np.testing.assert_array_equal(unswizzle(out[rank], Swizzle.B128).view(np.uint16).reshape(8, 64), want)


def test_pair_load_signals_the_barrier_of_the_even_cta() -> None:
    """cta_group::2: each CTA loads into its own memory and counts on the leader's mbarrier."""
    tensor = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    ins = LOAD_2D.replace(".2d", ".2d.cta_group::2").replace("{0, 0}], [%r10]", "{0, %r20}], [%r21]")
    before = """
  shl.b32 %r20, %r2, 3;
  and.b32 %r21, %r10, 0xFEFFFFFF;
"""
    # the even CTA waits for both boxes, then the cluster barrier lets the odd one look at its own
    body = load_body(ins, 2048, 1024, before=before).replace(
        "WAIT:", "setp.eq.u32 %p8, %r2, 1; @%p8 bra SKIP;\nWAIT:", 1
    )
    body = body.replace(
        "  mov.u32 %r3, %r1;\nCOPY:",
        "SKIP:\n barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n mov.u32 %r3, %r1;\nCOPY:",
    )
    emulator = Emulator(kernel(body, PARAMS, arch="sm_100a"))
    array, out = emulator.array(tensor), np.zeros((2, 1024), np.uint8)
    data = encode_tiled(address=array.address, **args)
    emulator.launch(
        "k",
        grid=2,
        block=32,
        cluster=2,
        dynamic_shared=32768,
        args=[emulator.array(out), data],
        schedule="lazy",
    )
    for rank in range(2):
        got = unswizzle(out[rank], Swizzle.B128).view(np.uint16).reshape(8, 64)
        np.testing.assert_array_equal(got, tensor[8 * rank : 8 * rank + 8])
    with pytest.raises(EmulatorError, match=r"without \.cta_group::2"):
        bad = Emulator(kernel(body.replace(".cta_group::2", ""), PARAMS))
        source = bad.array(tensor)
        bad.launch(
            "k",
            grid=2,
            block=32,
            cluster=2,
            dynamic_shared=32768,
            args=[bad.array(out), encode_tiled(address=source.address, **args)],
        )


def test_gather4() -> None:
    tensor = np.arange(40 * 128, dtype=np.uint16).reshape(40, 128)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (128, 40),
        "strides": (256,),
        "box": (64, 1),
        "swizzle": Swizzle.B128,
    }
    ins = (
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes.cta_group::1 "
        "[%r11], [%rd3, {64, 7, 39, 40, -1}], [%r10];"
    )
    got = unswizzle(load(tensor, args, ins, 512)[0], Swizzle.B128).view(np.uint16).reshape(4, 64)
    np.testing.assert_array_equal(got[:2], tensor[[7, 39], 64:])
    assert not got[2:].any()


def test_missing_bytes_are_a_deadlock_and_extra_ones_an_error() -> None:
    tensor = np.zeros((64, 64), np.uint16)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    ins = f"{LOAD_2D[:-1]};"
    with pytest.raises(EmulatorError, match=r"(?i)bytes"):
        load(tensor, args, ins, 2048, dump=1024)


@pytest.mark.parametrize(
    "change, message",
    [
        ((".mbarrier::complete_tx::bytes", ".im2col.mbarrier::complete_tx::bytes"), "im2col"),
        (("{0, 0}", "{0, 0, 0}"), "3 coordinates"),
        (("[%r11]", "[%r11+16]"), "multiple of 128"),
        (("[%rd3,", "[%rd3+32,"), "aligned to 64"),
        ((".2d.", ".3d."), "2 coordinates"),
        (("[%r10]", "[%r10+8]"), "never initialised"),
    ],
)
def test_illegal_loads_are_refused(change: tuple[str, str], message: str) -> None:
    tensor = np.zeros((64, 64), np.uint16)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    ins = f"{LOAD_2D[:-1]};"
    with pytest.raises(EmulatorError, match=message):
        load(tensor, args, ins.replace(*change), 1024)


def test_a_read_before_the_wait_is_a_race() -> None:
    tensor = np.zeros((64, 64), np.uint16)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 64),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    ins = f"{LOAD_2D[:-1]}; ld.shared.u32 %r30, [%r11];"
    with pytest.raises(SanitizerError, match="race"):
        load(tensor, args, ins, 1024)


# ---------------------------------------------------------------- stores
STORE_PARAMS = (".u64 out", ".u64 source", ".align 64 .b8 map[128]")


def store_body(
    store: str,
    *,
    fence: str = "fence.proxy.async.shared::cta;",
    wait: str = "cp.async.bulk.wait_group 0;",
    after: str = "",
) -> str:
    """32 threads copy 1024 bytes of source to shared memory with ordinary stores; thread 0 stores them in
    bulk.
    """
    return f"""
  mov.u32 %r1, %tid.x;
  mov.u32 %r10, smem;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [source];
  cvta.param.u64 %rd3, map;
  mul.wide.u32 %rd4, %r1, 32;
  add.s64 %rd5, %rd2, %rd4;
  mad.lo.u32 %r12, %r1, 32, %r10;
  ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%rd5];
  ld.global.v4.u32 {{%r24, %r25, %r26, %r27}}, [%rd5+16];
  st.shared.v4.u32 [%r12], {{%r20, %r21, %r22, %r23}};
  st.shared.v4.u32 [%r12+16], {{%r24, %r25, %r26, %r27}};
  {fence}
  bar.sync 0;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  {store}
  cp.async.bulk.commit_group;
  {wait}
  {after}
DONE:"""


def store(
    text: str, out: np.ndarray, source: np.ndarray, map_args: dict[str, Any] | None, schedule: str = "eager"
) -> None:
    emulator = Emulator(kernel(text, STORE_PARAMS))
    target = emulator.array(out)
    data = encode_tiled(address=target.address, **map_args) if map_args else bytes(128)
    args = [target, emulator.array(source), data]
    emulator.launch("k", block=32, dynamic_shared=4096, args=args, schedule=schedule)


TENSOR_2D = {
    "element": ElementType.FLOAT32,
    "extents": (12, 20),
    "strides": (64,),
    "box": (8, 32),
    "swizzle": Swizzle.NONE,
}


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize("operation", ["", "add", "min", "max"])
def test_tensor_store_and_reduction_stay_in_bounds(operation: str, schedule: str) -> None:
    source = np.arange(256, dtype=np.float32).reshape(32, 8)
    out = np.full((21, 16), 100, np.float32)
    verb = "cp.reduce.async.bulk.tensor" if operation else "cp.async.bulk.tensor"
    suffix = f".{operation}" if operation else ""
    ins = f"{verb}.2d.global.shared::cta{suffix}.bulk_group [%rd3, {{8, 3}}], [%r10];"
    store(store_body(ins), out, source, TENSOR_2D, schedule)
    want = np.full((21, 16), 100, np.float32)
    function = {"": lambda a, b: b, "add": np.add, "min": np.minimum, "max": np.maximum}[operation]
    want[3:20, 8:12] = function(want[3:20, 8:12], source[:17, :4])
    np.testing.assert_array_equal(out, want)


def test_store_of_a_swizzled_box() -> None:
    source = np.arange(512, dtype=np.uint16)
    out = np.zeros((8, 64), np.uint16)
    args = {
        "element": ElementType.BFLOAT16,
        "extents": (64, 8),
        "strides": (128,),
        "box": (64, 8),
        "swizzle": Swizzle.B128,
    }
    store(
        store_body("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd3, {0, 0}], [%r10];"),
        out,
        source,
        args,
    )
    np.testing.assert_array_equal(
        out.reshape(-1).view(np.uint8), unswizzle(source.view(np.uint8), Swizzle.B128)
    )


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_bulk_store_and_reduction(schedule: str) -> None:
    source = np.arange(256, dtype=np.float32)
    out = np.ones(256, np.float32)
    store(
        store_body("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 512;"),
        out,
        source,
        None,
        schedule,
    )
    np.testing.assert_array_equal(out, np.concatenate([source[:128], np.ones(128, np.float32)]))
    store(
        store_body("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1+512], [%r10], 512;"),
        out,
        source,
        None,
        schedule,
    )
    np.testing.assert_array_equal(out, np.concatenate([source[:128], source[:128] + 1]))


def test_store_without_proxy_fence_is_found() -> None:
    with pytest.raises(SanitizerError, match=r"fence\.proxy\.async"):
        text = store_body("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 512;", fence="")
        store(text, np.zeros(256, np.float32), np.zeros(256, np.float32), None)


@pytest.mark.parametrize(
    "wait, found",
    [("cp.async.bulk.wait_group.read 0;", False), ("", True), ("cp.async.bulk.wait_group.read 1;", True)],
)
def test_source_may_be_rewritten_only_after_the_group_has_read_it(wait: str, found: bool) -> None:
    ins = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 512;"
    text = store_body(ins, wait=wait, after="st.shared.u32 [%r10+4], %r1; cp.async.bulk.wait_group 0;")
    if found:
        with pytest.raises(SanitizerError, match="race"):
            store(text, np.zeros(256, np.float32), np.zeros(256, np.float32), None)
    else:
        store(text, np.zeros(256, np.float32), np.zeros(256, np.float32), None, "lazy")


def test_exit_before_the_store_has_read_its_source_is_found() -> None:
    text = store_body("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 512;", wait="")
    with pytest.raises(SanitizerError, match="wait_group is missing"):
        store(text, np.zeros(256, np.float32), np.zeros(256, np.float32), None, "lazy")


@pytest.mark.parametrize(
    "size, address, message", [(500, "[%rd1]", "500 bytes"), (512, "[%rd1+8]", "multiple of 16")]
)
def test_misaligned_bulk_copies_are_refused(size: int, address: str, message: str) -> None:
    text = store_body(f"cp.async.bulk.global.shared::cta.bulk_group {address}, [%r10], {size};")
    with pytest.raises(EmulatorError, match=message):
        store(text, np.zeros(256, np.float32), np.zeros(256, np.float32), None)


def test_map_read_by_the_kernel_is_the_one_that_was_encoded() -> None:
    data = encode_tiled(address=1 << 40, **TENSOR_2D)
    assert decode(data).extents == (12, 20)
