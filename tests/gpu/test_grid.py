"""Every kernel of the grid on every kind of call: mixed lengths, split modes, token counts and logit ranges.

Kept faults: A1 A2 A3 A15 B3 B4 B6 B7 B8 B24 B26 (docs/testing.md).
"""

from __future__ import annotations

import cases
import pytest
from checks import check

import mlagen
from mlagen.casework import Case

CALLS = [f"q{s_q}-{mode}" for s_q in cases.TOKENS for mode in ("mixed", "balanced", "uniform")]


@pytest.mark.parametrize("call", range(len(CALLS)), ids=CALLS)
def test_grid(kernel, call):
    title, case = list(cases.calls(kernel))[call]
    assert title.startswith(CALLS[call])
    check(kernel, case)


BF16_128 = cases.spec("bf16", 128, 64, 64, 1)
BF16_128_PAIR = cases.spec("bf16", 128, 64, 64, 2)
BOTH = pytest.mark.parametrize("kernel_", [BF16_128, BF16_128_PAIR], ids=["1sm", "2sm"])


@BOTH
@pytest.mark.parametrize("splits", [1, 2, 3, 64])
@pytest.mark.parametrize("std", cases.LOGIT_STDS)
def test_any_split_count_agrees_with_one(kernel_, splits, std):
    """A1, A2: large logits do not depend on the split count, and stay finite."""
    import torch

    case = Case((256, 1000, 131), h_q=128, logit_std=std, splits=splits)
    _, lse = check(kernel_, case)
    assert bool(torch.isfinite(lse).all())


def test_large_queries_in_half_precision():
    """A1 as reported: fp16, batch 64, 128 heads, 256 keys, two pieces, queries of standard deviation 100."""
    case = Case((256,) * 64, h_q=128, dtype="fp16", logit_std=173.0, splits=2)
    check(cases.spec("fp16", 128, 64, 4, 1), case)


@BOTH
def test_every_length_around_two_tiles(kernel_):
    """A3: each length from 0 to 130, in one batch."""
    check(kernel_, Case(tuple(range(131)), h_q=128, splits=None))
    check(kernel_, Case(tuple(range(131)), h_q=128, splits=2, s_q=2))


@pytest.mark.parametrize("heads", cases.HEAD_COUNTS)
def test_head_counts(heads):
    """A15, B1, B6, B7, B8: odd and small head counts with one to four tokens, unmasked columns untouched."""
    kernel = cases.head_count_spec(heads)
    for s_q in (1, 2, 3, 4):
        check(kernel, Case((0, 1, 64, 200, 777), h_q=heads, s_q=s_q, splits=(1, 1, 2, 3, 4)))


@pytest.mark.parametrize("s_q", [1, 2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("heads", [5, 8, 128])
def test_token_counts(heads, s_q):
    """A15: one to eight query tokens."""
    kernel = cases.spec("bf16", heads, 64, 64, 1)
    check(kernel, Case((0, 3, 8, 100, 1000), h_q=heads, s_q=s_q))


def test_eight_heads_at_every_small_batch():
    """B1: eight heads, batch 1 to 17."""
    kernel = cases.spec("bf16", 8, 64, 64, 1)
    for batch in range(1, 18):
        check(kernel, Case(tuple(37 * row + 1 for row in range(batch)), h_q=8, seed=batch), repeats=0)


@pytest.mark.parametrize("length", [1, 16, 63, 64, 65])
def test_short_maximum_length(length):
    """B24: tables with just enough columns for a short row."""
    for page in (1, 16, 64):
        kernel = cases.spec("bf16", 16, page, 64, 1)
        check(kernel, Case((length, length), h_q=16, page_size=page, spare_columns=0))


@pytest.mark.parametrize("scale", [192**-0.5, 0.1352, 576**-0.5])
def test_scale_is_used_as_given(scale):
    """A23."""
    check(cases.spec("bf16", 16, 64, 64, 1), Case((300, 64), h_q=16, softmax_scale=scale, logit_std=3.0))


def test_batch_beyond_the_grid_dimension_limit():
    """B18: more rows than 65535, three keys each from a pool of 100 pages."""
    import torch

    batch, kernel = 70000, cases.spec("bf16", 1, 64, 64, 1)
    q = torch.randn((batch, 1, 1, 576), device="cuda", dtype=torch.bfloat16)
    kv = torch.full((100, 64, 576), float("nan"), device="cuda", dtype=torch.bfloat16)
    kv[:, :3] = torch.randn((100, 3, 576), device="cuda")
    table = torch.randint(0, 100, (batch, 1), device="cuda", dtype=torch.int32)
    lens = torch.full((batch,), 3, device="cuda", dtype=torch.int32)
    out, lse = mlagen.mla_decode(q, kv, table, lens, softmax_scale=0.1, spec=kernel, return_lse=True)
    for part in range(0, batch, 10000):
        rows = slice(part, part + 10000)
        keys = kv[table[rows, 0].long(), :3].double()
        logits = torch.einsum("bd,bkd->bk", q[rows, 0, 0].double(), keys) * 0.1
        expected = torch.einsum("bk,bkd->bd", logits.softmax(-1), keys[..., :512])
        torch.testing.assert_close(out[rows, 0, 0].double(), expected, atol=0.02, rtol=0.02)
        torch.testing.assert_close(lse[rows, 0, 0].double(), logits.logsumexp(-1), atol=1e-4, rtol=1e-5)


def test_random_specs_build_and_match():
    """B26: any spec inside the ranges can be generated."""
    import random

    draw = random.Random(5)
    for number in range(6):
        heads, page = draw.randint(1, 128), 2 ** draw.randint(0, 7)
        kernel = cases.spec(
            draw.choice(cases.DTYPES), heads, page, draw.randint(1, 256), draw.choice(cases.GROUPS)
        )
        rows = tuple(draw.randint(0, 900) for _ in range(9))
        splits = tuple(draw.randint(1, kernel.max_split) for _ in rows)
        dtype = kernel.q_dtype.value
        check(kernel, Case(rows, h_q=heads, page_size=page, dtype=dtype, splits=splits, seed=number))
