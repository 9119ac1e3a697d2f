"""Isotonic regression on σ against the min-max formula, the likelihood itself and its figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from monitor.recalibration.binned import IsotonicStd, cells_of, fit_isotonic_std
from monitor.store.codec import InvalidDocument
from tests.recalibration.rows import as_read
from tests.recalibration.simulated_rows import rows_of, wrong_by_size

quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def bumpy(seed, n=1500):
    """Errors that fall, rise and fall with σ."""
    random = np.random.default_rng(seed)
    sigma = np.exp(random.normal(size=n))
    return rows_of(sigma, random.normal(size=n) * (1.5 + np.sin(3 * np.log(sigma))))


@quick
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


def test_no_rising_variances_are_likelier():
    rows = bumpy(1)
    cells = cells_of(rows.deviation[:, 0], rows.error[:, 0], 1.0)
    model = fit_isotonic_std(rows)
    found = np.log(np.array(model.deviation[0]) * np.array(model.factor[0]))

    def loss(log_deviation):
        return float(
            cells.rows @ (log_deviation + 0.5 * cells.squared_error * np.exp(-2 * log_deviation))
        )

    def rising(free):
        return free[0] + np.append(0.0, np.cumsum(np.square(free[1:])))

    start = np.append(0.0, np.full(found.size - 1, 0.1))
    best = minimize(lambda free: loss(rising(free)), start, method="BFGS")
    assert loss(found) <= best.fun + 1e-6
    assert loss(found) == pytest.approx(best.fun, abs=0.05)


@quick
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


def test_a_sigma_that_says_nothing_is_flattened():
    random = np.random.default_rng(3)
    sigma = random.uniform(1.0, 10.0, 20_000)
    rows = rows_of(sigma, 0.5 * random.normal(size=20_000))
    model = fit_isotonic_std(rows)
    middle = rows_of(np.linspace(2.0, 9.0, 50), np.ones(50)).estimates
    assert model.apply(middle).deviation == pytest.approx(np.full((50, 1), 0.5), rel=0.03)


@pytest.mark.parametrize("end", ["first", "last"])
def test_lucky_rows_at_an_end_do_not_make_a_tiny_deviation(end):
    random = np.random.default_rng(4)
    sigma = np.sort(np.exp(random.normal(size=1000)))
    error = sigma * random.normal(size=1000)
    error[slice(0, 20) if end == "first" else slice(-20, None)] *= 1e-6
    factor = fit_isotonic_std(rows_of(sigma, error)).factor[0]
    assert min(factor) > 0.5 and max(factor) < 2


def test_deviations_that_differ_by_rounding_make_one_knot():
    random = np.random.default_rng(5)
    sigma = 1.0 + np.arange(5000) * 2.0**-50
    model = fit_isotonic_std(rows_of(sigma, 2.0 * random.normal(size=5000)))
    assert len(model.factor[0]) == 1
    assert as_read(IsotonicStd, model.parameters()) == model


# ---- documents


GOOD = {"deviation": [[0.5, 1.0], [2.0]], "factor": [[1.0, 0.5], [3.0]]}


def test_a_document_of_one_flat_and_one_plain_curve_is_read():
    model = as_read(IsotonicStd, GOOD)
    made = model.apply(rows_of([[0.7, 1.0], [2.0, 7.0]], np.ones((2, 2))).estimates)
    assert made.deviation == pytest.approx(np.array([[0.5, 3.0], [1.0, 21.0]]))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("deviation", [[1.0, 0.5], [2.0]], "'deviation' holds 0.5 after 1.0"),
        ("deviation", [[0.0, 0.5], [2.0]], r"'parameters.deviation\[0\]\[0\]' is 0.0"),
        ("deviation", [[1.0, 1.0 + 2e-16], [2.0]], "so near to each other make no slope"),
        (
            "deviation",
            [[1.0], [2.0]],
            "'factor' has 2 rows of 1 or 2 entries: with 'deviation' it must have 2",
        ),
        (
            "factor",
            [[1.0, 0.5]],
            "'factor' has 1 rows of 2 entries: with 'deviation' it must have 2 rows",
        ),
        ("factor", [[], []], r"'parameters.factor\[0\]' has 0 entries"),
        ("factor", [[1.0, 0.4], [3.0]], "'factor' makes σ 0.4 after 0.5 at the knots"),
        ("factor", [[1.0, 1e9], [3.0]], r"'parameters.factor\[0\]\[1\]' is 1000000000.0"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field(name, value, message):
    with pytest.raises(InvalidDocument, match=message):
        as_read(IsotonicStd, {**GOOD, name: value})
