"""One test for each rule about the arguments of a call; each message says what was asked and what would
work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes import FakeTensor, arguments

from mlagen.errors import InputError
from mlagen.layout import check_work
from mlagen.problem import Problem
from mlagen.spec import KernelSpec

Q = FakeTensor
INT = "torch.int32"


def spec(**changes):
    fields = {"h_q": 16, "page_size": 64, "max_split": 16, "cta_group": 1, **changes}
    return KernelSpec("sm_90a", "bf16", "bf16", **fields)


def problem(**changes):
    return Problem.from_tensors(**arguments(**changes))


def pair_q(nope=(2, 1, 16, 512), pe=(2, 1, 16, 64)):
    return Q(nope), Q(pe, pointer=0x11000000)


def pair_kv(ckv=(10, 64, 512), k_pe=(10, 64, 64)):
    return Q(ckv, pointer=0x20000000), Q(k_pe, pointer=0x28000000)


RULES = {
    "q list": ({"q": [1, 2, 3]}, "q is a sequence of 3; one tensor or the pair (q_nope, q_pe)"),
    "q number": ({"q": 3}, "q is a int; a tensor is needed"),
    "q none in pair": ({"q": (Q((2, 1, 16, 512)), None)}, "q_pe is a NoneType; a tensor is needed"),
    "q rank": ({"q": Q((2, 16, 576))}, "q has shape [2, 16, 576]; [b, s_q, h_q, 576]"),
    "q width": ({"q": Q((2, 1, 16, 512))}, "q has shape [2, 1, 16, 512]; [b, s_q, h_q, 576]"),
    "q pair width": ({"q": pair_q(nope=(2, 1, 16, 576))}, "q_nope has shape [2, 1, 16, 576]"),
    "q pair apart": ({"q": pair_q(pe=(2, 1, 8, 64))}, "q_pe has shape [2, 1, 8, 64]; [2, 1, 16, 64]"),
    "q dtype": ({"q": Q((2, 1, 16, 576), "torch.float32")}, "q has dtype float32; bfloat16 or float16"),
    "q cpu": ({"q": Q((2, 1, 16, 576), device="cpu")}, "q is on device 'cpu'; a CUDA tensor is needed"),
    "q meta": ({"q": Q((2, 1, 16, 576), device="meta")}, "q is on device 'meta'"),
    "no heads": ({"q": Q((2, 1, 0, 576))}, "h_q=0 heads; 1..128"),
    "too many heads": ({"q": Q((2, 1, 129, 576))}, "h_q=129 heads; 1..128"),
    "no tokens": ({"q": Q((2, 0, 16, 576))}, "s_q=0 query tokens a row; at least 1"),
    "too many tokens": (
        {"q": Q((2, 2**20, 16, 576))},
        "s_q=1048576 tokens of 16 heads a row; at most 262143",
    ),
    "q last stride": (
        {"q": Q((2, 1, 16, 576), strides=(18432, 18432, 1152, 2))},
        "q has stride 2 in its last dimension; 1 is needed",
    ),
    "q row stride": (
        {"q": Q((2, 1, 16, 576), strides=(10000, 10000, 580, 1))},
        "q has stride 580 elements (1160 B) in dimension 2; multiples of 16 B are needed, 8 B too many",
    ),
    "q base": (
        {"q": Q((2, 1, 16, 576), pointer=0x10000008)},
        "q starts at address 0x10000008, 8 B past a multiple of 16 B",
    ),
    "cache dtype": (
        {"kv_cache": Q((10, 64, 576), "torch.float16", pointer=0x20000000)},
        "kv_cache has dtype float16, q has bfloat16",
    ),
    "cache cpu": ({"kv_cache": Q((10, 64, 576), device="cpu")}, "kv_cache is on device 'cpu'"),
    "mixed devices": (
        {"kv_cache": Q((10, 64, 576), device="cuda:1")},
        "kv_cache is on cuda:1, q is on cuda:0; all tensors of a call must be on one GPU",
    ),
    "cache rank": ({"kv_cache": Q((640, 576))}, "kv_cache has shape [640, 576]; [pages, page_size, 576]"),
    "cache heads": ({"kv_cache": Q((10, 64, 2, 576))}, "kv_cache has shape [10, 64, 2, 576]"),
    "cache pair apart": ({"kv_cache": pair_kv(k_pe=(9, 64, 64))}, "ckv holds [10, 64]", "k_pe [9, 64]"),
    "page size": ({"kv_cache": Q((10, 48, 576))}, "pages of 48 tokens; 1, 2, 4, 8, 16, 32, 64 or 128"),
    "page size 256": ({"kv_cache": Q((10, 256, 576))}, "pages of 256 tokens"),
    "no pages": ({"kv_cache": Q((0, 64, 576))}, "kv_cache has 0 pages; 1..2147483647 are needed"),
    "cache last stride": (
        {"kv_cache": Q((10, 64, 576), strides=(73728, 1152, 2))},
        "kv_cache has stride 2 in its last dimension",
    ),
    "cache row stride": (
        {"kv_cache": Q((10, 64, 576), strides=(580 * 64, 580, 1))},
        "kv_cache has stride 580 elements (1160 B) in dimension 1",
    ),
    "cache page stride": (
        {"kv_cache": Q((10, 64, 576), strides=(576 * 64 + 4, 576, 1))},
        "in dimension 0; multiples of 16 B are needed, 8 B too many",
    ),
    "cache rows overlap": (
        {"kv_cache": Q((10, 64, 576), strides=(512 * 64, 512, 1))},
        "rows are 1024 B apart and 1152 B long, they overlap by 128 B",
    ),
    "cache pages overlap": (
        {"kv_cache": Q((10, 64, 576), strides=(576 * 32, 576, 1))},
        "pages are 36864 B apart and 73728 B long",
    ),
    "cache stride size": (
        {"kv_cache": Q((2, 64, 576), strides=(2**40, 576, 1))},
        "TMA takes less than 1099511627776 B",
    ),
    "cache base": (
        {"kv_cache": Q((10, 64, 576), pointer=0x20000002)},
        "kv_cache starts at address 0x20000002, 2 B past",
    ),
    "table dtype": (
        {"block_table": Q((2, 4), "torch.int64")},
        "block_table has dtype int64; int32 is needed",
    ),
    "table rows": ({"block_table": Q((3, 4), INT)}, "block_table has shape [3, 4]; [b, width] with b=2"),
    "table rank": ({"block_table": Q((8,), INT)}, "block_table has shape [8]"),
    "table columns": (
        {"block_table": Q((2, 4), INT, strides=(1, 2))},
        "block_table has stride 2 in its last dimension",
    ),
    "table width": (
        {"block_table": Q((2, 2**26), INT)},
        "67108864 columns of 64 keys: 4294967296 keys a row, 2147483649 above the limit",
    ),
    "table base": ({"block_table": Q((2, 4), INT, pointer=0x30000002)}, "multiple of 4 B"),
    "table none": ({"block_table": None}, "block_table is a NoneType; a tensor is needed"),
    "lengths dtype": ({"cache_seqlens": Q((2,), "torch.int64")}, "cache_seqlens has dtype int64"),
    "lengths shape": ({"cache_seqlens": Q((3,), INT)}, "cache_seqlens has shape [3]; [b] with b=2"),
    "lengths strided": ({"cache_seqlens": Q((2,), INT, strides=(2,))}, "cache_seqlens has stride 2"),
    "scale zero": ({"softmax_scale": 0}, "softmax_scale=0.0; it must be finite and above 0"),
    "scale negative": ({"softmax_scale": -1.0}, "softmax_scale=-1.0"),
    "scale nan": ({"softmax_scale": float("nan")}, "softmax_scale=nan"),
    "scale inf": ({"softmax_scale": float("inf")}, "softmax_scale=inf"),
    "scale tensor": ({"softmax_scale": Q((1,))}, "softmax_scale is a FakeTensor; a Python number"),
    "scale bool": ({"softmax_scale": True}, "softmax_scale is a bool"),
    "causal": ({"causal": 1}, "causal=1 is a int; True or False"),
    "splits zero": ({"num_splits": 0}, "num_splits=0 is 1 below the least count, 1"),
    "splits negative": ({"num_splits": -3}, "num_splits=-3 is 4 below"),
    "splits bool": ({"num_splits": True}, "num_splits is a bool; a tensor is needed"),
    "splits float": ({"num_splits": 2.0}, "num_splits is a float; a tensor is needed"),
    "splits dtype": ({"num_splits": Q((2,), "torch.int64")}, "num_splits has dtype int64"),
    "splits shape": ({"num_splits": Q((1,), INT)}, "num_splits has shape [1]; [b] with b=2"),
    "splits device": ({"num_splits": Q((2,), INT, device="cpu")}, "num_splits is on device 'cpu'"),
    "out shape": ({"out": Q((2, 1, 16, 576))}, "out has shape [2, 1, 16, 576]; [2, 1, 16, 512]"),
    "out dtype": (
        {"out": Q((2, 1, 16, 512), "torch.float32", pointer=0x50000000)},
        "out has dtype float32, q has bfloat16",
    ),
    "out stride": (
        {"out": Q((2, 1, 16, 512), strides=(8256, 8256, 516, 1), pointer=0x50000000)},
        "out has stride 516 elements (1032 B) in dimension 2",
    ),
    "out expanded": (
        {"out": Q((2, 1, 16, 512), strides=(0, 8192, 512, 1), pointer=0x50000000)},
        "several elements share an address",
    ),
    "out device": ({"out": Q((2, 1, 16, 512), device="cuda:2")}, "out is on cuda:2"),
    "lse shape": ({"lse": Q((2, 16, 1), "torch.float32")}, "lse has shape [2, 16, 1]; [2, 1, 16]"),
    "lse dtype": ({"lse": Q((2, 1, 16), pointer=0x50000000)}, "lse has dtype bfloat16; float32 is needed"),
    "lse expanded": (
        {"lse": Q((2, 1, 16), "torch.float32", strides=(16, 16, 0), pointer=0x50000000)},
        "several elements share an address",
    ),
    "workspace dtype": (
        {"workspace": Q((64,), "torch.float32", pointer=0x50000000)},
        "workspace has dtype float32; a one-dimensional uint8 tensor",
    ),
    "workspace rank": ({"workspace": Q((8, 8), "torch.uint8", pointer=0x50000000)}, "workspace has shape"),
    "workspace base": ({"workspace": Q((64,), "torch.uint8", pointer=0x50000004)}, "multiple of 16 B"),
    "out is q": ({"out": Q((2, 1, 16, 512), pointer=0x10000000)}, "out and q share memory"),
    "out in cache": ({"out": Q((2, 1, 16, 512), pointer=0x20000100)}, "out and kv_cache share memory"),
    "lse in out": (
        {
            "out": Q((2, 1, 16, 512), pointer=0x50000000),
            "lse": Q((2, 1, 16), "torch.float32", pointer=0x50000100),
        },
        "out and lse share memory",
    ),
    "workspace is out": (
        {
            "out": Q((2, 1, 16, 512), pointer=0x50000000),
            "workspace": Q((1 << 20,), "torch.uint8", pointer=0x4FFFFFF0),
        },
        "out and workspace share memory",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_an_error_with_its_message(rule):
    changes, *texts = RULES[rule]
    with pytest.raises(InputError) as error:
        problem(**changes)
    for text in texts:
        assert text in str(error.value)


ALLOWED = {
    "plain": {},
    "q pair": {"q": pair_q()},
    "cache pair": {"kv_cache": pair_kv()},
    "cache with a head dimension": {"kv_cache": Q((10, 64, 1, 576), pointer=0x20000000)},
    "odd stride of the head dimension": {
        "kv_cache": Q((10, 64, 1, 576), strides=(36864, 576, 7, 1), pointer=0x20000000)
    },
    "padded rows and pages": {"kv_cache": Q((10, 64, 576), strides=(65 * 640, 640, 1), pointer=0x20000000)},
    "odd row stride of one-token pages": {
        "kv_cache": Q((10, 1, 576), strides=(576, 3, 1), pointer=0x20000000)
    },
    "expanded q": {"q": Q((2, 1, 16, 576), strides=(0, 0, 576, 1))},
    "strided table": {"block_table": Q((2, 4), INT, strides=(17, 1), pointer=0x30000000)},
    "table without columns": {"block_table": Q((2, 0), INT, pointer=0)},
    "one row with any stride": {
        "batch": 1,
        "cache_seqlens": Q((1,), INT, strides=(9,), pointer=0x31000000),
    },
    "transposed lse": {"lse": Q((2, 1, 16), "torch.float32", strides=(16, 1, 1), pointer=0x50000000)},
    "out and q in one buffer": {
        "q": Q((2, 1, 16, 576), strides=(16 * 1088, 16 * 1088, 1088, 1), pointer=0x10000000),
        "out": Q((2, 1, 16, 512), strides=(16 * 1088, 16 * 1088, 1088, 1), pointer=0x10000000 + 1152),
    },
    "numbers from numpy": {"num_splits": __import__("numpy").int64(3)},
    "split tensor": {"num_splits": Q((2,), INT, pointer=0x32000000)},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    made = problem(**ALLOWED[name])
    assert made.layout.h_q == 16


def test_empty_batch_needs_nothing_else():
    made = problem(batch=0, kv_cache=Q((0, 64, 576), pointer=0), q=Q((0, 1, 16, 576), pointer=0))
    assert made.layout.batch == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"h_q": 32}, "the tensors have h_q 16, but the kernel mla_decode_sm90_wgmma_bf16_bf16_h32"),
        ({"page_size": 16}, "page_size 64, but the kernel"),
        ({"max_split": 4}, "num_splits=5 is 1 above max_split 4"),
    ],
)
def test_kernel_must_fit_the_call(changes, text):
    with pytest.raises(InputError, match=None) as error:
        problem(num_splits=5).check_spec(spec(**changes))
    assert text in str(error.value)


def test_kernel_dtype_must_fit():
    fp16 = KernelSpec("sm_90a", "fp16", "fp16", 16, 64, 16, 1)
    with pytest.raises(InputError, match=r"dtype bf16, but the kernel .* was built for dtype fp16"):
        problem().check_spec(fp16)


def test_workspace_one_byte_short():
    made = problem(workspace=Q((99,), "torch.uint8", pointer=0x50000000))
    made.check_workspace(99, spec())
    with pytest.raises(InputError, match=r"workspace has 99 B, 100 B are needed .* 1 B short"):
        made.check_workspace(100, spec())


def test_more_work_than_one_launch_counts():
    small = problem().layout
    check_work(small, spec(), groups=1, teams=132)
    wide = problem(batch=4096, block_table=Q((4096, 2**19), INT, pointer=0x30000000)).layout
    with pytest.raises(InputError, match="Narrow block_table"):
        check_work(wide, spec(), groups=1, teams=132)


def test_a_checked_layout_is_remembered_but_addresses_are_not():
    first, second = problem(), problem()
    assert first.layout is second.layout
    with pytest.raises(InputError, match="q starts at"):
        problem(q=Q((2, 1, 16, 576), pointer=0x10000004))


def test_cpu_layout_does_not_open_the_gpu_path():
    changes = {
        name: Q(tensor.shape, tensor.dtype, "cpu", pointer=tensor.pointer)
        for name, tensor in arguments().items()
        if isinstance(tensor, Q)
    }
    Problem.from_tensors(**{**arguments(), **changes}, device_type="cpu")
    with pytest.raises(InputError, match="CUDA tensor"):
        problem(**changes)


def test_torch_tensors_are_refused_by_place():
    torch = pytest.importorskip("torch")
    meta = torch.empty((2, 1, 16, 576), dtype=torch.bfloat16, device="meta")
    with pytest.raises(InputError, match="q is on device 'meta'"):
        problem(q=meta)
    with pytest.raises(InputError, match="q is on device 'cpu'"):
        problem(q=torch.empty((2, 1, 16, 576), dtype=torch.bfloat16))
