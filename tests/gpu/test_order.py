"""Order and time: streams, devices, repeats under load, batch invariance, no hang for any split count.

Kept faults: A16 A18 A28 B9 B19 B20 B22 C9 C10 C11 C12 F2 F4 (docs/testing.md).
"""

from __future__ import annotations

import random

import cases
import pytest
from checks import assert_right, check, run, same_bits

import mlagen
from mlagen.casework import Case, draw

ONE = cases.spec("bf16", 128, 64, 64, 1)
TWO = cases.spec("bf16", 128, 64, 64, 2)
FEW = cases.spec("bf16", 16, 64, 64, 1)
FEW_PAIR = cases.spec("bf16", 16, 64, 64, 2)
EACH = pytest.mark.parametrize("kernel_", [ONE, TWO, FEW, FEW_PAIR], ids=lambda spec: spec.name)


@EACH
def test_equal_bits_under_load(kernel_):
    """A16, A18: 200 runs while another stream keeps the GPU busy."""
    import torch

    call = draw(Case((5000, 64, 0, 777, 9000), h_q=kernel_.h_q, s_q=1))
    out, lse = run(kernel_, call)
    assert_right(call, out, lse)
    noise = torch.randn((2048, 2048), device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    for turn in range(200):
        if turn % 10 == 0:
            with torch.cuda.stream(side):
                for _ in range(random.Random(turn).randint(1, 6)):
                    torch.mm(noise, noise)
        again, lse_again = mlagen.mla_decode(*call.args, **call.keywords, spec=kernel_, return_lse=True)
        assert same_bits(out, again) and same_bits(lse, lse_again), turn


@EACH
def test_a_row_does_not_depend_on_its_neighbours(kernel_):
    """A28: with one piece a row the bits of a row are the same alone and in any batch."""
    import torch

    call = draw(Case((1000, 65, 4097, 3), h_q=kernel_.h_q, splits=1))
    alone = {}
    for row in range(4):
        q, kv, table, lens = call.args
        alone[row] = mlagen.mla_decode(
            q[row : row + 1],
            kv,
            table[row : row + 1],
            lens[row : row + 1],
            softmax_scale=call.case.softmax_scale,
            num_splits=1,
            spec=kernel_,
        )
    chooser = random.Random(1)
    for _ in range(64):
        rows = [chooser.randrange(4) for _ in range(chooser.randint(2, 70))]
        index = torch.tensor(rows, device="cuda")
        q, kv, table, lens = call.args
        out = mlagen.mla_decode(
            q[index],
            kv,
            table[index],
            lens[index],
            softmax_scale=call.case.softmax_scale,
            num_splits=1,
            spec=kernel_,
        )
        for place, row in enumerate(rows):
            assert same_bits(out[place], alone[row][0]), (rows, place)


@EACH
def test_tokens_equal_separate_calls(kernel_):
    """B22: four causal tokens are four single-token calls with stepped lengths."""
    lengths = (3, 64, 131, 1000)
    call = draw(Case(lengths, h_q=kernel_.h_q, s_q=4))
    out, lse = run(kernel_, call)
    assert_right(call, out, lse)
    for token in range(4):
        single = draw(Case(lengths, h_q=kernel_.h_q, s_q=1))
        single.q.copy_(call.q[:, token : token + 1])
        single.kv_cache.copy_(call.kv_cache)
        single.block_table.copy_(call.block_table)
        single.cache_seqlens.copy_((call.cache_seqlens - 3 + token).clamp_min(0))
        got, lse_got = run(kernel_, single)
        assert_right(single, got, lse_got)
        exact = out[:, token].double()
        assert float((got[:, 0].double() - exact).abs().max()) < 0.05


@EACH
def test_every_length_with_every_split_count(kernel_):
    """B19: lengths 1 to 512 as one batch, 1 to 32 pieces; a hang is ended by the watchdog."""
    call = draw(Case(tuple(range(1, 513)), h_q=kernel_.h_q))
    for splits in range(1, 33):
        out, lse = mlagen.mla_decode(
            *call.args,
            softmax_scale=call.case.softmax_scale,
            num_splits=splits,
            spec=kernel_,
            return_lse=True,
        )
        if splits in (1, 2, 7, 32):
            assert_right(call, out, lse)


@EACH
def test_each_length_alone_with_split_counts(kernel_):
    """B19 with batch 1: one short row over the whole grid."""
    import torch

    for length in (0, 1, 63, 64, 65, 127, 128, 129, 320, 511):
        for splits in (None, 1, 2, 3, 5, 8, 31, 64):
            check(kernel_, Case((length,), h_q=kernel_.h_q, splits=splits), repeats=0)
    torch.cuda.synchronize()


@pytest.mark.parametrize("kernel_", [TWO, FEW_PAIR], ids=lambda spec: spec.name)
def test_ten_thousand_pair_launches_with_idle_clusters(kernel_):
    """B9: cluster peers stay until remote arrivals are done."""
    import torch

    calls = [
        draw(Case((length,) * batch, h_q=kernel_.h_q))
        for length, batch in ((1, 1), (0, 3), (65, 2), (700, 5))
    ]
    outs = [mlagen.mla_decode(*call.args, **call.keywords, spec=kernel_) for call in calls]
    for turn in range(10000):
        call = calls[turn % len(calls)]
        mlagen.mla_decode(*call.args, **call.keywords, spec=kernel_, out=outs[turn % len(calls)])
    torch.cuda.synchronize()
    for call, out in zip(calls, outs, strict=True):
        assert same_bits(out, run(kernel_, call)[0])


def test_streams_alternate():
    """C11: each call runs on torch's current stream of that moment, in order with the work around it."""
    import torch

    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    call = draw(Case((9000, 64, 3000), h_q=16))
    expected, _ = run(FEW, call)
    torch.cuda.synchronize()
    results = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            torch.cuda._sleep(200000)
            q = call.q.clone()
            out = mlagen.mla_decode(q, *call.args[1:], **call.keywords, spec=FEW)
            results.append(out.clone())
    torch.cuda.synchronize()
    assert all(same_bits(result, expected) for result in results)


def test_two_streams_at_the_same_time():
    """Concurrent launches have their own counters."""
    import torch

    calls = [draw(Case((9000, 64, 3000, seed), h_q=16, seed=seed)) for seed in (1, 2, 3)]
    expected = [run(FEW, call)[0] for call in calls]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    results = []
    for _ in range(100):
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                results.append(mlagen.mla_decode(*call.args, **call.keywords, spec=FEW))
    torch.cuda.synchronize()
    for number, result in enumerate(results):
        assert same_bits(result, expected[number % 3])


def test_second_device():
    """C9, C10, F2, F4: tensors on the second GPU while the first is current."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is visible; two are needed")
    torch.cuda.set_device(0)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        call = draw(Case((1000, 0, 65), h_q=128), device)
        out, lse = run(ONE, call)
        assert_right(call, out, lse)
    assert torch.cuda.current_device() == 0


def test_current_device_is_left_alone():
    import torch

    before = torch.cuda.current_device()
    check(FEW, Case((100,), h_q=16))
    assert torch.cuda.current_device() == before


def test_a_kernel_for_other_shapes_is_refused():
    """B21, C12: a kernel built for other heads, page size or dtype is an error before anything is
    launched.
    """
    call = draw(Case((100,), h_q=16))
    for wrong in (
        cases.spec("bf16", 20, 64, 1, 2),
        cases.spec("bf16", 16, 4, 64, 2),
        cases.spec("fp16", 16, 128, 64, 1),
    ):
        with pytest.raises(ValueError, match="was built for"):
            mlagen.mla_decode(*call.args, **call.keywords, spec=wrong)


@EACH
@pytest.mark.parametrize("s_q", [1, 3])
def test_batch_invariant_rows_have_the_same_bits_alone_and_in_any_batch(kernel_, s_q):
    import torch

    call = draw(Case((20000, 1000, 65, 3, 0), h_q=kernel_.h_q, s_q=s_q))
    q, kv, table, lens = call.args

    def decode(rows):
        index = torch.tensor(rows, device="cuda")
        return mlagen.mla_decode(
            q[index],
            kv,
            table[index],
            lens[index],
            softmax_scale=call.case.softmax_scale,
            spec=kernel_,
            return_lse=True,
            deterministic="batch_invariant",
        )

    alone = [decode([row]) for row in range(5)]
    assert_right(call, torch.cat([out for out, _ in alone]), torch.cat([lse for _, lse in alone]))
    chooser = random.Random(2)
    for _ in range(16):
        rows = [chooser.randrange(5) for _ in range(chooser.randint(2, 150))]
        outs, lses = decode(rows)
        for place, row in enumerate(rows):
            assert same_bits(outs[place], alone[row][0][0]) and same_bits(lses[place], alone[row][1][0])
