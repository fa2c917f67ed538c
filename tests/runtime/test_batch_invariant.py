"""deterministic="batch_invariant": no row is cut, so a row's bits depend on nothing but the row."""

from __future__ import annotations

import struct

import pytest
from fakes import FakeDriver, FakeTensor, arguments, install

import mlagen
from mlagen import runtime
from mlagen.errors import InputError
from mlagen.plan import make_plan
from mlagen.spec import KernelSpec

SPEC = KernelSpec("sm_90a", "bf16", "bf16", 16, 64, 16, 1)
MODE = "batch_invariant"


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(runtime, "_cubin", lambda spec: spec.name.encode())
    return install(monkeypatch, FakeDriver())


def field(fake, name):
    plan = make_plan(SPEC)
    row = next(row for row in plan.params if row.name == name)
    return struct.unpack_from(
        {"P": "<Q", "i": "<i"}[row.ctype_code], fake.parameter(0, plan.params_bytes), row.offset
    )[0]


def test_one_piece_a_row_and_no_workspace(fake):
    given = arguments(spec=SPEC, out=FakeTensor((2, 1, 16, 512), pointer=0x40000000))
    for _ in range(4):  # checked, then repeated
        mlagen.mla_decode(**given, deterministic=MODE)
        assert field(fake, "uniform_splits") == 1 and field(fake, "num_splits") == 0
        assert field(fake, "partial_out") == field(fake, "partial_lse") == 0
    assert given["q"].made == []  # no scratch was taken
    assert mlagen.workspace_size(SPEC, 2, 1, device=0, deterministic=MODE) == 0
    assert mlagen.workspace_size(SPEC, 2, 1, device=0) > 0


def test_modes_are_told_apart_when_calls_repeat(fake):
    given = arguments(
        spec=SPEC,
        out=FakeTensor((2, 1, 16, 512), pointer=0x40000000),
        workspace=FakeTensor((64 << 20,), "torch.uint8", pointer=0x60000000),
    )
    for _ in range(4):
        for mode, pieces in ((MODE, 1), (None, 0)):
            mlagen.mla_decode(**given, deterministic=mode)
            assert field(fake, "uniform_splits") == pieces
            assert field(fake, "partial_out") == (0 if pieces else 0x60000000)


@pytest.mark.parametrize("value", [True, "batch-invariant", 1, ""])
def test_other_modes_are_refused(fake, value):
    with pytest.raises(InputError, match=r"deterministic=.*'batch_invariant'"):
        mlagen.mla_decode(**arguments(), spec=SPEC, deterministic=value)
    with pytest.raises(InputError, match="deterministic="):
        mlagen.workspace_size(SPEC, 1, 1, device=0, deterministic=value)


@pytest.mark.parametrize("splits", [1, 4])
def test_split_counts_are_refused_beside_it(fake, splits):
    with pytest.raises(InputError, match="num_splits is given together with deterministic"):
        mlagen.mla_decode(**arguments(num_splits=splits), spec=SPEC, deterministic=MODE)
    assert not fake.launches


@pytest.mark.parametrize("cta_group", [1, 2])
def test_a_row_alone_and_in_batches_has_the_same_bits(cta_group):
    """On the emulator, with a grid on which other modes would cut the long row."""
    torch = pytest.importorskip("torch")
    from mlagen import api
    from mlagen.casework import Case, draw
    from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
    from mlagen.problem import Problem

    spec = KernelSpec("sm_90a", "bf16", "bf16", 8, 64, 16, cta_group)
    launcher = EmulatorLauncher(EmulatorOptions(sms=4))
    call = draw(Case((200, 65, 3), h_q=8), "cpu")
    q, cache, table, lengths = call.args

    def decode(rows):
        index = torch.tensor(rows)
        problem = Problem.from_tensors(
            q[index],
            cache,
            table[index],
            lengths[index],
            softmax_scale=call.case.softmax_scale,
            deterministic=MODE,
            device_type="cpu",
        )
        return api.run(problem, spec, launcher, True)

    out, lse = decode([0])
    for rows in ([1, 0, 2], [0, 0, 0, 0, 0, 2]):
        outs, lses = decode(rows)
        place = rows.index(0)
        assert torch.equal(outs[place].view(torch.int16), out[0].view(torch.int16))
        assert torch.equal(lses[place], lse[0])
