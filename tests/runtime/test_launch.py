"""The runtime against a fake driver: what is loaded, packed, encoded and launched, and where."""

from __future__ import annotations

import math
import struct
import threading

import pytest
from fakes import FakeDriver, FakeTensor, arguments, install

from mlagen import api, runtime
from mlagen.errors import DeviceError
from mlagen.launch_shape import launch_shape
from mlagen.plan import make_plan
from mlagen.problem import Problem
from mlagen.runtime import CudaLauncher, Outputs
from mlagen.spec import KernelSpec

SMEM = make_plan(KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 16, 1)).launch.smem_bytes
PAIR_SMEM = make_plan(KernelSpec("sm_90a", "bf16", "bf16", 128, 64, 16, 2)).launch.smem_bytes


def make_spec(**changes):
    fields = {"h_q": 16, "page_size": 64, "max_split": 16, "cta_group": 1, **changes}
    return KernelSpec("sm_90a", "bf16", "bf16", **fields)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(runtime, "_cubin", lambda spec: spec.name.encode())
    return install(monkeypatch, FakeDriver(devices=2))


def decode(spec=None, **changes):
    spec = spec or make_spec()
    problem = Problem.from_tensors(**arguments(**changes))
    launcher = runtime.launcher(problem.layout.device)
    launcher.decode(spec, problem, Outputs(0x500000, 0x600000, 0x700000))
    return launcher, problem


def field(fake, plan, name):
    row = next(row for row in plan.params if row.name == name)
    code = {"P": "Q", "q": "q", "i": "i", "f": "f"}[row.ctype_code]
    return struct.unpack_from(f"<{code}", fake.parameter(0, plan.params_bytes), row.offset)[0]


def test_launch_shape_and_attributes(fake):
    decode()
    launch = fake.launches[-1]
    assert launch["function"] == make_spec().name
    assert launch["grid"] == (132, 1, 1) and launch["block"] == (384, 1, 1)
    assert launch["smem"] == SMEM and launch["extra"] == 0
    assert launch["attributes"] == {"COOPERATIVE": 1} and launch["count"] == 1


def test_pair_launch_uses_clusters_that_fit(fake):
    fake.clusters = 60
    decode(make_spec(cta_group=2, h_q=128), h_q=128)
    launch = fake.launches[-1]
    assert launch["grid"] == (120, 1, 1)
    assert launch["attributes"] == {"COOPERATIVE": 1, "CLUSTER_DIMENSION": (2, 1, 1)}
    assert ("clusters", 132, PAIR_SMEM) in fake.log


def test_parameters_lie_where_the_plan_says(fake):
    spec = make_spec()
    _, problem = decode(spec, num_splits=7)
    plan = make_plan(spec)
    shape = launch_shape(spec, 1, 132)
    expected = {
        "block_table": 0x30000000,
        "cache_seqlens": 0x31000000,
        "num_splits": 0,
        "q_nope": 0x10000000,
        "q_pe": 0x10000000 + 1024,
        "out": 0x500000,
        "lse": 0x600000,
        "partial_out": 0x700000,
        "partial_lse": 0x700000 + 132 * 2 * 65536,
        "uniform_splits": 7,
        "causal": 1,
        "batch": 2,
        "s_q": 1,
        "max_len": 256,
        "tiles": 1,
        "units_per_team": 1,
        "groups": 1,
        "teams": shape.teams,
        "block_table_stride": 4,
        "q_nope_stride_b": 16 * 576,
        "out_stride_h": 512,
        "lse_stride_b": 16,
    }
    for name, value in expected.items():
        assert field(fake, plan, name) == value, name
    assert field(fake, plan, "counters") % 128 == 0 and field(fake, plan, "counters") > 0
    scale = field(fake, plan, "scale_log2")
    assert scale == pytest.approx(problem.softmax_scale * math.log2(math.e), rel=1e-6)


def test_second_call_of_a_layout_replaces_every_value(fake):
    decode(num_splits=7)
    tensors = {
        "q": FakeTensor((2, 1, 16, 576), pointer=0x12000000),
        "num_splits": FakeTensor((2,), "torch.int32", pointer=0x32000000),
        "causal": False,
        "softmax_scale": 0.5,
    }
    decode(**tensors)
    decode(**{**tensors, "num_splits": None})
    plan = make_plan(make_spec())
    assert field(fake, plan, "q_nope") == 0x12000000
    assert field(fake, plan, "num_splits") == 0 and field(fake, plan, "uniform_splits") == 0
    assert field(fake, plan, "causal") == 0
    assert field(fake, plan, "scale_log2") == pytest.approx(0.5 * math.log2(math.e))
    assert sum(entry[0] == "load" for entry in fake.log) == 1


def test_pairs_strides_and_views_reach_the_kernel(fake):
    spec = make_spec()
    decode(
        spec,
        q=(FakeTensor((2, 1, 16, 512), pointer=0x10000000), FakeTensor((2, 1, 16, 64), pointer=0x11000000)),
        kv_cache=(
            FakeTensor((10, 64, 512), strides=(64 * 520, 520, 1), pointer=0x20000000),
            FakeTensor((10, 64, 64), pointer=0x28000000),
        ),
        block_table=FakeTensor((2, 4), "torch.int32", strides=(33, 1), pointer=0x30000000),
        out=FakeTensor((2, 1, 16, 512), strides=(20000, 20000, 1024, 1), pointer=0x50000000),
    )
    plan = make_plan(spec)
    assert field(fake, plan, "q_pe") == 0x11000000
    assert field(fake, plan, "q_pe_stride_h") == 64 and field(fake, plan, "q_nope_stride_h") == 512
    assert field(fake, plan, "block_table_stride") == 33
    assert field(fake, plan, "out_stride_h") == 1024
    encoded = [entry for entry in fake.log if entry[0] == "encode"]
    assert [entry[3] for entry in encoded] == [0x20000000, 0x28000000]
    assert encoded[0][5] == [1040, 128, 8 * 1040, 64 * 1040]
    assert encoded[1][5] == [128, 128, 8 * 128, 64 * 128]


@pytest.mark.parametrize("page", [1, 2, 4, 8, 32, 64, 128])
def test_tensor_map_numbers(fake, page):
    decode(make_spec(page_size=page), page_size=page, pages=33)
    latent, rope = (entry for entry in fake.log if entry[0] == "encode")
    row, whole = 1152, 1152 * page
    if page < 8:
        assert latent[2:8] == (4, 0x20000000, [64, page, 8, 33], [row, 128, whole], [64, page, 1, 1], [1] * 4)
        assert rope[4] == [64, page, 1, 33]
    else:
        assert latent[4] == [64, 8, 8, page // 8, 33]
        assert latent[5] == [row, 128, 8 * row, whole]
        assert latent[6] == [64, 8, 4, min(page, 64) // 8, 1]
        assert rope[4] == [64, 8, 1, page // 8, 33] and rope[6] == [64, 8, 1, min(page, 64) // 8, 1]
    assert rope[3] == 0x20000000 + 1024
    assert latent[1].endswith("BFLOAT16") and latent[9].endswith("SWIZZLE_128B")
    for entry in (latent, rope):
        assert all(stride % 16 == 0 for stride in entry[5])


def test_tensor_maps_are_aligned_copies_and_encoded_once(fake):
    decode()
    decode()
    assert sum(entry[0] == "encode" for entry in fake.log) == 2
    for index, address in ((1, 0x20000000), (2, 0x20000400)):
        assert fake.parameter_address(index) % 64 == 0
        assert struct.unpack("<16Q", fake.parameter(index, 128)) == tuple(
            address + word for word in range(16)
        )
    assert fake.parameter_address(0) % 64 == 0
    decode(kv_cache=FakeTensor((10, 64, 576), pointer=0x21000000))
    assert struct.unpack("<16Q", fake.parameter(1, 128))[0] == 0x21000000


def test_more_tensor_maps_than_are_kept(fake):
    launcher, _ = decode()
    launcher._maps.capacity = 8
    for step in range(100):
        decode(kv_cache=FakeTensor((10, 64, 576), pointer=0x21000000 + 4096 * step))
        assert struct.unpack("<16Q", fake.parameter(1, 128))[0] == 0x21000000 + 4096 * step
    assert len(launcher._maps) == 8


def test_other_device_is_used_and_restored(fake):
    def on_one(tensor):
        return FakeTensor(tensor.shape, tensor.dtype, "cuda:1", tensor.strides, tensor.pointer)

    changes = {name: on_one(value) for name, value in arguments().items() if isinstance(value, FakeTensor)}
    decode()
    decode(**changes)
    assert [launch["context"] for launch in fake.launches] == [0xC0, 0xC1]
    assert fake.context_stack == [0xC0]
    loads = [entry for entry in fake.log if entry[0] == "load"]
    assert [entry[2] for entry in loads] == [0xC0, 0xC1]
    attributes = [entry for entry in fake.log if entry[0] == "attribute"]
    assert [(entry[3], entry[4]) for entry in attributes] == [(SMEM, 0xC0), (SMEM, 0xC1)]
    assert all("MAX_DYNAMIC_SHARED" in entry[2] for entry in attributes)


def test_context_is_restored_when_the_launch_fails(fake):
    fake.context_stack = [0]
    fake.fail["cuLaunchKernelEx"] = fake.real.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    with pytest.raises(DeviceError, match=r"COOPERATIVE_LAUNCH_TOO_LARGE.*MPS"):
        decode()
    assert fake.context_stack == [0]


def test_loading_is_allowed_during_a_capture(fake):
    fake.capturing[0] = 77
    decode()
    load = next(entry for entry in fake.log if entry[0] == "load")
    assert load[3].endswith("RELAXED")
    assert fake.mode.name.endswith("GLOBAL")


def test_stream_is_asked_for_on_every_call(fake):
    streams = iter([5, 9, 5])
    launcher = CudaLauncher(0, stream=lambda problem: next(streams))
    problem = Problem.from_tensors(**arguments())
    plan = make_plan(make_spec())
    slots = []
    for _ in range(3):
        launcher.decode(make_spec(), problem, Outputs(0x500000, 0x600000, 0x700000))
        slots.append(field(fake, plan, "counters"))
    assert [launch["stream"] for launch in fake.launches] == [5, 9, 5]
    assert slots[0] == slots[2] != slots[1]


def test_never_split_needs_no_counters_and_no_workspace(fake):
    spec = make_spec(max_split=1)
    problem = Problem.from_tensors(**arguments())
    launcher = runtime.launcher(0)
    assert launcher.workspace_bytes(spec, 2, 1) == 0
    launcher.decode(spec, problem, Outputs(0x500000, 0x600000, 0))
    plan = make_plan(spec)
    assert [field(fake, plan, name) for name in ("counters", "partial_out", "partial_lse")] == [0, 0, 0]
    assert not any(entry[0] == "alloc" for entry in fake.log)


def test_wrong_gpu_is_named(monkeypatch, fake):
    install(monkeypatch, FakeDriver(capability=(10, 0)))
    with pytest.raises(DeviceError, match=r"built for compute capability 9\.0 .*Fake H200 with 10\.0"):
        decode()
    with pytest.raises(DeviceError, match=r"compute capability 10\.0; kernels exist for 9\.0"):
        api.mla_decode(**arguments())


def test_no_such_device(fake):
    with pytest.raises(DeviceError, match=r"device 7 was asked for; this process sees 2 GPU"):
        api.workspace_size(make_spec(), 1, 1, device="cuda:7")


def test_refused_image_names_the_kernel(fake):
    fake.fail["cuModuleLoadData"] = fake.real.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    with pytest.raises(DeviceError, match=r"load mla_decode_sm90.*built for another architecture"):
        decode()


def test_refused_tensor_map_shows_its_numbers(fake):
    fake.fail["cuTensorMapEncodeTiled"] = fake.real.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(ValueError, match=r"TMA cannot describe this cache: .*extents=\(64, 8, 8, 8, 10\)"):
        decode()


def test_threads_do_not_mix_their_parameters(fake):
    decode()
    plan = make_plan(make_spec())
    seen = []
    launch = fake.cuLaunchKernelEx

    def checked(*args):
        result = launch(*args)
        seen.append((field(fake, plan, "q_nope"), field(fake, plan, "uniform_splits")))
        return result

    fake.cuLaunchKernelEx = checked

    def work(number):
        for _ in range(50):
            decode(q=FakeTensor((2, 1, 16, 576), pointer=0x10000000 * number), num_splits=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 150
    assert all(pointer == 0x10000000 * number for pointer, number in seen)


def test_schedule_entry(fake):
    spec = make_spec(cta_group=2, h_q=128)
    problem = Problem.from_tensors(**arguments(h_q=128, num_splits=3))
    runtime.launcher(0).schedule(spec, problem, 0x880000, 0x990000, 1234)
    launch = fake.launches[-1]
    assert launch["function"].endswith("_schedule") and launch["block"] == (32, 1, 1)
    assert launch["grid"] == (132, 1, 1) and launch["smem"] == 0 and launch["attributes"] == {}


def test_workspace_depends_on_the_grid_alone(fake):
    one, two = make_spec(h_q=128, cta_group=1), make_spec(h_q=128, cta_group=2)
    per_cta = 2 * (65536 + 512)
    assert api.workspace_size(one, 1, 1, device="cuda:0") == 132 * per_cta
    assert api.workspace_size(two, 1, 1, device=0) == 132 * per_cta
    assert api.workspace_size(one, 1000, 4, device="cuda:1") == 128 * per_cta  # 8 tiles: 16 teams of 8
    assert api.workspace_size(one, 0, 1, device=0) == 0
    big = make_spec(h_q=128, max_split=256)
    assert api.workspace_size(big.name, 1, 1, device=0) == 132 * per_cta
    assert api.workspace_size(make_spec(h_q=128), 3, 3, device=0) == 132 * per_cta  # 6 tiles: teams of 6


@pytest.mark.parametrize(
    ("arguments_", "text"),
    [((-1, 1, 0), "b=-1"), ((1, 0, 0), "s_q=0"), ((True, 1, 0), "b=True"), ((1, 1, "cpu"), "device='cpu'")],
)
def test_workspace_size_refuses(fake, arguments_, text):
    b, s_q, device = arguments_
    with pytest.raises(ValueError, match=text):
        api.workspace_size(make_spec(), b, s_q, device=device)
