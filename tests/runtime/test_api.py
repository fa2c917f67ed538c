"""The public call on fake tensors and a fake driver."""

from __future__ import annotations

import struct

import pytest
from fakes import FakeDriver, FakeTensor, arguments, install

import mlagen
from mlagen import runtime
from mlagen.errors import InputError
from mlagen.plan import make_plan


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(runtime, "_cubin", lambda spec: spec.name.encode())
    return install(monkeypatch, FakeDriver())


def pointer(fake, name):
    spec = mlagen.KernelSpec.from_name(fake.launches[-1]["function"])
    plan = make_plan(spec)
    row = next(row for row in plan.params if row.name == name)
    return struct.unpack_from("<Q", fake.parameter(0, plan.params_bytes), row.offset)[0]


def test_out_alone(fake):
    given = arguments()
    out = mlagen.mla_decode(**given)
    assert isinstance(out, FakeTensor) and out.shape == (2, 1, 16, 512)
    assert pointer(fake, "out") == out.pointer and pointer(fake, "lse") == 0
    workspace = given["q"].made[0]
    assert workspace.dtype == "torch.uint8" and pointer(fake, "partial_out") == workspace.pointer
    assert workspace.shape == (mlagen.workspace_size(fake.launches[-1]["function"], 2, 1, device=0),)


def test_out_and_lse(fake):
    out, lse = mlagen.mla_decode(**arguments(), return_lse=True)
    assert lse.shape == (2, 1, 16) and lse.dtype == "torch.float32"
    assert pointer(fake, "lse") == lse.pointer != out.pointer


def test_given_buffers_are_returned(fake):
    out = FakeTensor((2, 1, 16, 512), pointer=0x50000000)
    lse = FakeTensor((2, 1, 16), "torch.float32", pointer=0x51000000)
    assert mlagen.mla_decode(**arguments(), out=out) is out
    result = mlagen.mla_decode(**arguments(), out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    assert pointer(fake, "out") == out.pointer and pointer(fake, "lse") == lse.pointer


def test_given_workspace_is_used(fake):
    size = 132 * 2 * (65536 + 512)
    workspace = FakeTensor((size,), "torch.uint8", pointer=0x60000000)
    given = arguments()
    mlagen.mla_decode(**given, workspace=workspace)
    assert pointer(fake, "partial_out") == 0x60000000
    assert len(given["q"].made) == 1  # the output alone
    short = FakeTensor((size - 1,), "torch.uint8", pointer=0x60000000)
    launched = len(fake.launches)
    with pytest.raises(InputError, match="1 B short"):
        mlagen.mla_decode(**arguments(), workspace=short)
    assert len(fake.launches) == launched


def test_spec_by_name_and_by_choice(fake):
    name = "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s4_2sm"
    mlagen.mla_decode(**arguments(), spec=name)
    assert fake.launches[-1]["function"] == name
    mlagen.mla_decode(**arguments())
    assert fake.launches[-1]["function"] == "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s128_1sm"
    mlagen.mla_decode(**arguments(num_splits=200))
    assert fake.launches[-1]["function"] == "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s256_1sm"
    with pytest.raises(InputError, match="num_splits=300 is 44 above max_split 256"):
        mlagen.mla_decode(**arguments(num_splits=300))
    with pytest.raises(InputError, match="spec is a int"):
        mlagen.mla_decode(**arguments(), spec=3)


def test_the_choice_does_not_depend_on_batch_or_lengths(fake):
    names = set()
    for batch, width, s_q in ((1, 1, 1), (64, 4, 2), (500, 2000, 1)):
        mlagen.mla_decode(**arguments(batch=batch, width=width, s_q=s_q, h_q=128))
        names.add(fake.launches[-1]["function"])
    assert names == {"mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s128_1sm"}


def test_no_rows_no_launch_no_tensor_map_no_driver(monkeypatch, fake):
    monkeypatch.setattr(runtime, "launcher", lambda ordinal: pytest.fail("the GPU was asked for"))
    given = arguments(batch=0)
    out, lse = mlagen.mla_decode(**given, return_lse=True)
    assert out.shape == (0, 1, 16, 512) and lse.shape == (0, 1, 16)
    assert mlagen.schedule(**given) == []
    assert not fake.launches and not fake.log
