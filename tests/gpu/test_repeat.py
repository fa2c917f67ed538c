"""Repeated calls with given outputs: the launch without checks gives what the checked one gives."""

from __future__ import annotations

import cases
import pytest
from checks import assert_right, same_bits

import mlagen
from mlagen import runtime
from mlagen.casework import Case, draw
from mlagen.errors import InputError

KERNELS = [cases.spec("bf16", 128, 64, 64, 1), cases.spec("bf16", 16, 64, 64, 1)]
EACH = pytest.mark.parametrize("kernel_", KERNELS, ids=[spec.name for spec in KERNELS])


def prepared(kernel, seed=0):
    import torch

    call = draw(Case((700, 65, 3000), h_q=kernel.h_q, page_size=64, seed=seed))
    size = mlagen.workspace_size(kernel, 3, 1, device=0)
    out, lse = mlagen.mla_decode(*call.args, **call.keywords, spec=kernel, return_lse=True)
    given = {
        "out": torch.empty_like(out),
        "lse": torch.empty_like(lse),
        "workspace": torch.empty((size,), dtype=torch.uint8, device="cuda"),
        "spec": kernel,
    }
    return call, given


@EACH
def test_repeated_calls_are_right_on_new_contents_of_the_same_memory(kernel_):
    call, given = prepared(kernel_)
    others = [draw(call.case.but(seed=seed)) for seed in range(1, 6)]
    for other in others:
        for mine, theirs in ((call.q, other.q), (call.kv_cache, other.kv_cache)):
            mine.copy_(theirs)
        call.block_table.copy_(other.block_table)
        call.cache_seqlens.copy_(other.cache_seqlens)
        given["out"].fill_(float("nan"))
        out, lse = mlagen.mla_decode(*call.args, **call.keywords, **given)
        assert_right(other, out, lse)
    assert runtime.LAUNCHERS[0].ready


@EACH
def test_repeated_calls_on_other_streams_and_in_a_graph(kernel_):
    import torch

    call, given = prepared(kernel_)
    for _ in range(3):
        mlagen.mla_decode(*call.args, **call.keywords, **given)
    torch.cuda.synchronize()
    first = given["out"].clone()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        given["out"].fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            mlagen.mla_decode(*call.args, **call.keywords, **given)
        stream.synchronize()
        assert same_bits(first, given["out"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            mlagen.mla_decode(*call.args, **call.keywords, **given)
    for _ in range(3):
        given["out"].fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(first, given["out"])


def test_rules_hold_after_a_call_is_known():
    import torch

    kernel = KERNELS[1]
    call, given = prepared(kernel)
    for _ in range(3):
        mlagen.mla_decode(*call.args, **call.keywords, **given)
    q, *rest = call.args
    with pytest.raises(InputError, match="dtype"):
        mlagen.mla_decode(q.view(torch.float16), *rest, **call.keywords, **given)
    with pytest.raises(InputError, match="short"):
        small = {**given, "workspace": given["workspace"][:-1]}
        mlagen.mla_decode(*call.args, **call.keywords, **small)
