"""A whole run of the benchmark on the CPU: sensors, clock and subjects are stand-ins, all else is real."""

from __future__ import annotations

import sys
import types

import pytest
import torch

import mlagen
from mlagen import heuristics
from mlagen.bench import cases, data, measure, session, traffic
from mlagen.bench.clock import Effort, Timing, time_host
from mlagen.bench.peers import PEERS, peers
from mlagen.bench.subjects import Ours, ours
from mlagen.driver import Gpu
from mlagen.reference import reference

GPU = Gpu(0, 0, "NVIDIA H200", (9, 0), 132)
NAMES = ("b2k100h16", "b3var200h5q2", "b2k100h16s4")


def answer(step_data, index):
    found = reference(
        step_data.queries[index % len(step_data.queries)],
        step_data.kv_cache,
        step_data.tables[index],
        step_data.lengths,
        softmax_scale=data.SOFTMAX_SCALE,
    )
    return found.out.to(step_data.kv_cache.dtype), found.lse.float()


class Right:
    checks_lse = True

    def __init__(self, name, factor=1.0):
        self.name, self.factor = name, factor

    def supports(self, case):
        return "no q2" if self.name == "fa3" and case.s_q > 1 else ""

    def prepare(self, step_data):
        def step(index):
            out, lse = answer(step_data, index)
            return out * self.factor, lse

        return step

    def facts(self, step_data):
        return {}

    def spec(self, case):
        raise AssertionError


class Broken(Right):
    def prepare(self, step_data):
        raise RuntimeError("out of luck")


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(data, "POOL_TOKENS", 64 * 64)
    monkeypatch.setattr(data, "DISTINCT_BYTES", 1 << 20)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda ordinal: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    real = torch.device
    monkeypatch.setattr(torch, "device", lambda kind, *rest: real("cpu"))
    timed = []

    def time_steps(step, sets, sensors, effort):
        timed.append((sets, effort))
        for index in range(sets):
            step(index)
        return Timing(10.0, 9.0, 9.5, 11.0, (10.0,), 5, sets, 1.0, None, {"sm_mhz": 1980}, {})

    monkeypatch.setattr(measure, "time_steps", time_steps)
    return timed


def run(names, mine, others, **changes):
    lines = []
    fields = {
        "cases": [cases.parse(name) for name in names],
        "ours": mine,
        "peers": others,
        "gpu": GPU,
        "effort": Effort(),
        "host": False,
        "ceilings": False,
        "command": "mlagen bench",
        "emit": lines.append,
        **changes,
    }
    return list(session.run(session.Order(**fields))), lines


def test_every_case_on_every_subject(on_cpu):
    done, lines = run(NAMES, [Right("mlagen")], [Right("fa3"), Right("flashmla", 1.05), Broken("triton")])
    by = {(row.case, row.subject): row for row in done}
    assert set(by) == {
        *((name, "mlagen") for name in NAMES),
        *(("b2k100h16", name) for name in ("fa3", "flashmla", "triton")),
        *(("b3var200h5q2", name) for name in ("flashmla", "triton")),
    }
    for (_, subject), row in by.items():
        assert (row.timing is not None) == (subject in ("mlagen", "fa3")), row
    assert "wrong, so not timed" in by["b2k100h16", "flashmla"].error
    assert by["b2k100h16", "triton"].error == "RuntimeError: out of luck"
    assert [line["case"] for line in lines] == [row.case for row in done]
    assert all(line["about"]["gpu"] == "NVIDIA H200" for line in lines)
    assert all(sets > 1 for sets, _ in on_cpu)


def test_wrong_lse_of_ours_is_found(on_cpu):
    class WrongLse(Right):
        def prepare(self, step_data):
            def step(index):
                out, lse = answer(step_data, index)
                return out, lse / 0.6931

            return step

    (row,), _ = run(NAMES[:1], [WrongLse("mlagen")], [])
    assert row.timing is None and "lse is off" in row.error


def test_budget_ends_a_run_between_cases_and_says_so(on_cpu):
    done, lines = run(NAMES, [Right("mlagen")], [], budget=1e-9)
    assert done == [] and [(line["kind"], line["case"]) for line in lines] == [
        ("skipped", name) for name in NAMES
    ]


def test_page_sets_are_disjoint_and_follow_the_seed(on_cpu):
    pool = data.Pool("cpu")
    made = data.make(cases.parse("b3var200h5q2"), pool)
    again = data.make(cases.parse("b3var200h5q2"), pool)
    pages = torch.cat(made.page_lists)
    assert len(pages.unique()) == len(pages)
    assert all(torch.equal(a, b) for a, b in zip(made.tables, again.tables, strict=True))
    for table, listed in zip(made.tables, made.page_lists, strict=True):
        needs = [-(-length // 64) for length in made.case.lengths]
        flat = torch.cat([table[row, :count] for row, count in enumerate(needs)])
        assert torch.equal(flat, listed)
    assert made.queries[0].shape == (3, 2, 5, 576)


def test_our_subjects_take_the_kernel_of_a_plain_call():
    auto, one, two = ours(("auto", "1", "2"), None, GPU)
    assert [subject.name for subject in (auto, one, two)] == ["mlagen", "mlagen 1sm", "mlagen 2sm"]
    case = cases.parse("b128k4096h128")
    chosen = heuristics.pick(heuristics.arch_of(GPU), GPU.name, auto.spec(case).q_dtype, 128, 64).spec
    assert auto.spec(case) == chosen and two.spec(case).cta_group == 2
    assert auto.spec(cases.parse("b64k2048h128s1m16")).max_split == 16
    assert auto.spec(cases.parse("b2k100h16s200")).max_split >= 200
    assert Ours(GPU, 1, 64).name == "mlagen 1sm s64" and Ours(GPU, 1, 64).spec(case).max_split == 64
    assert len(session.kernels([case, case], [auto, one])) == len({auto.spec(case), one.spec(case)})


def test_peers_that_are_not_installed_are_named():
    found, missing = peers(tuple(PEERS))
    assert len(found) + len(missing) == len(PEERS)
    assert all(any(text.startswith(name) for name in PEERS) for text in missing)


def fake_flash_mla():
    module = types.ModuleType("flash_mla")
    module.__version__ = "9"
    module.get_mla_metadata = lambda lengths, queries, heads: ("meta", None)

    def call(q, cache, table, lengths, width, meta, splits, softmax_scale, causal):
        assert (width, meta, splits) == (512, "meta", None) and cache.shape[1:] == (64, 1, 576)
        found = reference(q, cache[:, :, 0], table, lengths, softmax_scale=softmax_scale, causal=causal)
        return found.out.to(q.dtype), found.lse.float().transpose(1, 2)

    module.flash_mla_with_kvcache = call
    return module


def fake_flash_attention(monkeypatch):
    def metadata(**given):
        assert given["headdim_v"] == 512 and given["headdim"] == 64 and given["num_heads_k"] == 1
        return "meta"

    def fwd(q, k, v, q_v, seqused_k, page_table, softmax_scale, is_causal, scheduler_metadata, num_splits):
        assert scheduler_metadata == "meta" and is_causal and num_splits == 0
        cache = torch.cat([v[:, :, 0], k[:, :, 0]], dim=-1)
        whole = torch.cat([q_v, q], dim=-1)
        found = reference(whole, cache, page_table, seqused_k, softmax_scale=softmax_scale)
        return found.out.to(q.dtype), found.lse.float().transpose(1, 2), None, None

    ops = types.SimpleNamespace(fwd=fwd, get_scheduler_metadata=metadata)
    monkeypatch.setattr(torch.ops, "flash_attn_3", ops, raising=False)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", types.ModuleType("flash_attn_interface"))
    monkeypatch.setitem(sys.modules, "flash_attn_3", types.ModuleType("flash_attn_3"))


def fake_vllm(monkeypatch):
    module = types.ModuleType("vllm.v1.attention.ops.triton_decode_attention")

    def call(q, k, v, out, lse, tables, lengths, partial, splits, scale, page, k_scale, v_scale, is_mla):
        assert partial.shape == (q.shape[0], q.shape[1], splits, 513) and is_mla and page == 64
        found = reference(q[:, None], k[:, :, 0], tables, lengths, softmax_scale=scale)
        out.copy_(found.out[:, 0])
        lse.copy_(found.lse[:, 0])

    module.decode_attention_fwd = call
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    properties = types.SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda ordinal: properties)


def fake_flashinfer(monkeypatch):
    class Wrapper:
        def __init__(self, workspace, backend):
            assert backend in ("fa2", "fa3")

        def plan(self, metadata, lse_mode, **shape):
            self.metadata, self.shape = metadata, shape
            self._planned_backend = types.SimpleNamespace(
                _kv_indices_buf=metadata[2], _planned_kv_page_range=(0, 0)
            )

        def run(self, query, kv_cache, out, lse, return_lse, return_lse_base_on_e):
            tokens, starts, _, lengths = self.metadata
            pages, rows = self._planned_backend._kv_indices_buf, len(lengths)
            assert self._planned_backend._planned_kv_page_range[1] == kv_cache.shape[0]
            needs = (starts[1:] - starts[:-1]).tolist()
            table = torch.zeros((rows, max(needs)), dtype=torch.int32)
            for row, (first, count) in enumerate(zip(starts[:-1].tolist(), needs, strict=True)):
                table[row, :count] = pages[first : first + count]
            s_q = int(tokens[1])
            q = query.view(rows, s_q, *query.shape[1:])
            found = reference(q, kv_cache, table, lengths, softmax_scale=self.shape["sm_scale"])
            out.copy_(found.out.view(out.shape))
            lse.copy_(found.lse.view(lse.shape))

    mla = types.ModuleType("flashinfer.mla")
    mla.BatchMLAPagedAttentionWrapper = Wrapper
    mla.MLAPlanMetadata = types.SimpleNamespace(csr=lambda *parts: parts)
    package = types.ModuleType("flashinfer")
    package.__version__ = "0.7.4"
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", mla)


def test_adapters_call_their_peers_rightly(on_cpu, monkeypatch):
    """Each adapter over a stand-in with the peer's interface that computes the reference."""
    monkeypatch.setitem(sys.modules, "flash_mla", fake_flash_mla())
    fake_flash_attention(monkeypatch)
    fake_vllm(monkeypatch)
    fake_flashinfer(monkeypatch)
    found, missing = peers(tuple(PEERS))
    assert missing == []
    done, _ = run(("b2k100h16", "b3var200h5q2"), [], found)
    assert len(done) == 10 and [row.error for row in done] == [""] * 10
    page1 = cases.parse("b32k16384h16p1")
    reasons = {peer.name: bool(peer.supports(page1)) for peer in found}
    assert reasons["flashmla"] and reasons["fa3"] and not reasons["flashinfer fa3"]


def test_host_time_is_of_the_call_alone(on_cpu, monkeypatch):
    """Our subject's eager call has all arguments bound, and is what time_host gets."""
    calls = []
    monkeypatch.setattr(mlagen, "mla_decode", lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setattr(mlagen, "workspace_size", lambda *args, **kwargs: 16)
    subject = Ours(GPU)
    made = data.make(cases.parse("b2k100h16s4"), data.Pool("cpu"))
    subject.eager(made)()
    (args, kwargs) = calls[0]
    assert len(args) == 4 and args[0] is made.queries[0] and kwargs["num_splits"] == 4
    assert kwargs["spec"] == subject.spec(made.case) and kwargs["workspace"].numel() == 16
    got = time_host(lambda: calls.append(None), rounds=3, calls=2)
    assert got["host_us_least"] <= got["host_us_median"] <= got["host_us_p90"]
    assert len(calls) == 1 + 20 + 3 * (2 + 5)


def test_the_profiled_process_steps_once_inside_the_profile(on_cpu, monkeypatch, capsys):
    events = []

    class Counting(Right):
        def prepare(self, step_data):
            step = super().prepare(step_data)

            def counted(index):
                events.append(index)
                return step(index)

            return counted

    profiler = types.SimpleNamespace(start=lambda: events.append("start"), stop=lambda: events.append("stop"))
    monkeypatch.setattr(torch.cuda, "profiler", profiler)
    traffic.run_once(["b2k100h16", "b3var200h5q2"], [Counting("mlagen"), Counting("fa3")], 0)
    printed = [line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()]
    assert printed == [["b2k100h16", "mlagen"], ["b2k100h16", "fa3"], ["b3var200h5q2", "mlagen"]]
    assert events.count("start") == events.count("stop") == 3
    for begin in [place for place, event in enumerate(events) if event == "start"]:
        assert events[begin + 1 : begin + 3] == [0, "stop"] and events[begin - 1] > 0


def test_ncu_is_asked_for_the_metrics_of_that_process(monkeypatch):
    asked = []

    def run_command(command, **options):
        asked.append(command)
        return types.SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(traffic.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(traffic.subprocess, "run", run_command)
    assert traffic.count_traffic(["b1k64h16"], ["auto"], ["fa3"], 1) == ({}, "")
    (command,) = asked
    assert command[0] == "/usr/bin/ncu" and "mlagen.bench.traffic" in command
    assert "dram__bytes_read.sum" in command[command.index("--metrics") + 1]
    assert command[command.index("--ours") + 1] == "auto" and command[command.index("--device") + 1] == "1"
    failed = types.SimpleNamespace(returncode=1, stdout="", stderr="ERR_NVGPUCTRPERM")
    monkeypatch.setattr(traffic.subprocess, "run", lambda *args, **options: failed)
    assert "ERR_NVGPUCTRPERM" in traffic.count_traffic(["b1k64h16"], ["auto"], [], 0)[1]
