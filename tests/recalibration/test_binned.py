"""Histogram binning and isotonic regression on σ: against slow loops over their cells, the min-max
formula and the likelihood itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.recalibration.binned import (
    FEWEST_ROWS,
    IsotonicStd,
    cells_of,
    fit_histogram_binning,
    fit_isotonic_std,
)
from tests.recalibration.rows import (
    as_read,
    nll,
    reference_rows,
    rows_of,
    scaled_loss,
    wrong_by_size,
)

seeds = st.integers(0, 2**32 - 1)

# ---- the cells


@given(seeds, st.integers(1, 5000), st.integers(0, 3), st.floats(0.02, 1.0))
def test_cells_are_thick_enough_and_equal_deviations_stay_together(seed, n, digits, weight):
    random = np.random.default_rng(seed)
    sigma = np.round(np.exp(random.normal(size=n)), digits) + 0.1
    error = sigma * random.normal(size=n) * (random.random(n) < 0.3)
    error[0] = 1.0
    cells = cells_of(sigma, error, weight)
    index = np.searchsorted(cells.start, sigma, side="right") - 1
    assert index.min() == 0
    assert np.array_equal(np.bincount(index), cells.rows)
    assert cells.start.size <= np.cbrt(n * weight) + 1
    assert cells.start.size == 1 or (cells.rows * weight).min() >= FEWEST_ROWS
    for c in range(cells.start.size):
        inside = index == c
        assert cells.squared_error[c] == pytest.approx(np.mean(error[inside] ** 2))
        assert cells.nees[c] == pytest.approx(np.mean((error[inside] / sigma[inside]) ** 2))
        assert cells.variance[c] == pytest.approx(np.mean(sigma[inside] ** 2))
        assert cells.nees[c] > 0


def test_cells_of_gaussian_errors_are_as_many_as_the_cube_root_of_the_rows():
    rows = reference_rows("levi_overconfident", slice(0, 25_000))
    assert cells_of(rows.deviation[:, 0], rows.error[:, 0], 1.0).start.size == 29


def test_cells_without_an_error_are_joined_to_those_with_one():
    sigma = np.arange(1.0, 2001.0)
    error = np.where(sigma > 1000, np.random.default_rng(6).normal(size=2000), 0.0)
    cells = cells_of(sigma, error, 1.0)
    assert cells.rows[0] > 1000
    assert cells.squared_error.min() > 0
    # And at the other end.
    assert cells_of(sigma, error[::-1], 1.0).rows[-1] > 1000


# ---- histogram binning


@given(seeds)
def test_a_bin_gives_what_its_own_rows_say(seed):
    rows = wrong_by_size(seed, 1500, 2)
    model = fit_histogram_binning(rows)
    made = model.apply(rows.estimates).deviation
    for i in range(2):
        edges = [0.0, *model.edges[i], np.inf]
        assert len(edges) > 8
        for low, high in pairwise(edges):
            inside = [j for j in range(rows.n) if low <= rows.deviation[j, i] < high]
            error, sigma = rows.error[inside, i], rows.deviation[inside, i]
            expected = sigma * np.sqrt(np.mean((error / sigma) ** 2))
            assert made[inside, i] == pytest.approx(expected, rel=1e-12)


# ---- isotonic regression


def bumpy(seed, n=1500):
    """Errors that fall, rise and fall with σ."""
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=n))
    return rows_of(sigma, random.normal(size=n) * (1.5 + np.sin(3 * np.log(sigma))))


@given(seeds)
def test_knots_lie_on_the_isotonic_regression_of_squared_errors(seed):
    rows = bumpy(seed)
    cells = cells_of(rows.deviation[:, 0], rows.error[:, 0], 1.0)
    m, n = cells.squared_error, cells.rows
    model = fit_isotonic_std(rows)
    # max over what begins before, min over what ends after, of the mean (Barlow et al. 1972).
    for c in range(m.size):
        expected = max(
            min(np.average(m[a : b + 1], weights=n[a : b + 1]) for b in range(c, m.size))
            for a in range(c + 1)
        )
        assert model.deviation[0][c] == pytest.approx(np.sqrt(cells.variance[c]))
        assert model.factor[0][c] * model.deviation[0][c] == pytest.approx(np.sqrt(expected))


@given(seeds)
def test_of_two_detections_the_one_with_the_larger_sigma_never_comes_out_as_the_better(seed):
    model = fit_isotonic_std(bumpy(seed))
    sigma = np.geomspace(1e-6, 1e5, 3000)
    made = model.apply(rows_of(sigma, sigma).estimates).deviation[:, 0]
    assert (np.diff(made) >= -1e-12 * made[1:]).all()


def test_beyond_the_outer_knots_the_factor_stays():
    model = fit_isotonic_std(wrong_by_size(2))
    low, high = model.deviation[0][0], model.deviation[0][-1]
    sigma = np.array([1e-6, low / 10, low, high, high * 10, 1e5])
    made = model.apply(rows_of(sigma, sigma).estimates).deviation[:, 0]
    first, last = model.factor[0][0], model.factor[0][-1]
    assert made / sigma == pytest.approx([first] * 3 + [last] * 3)


def test_deviations_that_differ_by_rounding_make_one_knot():
    random = np.random.default_rng(5)
    sigma = 1.0 + np.arange(5000) * 2.0**-50
    model = fit_isotonic_std(rows_of(sigma, 2.0 * random.normal(size=5000)))
    assert len(model.factor[0]) == 1
    assert as_read(IsotonicStd, model.parameters()) == model


# ---- figures of both

of_deviation = pytest.mark.parametrize("fit", [fit_histogram_binning, fit_isotonic_std])


@of_deviation
def test_an_error_that_is_not_in_proportion_to_sigma_is_found(fit):
    fitted, evaluated = wrong_by_size(3, 4000), wrong_by_size(4, 4000)
    made = fit(fitted).apply(evaluated.estimates).deviation
    best = nll(np.sqrt(evaluated.deviation), evaluated.error)
    assert nll(made, evaluated.error) < best + 0.01
    assert scaled_loss(fitted, evaluated) > best + 0.1
