"""CUDA graphs: captured once, replayed with other lengths, tables, splits and contents.

Kept faults: A20 B1 B21 C1 C2 C3 C4 C5 C6 C7 (docs/testing.md).
"""

from __future__ import annotations

import random

import cases
import pytest
from checks import assert_right, run, same_bits

import mlagen
from mlagen.casework import Call, Case, draw

KERNELS = [
    cases.spec("bf16", 128, 64, 64, 1),
    cases.spec("bf16", 128, 64, 64, 2),
    cases.spec("bf16", 16, 64, 64, 1),
]
EACH = pytest.mark.parametrize("kernel_", KERNELS, ids=[spec.name for spec in KERNELS])
LONGEST = 33000


def roomy(kernel, batch: int, *, s_q: int = 1, splits=None, seed: int = 0) -> Call:
    """A call whose table is wide enough for LONGEST keys and whose pages are all filled with numbers."""
    columns = -(-LONGEST // kernel.page_size)
    case = Case(
        (LONGEST, *[kernel.page_size] * (batch - 1)),
        h_q=kernel.h_q,
        page_size=kernel.page_size,
        s_q=s_q,
        splits=splits,
        seed=seed,
        poison=0.5,
    )
    call = draw(case)
    assert call.block_table.shape[1] >= columns
    return call


def refill(call: Call, lengths, seed: int) -> None:
    """New lengths, tables and queries in the same memory."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    pages = call.kv_cache.shape[0]
    call.block_table.copy_(
        torch.randint(0, pages, call.block_table.shape, generator=generator, device="cuda", dtype=torch.int32)
    )
    call.cache_seqlens.copy_(torch.tensor(lengths, dtype=torch.int32))
    call.q.copy_(torch.randn(call.q.shape, generator=generator, device="cuda"))


class Captured:
    """A graph of one call, with what it writes to."""

    def __init__(self, kernel, call: Call, *, workspace=None, calls: int = 1) -> None:
        import torch

        self.kernel, self.call = kernel, call
        self.graph = torch.cuda.CUDAGraph()
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for _ in range(calls):
                self.out, self.lse = mlagen.mla_decode(
                    *call.args, **call.keywords, spec=kernel, workspace=workspace, return_lse=True
                )

    def replay(self):
        self.out.fill_(float("nan"))
        self.lse.fill_(float("nan"))
        self.graph.replay()
        return self.out, self.lse


@EACH
@pytest.mark.parametrize("s_q", [1, 2])
def test_replay_with_other_lengths_and_tables(kernel_, s_q):
    """A20, C1, C4: captured at 64 keys, replayed with up to 32768; eager and replay agree in every bit."""
    call = roomy(kernel_, 6, s_q=s_q)
    refill(call, [64] * 6, seed=1)
    captured = Captured(kernel_, call)
    for step, lengths in enumerate(
        (
            [64] * 6,
            [0, 1, 63, 64, 65, 32768],
            [32768] * 6,
            [0] * 6,
            [5, 0, 0, 0, 0, 0],
            [1000, 0, 4097, 1, 0, 9],
        )
    ):
        refill(call, lengths, seed=step)
        out, lse = captured.replay()
        assert_right(call, out, lse)
        eager = run(kernel_, call)
        assert same_bits(out, eager[0]) and same_bits(lse, eager[1])


@EACH
def test_replay_with_other_split_counts(kernel_):
    """C2: the device tensor of split counts changes between replays."""
    import torch

    call = roomy(kernel_, 5, splits=(1, 1, 1, 1, 1))
    refill(call, [20000, 3000, 64, 0, 999], seed=3)
    captured = Captured(kernel_, call)
    for counts in ([1] * 5, [64] * 5, [2, 64, 3, 1, 5], [0, 1000, 7, 64, 1]):
        call.num_splits.copy_(torch.tensor(counts, dtype=torch.int32))
        out, lse = captured.replay()
        assert_right(call, out, lse)


@EACH
def test_fewer_live_rows_than_captured(kernel_):
    """C1: batch 64 captured, 1 to 64 rows alive, the others of length 0."""
    call = roomy(kernel_, 64)
    refill(call, [64] * 64, seed=1)
    captured = Captured(kernel_, call)
    for live in (1, 2, 17, 63, 64):
        refill(call, [37 * (row + 1) for row in range(live)] + [0] * (64 - live), seed=live)
        out, lse = captured.replay()
        assert_right(call, out, lse)


def test_many_captured_batches_share_one_workspace():
    """B1, C3, C6: graphs of batch 1 to 64 on one workspace, replayed in random order."""
    import torch

    kernel = KERNELS[0]
    size = max(mlagen.workspace_size(kernel, batch, 1, device="cuda:0") for batch in range(1, 65))
    assert size == mlagen.workspace_size(kernel, 64, 1, device="cuda:0")
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")
    captured = {}
    for batch in (1, 2, 3, 8, 17, 64):
        call = roomy(kernel, batch, seed=batch)
        refill(call, [700 * (row % 7) for row in range(batch)], seed=batch)
        captured[batch] = Captured(kernel, call, workspace=workspace)
    order = random.Random(3)
    for _ in range(20):
        batch = order.choice(list(captured))
        lengths = [order.randint(0, 5000) for _ in range(batch)]
        refill(captured[batch].call, lengths, seed=order.randint(0, 10**6))
        out, lse = captured[batch].replay()
        assert_right(captured[batch].call, out, lse)


@EACH
def test_one_graph_with_many_calls_replayed_many_times(kernel_):
    """Counters survive: 10 calls a graph, 100 replays, all bits equal."""
    import torch

    call = roomy(kernel_, 4)
    refill(call, [9000, 64, 777, 0], seed=1)
    captured = Captured(kernel_, call, calls=10)
    first = [tensor.clone() for tensor in captured.replay()]
    for _ in range(100):
        out, lse = captured.replay()
        assert same_bits(out, first[0]) and same_bits(lse, first[1])
    torch.cuda.synchronize()
    assert_right(call, *first)


def test_capture_of_two_branches():
    """Two streams inside one capture run at the same time and have their own counters and scratch."""
    import torch

    kernel = KERNELS[2]
    calls = [roomy(kernel, 4, seed=1), roomy(kernel, 4, seed=2)]
    for number, call in enumerate(calls):
        refill(call, [20000, 3000, 1, 500 * number], seed=number)
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel)
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    results = []
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        results.append(mlagen.mla_decode(*calls[0].args, **calls[0].keywords, spec=kernel, return_lse=True))
        with torch.cuda.stream(side):
            results.append(
                mlagen.mla_decode(*calls[1].args, **calls[1].keywords, spec=kernel, return_lse=True)
            )
        main.wait_stream(side)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    for call, (out, lse) in zip(calls, results, strict=True):
        assert_right(call, out, lse)


def test_first_call_of_a_kernel_inside_a_capture():
    """Loading, tensor maps and counters are made during a capture without breaking it."""
    import torch

    kernel = cases.spec("fp16", 40, 16, 64, 2)
    call = draw(Case((300, 0, 4097), h_q=40, page_size=16, dtype="fp16"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = mlagen.mla_decode(*call.args, **call.keywords, spec=kernel, return_lse=True)
    graph.replay()
    torch.cuda.synchronize()
    assert_right(call, out, lse)
