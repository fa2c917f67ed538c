"""The first thing to run on a new machine: a few kernels, small calls."""

from __future__ import annotations

import cases
import pytest

import mlagen
from mlagen.casework import Case, draw
from mlagen.verify import references, verify

SMOKE = [
    cases.spec("bf16", 128, 64, 64, 1),
    cases.spec("bf16", 16, 64, 64, 1),
    cases.spec("bf16", 128, 64, 64, 2),
]


@pytest.mark.parametrize("spec", SMOKE, ids=[spec.name for spec in SMOKE])
def test_verify(spec):
    result = verify(spec)
    for row in result.cases:
        print(row.title, row.margin)
    assert result.ok, [(row.title, str(row.margin), row.repeatable) for row in result.cases if not row.ok]


def test_public_call_returns_what_was_asked():
    import torch

    call = draw(Case((5, 700, 64), h_q=16))
    out = mlagen.mla_decode(*call.args, softmax_scale=call.case.softmax_scale)
    assert out.shape == (3, 1, 16, 512) and out.dtype == torch.bfloat16
    given = torch.empty_like(out)
    lse_given = torch.empty((3, 1, 16), dtype=torch.float32, device="cuda")
    result = mlagen.mla_decode(*call.args, **call.keywords, out=given, lse=lse_given)
    assert result[0] is given and result[1] is lse_given
    exact, _ = references(call)
    torch.testing.assert_close(given.double(), exact.out, atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse_given.double(), exact.lse, atol=1e-3, rtol=1e-4)


def test_empty_batch_is_a_no_op():
    import torch

    q = torch.empty((0, 1, 16, 576), dtype=torch.bfloat16, device="cuda")
    kv = torch.empty((0, 64, 576), dtype=torch.bfloat16, device="cuda")
    table = torch.empty((0, 0), dtype=torch.int32, device="cuda")
    lens = torch.empty((0,), dtype=torch.int32, device="cuda")
    out, lse = mlagen.mla_decode(q, kv, table, lens, softmax_scale=1.0, return_lse=True)
    assert out.shape == (0, 1, 16, 512) and lse.shape == (0, 1, 16)
