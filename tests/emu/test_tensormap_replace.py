"""tensormap.replace: each field gives the map that the encoder makes with the other value (in the words that
copies read).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlagen.emu.emulator import Emulator
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tensormap import ElementType, Fill, Swizzle, encode_tiled
from tests.emu.small_kernels import kernel, run

BASE: dict[str, Any] = {
    "element": ElementType.BFLOAT16,
    "address": 1 << 40,
    "extents": (64, 8, 8, 8, 1000),
    "strides": (1152, 128, 9216, 73728),
    "box": (64, 8, 4, 8, 1),
    "element_strides": (1, 1, 1, 1, 1),
    "swizzle": Swizzle.B128,
}
FIELDS = [
    ("global_address.{}.b1024.b64", "0x10000400000", {"address": (1 << 40) + (1 << 22)}),
    ("global_dim.{}.b1024.b32", "0, 48", {"extents": (48, 8, 8, 8, 1000)}),
    ("global_dim.{}.b1024.b32", "4, 0x80000000", {"extents": (64, 8, 8, 8, 2**31)}),
    ("global_stride.{}.b1024.b64", "0, 0x2000000030", {"strides": (2**37 + 48, 128, 9216, 73728)}),
    ("global_stride.{}.b1024.b64", "3, 0x1000000000", {"strides": (1152, 128, 9216, 2**36)}),
    ("box_dim.{}.b1024.b32", "0, 32", {"box": (32, 8, 4, 8, 1)}),
    ("box_dim.{}.b1024.b32", "3, 5", {"box": (64, 8, 4, 5, 1)}),
    ("element_stride.{}.b1024.b32", "2, 4", {"element_strides": (1, 1, 4, 1, 1)}),
    ("elemtype.{}.b1024.b32", "6", {"element": ElementType.FLOAT16}),
    ("swizzle_mode.{}.b1024.b32", "0", {"swizzle": Swizzle.NONE}),
    ("fill_mode.{}.b1024.b32", "1", {"fill": Fill.NAN}),
]


def replace_body(instruction: str, through: str) -> str:
    """Lane 0 changes the map of the input, in global or shared memory; all lanes copy it to the output."""
    store = "ld.global.u32 %r4, [%rd4]; st.global.u32 [%rd5], %r4;"
    if through == "shared::cta":
        store = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        store += "[%rd2], [%r10], 128;"
    change = {
        "global": f"@%p1 tensormap.replace.tile.{instruction.replace('[]', '[%rd1]')}",
        "shared::cta": f"@%p1 tensormap.replace.tile.{instruction.replace('[]', '[%r10]')}",
    }[through]
    return f"""
  ld.param.u64 %rd1, [map]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r10, smem; setp.eq.u32 %p1, %r1, 0;
  shl.b32 %r2, %r1, 2; cvt.u64.u32 %rd3, %r2; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
  add.u32 %r3, %r10, %r2; ld.global.u32 %r4, [%rd4]; st.shared.u32 [%r3], %r4; bar.warp.sync -1;
  {change}
  bar.warp.sync -1;
  {store}
  fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;"""


def replace_text(field: str, value: str, through: str) -> str:
    """A kernel with one replacement."""
    if field.startswith("global_address"):
        value = value.strip()
    return kernel(replace_body(f"{field.format(through)} [], {value};", through), (".u64 map", ".u64 out"))


@pytest.mark.parametrize("through", ["global", "shared::cta"])
@pytest.mark.parametrize("field, value, change", FIELDS)
def test_a_field_is_replaced(field: str, value: str, change: dict[str, Any], through: str) -> None:
    source, out = np.frombuffer(encode_tiled(**BASE), np.uint8).copy(), np.zeros(128, np.uint8)
    run(replace_text(field, value, through), [source, out], block=32)
    assert out[:64].tobytes() == encode_tiled(**{**BASE, **change})[:64]


def test_the_rank_is_given_less_one() -> None:
    small = {
        k: v[:n] if isinstance(v, tuple) else v
        for (k, v), n in zip(BASE.items(), [0, 0, 3, 2, 3, 3, 0], strict=True)
    }
    source, out = np.frombuffer(encode_tiled(**small), np.uint8).copy(), np.zeros(128, np.uint8)
    run(replace_text("rank.{}.b1024.b32", "4", "global"), [source, out], block=32)
    assert out[8] >> 4 & 7 == 4


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("global_stride.{}.b1024.b64", "0, 24", "multiple of 16"),
        ("swizzle_mode.{}.b1024.b32", "5", "2 bits"),
        ("global_stride.{}.b1024.b64", "4, 32", "dimension 4, 4 exist"),
        ("colour.{}.b1024.b32", "1", "no field"),
    ],
)
def test_impossible_replacements_are_refused(field: str, value: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        run(replace_text(field, value, "global"), [np.zeros(128, np.uint8)] * 2, block=32)


def test_a_copy_uses_the_changed_map() -> None:
    """A kernel points a map at another array and loads from there."""
    body = """
  ld.param.u64 %rd1, [map]; ld.param.u64 %rd2, [other]; ld.param.u64 %rd5, [out];
  mov.u32 %r10, smem; add.u32 %r11, %r10, 128; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
  @%p1 tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;
  @%p1 fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;
  @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r11], [%rd1, {0, 1}], [%r10];
  bar.warp.sync -1;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;
  @!%p2 bra WAIT;
  shl.b32 %r2, %r1, 2; add.u32 %r3, %r11, %r2; ld.shared.u32 %r4, [%r3];
  cvt.u64.u32 %rd3, %r2; add.s64 %rd5, %rd5, %rd3; st.global.u32 [%rd5], %r4;"""
    emulator = Emulator(kernel(body, (".u64 map", ".u64 other", ".u64 out")))
    first, second = (np.arange(256, dtype=np.uint32).reshape(8, 32) + n for n in (0, 5000))
    at = emulator.array(first).address
    encoded = encode_tiled(ElementType.UINT32, at, (32, 8), (128,), (32, 1))
    out = np.zeros(32, np.uint32)
    arrays = [np.frombuffer(encoded, np.uint8).copy(), second, out]
    emulator.launch("k", block=32, dynamic_shared=1024, args=[emulator.array(a) for a in arrays])
    np.testing.assert_array_equal(out, second[1])
