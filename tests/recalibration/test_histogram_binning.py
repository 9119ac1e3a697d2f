"""Histogram binning on σ against slow loops over its bins, and the cells that it is fitted to."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.binned import (
    FEWEST_ROWS,
    HistogramBinning,
    cells_of,
    fit_histogram_binning,
)
from monitor.store.codec import InvalidDocument
from tests.recalibration.rows import as_read, reference_rows
from tests.recalibration.simulated_rows import rows_of, wrong_by_size

quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


# ---- the map


@quick
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


def test_a_bin_sets_no_least_and_no_largest_deviation():
    rows = wrong_by_size(1)
    far = rows_of([1e-6, 1e5], [1.0, 1.0]).estimates
    factor = fit_histogram_binning(rows).apply(far).deviation[:, 0]
    assert factor[1] / factor[0] > 1e9


def test_no_bin_gives_less_than_a_thousandth_of_its_deviation():
    # All errors of small σ are 0 but one that is nearly so.
    sigma = np.linspace(1.0, 2.0, 4000)
    error = np.where(sigma < 1.2, 0.0, np.random.default_rng(2).normal(size=4000))
    error[0] = 1e-9
    rows = rows_of(sigma, error)
    made = fit_histogram_binning(rows).apply(rows.estimates).deviation
    assert made.min() >= 1e-3 * (1 - 1e-12)


# ---- the cells


@quick
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


def test_heavy_tails_make_fewer_cells():
    random = np.random.default_rng(5)
    sigma = np.exp(random.normal(size=20_000))
    found = [
        cells_of(sigma, sigma * z, 1.0).start.size
        for z in (
            random.normal(size=20_000),
            random.standard_t(5, 20_000),
            random.standard_cauchy(20_000),
        )
    ]
    assert found[0] > found[1] > found[2] == 1


def test_cells_without_an_error_are_joined_to_those_with_one():
    sigma = np.arange(1.0, 2001.0)
    error = np.where(sigma > 1000, np.random.default_rng(6).normal(size=2000), 0.0)
    cells = cells_of(sigma, error, 1.0)
    assert cells.rows[0] > 1000
    assert cells.squared_error.min() > 0
    # And at the other end.
    assert cells_of(sigma, error[::-1], 1.0).rows[-1] > 1000


# ---- documents


GOOD = fit_histogram_binning(wrong_by_size(1, 900, 2)).parameters()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("edges", None, "'parameters.edges' is None"),
        ("edges", [], "'factors' has 2 rows of 9 entries: with 'edges' it must have 0 rows of"),
        ("edges", [0.5, 1.0], r"'parameters.edges\[0\]' is 0.5"),
        ("edges", [[0.5], [-1.0]], r"'parameters.edges\[1\]\[0\]' is -1.0"),
        ("edges", [[0.5], [float("nan")]], r"'parameters.edges\[1\]\[0\]' is nan"),
        (
            "edges",
            [[0.5], [10**400]],
            r"'parameters.edges\[1\]\[0\]' is 100000000000000000000000000000000000000000",
        ),
        ("edges", [[1.0, 1.0], [2.0]], "'edges' holds 1.0 after 1.0: entries must rise strictly"),
        (
            "factors",
            [[1.0], [2.0]],
            "'factors' has 2 rows of 1 entries: with 'edges' it must have 2 rows of",
        ),
        (
            "factors",
            [[1.0]],
            "'factors' has 1 rows of 1 entries: with 'edges' it must have 2 rows of",
        ),
        ("factors", [[1e-9], [1.0]], r"'parameters.factors\[0\]\[0\]' is 1e-09"),
        ("factors", [[True], [1.0]], r"'parameters.factors\[0\]\[0\]' is True"),
        ("factors", [["1"], [1.0]], r"'parameters.factors\[0\]\[0\]' is '1'"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field(name, value, message):
    with pytest.raises(InvalidDocument, match=message):
        as_read(HistogramBinning, {**GOOD, name: value})
