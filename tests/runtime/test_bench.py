"""The benchmark's formulas, names, options and report, without a GPU."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlagen.bench import cases, command, report, results, roofline, traffic
from mlagen.bench.clock import Effort, Timing
from mlagen.bench.measure import Measurement, checked_rows
from mlagen.errors import DeviceError, InputError
from mlagen.tolerance import Margin
from mlagen.worklist import WorkPiece


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("b1k1024h128", 0.4),
        ("b1k131072h128", 46.2),
        ("b128k4096h128", 185),
        ("b512k2048h128", 370),
        ("b128k4096h64", 135),
        ("b32k16384h16", 132),
        ("b64k4096h128q2", 185),
        ("b32skewh128", 57.4),
        ("b32skewh16", 41.0),
        ("b64var8192h128", 94.4),
        ("b64var8192h16", 67.5),
    ],
)
def test_floor_of_known_cases(name, floor):
    case = cases.parse(name)
    seconds = roofline.work(case.lengths, case.h_q, case.s_q).floor_seconds(roofline.H200)
    assert seconds * 1e6 == pytest.approx(floor, rel=0.02, abs=0.06)


def test_work_counts_visible_keys_and_real_lengths():
    """F5: lengths as they are, not the longest; causal tokens see fewer keys."""
    one = roofline.work([10, 100], 16, 1)
    assert one.flop == 2 * 16 * 1088 * 110
    assert one.nbytes == 110 * 1152 + 2 * 16 * (1088 * 2 + 4)
    two = roofline.work([10, 1], 16, 2)
    assert two.flop == 2 * 16 * 1088 * (9 + 10 + 0 + 1)
    assert roofline.work([10], 16, 2, causal=False).flop == 2 * 16 * 1088 * 20


def test_bytes_moved_follow_the_schedule():
    pieces = [WorkPiece(0, 0, 0, 640, 0, False), WorkPiece(0, 0, 640, 1000, 1, False)]
    cache, partials = roofline.bytes_moved(pieces, 1, 1)
    assert cache == 1000 * 1152 and partials == 2 * 2 * 64 * (1024 + 4)
    shared = [WorkPiece(0, tile, 0, 1000, tile, True) for tile in (0, 1)]
    assert roofline.bytes_moved(shared, 2, 2) == (1000 * 1152, 0)
    assert roofline.bytes_moved(shared, 1, 2) == (2000 * 1152, 0)


def test_names():
    case = cases.parse("b3k100h5q2p16fp16")
    assert case.lengths == (100,) * 3
    assert (case.h_q, case.s_q, case.page_size, case.dtype) == (5, 2, 16, "fp16")
    assert cases.parse("b32skewh16").lengths == (131072, *[1024] * 31)
    ragged = cases.parse("b64var8192h128").lengths
    assert len(ragged) == 64 and ragged == cases.parse("b64var8192h16").lengths and max(ragged) <= 8192
    cut = cases.parse("b2k100h5s4m16")
    assert (cut.splits, cut.max_split, cut.for_all) == (4, 16, False) and case.for_all
    for suite in cases.SUITES:
        for name in cases.suite_cases(suite):
            assert cases.parse(name).name == name


@pytest.mark.parametrize(
    "name", ["", "b128", "b0k1h1", "b1k0h1", "b1k1h129", "b1k1h1x", "k1h1", "b1k1h1q0", "b1k1h1s8m4"]
)
def test_wrong_names(name):
    with pytest.raises(InputError, match="--case"):
        cases.parse(name)


def test_options():
    assert command.all_names((), ()) == ["b128k4096h128", "b128k4096h16"]
    assert command.all_names(("b1k1h1",), ()) == ["b1k1h1"]
    assert command.all_names(("b1k1h1",), ("short",)) == ["b1k1h1", "b128k4096h128", "b128k4096h16"]
    assert len(command.all_names((), ("main",))) == 22
    rows = cases.suite_cases("hopper28")
    assert len(rows) == len(set(rows)) == 28
    assert all(cases.parse(name).page_size == 64 and cases.parse(name).for_all for name in rows)
    assert command.parse_list("2,1,2", command.OUR_KINDS, "--ours") == ("2", "1")
    assert command.parse_list("none", ("fa3",), "--peers") == ()
    for words, text in ((["--ours", "3"], "some of auto, 1, 2"), (["--peers", "fa9"], "some of flashinfer")):
        result = CliRunner().invoke(command.command, words, env={"COLUMNS": "200"})
        assert result.exit_code == 2 and text in " ".join(result.output.split())


def test_effort_follows_suite_and_options():
    given = {"quick": False, "pause": None, "bursts": None, "sustain": None}
    assert command.effort_of(given, ()) == Effort(0.4, 2, 0.0)
    assert command.effort_of(given, ("sustained",)).sustain == 2.5
    assert command.effort_of({**given, "quick": True}, ("quick",)) == Effort(0.2, 1, 0.0)
    changed = {"quick": True, "pause": 0.0, "bursts": 3, "sustain": 0.0}
    assert command.effort_of(changed, ("sustained",)) == Effort(0.0, 3, 0.0)


def test_without_a_gpu_it_says_so():
    result = CliRunner().invoke(command.command, ["--case", "b1k64h16"])
    assert isinstance(result.exception, DeviceError)


def measurement(subject, median, case="b128k4096h128", error=""):
    chosen = cases.parse(case)
    work = roofline.work(chosen.lengths, chosen.h_q, chosen.s_q)
    timing = Timing(median, median - 1, median - 0.5, median + 2, (median, median), 10, 4, 1.0, None, {}, {})
    facts = {"l2_read_bytes_computed": 10**9, "partial_bytes_computed": 0} if "mlagen" in subject else {}
    return Measurement(
        case,
        subject,
        error,
        Margin(0.1, 0.0, 0.0, 1e-3, ""),
        None if error else timing,
        work.nbytes,
        work.flop,
        work.floor_seconds(roofline.H200) * 1e6,
        facts,
    )


def test_numbers_of_a_row():
    row = measurement("mlagen 1sm", 250.0).as_dict()
    assert row["tflops"] == pytest.approx(146.03e9 / 250e-6 / 1e12, rel=1e-3)
    assert row["percent_of_floor"] == pytest.approx(74, rel=0.01)
    assert row["tb_per_s_needed"] == pytest.approx(639.6e6 / 250e-6 / 1e12, rel=1e-2)
    assert row["tb_per_s_l2_computed"] == pytest.approx(4.0)
    assert row["us_median"] == 250.0 and row["correct"] is True
    json.dumps(row)


def lines(*rows):
    return [measurement(*row).as_dict() for row in rows]


def test_table_keeps_losing_and_failed_rows():
    rows = lines(
        ("mlagen", 300.0),
        ("mlagen 2sm", 250.0),
        ("flashinfer fa3", 275.0),
        ("flashmla", 290.0),
        ("mlagen", 0.0, "b128k4096h16", "wrong, so not timed"),
    )
    peer = results.best_peer(results.timed(rows)["b128k4096h128"])
    assert peer["subject"] == "flashinfer fa3"
    cells = [report.cells(row, peer) for row in rows]
    assert [line[8] for line in cells] == ["0.92", "1.10", "1.00", "0.95", "-"]
    assert cells[4][-1] == "wrong, so not timed" and {len(line) for line in cells} == {len(report.HEADINGS)}
    assert report.table([{"kind": "ceilings"}, *rows]).row_count == 5


def test_summary_has_a_row_for_every_case_and_hides_nothing(tmp_path):
    names = ["b128k4096h128", "b128k4096h16", "b1k8192h128", "b64k2048h128"]
    rows = lines(
        ("mlagen", 200.0),
        ("flashmla", 220.0),
        ("fa3", 230.0),
        ("mlagen", 150.0, "b128k4096h16"),
        ("flashmla", 120.0, "b128k4096h16"),
        ("mlagen", 0.0, "b1k8192h128", "wrong, so not timed"),
        ("fa3", 20.0, "b1k8192h128"),
        ("mlagen", 9.0, "b1k1024h128"),
    )
    about = {"gpu": "NVIDIA H200", "commit": "abc"}
    rows = [
        {"kind": "ceilings", "read_tb_per_s": 4.6, "about": about},
        *({**r, "about": about} for r in rows),
    ]
    made = results.summary(rows, names)
    assert [row["case"] for row in made["rows"]] == names
    assert [row["ratio"] for row in made["rows"]] == [1.1, 0.8, None, None]
    assert made["rows"][0]["best_peer"] == "flashmla" and made["rows"][0]["best_peer_us"] == 220.0
    assert made["rows"][2]["us"] is None and made["rows"][2]["best_peer_us"] == 20.0
    assert made["geometric_mean"] == pytest.approx((1.1 * 0.8) ** 0.5, abs=1e-4)
    assert made["least_ratio"] == 0.8 and made["rows_below_1"] == ["b128k4096h16"]
    assert made["complete"] is False and made["wrong"] == ["b1k8192h128 mlagen"]
    assert made["gpu"] == "NVIDIA H200" and made["ceilings"] == {"read_tb_per_s": 4.6}
    results.write_summary(tmp_path / "s.json", made)
    assert json.loads((tmp_path / "s.json").read_text()) == json.loads(json.dumps(made))
    text = report.summary_text(made)
    assert "2 of 4 rows" in text and "behind the best peer: b128k4096h16" in text and "b1k8192h128" in text


def test_one_measured_kernel_stands_for_ours():
    assert results.our_subject(lines(("mlagen 2sm", 2.0), ("fa3", 1.0))) == "mlagen 2sm"
    assert results.our_subject(lines(("mlagen 2sm", 2.0), ("mlagen 1sm", 1.0), ("mlagen", 1.0))) == "mlagen"
    made = results.summary(lines(("mlagen 2sm", 200.0), ("fa3", 250.0)), ["b128k4096h128"])
    assert made["ours"] == "mlagen 2sm" and made["geometric_mean"] == 1.25


def test_kept_lines_make_the_same_report_without_a_gpu(tmp_path):
    path, out = tmp_path / "rows.jsonl", tmp_path / "summary.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines(("mlagen", 200.0), ("fa3", 250.0))))
    words = ["--load", str(path), "--case", "b128k4096h128", "--summary", str(out)]
    result = CliRunner().invoke(command.command, words)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["geometric_mean"] == 1.25 and json.loads(out.read_text())["complete"]
    path.write_text("not json")
    result = CliRunner().invoke(command.command, words)
    assert isinstance(result.exception, InputError) and "rows.jsonl" in str(result.exception)


def test_shares_of_the_limits_of_the_same_run():
    ceilings = {
        "kind": "ceilings",
        "read_tb_per_s": 4.0,
        "matmul_tflops": 800.0,
        "matmul_tflops_sustained": None,
        "problems": ["reason"],
    }
    (text,) = report.shares([ceilings, *lines(("mlagen", 250.0), ("fa3", 200.0))])
    assert text.startswith("b128k4096h128 mlagen: ") and "73.0 % of matmul" in text
    assert report.shares(lines(("mlagen", 250.0))) == []
    assert "reason" in report.ceilings_text(ceilings) and "4.00 TB/s" in report.ceilings_text(ceilings)


def test_traffic_is_read_from_ncu():
    """Kernels of a subject up to the mark are summed; units and foreign lines are left out."""
    text = """==PROF== Connected
pair\tb1k1h1\tmlagen
pair\tb1k1h1\tfa3
"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_sectors_op_read.sum"
"","","byte","byte","sector"
"0","mla_decode","1,000","10","5"
"1","void BitwiseXorFunctor","7","7","7"
"2","split","100","1","1"
"3","combine","200","2","2"
"4","void BitwiseXorFunctor","7","7","7"
"""
    counts = traffic.read_counts(text)
    assert counts["b1k1h1", "mlagen"] == {
        "dram_read_bytes": 1000,
        "dram_written_bytes": 10,
        "l2_read_bytes": 160,
    }
    assert counts["b1k1h1", "fa3"] == {"dram_read_bytes": 300, "dram_written_bytes": 3, "l2_read_bytes": 96}


def test_no_profiler_is_said(monkeypatch):
    monkeypatch.setattr(traffic.shutil, "which", lambda name: None)
    assert traffic.count_traffic(["b1k1h1"], ["auto"], [], 0) == ({}, "ncu is not installed")


def test_checked_rows():
    assert checked_rows((5,)) == [0]
    assert checked_rows((3, 9, 1, 4)) == [1, 2, 3]
