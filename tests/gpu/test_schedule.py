"""The device's own list of work, read back and compared with the model of the schedule."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import cases
import pytest
from schedule_model import Model

import mlagen
from mlagen import runtime
from mlagen.casework import Case, draw, split_counts

KERNELS = [
    cases.spec("bf16", 128, 64, 64, 1),
    cases.spec("bf16", 128, 64, 64, 2),
    cases.spec("bf16", 16, 64, 64, 1),
    cases.spec("bf16", 16, 64, 64, 2),
    cases.spec("fp16", 64, 1, 1, 1),
    cases.spec("fp16", 96, 128, 4, 2),
]
EACH = pytest.mark.parametrize("kernel_", KERNELS, ids=[spec.name for spec in KERNELS])
BATCHES = (
    (1,),
    (0,),
    (0, 0, 0),
    (0, 1, 63, 64, 65, 1000, 4097),
    (1, 5000, 131072),
    (131072, *[1024] * 31),
    tuple(37 * row % 3001 for row in range(200)),
    tuple(range(1100)),
    (8192,),
    (4096,) * 16,
    (16384,) * 32,
    (4096,) * 128,
    (100,) * 1000,
)


def read_back(kernel, lengths, splits=None, s_q=1):
    """(pieces of the device, pieces of the model). The cache is one page: the schedule reads lengths
    alone.
    """
    import torch

    page = kernel.page_size
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kernel.q_dtype.value]
    width = -(-max(max(lengths), 1) // page)
    q = torch.empty((len(lengths), s_q, kernel.h_q, 576), dtype=dtype, device="cuda")
    kv = torch.empty((1, page, 576), dtype=dtype, device="cuda")
    table = torch.zeros((len(lengths), width), dtype=torch.int32, device="cuda")
    lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    counts = torch.tensor(splits, dtype=torch.int32, device="cuda") if isinstance(splits, tuple) else splits
    pieces = mlagen.schedule(q, kv, table, lens, num_splits=counts, spec=kernel)
    shape = runtime.launcher(0).kernel(kernel).shape(s_q)
    return pieces, Model(kernel, shape, lengths, width * page, splits).pieces()


@EACH
@pytest.mark.parametrize(
    "lengths", BATCHES, ids=[f"b{len(lengths)}" + f"-{max(lengths)}" for lengths in BATCHES]
)
@pytest.mark.parametrize("s_q", [1, 2])
def test_device_follows_the_model(kernel_, lengths, s_q):
    for splits in (None, 1, kernel_.max_split, split_counts(lengths, kernel_.max_split)):
        device, model = read_back(kernel_, lengths, splits, s_q)
        assert device == model, splits


@EACH
def test_every_key_exactly_once(kernel_):
    for splits in (None, 1, kernel_.max_split):
        device, _ = read_back(kernel_, BATCHES[3], splits, 2)
        spans = defaultdict(list)
        for piece in device:
            spans[piece.row, piece.tile].append((piece.first_key, piece.last_key))
        for (row, _), pieces in spans.items():
            assert pieces[0][0] == 0 and pieces[-1][1] == BATCHES[3][row]
            assert all(before[1] == after[0] for before, after in pairwise(pieces))
        tiles = -(-2 * kernel_.h_q // 64)
        assert all((row, tile) in spans for row in range(7) for tile in range(tiles))


@pytest.mark.parametrize("kernel_", KERNELS[:2], ids=["1sm", "2sm"])
def test_skewed_batch_is_balanced(kernel_):
    """Lengths 1, 5000, 131072 with 128 heads: the busiest CTA has at most 1.15 x the mean work."""
    device, _ = read_back(kernel_, BATCHES[4])
    shape = runtime.launcher(0).kernel(kernel_).shape(1)
    work = [0] * shape.ctas
    for piece in device:
        work[piece.cta] += -(-(piece.last_key - piece.first_key) // 64) + kernel_.tuning.piece_cost
    print(max(work) / (sum(work) / len(work)))
    assert max(work) <= 1.15 * sum(work) / len(work)


def test_check_mode_names_row_and_column(monkeypatch):
    monkeypatch.setenv("MLAGEN_CHECK", "1")
    kernel = KERNELS[2]
    call = draw(Case((100, 200, 300), h_q=16, splits=(1, 2, 3)))
    mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
    call.block_table[2, 3] = -1
    with pytest.raises(ValueError, match=r"block_table\[2, 3\] is -1; the cache has pages 0\.\."):
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
    call.block_table[2, 3] = 0
    call.cache_seqlens[1] = 10**6
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\] is 1000000; 0\.\."):
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
    call.cache_seqlens[1] = 5
    call.num_splits[0] = 65
    with pytest.raises(ValueError, match=r"num_splits\[0\] is 65; 1\.\.64"):
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
