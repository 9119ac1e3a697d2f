"""Fits of processes: the bound against the textbook, its slopes against differences, its optimum
against exact regression, and inputs that say something against those that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from monitor.recalibration.processes.beta_map import BetaErrors, BetaLine, beta_likelihood
from monitor.recalibration.processes.cauchy import cauchy_likelihood
from monitor.recalibration.processes.multivariate import TriangularRow
from monitor.recalibration.processes.normal import NormalLikelihood
from monitor.recalibration.processes.process_fit import (
    Search,
    choose_inputs,
    evidence_share,
    fit_process,
    hyper_slope,
    inducing_points,
)
from monitor.recalibration.processes.sparse_process import Expected, LatentLikelihood, in_blocks
from monitor.recalibration.processes.variational import ROWS, Points, Posterior, bound, design_of
from monitor.recalibration.recalibrator import UnfitData
from tests.recalibration.processes.processes import (
    gram,
    random_points,
    textbook_at,
    textbook_divergence,
)
from tests.recalibration.rows import normal_likelihood, nothing_to_find, rows_from, sizes

# ---- likelihoods

random = np.random.default_rng(4)
DEVIATION = np.exp(0.5 * random.normal(size=60))
NORMALISED = random.normal(size=60)
LINE = BetaLine((0.2, -0.1, 0.3), (0.8, 0.55, 0.2))
LIKELIHOODS: dict[str, tuple[LatentLikelihood, int]] = {
    "normal": (normal_likelihood(sizes(4, n=60, k=2)), 2),
    "cauchy": (cauchy_likelihood("x", NORMALISED * DEVIATION, DEVIATION), 1),
    "beta": (beta_likelihood(BetaErrors(2 * NORMALISED, np.log(DEVIATION)), 1.7, LINE), 1),
    "triangular": (TriangularRow(NORMALISED, random.normal(size=(3, 60)), np.log(DEVIATION)), 4),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_derivatives_of_an_expectation_are_finite_differences_of_it(name):
    likelihood, outputs = LIKELIHOODS[name]
    mean, variance = np.linspace(-1, 1, 60 * outputs), np.geomspace(1e-2, 1.0, 60 * outputs)
    mean, variance = mean.reshape(outputs, 60), variance.reshape(outputs, 60)
    found = likelihood.expected(mean, variance)
    for j in range(outputs):
        step = np.zeros_like(mean)
        step[j] = 1e-6
        for slope, up, down in (
            (found.by_mean, (mean + step, variance), (mean - step, variance)),
            (found.by_variance, (mean, variance + step), (mean, variance - step)),
        ):
            gap = likelihood.expected(*up).value - likelihood.expected(*down).value
            assert slope[j] == pytest.approx(gap / 2e-6, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_points_that_repeat_make_no_more_centres_than_there_are(distinct):
    points = np.arange(distinct, dtype=float)[np.arange(100) % distinct][:, None]
    assert sorted(inducing_points(points, 12)[:, 0].tolist()) == list(range(distinct))


# ---- the bound and the search


class Regression:
    """y = f + noise of variance 0.25; (J, n)."""

    def __init__(self, y):
        self.y, self.start = y, y.mean(axis=1)

    def expected(self, mean, variance):
        value = -0.5 * (np.log(2 * np.pi * 0.25) + ((self.y - mean) ** 2 + variance) / 0.25)
        return Expected(value.sum(axis=0), (self.y - mean) / 0.25, np.full_like(mean, -0.5 / 0.25))


def factors(seed, n, outputs):
    """Points, and errors whose log variance bends with the first feature."""
    random = np.random.default_rng(seed)
    points = random_points(seed, n)
    square = random.chisquare(1, (outputs, n)) * np.exp(1.5 * np.tanh(points[:, 0]))
    return points, NormalLikelihood(square, np.zeros((outputs, n)))


def test_the_bound_of_a_fit_is_the_expectation_less_the_divergence():
    points, likelihood = factors(1, 300, 2)
    process, found = fit_process(likelihood, points, 0.5, 6)
    value = likelihood.expected(*textbook_at(process, points)).value.sum()
    assert found == pytest.approx(0.5 * value - textbook_divergence(process), rel=1e-7)


def test_slopes_by_kernels_and_amplitudes_are_those_of_differences():
    points, likelihood = factors(2, 300, 2)
    search = Search(likelihood, likelihood.start, points, 1.0, 6)
    seen = Points(300, in_blocks(points, ROWS), points[:6])
    random = np.random.default_rng(3)
    start = search.place.packed
    packed = start + 0.2 * random.normal(size=start.size)
    root = 0.3 * np.tril(random.normal(size=(2, 6, 6)), -1) + 2 * np.eye(6)
    precise = root @ root.transpose(0, 2, 1)
    posterior = Posterior(likelihood.start, random.normal(size=(2, 6)), precise)

    def at(packed):
        kernels, amplitude = search.unpacked(packed)
        design = design_of(kernels, amplitude, seen)
        return kernels, design, bound(likelihood, 0.7, design, posterior)

    kernels, design, found = at(packed)
    slope = hyper_slope(kernels, design, posterior, found)
    for i, step in enumerate(1e-5 * np.eye(packed.size)):
        difference = (at(packed + step)[2].value - at(packed - step)[2].value) / 2e-5
        assert slope[i] == pytest.approx(difference, rel=2e-5, abs=1e-4)


def test_with_inducing_points_everywhere_it_is_exact_regression():
    points = random_points(6, 12)
    y = np.sin(2 * points[:, 0])[None]
    process, found = fit_process(Regression(y), points, 1.0)
    amplitude = process.mixing[0][0] ** 2
    covariance = amplitude * gram(process, 0, points, points) + 0.25 * np.eye(12)
    centred = y[0] - process.constant[0]
    fresh = random_points(7, 20)
    cross = amplitude * gram(process, 0, fresh, points)
    mean, variance = process.at(fresh)
    expected = process.constant[0] + cross @ np.linalg.solve(covariance, centred)
    itself = amplitude * np.array([gram(process, 0, x[None], x[None])[0, 0] for x in fresh])
    spread = itself - np.diag(cross @ np.linalg.solve(covariance, cross.T))
    # The inducing points carry jitter, the regression none.
    assert mean[0] == pytest.approx(expected, abs=1e-4)
    assert variance[0] == pytest.approx(spread, abs=1e-4)
    evidence = multivariate_normal.logpdf(centred, cov=covariance)
    assert found == pytest.approx(evidence, abs=1e-3)


@pytest.mark.parametrize("points", [np.zeros((50, 0)), np.full((50, 2), 0.3)])
def test_without_anything_to_tell_rows_apart_the_process_is_the_constant(points):
    _, likelihood = factors(11, 50, 2)
    process, found = fit_process(likelihood, points, 1.0)
    assert process.constant == tuple(likelihood.start)
    assert not process.inducing
    at_start = np.repeat(likelihood.start[:, None], 50, axis=1)
    assert found == likelihood.expected(at_start, 0.0 * at_start).value.sum()


def test_a_likelihood_that_is_not_finite_is_refused():
    points, likelihood = factors(13, 50, 1)
    spoilt = NormalLikelihood(likelihood.square, np.full((1, 50), np.nan))
    with pytest.raises(UnfitData, match=r"50 rows .* not finite"):
        fit_process(spoilt, points, 1.0)


def test_a_likelihood_that_is_finite_at_its_start_alone_leaves_the_constant():
    class Brittle(Regression):
        def expected(self, mean, variance):
            found = super().expected(mean, variance)
            infinite = Expected(np.inf * found.value, found.by_mean, found.by_variance)
            return infinite if variance.any() else found

    points = random_points(14, 30)
    process, _ = fit_process(Brittle(points[:, :1].T), points, 1.0)
    assert not process.inducing


# ---- the choice of inputs


def chosen(rows, dimension=0):
    likelihood = normal_likelihood(rows, dimension)
    weight = float(rows.size_weight[dimension])
    process = choose_inputs(likelihood, rows, weight)
    return [(str(f.kind), f.dimension) for f in process.inputs], process


@pytest.mark.parametrize("dimension", [0, 2])
def test_the_one_input_that_matters_is_found_for_every_dimension(dimension):
    assert chosen(sizes(1, n=2000, k=3), dimension)[0] == [("log-mean", 0)]


def test_two_inputs_that_matter_are_both_found():
    random = np.random.default_rng(2)
    mean = random.normal(size=(3000, 4))
    sigma = np.exp(random.normal(0, 0.5, (3000, 4)))
    log_factor = 1.2 * np.tanh(2 * mean[:, 2:3]) + 1.5 * np.log(sigma[:, 1:2])
    error = sigma * np.exp(0.5 * log_factor) * random.normal(size=(3000, 4))
    found, process = chosen(rows_from(mean, sigma**2, error))
    assert sorted(found) == [("log-deviation", 1), ("mean", 2)]
    assert process.width == 2


def test_where_nothing_matters_the_process_is_variance_scaling():
    rows = sizes(1, n=1000, k=3, factor=nothing_to_find)
    found, process = chosen(rows)
    assert found == []
    nees = np.mean((rows.error / rows.deviation)[:, 0] ** 2)
    assert process.constant == pytest.approx([np.log(nees)], rel=1e-9)


@pytest.mark.parametrize("tail", [1, 2, 3])
def test_outliers_are_not_taken_for_a_dependence(tail):
    rows = sizes(tail, n=1000, k=2, factor=nothing_to_find, tail=tail)
    assert chosen(rows)[0] == []


@given(st.integers(0, 2**32 - 1))
def test_the_share_of_the_evidence_is_two_over_the_kurtosis_less_one(seed):
    rows = sizes(seed, n=500, k=1, factor=nothing_to_find, tail=3)
    likelihood = normal_likelihood(rows)
    mean = np.repeat(likelihood.start[:, None], rows.n, axis=1)
    z = (rows.error / rows.deviation)[:, 0]
    kurtosis = np.mean(z**4) / np.mean(z**2) ** 2
    share = evidence_share(likelihood.expected(mean, np.zeros_like(mean)))
    assert share == pytest.approx(min(1.0, 2 / (kurtosis - 1)), rel=1e-9)
