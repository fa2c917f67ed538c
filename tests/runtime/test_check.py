"""MLAGEN_CHECK: the messages name row and column."""

from __future__ import annotations

import pytest

from mlagen import check
from mlagen.casework import Case, draw
from mlagen.errors import InputError
from mlagen.problem import Problem
from mlagen.spec import KernelSpec

torch = pytest.importorskip("torch")
SPEC = KernelSpec("sm_90a", "bf16", "bf16", 4, 16, 8, 1)


def problem(change=lambda call: None, **fields):
    call = draw(Case((100, 0, 20), h_q=4, page_size=16, splits=(1, 2, 8), **fields), "cpu")
    change(call)
    return Problem.from_tensors(*call.args, **call.keywords, device_type="cpu")


def test_off_by_default(monkeypatch):
    monkeypatch.delenv("MLAGEN_CHECK", raising=False)
    check.validate(problem(lambda call: call.block_table.fill_(-1)), SPEC)
    monkeypatch.setenv("MLAGEN_CHECK", "0")
    check.validate(problem(lambda call: call.block_table.fill_(-1)), SPEC)


def test_right_values_pass(monkeypatch):
    monkeypatch.setenv("MLAGEN_CHECK", "1")
    check.validate(problem(), SPEC)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda call: call.block_table[2, 1].fill_(-1),
            r"block_table\[2, 1\] is -1; the cache has pages 0\.\.",
        ),
        (lambda call: call.block_table[0, 6].fill_(99), r"block_table\[0, 6\] is 99"),
        (lambda call: call.cache_seqlens[1].fill_(-2), r"cache_seqlens\[1\] is -2; 0\.\.160"),
        (lambda call: call.cache_seqlens[0].fill_(161), r"cache_seqlens\[0\] is 161"),
        (lambda call: call.num_splits[2].fill_(9), r"num_splits\[2\] is 9; 1\.\.8"),
        (lambda call: call.num_splits[0].fill_(0), r"num_splits\[0\] is 0"),
    ],
)
def test_wrong_values_are_named(monkeypatch, change, text):
    monkeypatch.setenv("MLAGEN_CHECK", "1")
    with pytest.raises(InputError, match=text):
        check.validate(problem(change), SPEC)


def test_entries_that_are_not_needed_may_hold_anything(monkeypatch):
    monkeypatch.setenv("MLAGEN_CHECK", "1")
    check.validate(problem(lambda call: call.block_table[2, 2:].fill_(-1)), SPEC)
