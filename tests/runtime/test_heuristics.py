"""The choice of a kernel from tables, and the tables that `mlagen tune` makes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlagen import heuristics
from mlagen.bench import tune, tune_command
from mlagen.cli import group
from mlagen.errors import InputError, SpecError
from mlagen.heuristics import Row, Table
from mlagen.spec import Arch, DType, Tuning

H200 = "NVIDIA H200"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(tmp_path))
    heuristics.forget()
    yield tmp_path
    heuristics.forget()


def pick(h_q=128, page=64, s_q=1, splits=0, gpu=H200):
    return heuristics.pick(Arch.SM_90A, gpu, DType.BF16, h_q, page, s_q, splits)


def line(case, variant, us, tuning=None, **about):
    return {
        "kind": "time",
        "case": case,
        "subject": f"mlagen {variant}sm",
        "us_median": us,
        "cta_group": variant,
        "tuning": tuning or {"piece_cost": 2},
        "about": {"gpu": H200, "date": "2026-12-01 10:00:00", "command": "mlagen tune", **about},
    }


def test_shipped_tables_serve_every_call_and_say_why():
    for table in heuristics.read_tables(heuristics.SHIPPED):
        assert table.date and table.command and table.gpu and table.driver and table.commit
        assert all(row.reason and (row.measured_us or "not measured" in row.reason) for row in table.rows)
    for heads in range(1, 129):
        for page in (1, 8, 64, 128):
            choice = pick(heads, page)
            assert (choice.spec.h_q, choice.spec.page_size) == (heads, page)
    text = pick(16).why()
    for part in ("2026-", "NVIDIA H200", "mlagen bench", "us", pick(16).spec.name):
        assert part in text


def test_a_host_count_raises_the_bound():
    assert pick().spec.max_split == 128 and not pick().raised
    assert pick(splits=200).spec.max_split == 256 and "raised above 128" in pick(splits=200).why()
    assert pick(splits=9999).spec.max_split == 256


def test_first_fitting_row_of_this_gpu_decides(cache):
    common = {"arch": Arch.SM_90A, "date": "d", "command": "c", "driver": "v", "commit": "x"}
    rows = (
        Row(16, 2, "few", s_q=2),
        Row(64, 1, "some", least_heads=32),
        Row(128, 2, "any", tuning=Tuning(5)),
    )
    tune.save(
        Table(gpu="other", max_split=8, rows=(Row(128, 2, "foreign"),), source="", **common), file(cache)
    )
    assert pick().row.reason == pick(gpu=H200).row.reason != "foreign"
    assert pick(gpu="other").row.reason == "foreign" and pick(gpu="other").spec.max_split == 8
    tune.save(Table(gpu=H200, max_split=64, rows=rows, source="", **common), file(cache))
    assert [pick(16, s_q=2).row.reason, pick(16).row.reason, pick(40).row.reason] == ["few", "any", "some"]
    assert pick(16).spec.tuning == Tuning(5) and pick(16).spec.name.endswith(f"_t{Tuning(5).digest}")
    assert pick(gpu="other").row.reason == "foreign"
    tune.save(Table(gpu=H200, max_split=32, rows=rows[:1], source="", **common), file(cache))
    assert pick(16, s_q=2).spec.max_split == 32
    assert pick(16).table.source == str(heuristics.SHIPPED)  # no row of the tuned table fits


def test_tables_for_one_page_size_stand_beside_those_for_all(cache):
    for page, group_ in ((None, 1), (16, 2)):
        lines = [line("b1k8192h128", group_, 10.0)]
        made = tune.table_from(lines, arch=Arch.SM_90A, max_split=128, source="", page_size=page)
        tune.save(made, file(cache))
    assert pick(page=16).spec.cta_group == 2 and pick(page=64).spec.cta_group == 1


def file(cache):
    path = heuristics.tuned_file()
    assert path is not None and path.parent == cache
    return path


def test_damaged_tables_are_left_out_with_a_warning(cache, caplog):
    file(cache).write_text("{")
    assert pick().table.source == str(heuristics.SHIPPED)
    assert "mlagen tune" in caplog.text
    for text in ('{"schema": 9, "tables": []}', '{"schema": 1, "tables": [{}]}', "[]"):
        file(cache).write_text(text)
        with pytest.raises(SpecError, match=r"heuristics\.json"):
            heuristics.read_tables(file(cache))


def test_json_keeps_a_table_whole(tmp_path):
    lines = [line(f"b1k8192h{heads}{q}", group_, 10.0 + group_) for heads in (16, 128) for q in ("", "q2")
             for group_ in (1, 2)]  # fmt: skip
    made = tune.table_from(lines, arch=Arch.SM_90A, max_split=128, source=str(tmp_path / "t"), page_size=16)
    tune.save(made, tmp_path / "t")
    (again,) = heuristics.read_tables(tmp_path / "t")
    assert again == made


def test_the_fastest_variant_wins_and_a_tie_goes_to_the_plain_one():
    lines = [
        line("b1k8192h16", 1, 10.0),
        line("b64k2048h16", 1, 50.0),
        line("b1k8192h16", 2, 10.0),
        line("b64k2048h16", 2, 49.8),
        line("b1k8192h128", 1, 20.0),
        line("b1k8192h128", 2, 18.0),
        line("b1k8192h128", 2, 17.0, {"piece_cost": 4}),
        line("b1k8192h64", 1, 20.0),
        line("b1k8192h64s4", 2, 1.0),
        {**line("b1k8192h64", 2, 1.0), "subject": "flashmla"},
    ]
    made = tune.table_from(lines, arch=Arch.SM_90A, max_split=128, source="")
    assert [(row.least_heads, row.most_heads, row.s_q) for row in made.rows] == [
        (1, 16, None),
        (17, 64, None),
        (65, 128, None),
    ]
    assert [(row.cta_group, row.tuning.piece_cost) for row in made.rows] == [(1, 2), (1, 2), (2, 4)]
    assert "2sm +5.9 %" in made.rows[2].reason and "1sm +17.6 %" in made.rows[2].reason
    assert made.rows[0].measured_us["b64k2048h16"] == {"1sm": 50.0, "2sm": 49.8}
    assert (made.gpu, made.date, made.command) == (H200, "2026-12-01", "mlagen tune")


def test_largest_measured_head_count_serves_all_above_and_unmeasured_tokens_follow_the_most():
    lines = [line("b1k8192h64", 1, 9.0), line("b1k8192h64q2", 2, 9.0)]
    made = tune.table_from(lines, arch=Arch.SM_90A, max_split=128, source="")
    assert [(row.s_q, row.most_heads, row.cta_group) for row in made.rows] == [
        (1, 128, 1),
        (2, 128, 2),
        (None, 128, 2),
    ]
    assert made.rows[2].reason == "s_q not measured; as s_q 2"


def test_nothing_to_choose_from_is_an_error():
    with pytest.raises(InputError, match="no line has a time"):
        tune.table_from([{"kind": "ceilings"}], arch=Arch.SM_90A, max_split=128, source="")
    lines = [line("b1k8192h64", 1, 9.0), line("b64k2048h64", 2, 9.0)]
    with pytest.raises(InputError, match="no case was measured with every variant"):
        tune.table_from(lines, arch=Arch.SM_90A, max_split=128, source="")


def test_tune_from_kept_lines_and_show_why(cache, tmp_path):
    rows = tmp_path / "rows.jsonl"
    kept = [line("b1k8192h128", 1, 20.0), line("b1k8192h128", 2, 18.0)]
    rows.write_text("".join(json.dumps(item) + "\n" for item in kept))
    result = CliRunner().invoke(tune_command.command, ["--from", str(rows)])
    assert result.exit_code == 0 and "heads 1..128: 2SM" in result.output
    name = "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s128_2sm"
    result = CliRunner().invoke(group, ["show", "--why"])
    assert result.exit_code == 0 and name in result.output and "mlagen tune" in result.output
    shown = json.loads(CliRunner().invoke(group, ["show", "--why", "--heads", "5", "--json"]).output)
    assert shown["kernel"] == name.replace("h128", "h5") and shown["row"]["cta_group"] == 2
    result = CliRunner().invoke(group, ["show", "--why", name.replace("2sm", "1sm")])
    assert "a plain call gets the one above instead" in result.output
    assert CliRunner().invoke(group, ["show"]).exit_code == 2
    result = CliRunner().invoke(tune_command.command, ["--heads", "0,5"])
    assert result.exit_code == 2 and "numbers from 1 to 128" in result.output


def test_deciding_cases():
    names = tune.case_names((16, 128), (1, 2), 16, "fp16")
    assert "b1k8192h16p16fp16" in names and "b64k2048h128q2p16fp16" in names
    assert len(names) == 4 * len(tune.SHAPES)
