"""Strides, pairs, page order and addresses beyond 32 bits.

Kept faults: A14 A25 B10 B11 B12 B13 B14 B15 B16 B17 F1 F7 (docs/testing.md).
"""

from __future__ import annotations

import cases
import pytest
from checks import assert_right, check, margin_of, run, same_bits

import mlagen
from mlagen.casework import Call, Case, draw

KERNELS = [
    cases.spec("bf16", 16, 64, 64, 1),
    cases.spec("bf16", 16, 64, 64, 2),
    cases.spec("bf16", 8, 1, 64, 1),
]
EACH = pytest.mark.parametrize("kernel_", KERNELS, ids=[spec.name for spec in KERNELS])


@EACH
@pytest.mark.parametrize("layout", ["fused", "fused4", "pair", "padded", "strided"])
def test_layouts_agree_bit_for_bit(kernel_, layout):
    """A25, B10, B14, F7: padded rows and pages, table views, pairs, q as a slice of a wider tensor."""
    case = Case((0, 65, 300, 1000), h_q=kernel_.h_q, page_size=kernel_.page_size, s_q=2, splits=(1, 1, 2, 4))
    out, lse = check(kernel_, case.but(layout=layout))
    plain, plain_lse = run(kernel_, draw(case))
    assert same_bits(out, plain) and same_bits(lse, plain_lse)


@EACH
def test_outputs_as_views_with_guards(kernel_):
    """A14, B15: out and lse as slices of larger tensors; guard bytes intact."""
    import torch

    heads = kernel_.h_q
    call = draw(Case((0, 65, 300), h_q=heads, page_size=kernel_.page_size, s_q=2, splits=(1, 1, 3)))
    out_whole = torch.full((3, 3, heads + 1, 640), 7.0, dtype=torch.bfloat16, device="cuda")
    lse_whole = torch.full((3, 2, 2 * heads), 7.0, device="cuda")
    out, lse = out_whole[:, :2, :heads, :512], lse_whole[..., ::2]
    mlagen.mla_decode(*call.args, **call.keywords, out=out, lse=lse, spec=kernel_)
    assert_right(call, out, lse)
    touched = torch.zeros_like(out_whole, dtype=torch.bool)
    touched[:, :2, :heads, :512] = True
    assert bool((out_whole[~touched] == 7).all()) and bool((lse_whole[..., 1::2] == 7).all())


@EACH
def test_pages_scattered_over_a_large_pool(kernel_):
    """B11, B12: a pool of many times the needed pages, ids spread over all of it."""
    page = kernel_.page_size
    check(kernel_, Case((1000, 64, 1), h_q=kernel_.h_q, page_size=page, spare_pages=200 * 64 // page))


def _at_the_top(kernel, elements: int) -> Call:
    """A call whose pages lie at the end of a pool of more than `elements` elements; the rest is never
    written.
    """
    import torch

    page = kernel.page_size
    lengths = (100, 700)
    pages = -(-elements // (page * 576)) + 64
    free, _ = torch.cuda.mem_get_info()
    if free < pages * page * 576 * 2 + (2 << 30):
        pytest.skip(f"{pages * page * 576 * 2 >> 30} GiB of GPU memory are needed, {free >> 30} GiB are free")
    small = draw(Case(lengths, h_q=kernel.h_q, page_size=page, spare_pages=0))
    used = small.kv_cache.shape[0]
    pool = torch.empty((pages, page, 576), dtype=torch.bfloat16, device="cuda")
    pool[:used] = float("nan")
    pool[pages - used :] = small.kv_cache
    table = torch.where(small.block_table < used, small.block_table + (pages - used), small.block_table)
    args = (small.q, pool, table, small.cache_seqlens)
    return Call(small.case, small.q, pool, args, table, small.cache_seqlens, None)


@pytest.mark.parametrize("bits", [31, 32, 33])
def test_cache_beyond_32_bit_offsets(bits):
    """B13, B16, B17: pages past 2^31 and 2^32 elements (4.6 to 17 GB)."""
    for kernel in KERNELS[:2]:
        call = _at_the_top(kernel, 2**bits)
        out, lse = run(kernel, call)
        assert_right(call, out, lse)
        del call


def test_one_row_pages_at_large_numbers():
    """B17: page numbers above 3.7 million."""
    kernel = KERNELS[2]
    call = _at_the_top(kernel, 2**32)
    assert call.kv_cache.shape[0] > 3_700_000
    out, lse = run(kernel, call)
    assert_right(call, out, lse)


def test_many_rows_and_pieces():
    """F1, B18: batch 1024 with 128 heads and 32 pieces each; offsets of q and out pass 2^31 bytes with s_q
    16.
    """
    kernel = cases.spec("bf16", 128, 64, 64, 1)
    check(kernel, Case((129,) * 1024, h_q=128, splits=32), repeats=0)


def test_query_offsets_beyond_2_to_31_elements():
    """B17 for q and out: 16384 rows x 2 tokens x 128 heads x 576."""
    import torch

    kernel = cases.spec("bf16", 128, 64, 64, 1)
    batch = 16384 + 8
    few = draw(Case((70, 3), h_q=128, s_q=2, spare_columns=0))
    q = torch.zeros((batch, 2, 128, 576), dtype=torch.bfloat16, device="cuda")
    q[-2:] = few.q
    table = torch.zeros((batch, few.block_table.shape[1]), dtype=torch.int32, device="cuda")
    table[-2:] = few.block_table
    lens = torch.zeros((batch,), dtype=torch.int32, device="cuda")
    lens[-2:] = few.cache_seqlens
    out, lse = mlagen.mla_decode(
        q, few.kv_cache, table, lens, softmax_scale=few.case.softmax_scale, return_lse=True, spec=kernel
    )
    margin = margin_of(few, out[-2:], lse[-2:])
    assert margin.ok, margin
    assert bool((out[:-2] == 0).all())


def test_one_kernel_and_no_copy_a_call():
    """F7, B7: a call with pairs launches exactly one kernel and copies nothing."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    kernel = KERNELS[0]
    call = draw(Case((1000, 300), h_q=16, layout="pair", splits=4))
    mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
        torch.cuda.synchronize()
    names = [event.name for event in record.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert names == [kernel.name]
