"""The counters: one zeroed slot for each stream, and for each stream of each captured graph."""

from __future__ import annotations

import itertools

import pytest
from fakes import FakeDriver, install

from mlagen import counters, driver
from mlagen.errors import DeviceError


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch, FakeDriver())


def test_slot_size_follows_the_gpu():
    assert counters.slot_bytes(132) == 3200 >= 6 * 4 * 132
    assert counters.slot_bytes(1) == 128


def test_one_slot_a_stream_and_capture(fake):
    pool = counters.pool(driver.gpu(0))
    eager = pool.slot(fake, 3)
    assert pool.slot(fake, 3) == eager
    assert pool.slot(fake, 4) != eager
    fake.capturing[3] = 50
    captured = pool.slot(fake, 3)
    assert captured != eager
    fake.capturing[4] = 50
    assert pool.slot(fake, 4) not in (captured, eager)
    fake.capturing[3] = 51
    assert pool.slot(fake, 3) not in (captured, eager)
    del fake.capturing[3]
    assert pool.slot(fake, 3) == eager
    assert len(pool) == 5


def test_slots_are_disjoint_zeroed_memory(fake):
    pool = counters.pool(driver.gpu(0))
    slots = [pool.slot(fake, stream) for stream in range(150)]
    assert len({*slots}) == 150
    ordered = sorted(slots)
    assert all(after - before >= 3200 for before, after in itertools.pairwise(ordered))
    assert len(fake.memory_set) == 3
    for slot in slots:
        assert any(
            base <= slot and slot + 3200 <= base + size for base, value, size in fake.memory_set if value == 0
        )


def test_growing_is_outside_any_capture_and_finished_before_use(fake):
    fake.capturing[3] = 50
    counters.pool(driver.gpu(0)).slot(fake, 3)
    names = [entry[0] for entry in fake.log if entry[0] in ("alloc", "stream", "memset", "sync")]
    assert names == ["alloc", "stream", "memset", "sync"]
    assert next(entry for entry in fake.log if entry[0] == "alloc")[2].endswith("RELAXED")
    assert ("stream", int(fake.real.CUstream_flags.CU_STREAM_NON_BLOCKING)) in fake.log
    assert ("memset", 0x5EED) in fake.log and ("sync", 0x5EED) in fake.log
    assert fake.mode.name.endswith("GLOBAL")


def test_mode_is_restored_when_there_is_no_memory(fake):
    fake.fail["cuMemAlloc"] = fake.real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match="no memory left"):
        counters.pool(driver.gpu(0)).slot(fake, 3)
    assert fake.mode.name.endswith("GLOBAL")


def test_invalidated_capture_is_an_error(fake):
    status = fake.real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    fake.cuStreamIsCapturing = lambda stream: (*fake.ok, status)
    with pytest.raises(DeviceError, match="invalidated"):
        counters.pool(driver.gpu(0)).slot(fake, 3)


def test_legacy_stream_beside_a_capture_is_explained(fake):
    fake.fail["cuStreamIsCapturing"] = fake.real.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    with pytest.raises(DeviceError, match=r"legacy default stream.*torch\.cuda\.graph"):
        counters.pool(driver.gpu(0)).slot(fake, 0)


def test_without_a_driver_the_message_says_so(monkeypatch):
    monkeypatch.setattr(driver, "_API", None)
    monkeypatch.setattr(driver, "_GPUS", {})
    monkeypatch.setattr("ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: not found")))
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1 was not found"):
        driver.gpu(0)


def test_every_call_that_is_used_exists_in_the_bindings():
    """The fake answers only what the real module has."""
    import cuda.bindings.driver as real

    for name in vars(FakeDriver):
        if name.startswith("cu"):
            assert callable(getattr(real, name)), name
