"""tcgen05.ld, st and cp: which cells they move."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.emulator import Emulator
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import kernel, thread_zero_loads
from tests.emu.tcgen05_products import (
    DATA,
    SMEM,
)


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
    "shape, repeats", [("32x32b", 4), ("16x64b", 8), ("16x128b", 4), ("16x256b", 2), ("16x32bx2", 8)]
)
def test_packed_words_are_neighbouring_columns(shape: str, repeats: int) -> None:
    """Where a plain load has word w of a row, a packed one has columns 2 w and 2 w + 1."""
    count = repeats * {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}[shape]
    split = ", 16" if shape == "16x32bx2" else ""
    store = f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r13], {vector(100, 32)};"
    load = f"tcgen05.ld.sync.aligned.{shape}.x{repeats}.pack::16b.b32 {vector(200, count)}, [%r13]{split};"
    out = run_transfer(store, load, 32)[:, :count]
    plain = load.replace(".pack::16b", "").replace(", 16;", ", 8;")
    places = run_transfer(store, plain, 32)[:, :count]
    lane, word = places // 1000, places % 1000
    first = 1000 * lane + 2 * word
    np.testing.assert_array_equal(out, (first & 0xFFFF) | (first + 1 & 0xFFFF) << 16)
    back = load.replace("tcgen05.ld", "tcgen05.st").replace(".pack::", ".unpack::")
    back = back.replace(f"{vector(200, count)}, [%r13]{split}", f"[%r13]{split}, {vector(100, count)}")
    again = run_transfer(back, load, count)
    np.testing.assert_array_equal(again, 1000 * np.arange(128)[:, None] + np.arange(count)[None, :])


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
