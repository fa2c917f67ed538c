"""tcgen05.mma: products in every layout."""

from __future__ import annotations

import numpy as np
import pytest

from mlagen.emu.fragments import to_float
from tests.emu.small_kernels import bf16
from tests.emu.tcgen05_products import (
    FORMS,
    Form,
    a_cells,
    body,
    launch,
    operands,
)
from tests.emu.test_tmem_layouts import places


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_product(form: Form, schedule: str) -> None:
    a, b = operands(form)
    out, result = launch(form, body(form), a, b, schedule=schedule)
    assert not result.findings.counts
    sign = -1 if form.negate else 1
    want = 2 * sign * to_float(a, form.type).astype(np.float64) @ to_float(b, form.type).astype(np.float64).T
    rows = form.m // form.group
    got = np.zeros((form.m, form.n), np.float32)
    values = out.astype(np.uint16).view(np.float16).astype(np.float32) if form.half else out.view(np.float32)
    for (row, column), (lane, place) in places(form.layout, form.n, form.d_lane).items():
        for cta in range(form.group):
            got[cta * rows + row, column] = values[cta, lane, place]
    np.testing.assert_allclose(got, want, rtol=2e-3 if form.half else 1e-5, atol=1e-2 if form.half else 1e-4)


@pytest.mark.parametrize(
    "form", [Form(128, 64, "B", 2, a_tmem=True), Form(64, 64, "E", ws=True, a_tmem=True)], ids=str
)
def test_each_half_of_the_lanes_multiplies_its_own_copy_of_a(form: Form) -> None:
    """The copies are independent: here lanes 64 to 127 hold another matrix, which gives the upper half of the
    columns.
    """
    a, b = operands(form)
    other = bf16(np.random.default_rng(77), form.m, 16)
    cells = a_cells(form, a)
    cells[:, 64:] = a_cells(form, other)[:, 64:]
    out, _ = launch(form, body(form), a, b, cells)
    rows, half = form.m // form.group, form.n // 2
    got = out.view(np.float32)
    for cta in range(form.group):
        for lanes, matrix, columns in (
            (slice(0, 64), a, slice(0, half)),
            (slice(64, 128), other, slice(half, None)),
        ):
            mine = to_float(matrix[rows * cta : rows * (cta + 1)], form.type)
            want = 2 * mine @ to_float(b[columns], form.type).T
            np.testing.assert_allclose(got[cta, lanes], want, rtol=1e-5, atol=1e-4)
