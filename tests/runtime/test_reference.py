"""The reference against its definition, and the tolerance against answers that are wrong in known ways."""

from __future__ import annotations

import numpy as np
import pytest
from reference import decode
from tolerance import compare

from mlagen.casework import NEVER_READ_ID, Case, draw, split_counts
from mlagen.verify import default_cases, references, verify

torch = pytest.importorskip("torch")


def numpy_answer(call):
    case = call.case
    return decode(
        call.q.double().numpy(),
        call.kv_cache.double().numpy(),
        call.block_table.numpy(),
        call.cache_seqlens.numpy(),
        softmax_scale=case.softmax_scale,
        causal=case.causal,
    )


@pytest.mark.parametrize("layout", ["fused", "fused4", "pair", "padded", "strided"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("page", [1, 4, 64])
def test_reference_is_the_definition(layout, causal, page):
    call = draw(Case((0, 1, 2, 5, 64, 70), h_q=3, s_q=3, page_size=page, causal=causal, layout=layout), "cpu")
    out, lse = numpy_answer(call)
    exact, _ = references(call)
    np.testing.assert_allclose(exact.out.numpy(), out, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(exact.lse.numpy(), lse, rtol=1e-12)


def test_page_numbers_outside_the_cache_are_zeros():
    call = draw(Case((70, 70), h_q=2, page_size=16), "cpu")
    call.block_table[0, 1] = -1
    call.block_table[1, 0] = call.kv_cache.shape[0]
    out, lse = numpy_answer(call)
    exact, _ = references(call)
    np.testing.assert_allclose(exact.out.numpy(), out, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(exact.lse.numpy(), lse, rtol=1e-12)


def test_lengths_are_clamped():
    call = draw(Case((70, 70), h_q=2, page_size=16, spare_columns=0), "cpu")
    call.cache_seqlens[0] = -4
    exact, _ = references(call)
    assert bool(torch.isneginf(exact.lse[0]).all())
    call.block_table[:] = 0
    call.kv_cache[:] = 1
    call.cache_seqlens[0] = 10**6
    exact, _ = references(call)
    assert bool(torch.isfinite(exact.out).all())


def test_cases_are_poisoned():
    call = draw(Case((5, 0, 20), h_q=2, page_size=16), "cpu")
    assert call.block_table[0, 1] == NEVER_READ_ID and call.block_table[1, 0] == NEVER_READ_ID
    page = int(call.block_table[0, 0])
    assert bool(torch.isnan(call.kv_cache[page, 5:]).all()) and not bool(
        torch.isnan(call.kv_cache[page, :5]).any()
    )
    assert int(torch.isnan(call.kv_cache[:, 0, 0]).sum()) == 7
    ids = [int(call.block_table[0, 0]), *call.block_table[2, :2].tolist()]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("std", [0.1, 1.0, 10.0, 100.0])
def test_logits_have_the_deviation_asked_for(std):
    call = draw(Case((2000,), h_q=32, logit_std=std), "cpu")
    keys = call.kv_cache[call.block_table[0, :32].long()].reshape(-1, 576)[:2000].float()
    logits = call.q[0, 0].float() @ keys.T * call.case.softmax_scale
    assert float(logits.std()) == pytest.approx(std, rel=0.1)


def answer(dtype="bf16", std=1.0):
    call = draw(Case((0, 1, 200, 65), h_q=4, s_q=2, dtype=dtype, logit_std=std), "cpu")
    exact, rounded = references(call)
    out = rounded.out.to(call.q.dtype)
    return out, rounded.lse.float().clone(), exact, rounded


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("std", [0.1, 1.0, 100.0])
def test_same_precision_answer_is_right(dtype, std):
    margin = compare(*answer(dtype, std))
    assert margin.ok and margin.out < 0.6 and margin.lse < 0.6 and margin.cosine < 0.5, str(margin)


def spoil(change):
    out, lse, exact, rounded = answer()
    change(out, lse)
    return compare(out, lse, exact, rounded)


WRONG = {
    "one element": (lambda out, lse: out[2, 0, 1, 7].add_(0.05), "out is off"),
    "a row of another head": (lambda out, lse: out[2, 0, 1].copy_(out[2, 0, 2].clone()), "out is off"),
    "nan": (lambda out, lse: out[3, 1, 3, 511].fill_(float("nan")), "out is not finite"),
    "empty row not written": (lambda out, lse: out[0, 0, 0, 0].fill_(1e-30), "not 0 where no key"),
    "lse in base 2": (lambda out, lse: lse.mul_(1.4427), "lse is off"),
    "lse +inf for an empty row": (lambda out, lse: lse[0].fill_(float("inf")), "-inf where it should not"),
    "lse off by 1e-3": (lambda out, lse: lse[2, 0, 0].add_(1e-3), "lse is off"),
    "two percent": (lambda out, lse: out[2].mul_(1.02), "out is off"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_caught(name):
    change, text = WRONG[name]
    margin = spoil(change)
    assert not margin.ok and text in margin.problem, str(margin)


def test_one_lost_key_is_caught():
    """Dropping the last of 200 keys from one row."""
    call = draw(Case((200,), h_q=4), "cpu")
    exact, rounded = references(call)
    call.cache_seqlens[0] = 199
    _, lost = references(call)
    margin = compare(lost.out.to(torch.bfloat16), lost.lse.float(), exact, rounded)
    assert not margin.ok


def test_place_of_the_fault_is_named():
    margin = spoil(lambda out, lse: out[2, 1, 3, 100].add_(1.0))
    assert "row 2, token 1, head 3, column 100" in margin.problem


def test_verify_needs_a_gpu():
    from mlagen.errors import DeviceError

    with pytest.raises(DeviceError, match="no GPU can be used"):
        verify("mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s16_1sm")


class RightAnswers:
    """A launcher that copies the same-precision answer into the buffers of the call."""

    def __init__(self, error=0.0):
        self.error = error

    def workspace_bytes(self, spec, batch, s_q):
        return 64

    def schedule(self, *args):
        raise NotImplementedError

    def decode(self, spec, problem, outputs):
        from mlagen.reference import same_precision

        given = problem.tensors
        q = given["q"] if "q" in given else torch.cat((given["q_nope"], given["q_pe"]), -1)
        kv = given["kv_cache"] if "kv_cache" in given else torch.cat((given["ckv"], given["k_pe"]), -1)
        result = same_precision(
            q,
            kv,
            given["block_table"],
            given["cache_seqlens"],
            softmax_scale=problem.softmax_scale,
            causal=problem.causal,
        )
        assert outputs.out == given["out"].data_ptr() and outputs.workspace == given["workspace"].data_ptr()
        given["out"].copy_(result.out + self.error)
        given["lse"].copy_(result.lse)


def test_verify_with_another_launcher():
    name = "mla_decode_sm90_wgmma_bf16_bf16_h3_p16_s4_1sm"
    good = verify(name, launcher=RightAnswers(), where="host")
    assert good.ok and good.where == "host" and len(good.cases) >= 8
    assert good.as_dict()["cases"][0]["title"] == "one token"
    bad = verify(name, launcher=RightAnswers(0.5), where="host")
    assert not bad.ok


def test_default_cases_stay_inside_the_kernel():
    from mlagen.spec import KernelSpec

    spec = KernelSpec("sm_90a", "fp16", "fp16", 5, 1, 1, 2)
    for case in default_cases(spec).values():
        counts = case.splits if isinstance(case.splits, tuple) else (case.splits or 1,)
        assert all(1 <= count <= spec.max_split for count in counts)
    assert split_counts(range(7), 64) == (1, 64, 2, 32, 3, 63, 1)
