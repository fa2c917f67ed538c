"""Nothing outside the visible keys is read, everything in the output is written.

Kept faults: A4 A5 A6 A7 A10 A13 A17 B2 C5 C7 C8 F3 F6 (docs/testing.md).
"""

from __future__ import annotations

import cases
import pytest
from checks import assert_right, check, run, same_bits

import mlagen
from mlagen.casework import NEVER_READ_ID, Case, draw

KERNELS = [
    cases.spec("bf16", 128, 64, 64, 1),
    cases.spec("bf16", 128, 64, 64, 2),
    cases.spec("fp16", 64, 1, 1, 1),
    cases.spec("bf16", 16, 4, 64, 2),
    cases.spec("fp16", 16, 128, 64, 1),
]
EACH = pytest.mark.parametrize("kernel_", KERNELS, ids=[spec.name for spec in KERNELS])


def case_for(kernel, **changes):
    made = Case(
        (13, 0, 1, 65, 130, 1000), h_q=kernel.h_q, page_size=kernel.page_size, dtype=kernel.q_dtype.value
    )
    return made.but(**changes)


@EACH
@pytest.mark.parametrize("s_q", [1, 2])
def test_tails_and_unused_pages_never_matter(kernel_, s_q):
    """A4: NaN, infinity and zeros beyond the lengths give the same bits."""
    results = []
    for poison in (float("nan"), float("inf"), 0.0):
        call = draw(case_for(kernel_, poison=poison, s_q=s_q))
        results.append(run(kernel_, call))
    for out, lse in results[1:]:
        assert same_bits(results[0][0], out) and same_bits(results[0][1], lse)


@EACH
def test_all_rows_empty(kernel_):
    """A5, A6, A7: output 0 and LSE -inf, always written."""
    import torch

    out, lse = check(kernel_, case_for(kernel_, lengths=(0,) * 9))
    assert bool((out == 0).all()) and bool((lse == -torch.inf).all())


@EACH
def test_rows_shorter_than_their_tokens(kernel_):
    """A17, B20: causal rows with fewer keys than tokens; negative lengths count as 0."""
    import torch

    out, lse = check(kernel_, case_for(kernel_, lengths=(0, 1, 2, 3, 4, 5), s_q=4))
    assert bool((lse[1, :3] == -torch.inf).all()) and bool((out[1, :3] == 0).all())
    assert bool(torch.isfinite(lse[1, 3]).all())
    call = draw(case_for(kernel_, lengths=(0, 70, 3)))
    call.cache_seqlens[0] = -5
    out, lse = run(kernel_, call)
    assert_right(call, out, lse)


@EACH
def test_lengths_beyond_the_table_are_clamped(kernel_):
    import torch

    page = kernel_.page_size
    length = -(-200 // page) * page
    case = case_for(kernel_, lengths=(length, 5), spare_columns=0)
    call = draw(case)
    expected = run(kernel_, call)
    call.cache_seqlens[0] = 2**31 - 1
    got = run(kernel_, call)
    assert all(same_bits(one, two) for one, two in zip(expected, got, strict=True))
    assert bool(torch.isfinite(got[0]).all())


@EACH
def test_page_numbers_outside_the_cache_read_zeros(kernel_):
    """Ids of -1, pages and beyond, at the start, in the middle and at the end of a row."""
    call = draw(case_for(kernel_, lengths=(300, 300, 300, 64)))
    pages = call.kv_cache.shape[0]
    last = -(-300 // kernel_.page_size) - 1
    call.block_table[0, 0] = -1
    call.block_table[1, last // 2] = pages
    call.block_table[2, last] = NEVER_READ_ID
    out, lse = run(kernel_, call)
    assert_right(call, out, lse)


def test_split_counts_are_clamped():
    kernel = KERNELS[0]
    call = draw(case_for(kernel, splits=(0, -7, 10**9, 1, 2, 64)))
    out, lse = run(kernel, call)
    assert_right(call, out, lse)
    call = draw(case_for(kernel, splits=(1, 1, 64, 1, 2, 64)))
    again, lse_again = run(kernel, call)
    assert same_bits(out, again) and same_bits(lse, lse_again)


@EACH
def test_workspace_of_exact_size_with_canaries(kernel_):
    """B2, C5, C7, C8, F6: nothing outside the workspace is written, its contents never matter."""
    import torch

    call = draw(case_for(kernel_, splits=None))
    size = mlagen.workspace_size(kernel_, 6, 1, device="cuda:0")
    fence = 4096
    results = []
    for fill in (0, 0xFF, 0x3C):
        whole = torch.full((size + 2 * fence,), fill, dtype=torch.uint8, device="cuda")
        whole[:fence] = whole[fence + size :] = 0xA5
        workspace = whole[fence : fence + size]
        results.append(
            mlagen.mla_decode(*call.args, **call.keywords, workspace=workspace, spec=kernel_, return_lse=True)
        )
        assert bool((whole[:fence] == 0xA5).all()) and bool((whole[fence + size :] == 0xA5).all())
    for out, lse in results[1:]:
        assert same_bits(results[0][0], out) and same_bits(results[0][1], lse)
    if size:
        short = torch.empty((size - 1,), dtype=torch.uint8, device="cuda")
        with pytest.raises(ValueError, match="1 B short"):
            mlagen.mla_decode(*call.args, **call.keywords, workspace=short, spec=kernel_)


def test_dirty_workspace_a_hundred_times():
    """C7: random contents before each run."""
    import torch

    kernel = KERNELS[0]
    call = draw(Case((5000, 3, 700), h_q=128))
    size = mlagen.workspace_size(kernel, 3, 1, device="cuda:0")
    first = None
    for _ in range(100):
        workspace = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        out = mlagen.mla_decode(*call.args, **call.keywords, workspace=workspace, spec=kernel)
        first = out if first is None else first
        assert same_bits(first, out)


def test_lse_is_the_natural_logarithm_in_token_head_order():
    """A10, A13: odd heads, several tokens, against logsumexp."""
    import torch

    kernel = cases.spec("bf16", 5, 2, 4, 1)
    call = draw(Case((130, 7), h_q=5, s_q=3, page_size=2))
    out, lse = run(kernel, call)
    assert lse.shape == (2, 3, 5)
    assert_right(call, out, lse)
    ids = call.block_table[0, :65].long()
    keys = call.kv_cache[ids].reshape(130, 576).double()
    for token in range(3):
        logits = call.q[0, token].double() @ keys[: 130 - 2 + token].T * call.case.softmax_scale
        torch.testing.assert_close(lse[0, token].double(), logits.logsumexp(-1), atol=1e-4, rtol=1e-5)
