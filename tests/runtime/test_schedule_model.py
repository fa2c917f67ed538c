"""Properties of the schedule, on its model: every key once, at most max_split pieces, balance."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_model import Model

from mlagen.launch_shape import launch_shape
from mlagen.spec import KernelSpec


def make(
    lengths, *, h_q=16, s_q=1, max_split=16, cta_group=1, resident=132, num_splits=None, max_len=1 << 20
):
    spec = KernelSpec("sm_90a", "bf16", "bf16", h_q, 64, max_split, cta_group)
    shape = launch_shape(spec, s_q, resident // cta_group)
    return Model(spec, shape, lengths, max_len, num_splits)


def check_coverage(model):
    """Each key of each row tile is in exactly one piece; empty rows have one piece."""
    spans = defaultdict(list)
    for piece in model.pieces():
        assert 0 <= piece.cta < model.shape.ctas
        spans[piece.row, piece.tile].append(piece)
    for row, length in enumerate(model.lengths):
        for tile in range(model.shape.tiles):
            pieces = spans[row, tile]
            assert pieces, (row, tile)
            at = 0
            for piece in pieces:
                assert piece.first_key == at
                at = piece.last_key
            assert at == length


def check_merge(model):
    """Holders of a row are as many as they are told, numbered from 0, on the teams that a merge will look
    at.
    """
    for _, _, row in model.rows():
        shares = {team: model.share(row, team) for team in range(model.shape.teams)}
        held = {team: share for team, share in shares.items() if share is not None}
        assert held
        assert 1 <= len(held) <= model.spec.max_split
        first = min(held)
        if len(held) > 1 or next(iter(held.values())).pieces > 1:
            assert {share.pieces for share in held.values()} == {len(held)}
            assert [share.index for _, share in sorted(held.items())] == list(range(len(held)))
            assert {share.first_team for share in held.values()} == {first}
            assert all(share.end_block > share.first_block for share in held.values())


def check_shared_rows(model):
    """A team shares at most two rows with others: room for two partials a CTA is enough."""
    shared = defaultdict(int)
    for _, _, row in model.rows():
        for team in range(model.shape.teams):
            share = model.share(row, team)
            if share is not None and share.pieces > 1:
                shared[team] += 1
    assert max(shared.values(), default=0) <= 2


def check_all(model):
    check_coverage(model)
    check_merge(model)
    check_shared_rows(model)


LENGTHS = st.lists(
    st.one_of(st.integers(0, 200), st.integers(0, 5000), st.sampled_from([0, 1, 63, 64, 65, 20000, 131072])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=250, deadline=None)
@given(
    lengths=LENGTHS,
    h_q=st.sampled_from([1, 16, 64, 65, 128]),
    s_q=st.sampled_from([1, 2, 3, 5]),
    max_split=st.sampled_from([1, 2, 3, 4, 16, 64, 256]),
    cta_group=st.sampled_from([1, 2]),
    resident=st.sampled_from([8, 18, 132]),
)
def test_balanced(lengths, h_q, s_q, max_split, cta_group, resident):
    check_all(make(lengths, h_q=h_q, s_q=s_q, max_split=max_split, cta_group=cta_group, resident=resident))


@settings(max_examples=250, deadline=None)
@given(
    lengths=LENGTHS,
    counts=st.one_of(
        st.integers(-3, 300),
        st.lists(st.one_of(st.integers(-2, 5), st.integers(0, 300)), min_size=40, max_size=40),
    ),
    h_q=st.sampled_from([1, 64, 65, 128]),
    s_q=st.sampled_from([1, 2, 3]),
    max_split=st.sampled_from([1, 2, 4, 64, 256]),
    cta_group=st.sampled_from([1, 2]),
    resident=st.sampled_from([8, 18, 132]),
)
def test_given_counts(lengths, counts, h_q, s_q, max_split, cta_group, resident):
    check_all(
        make(
            lengths,
            h_q=h_q,
            s_q=s_q,
            max_split=max_split,
            cta_group=cta_group,
            resident=resident,
            num_splits=counts,
        )
    )


@pytest.mark.parametrize("cta_group", [1, 2])
def test_skewed_batch_is_balanced(cta_group):
    """Lengths 1, 5000 and 131072 with 128 heads: the busiest CTA has at most 1.15 x the mean work."""
    model = make([1, 5000, 131072], h_q=128, max_split=64, cta_group=cta_group)
    work = model.work_of_ctas()
    assert max(work) <= 1.15 * sum(work) / len(work)


def test_row_of_equal_pieces():
    """Given counts: pieces differ by at most one block unless neighbours were joined on one team."""
    model = make([64 * 1000], num_splits=10, max_split=64)
    sizes = [piece.last_key - piece.first_key for piece in model.pieces()]
    assert len(sizes) == 10 and max(sizes) - min(sizes) <= 64


def test_one_piece_is_direct():
    model = make([5000] * 200, num_splits=1)
    assert all(piece.direct for piece in model.pieces()) and len(model.pieces()) == 200
