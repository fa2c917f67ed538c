"""Bulk copies between CTAs, multicast without a tensor map, scatter4, prefetch, and the reductions
themselves.
"""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu import numerics, reductions
from mlagen.emu.emulator import Emulator
from mlagen.emu.findings import SanitizerError
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tensormap import ElementType, encode_tiled
from tests.emu.small_kernels import kernel
from tests.emu.test_tma import STORE_PARAMS, store_body


def pair_body(send: str, expect: int = 512, guard: str = "setp.eq.and.u32 %p2, %r2, 0, %p1;") -> str:
    """Each CTA fills 512 bytes with its rank + 1; CTA 0 sends; CTA 1 (and 0 for multicasts) waits and dumps
    512 bytes.
    """
    return f"""
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r10, smem;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd9, [source];
  add.u32 %r3, %r2, 1;
  mad.lo.u32 %r11, %r1, 16, %r10;
  st.shared.v4.u32 [%r11+1024], {{%r3, %r3, %r3, %r3}};
  st.shared.v4.u32 [%r11+2048], {{%r3, %r3, %r3, %r3}};
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {expect};
  fence.proxy.async.shared::cta;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 %r20, %r10, 1;
  mov.u16 %h1, 3;
  {guard}
  @%p2 {send}
  setp.eq.u32 %p5, %r2, 0;
  @%p5 bra SENT;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0;
  @!%p3 bra WAIT;
  ld.shared.v4.u32 {{%r30, %r31, %r32, %r33}}, [%r11+2048];
  mad.wide.u32 %rd2, %r1, 16, %rd1;
  st.global.v4.u32 [%rd2], {{%r30, %r31, %r32, %r33}};
SENT:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;"""


def run_pair(send: str, schedule: str = "eager") -> np.ndarray:
    out, source = np.zeros(128, np.uint32), np.arange(128, dtype=np.uint32)
    emulator = Emulator(kernel(pair_body(send), (".u64 out", ".u64 source")))
    args = [emulator.array(out), emulator.array(source)]
    emulator.launch("k", grid=2, cluster=2, block=32, dynamic_shared=8192, args=args, schedule=schedule)
    return out


SEND = (
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
    "[%r20+2048], [%r10+1024], 512, [%r20];"
)
ADD = SEND.replace("cp.async", "cp.reduce.async").replace("bytes [", "bytes.add.u32 [")
CAST = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%r10+2048], [%rd9], 512, [%r10], %h1;"
)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
@pytest.mark.parametrize("send, want", [(SEND, 1), (ADD, 3)])
def test_copy_and_reduction_to_the_other_cta(send: str, want: int, schedule: str) -> None:
    assert (run_pair(send, schedule) == want).all()


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_multicast_without_a_tensor_map(schedule: str) -> None:
    np.testing.assert_array_equal(run_pair(CAST, schedule), np.arange(128))


def test_the_barrier_must_be_where_the_data_goes() -> None:
    with pytest.raises(EmulatorError, match="they must be in one CTA"):
        run_pair(SEND.replace("512, [%r20]", "512, [%r10]"))
    with pytest.raises(EmulatorError, match="multicast mask"):
        run_pair(CAST.replace("%h1", "4"))


def test_reading_what_another_cta_still_sends_is_a_race() -> None:
    with pytest.raises(SanitizerError, match="race"):
        run_pair(SEND + " ld.shared.u32 %r40, [%r11+1024]; @%p2 st.shared.u32 [%r10+1024], %r1;")


def store(ins: str, out: np.ndarray, source: np.ndarray, **where: object) -> None:
    emulator = Emulator(kernel(store_body(ins), STORE_PARAMS, arch="sm_100a"))
    target = emulator.array(out)
    data = encode_tiled(ElementType.UINT32, target.address, **where)  # type: ignore[arg-type]
    emulator.launch("k", block=32, dynamic_shared=4096, args=[target, emulator.array(source), data])


def test_scatter4_writes_four_rows() -> None:
    source, out = np.arange(256, dtype=np.uint32), np.zeros((10, 64), np.uint32)
    name = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    ins = f"{name} [%rd3, {{32, 3, 9, 10, 0}}], [%r10];"
    store(ins, out, source, extents=(64, 10), strides=(256,), box=(32, 1))
    want = np.zeros((10, 64), np.uint32)
    want[[3, 9, 0], 32:] = source[:128].reshape(4, 32)[[0, 1, 3]]
    np.testing.assert_array_equal(out, want)


def test_prefetch_checks_the_map_and_moves_nothing() -> None:
    source, out = np.zeros(256, np.uint32), np.ones((10, 64), np.uint32)
    where = {"extents": (64, 10), "strides": (256,), "box": (32, 1)}
    store("cp.async.bulk.prefetch.tensor.2d.L2.global [%rd3, {0, 0}];", out, source, **where)
    store("cp.async.bulk.prefetch.L2.global [%rd1], 64;", out, source, **where)
    assert (out == 1).all()
    with pytest.raises(EmulatorError, match="rank 2 used with 3"):
        store("cp.async.bulk.prefetch.tensor.3d.L2.global [%rd3, {0, 0, 0}];", out, source, **where)


@pytest.mark.parametrize(
    "operation, want",
    [("add", 12), ("min", 5), ("max", 7), ("and", 5), ("or", 7), ("xor", 2), ("inc", 0), ("dec", 5)],
)
def test_integer_reductions(operation: str, want: int) -> None:
    """7 combined with 5: inc wraps to 0 because 7 is at least 5; dec wraps to 5 only above it."""
    old, new = np.array([7], np.uint32).view(np.uint8), np.array([5], np.uint32).view(np.uint8)
    got = reductions.reduce_bytes(operation, "u32", old, new).view(np.uint32)[0]
    assert got == want


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_floating_reductions(kind: str) -> None:
    values = np.array([1.5, -2.0, 0.25]), np.array([2.5, 4.0, -1.0])
    convert = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(kind)
    raw = [x.astype(convert) if convert else numerics.f32_to_bf16(x.astype(np.float32)) for x in values]
    for operation, function in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
        got = reductions.reduce_bytes(operation, kind, *(x.view(np.uint8) for x in raw))
        back = got.view(convert) if convert else numerics.bf16_to_f32(got.view(np.uint16))
        np.testing.assert_array_equal(back.astype(np.float64), function(*values))


@pytest.mark.parametrize("operation, kind", [("xor", "f32"), ("mul", "u32"), ("add", "b8")])
def test_reductions_that_do_not_exist(operation: str, kind: str) -> None:
    with pytest.raises(EmulatorError):
        reductions.reduce_bytes(operation, kind, np.zeros(4, np.uint8), np.zeros(4, np.uint8))
