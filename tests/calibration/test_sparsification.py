"""Areas under sparsification curves: against loops over the rows, ties and segments included."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.class_evaluation import (
    Ranked,
    area_bounds,
    areas,
    areas_of_outcomes,
    deviation_within,
    error_of_kept,
    rank_rows,
)

quick = settings(max_examples=60)
rows = st.lists(
    st.tuples(st.integers(0, 6), st.floats(0, 2, width=32), st.integers(0, 2)),
    min_size=1,
    max_size=40,
)


def ranked(data) -> Ranked:
    uncertainty, error, segment = (np.array(column) for column in zip(*data, strict=True))
    return rank_rows(uncertainty.astype(float), error[:, None], segment, 3)


def area(data):
    """Most certain first, ties share their mean."""
    shared = []
    for level in sorted({u for u, _, _ in data}):
        ties = [error for u, error, _ in data if u == level]
        shared += [fmean(ties)] * len(ties)
    return fmean(fmean(shared[: r + 1]) for r in range(len(shared)))


@quick
@given(rows)
def test_an_area_is_the_mean_error_of_what_remains(data):
    found = areas(ranked(data))
    assert found.shape == (3, 1)
    for segment in range(3):
        part = [row for row in data if row[2] == segment]
        if part:
            assert found[segment, 0] == pytest.approx(area(part), rel=1e-12, abs=1e-12)
        else:
            assert math.isnan(found[segment, 0])


@quick
@given(rows, st.randoms(use_true_random=False))
def test_an_area_does_not_depend_on_the_order_of_the_rows(data, random):
    shuffled = list(data)
    random.shuffle(shuffled)
    np.testing.assert_allclose(areas(ranked(shuffled)), areas(ranked(data)), rtol=1e-12, atol=1e-15)


@quick
@given(rows)
def test_sorting_within_a_group_moves_the_area_by_its_bound_at_most(data):
    fine = rank_rows(
        np.array([u for u, _, _ in data], float),
        np.array([[e] for _, e, _ in data]),
        np.zeros(len(data), np.int64),
        1,
    )
    # All in one group, as if a micro-bin held every row.
    n, error = np.array([len(data)]), fine.error.sum(axis=0)
    deviation = deviation_within(n, error, 0.0, 2.0)[:, None]
    coarse = Ranked(1, np.zeros(1, np.int64), n, error[None], deviation)
    assert abs(areas(coarse) - areas(fine)) <= area_bounds(coarse) + 1e-12
    assert area_bounds(fine) == 0


def test_the_oracle_of_outcomes_keeps_the_right_rows_longest():
    found = areas_of_outcomes(np.array([3, 0, 2, 0]), np.array([1, 2, 0, 0]))
    # Of three right and one wrong row only the whole has an error: 1/4 at one of four steps.
    np.testing.assert_allclose(found[:3, 0], [1 / 16, 1.0, 0.0])
    assert math.isnan(found[3, 0])


def test_what_is_kept_of_a_tie_shares_its_mean():
    data = [(0, 0.0, 0), (1, 1.0, 0), (1, 0.0, 0), (2, 1.0, 0)]
    kept = error_of_kept(ranked(data), np.array([4, 3, 2, 1, 0]))[:, 0]
    np.testing.assert_allclose(kept, [2 / 4, 1 / 3, 0.5 / 2, 0.0, math.nan])


def test_a_million_distinct_rows_lose_no_digits():
    n = 1_000_000
    error = np.random.default_rng(1).random((n, 1))
    found = areas(rank_rows(np.arange(n, dtype=float), error, np.zeros(n, np.int64), 1))
    plain = np.mean(np.cumsum(error[:, 0]) / np.arange(1, n + 1))
    assert found[0, 0] == pytest.approx(plain, rel=1e-9)


def test_no_rows_have_no_area():
    none = rank_rows(np.zeros(0), np.zeros((0, 2)), np.zeros(0, np.int64), 2)
    assert np.isnan(areas(none)).all() and np.isnan(area_bounds(none)).all()
