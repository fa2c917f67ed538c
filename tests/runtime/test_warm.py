"""Repeated calls: launched without the checks, and only if nothing that a check looks at has changed."""

from __future__ import annotations

import struct
import threading

import pytest
from fakes import FakeDriver, FakeTensor, arguments, install

import mlagen
from mlagen import runtime, warm
from mlagen.errors import DeviceError, InputError
from mlagen.plan import make_plan
from mlagen.problem import Problem
from mlagen.spec import KernelSpec

SPEC = KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 16, 1)
PLAN = make_plan(SPEC)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(runtime, "_cubin", lambda spec: spec.name.encode())
    return install(monkeypatch, FakeDriver(devices=2))


@pytest.fixture
def checked(monkeypatch):
    """How many calls went through the checks."""
    calls = []
    whole = Problem.from_tensors.__func__

    def counting(cls, *args, **kwargs):
        calls.append(kwargs)
        return whole(cls, *args, **kwargs)

    monkeypatch.setattr(Problem, "from_tensors", classmethod(counting))
    return calls


def given(**changes):
    made = {
        **arguments(),
        "out": FakeTensor((2, 1, 16, 512), pointer=0x40000000),
        "lse": FakeTensor((2, 1, 16), "torch.float32", pointer=0x41000000),
        "workspace": FakeTensor((64 << 20,), "torch.uint8", pointer=0x60000000),
        "spec": SPEC,
    }
    return {**made, **changes}


def warmed(**changes):
    call = given(**changes)
    for _ in range(3):
        mlagen.mla_decode(**call)
    return call


def params(fake):
    return fake.parameter(0, PLAN.params_bytes)


def test_a_repeated_call_launches_the_same_without_checks(fake, checked):
    call = given(num_splits=5, causal=False)
    launches = []
    for _ in range(5):
        out, lse = mlagen.mla_decode(**call)
        assert out is call["out"] and lse is call["lse"]
        maps = [fake.parameter(index, 128) for index in (1, 2)]
        launch = {k: v for k, v in fake.launches[-1].items() if k != "pointers"}
        launches.append((params(fake), maps, launch))
    assert len(checked) == 2 and len(fake.launches) == 5
    assert all(launch == launches[0] for launch in launches)
    assert sum(entry[0] == "encode" for entry in fake.log) == 2


def test_without_lse_and_without_workspace_where_none_is_needed(fake, checked):
    never = KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 1, 1)
    call = warmed(lse=None, workspace=None, spec=never)
    assert mlagen.mla_decode(**call) is call["out"]
    assert len(checked) == 2
    for _ in range(3):
        out, lse = mlagen.mla_decode(**call, return_lse=True)
        assert out is call["out"] and lse.shape == (2, 1, 16) and lse.dtype == "torch.float32"
        assert field(fake, "lse", make_plan(never)) == lse.pointer
    assert len(checked) == 4


@pytest.mark.parametrize("want_lse", [False, True])
def test_what_is_not_given_is_made_anew_each_time(fake, checked, want_lse):
    call = given(out=None, lse=None, workspace=None, return_lse=want_lse)
    q, size = call["q"], mlagen.workspace_size(SPEC, 2, 1, device=0)
    seen = []
    for _ in range(5):
        made = len(q.made)
        result = mlagen.mla_decode(**call)
        out, lse = result if want_lse else (result, None)
        scratch = next(tensor for tensor in q.made[made:] if tensor.dtype == "torch.uint8")
        assert len(q.made) - made == 2 + want_lse
        assert out.shape == (2, 1, 16, 512) and out.dtype == q.dtype and scratch.shape == (size,)
        assert field(fake, "out") == out.pointer
        assert field(fake, "lse") == (lse.pointer if want_lse else 0)
        assert field(fake, "partial_out") == scratch.pointer
        assert field(fake, "partial_lse") - scratch.pointer == 132 * 2 * 65536
        seen.append(out.pointer)
    assert len(checked) == 2 and len(set(seen)) == 5


def test_no_spec_and_a_name(fake, checked):
    for spec in (None, SPEC.name):
        warmed(spec=spec)
    assert len(checked) == 4
    assert mlagen.mla_decode(**given(spec="".join(list(SPEC.name))))[0]
    assert len(checked) == 4


WRONG = {
    "q dtype": {"q": FakeTensor((2, 1, 16, 576), "torch.float16", pointer=0x10000000)},
    "q strides": {"q": FakeTensor((2, 1, 16, 576), strides=(9216, 9216, 577, 1), pointer=0x10000000)},
    "q shape": {"q": FakeTensor((2, 1, 16, 512), pointer=0x10000000)},
    "q heads": {"q": FakeTensor((2, 1, 17, 576), pointer=0x10000000)},
    "q address": {"q": FakeTensor((2, 1, 16, 576), pointer=0x10000008)},
    "q device": {"q": FakeTensor((2, 1, 16, 576), device="cuda:1", pointer=0x10000000)},
    "cache on the host": {"kv_cache": FakeTensor((10, 64, 576), device="cpu", pointer=0x20000000)},
    "cache strides": {"kv_cache": FakeTensor((10, 64, 576), strides=(36864, 300, 1), pointer=0x20000000)},
    "table dtype": {"block_table": FakeTensor((2, 4), "torch.int64", pointer=0x30000000)},
    "table rows": {"block_table": FakeTensor((3, 4), "torch.int32", pointer=0x30000000)},
    "lengths dtype": {"cache_seqlens": FakeTensor((2,), "torch.int64", pointer=0x31000000)},
    "lengths strides": {"cache_seqlens": FakeTensor((2,), "torch.int32", strides=(2,), pointer=0x31000000)},
    "out shape": {"out": FakeTensor((2, 1, 16, 576), pointer=0x40000000)},
    "out overlaps": {"out": FakeTensor((2, 1, 16, 512), pointer=0x10000000)},
    "lse dtype": {"lse": FakeTensor((2, 1, 16), "torch.bfloat16", pointer=0x41000000)},
    "workspace short": {"workspace": FakeTensor((1000,), "torch.uint8", pointer=0x60000000)},
    "workspace dtype": {"workspace": FakeTensor((64 << 20,), "torch.int32", pointer=0x60000000)},
    "scale": {"softmax_scale": float("nan")},
    "scale bool": {"softmax_scale": True},
    "causal int": {"causal": 1},
    "splits bool": {"num_splits": True},
    "splits": {"num_splits": 17},
    "spec": {"spec": KernelSpec("sm_90a", "bf16", "bf16", 8, 64, 16, 1)},
    "spec page": {"spec": KernelSpec("sm_90a", "bf16", "bf16", 16, 32, 16, 1)},
    "no tensor": {"out": "out"},
}


@pytest.mark.parametrize("what", WRONG)
def test_every_rule_still_holds_for_what_differs_from_a_known_call(fake, what):
    warmed(softmax_scale=1.0, num_splits=1)
    count = len(fake.launches)
    changed = given(softmax_scale=1.0, num_splits=1) | WRONG[what]
    with pytest.raises(InputError):
        mlagen.mla_decode(**changed)
    assert len(fake.launches) == count
    mlagen.mla_decode(**given(softmax_scale=1.0, num_splits=1))
    assert len(fake.launches) == count + 1


def test_a_tensor_whose_shape_changed_in_place_is_checked_again(fake, checked):
    call = warmed()
    call["block_table"].strides = (7, 1)
    mlagen.mla_decode(**call)
    assert len(checked) == 3
    row = next(row for row in PLAN.params if row.name == "block_table_stride")
    assert struct.unpack_from("<q", params(fake), row.offset)[0] == 7


def test_batches_of_several_sizes_in_the_same_buffers(fake, checked):
    calls = [
        given(
            q=FakeTensor((batch, 1, 16, 576), pointer=0x10000000),
            block_table=FakeTensor((batch, 4), "torch.int32", pointer=0x30000000),
            cache_seqlens=FakeTensor((batch,), "torch.int32", pointer=0x31000000),
            out=FakeTensor((batch, 1, 16, 512), pointer=0x40000000),
            lse=FakeTensor((batch, 1, 16), "torch.float32", pointer=0x41000000),
        )
        for batch in (1, 2, 8)
    ]
    row = next(row for row in PLAN.params if row.name == "batch")
    for _ in range(5):
        for call, batch in zip(calls, (1, 2, 8), strict=True):
            mlagen.mla_decode(**call)
            assert struct.unpack_from("<i", params(fake), row.offset)[0] == batch
    assert len(checked) == 6


def field(fake, name, plan=PLAN):
    row = next(row for row in plan.params if row.name == name)
    return struct.unpack_from("<Q", fake.parameter(0, plan.params_bytes), row.offset)[0]


def test_stream_and_capture_are_asked_for_every_time(fake, monkeypatch):
    streams = {"now": 5}
    monkeypatch.setattr(runtime, "stream_of", lambda tensor, device: streams["now"])
    call = warmed()
    slots = {}
    for stream, capture in ((5, 0), (9, 0), (5, 0), (5, 77), (5, 0), (9, 78), (5, 77)):
        streams["now"] = stream
        fake.capturing = {stream: capture} if capture else {}
        mlagen.mla_decode(**call)
        assert fake.launches[-1]["stream"] == stream
        slot = field(fake, "counters")
        assert slots.setdefault((stream, capture), slot) == slot
    assert len(set(slots.values())) == len(slots) == 4


def test_context_is_made_current_and_restored(fake):
    call = warmed()
    fake.context_stack = [0xC1]
    mlagen.mla_decode(**call)
    assert fake.launches[-1]["context"] == 0xC0 and fake.context_stack == [0xC1]


def test_a_refused_launch_is_an_error_with_its_reason(fake):
    call = warmed()
    fake.fail["cuLaunchKernelEx"] = fake.real.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    with pytest.raises(DeviceError, match=r"COOPERATIVE_LAUNCH_TOO_LARGE.*MPS"):
        mlagen.mla_decode(**call)
    fake.fail.clear()
    mlagen.mla_decode(**call)


def test_checks_of_values_are_not_skipped(fake, checked, monkeypatch):
    call = warmed()
    monkeypatch.setenv("MLAGEN_CHECK", "1")
    seen = []
    monkeypatch.setattr(mlagen.api.check, "validate", lambda problem, spec: seen.append(spec))
    mlagen.mla_decode(**call)
    assert len(checked) == 3 and seen == [SPEC]


def test_what_is_kept_is_bounded(fake, monkeypatch):
    monkeypatch.setattr(warm, "MAX_READY", 4)
    monkeypatch.setattr(warm, "MAX_SEEN", 8)
    for step in range(30):
        call = given(q=FakeTensor((2, 1, 16, 576), pointer=0x12000000 + 65536 * step))
        for _ in range(3):
            mlagen.mla_decode(**call)
        launcher = runtime.LAUNCHERS[0]
        assert len(launcher.ready) <= 4 and len(launcher.seen) <= 8
    assert len(launcher.ready) == 4


def test_calls_that_never_repeat_build_nothing(fake):
    for step in range(20):
        mlagen.mla_decode(**given(q=FakeTensor((2, 1, 16, 576), pointer=0x12000000 + 65536 * step)))
    assert not runtime.LAUNCHERS[0].ready


def test_threads_keep_their_parameters(fake):
    seen = []
    launch = fake.cuLaunchKernelEx

    def recording(*args):
        result = launch(*args)
        seen.append((field(fake, "q_nope"), field(fake, "out")))
        return result

    fake.cuLaunchKernelEx = recording

    def work(number):
        call = given(
            q=FakeTensor((2, 1, 16, 576), pointer=0x10000000 + number * 0x100000),
            out=FakeTensor((2, 1, 16, 512), pointer=0x40000000 + number * 0x100000),
        )
        for _ in range(50):
            mlagen.mla_decode(**call)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 150 and all(q - 0x10000000 == out - 0x40000000 for q, out in seen)


def test_equal_specs_made_anew_share_a_prepared_call_and_fill_nothing(fake):
    from mlagen.spec import Tuning

    for _ in range(40):
        mlagen.mla_decode(**given(spec=KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 16, 1, Tuning())))
    launcher = runtime.LAUNCHERS[0]
    assert len(launcher._prepared) == 1 and len(launcher._kernels) == 1 and not launcher.ready
    assert sum(entry[0] == "load" for entry in fake.log) == 1
