"""Quantiles off a fixed grid, against those of the sorted rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from monitor.drift.reference import NeesHistogram, knot_levels


def counted(*parts) -> NeesHistogram:
    histogram = NeesHistogram()
    for part in parts:
        histogram.add(np.asarray(part, float))
    return histogram


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("n", [300, 20_000])
def test_a_knot_is_off_by_less_than_half_a_percent(k, n):
    rows = np.random.default_rng(n).chisquare(k, n) * 2.3
    levels = knot_levels()
    known = (levels >= 1 / (n + 1)) & (levels <= n / (n + 1))
    # Between rows of ln e, the i-th of n at i/(n + 1).
    exact = np.exp(np.interp(levels * (n + 1), np.arange(1, n + 1), np.log(np.sort(rows))))
    found = counted(rows).quantiles(k)
    assert np.abs(np.log(found[known] / exact[known])).max() < 0.005


def test_levels_beyond_all_rows_go_on_as_chi_square_does():
    found = counted([2.0]).quantiles(3)
    usual = chi2.ppf(knot_levels(), 3)
    np.testing.assert_allclose(found / usual, 2.0 / chi2.ppf(0.5, 3), rtol=0.004)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=50), st.integers(1, 7))
def test_quantiles_ascend_and_are_positive_whatever_came(rows, k):
    found = counted(rows).quantiles(k)
    assert (found > 0).all()
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()


@settings(max_examples=30)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.integers(0, 50))
def test_rows_in_parts_and_in_any_order_count_the_same(rows, cut):
    whole, parts = counted(rows), counted(rows[cut:], rows[:cut])
    assert np.array_equal(whole.counts, parts.counts)


def test_nothing_has_no_quantiles():
    assert NeesHistogram().quantiles(4).size == 0
