"""The benchmark's formulas, names, options and report, without a GPU."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlagen.bench import cases, command, report, roofline
from mlagen.bench.clock import Timing
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
    for group in cases.GROUPS.values():
        for name in group:
            assert cases.parse(name).name == name


@pytest.mark.parametrize("name", ["", "b128", "b0k1h1", "b1k0h1", "b1k1h129", "b1k1h1x", "k1h1", "b1k1h1q0"])
def test_wrong_names(name):
    with pytest.raises(InputError, match="--case"):
        cases.parse(name)


def test_options():
    assert command.all_names((), ()) == ["b128k4096h128", "b128k4096h16"]
    assert command.all_names(("b1k1h1",), ()) == ["b1k1h1"]
    assert len(command.all_names((), ("main",))) == 22
    rows = [name for group in ("main", "mtp", "ragged") for name in cases.GROUPS[group]]
    assert len(rows) == len(set(rows)) == 28  # the page-64 rows
    assert command.parse_groups("2,1,2") == [2, 1]
    assert command.parse_baselines("none") == () and command.parse_baselines("fa3, fa2") == ("fa3", "fa2")
    result = CliRunner().invoke(command.command, ["--ours", "3"])
    assert result.exit_code == 2 and "1, 2 or 1,2 is needed" in result.output


def test_without_a_gpu_it_says_so():
    result = CliRunner().invoke(command.command, ["--case", "b1k64h16"])
    assert isinstance(result.exception, DeviceError)


def measurement(subject, median, case="b128k4096h128", error=""):
    chosen = cases.parse(case)
    work = roofline.work(chosen.lengths, chosen.h_q, chosen.s_q)
    timing = Timing(median, median - 1, median - 0.5, median + 2, (median, median), 10, 4, None, {})
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


def test_table_keeps_losing_and_failed_rows():
    rows = [
        measurement("mlagen 1sm", 300.0),
        measurement("mlagen 2sm", 250.0),
        measurement("flashinfer fa3", 275.0),
        measurement("mlagen 1sm", 0.0, "b128k4096h16", "wrong, so not timed"),
    ]
    best = report.best_baselines(rows)
    assert best == {"b128k4096h128": 275.0}
    cells = [report.cells(row, best) for row in rows]
    assert [line[9] for line in cells] == ["0.92", "1.10", "1.00", "-"]
    assert cells[3][-1] == "wrong, so not timed"
    assert report.table(rows).row_count == 4


def test_checked_rows():
    assert checked_rows((5,)) == [0]
    assert checked_rows((3, 9, 1, 4)) == [1, 2, 3]
