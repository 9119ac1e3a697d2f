"""Processes and their fits: inputs, kernels and bounds against textbook formulas that share no
code, slopes against differences, the optimum against exact regression, and the choice of inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.processes.beta import BetaLine
from monitor.recalibration.processes.beta_fit import BetaErrors, beta_likelihood
from monitor.recalibration.processes.cauchy import cauchy_likelihood
from monitor.recalibration.processes.normal import NormalLikelihood, TriangularRow
from monitor.recalibration.processes.process_fit import (
    ROWS,
    Points,
    Posterior,
    Search,
    bound,
    choose_inputs,
    design_of,
    evidence_share,
    fit_process,
    hyper_slope,
    inducing_points,
)
from monitor.recalibration.processes.sparse_process import (
    JITTER,
    Expected,
    Inputs,
    LatentLikelihood,
    LatentStack,
    ScalarLikelihood,
    SparseProcess,
    candidate_inputs,
    in_blocks,
    kernel,
)
from monitor.recalibration.recalibrator import UnfitData
from tests.recalibration.rows import (
    normal_likelihood,
    nothing_to_find,
    random_points,
    random_process,
    rows_from,
    sizes,
    wild_estimates,
)


def gram(process: SparseProcess, latent: int, left, right):
    """k(left, right), entry by entry through the kernel of two points."""
    scale = np.array(process.scale[latent])
    return np.array([[kernel(scale, x[None], y[None])[0, 0] for y in right] for x in left])


def inducing_gram(process: SparseProcess, latent: int):
    """K, with the jitter that is documented."""
    z = np.array(process.inducing)
    matrix = gram(process, latent, z, z)
    return matrix + JITTER * np.trace(matrix) / len(z) * np.eye(len(z))


def inducing_moments(process: SparseProcess, latent: int):
    """Mean and covariance of u = g(Z), of the whitened ones."""
    root = np.linalg.cholesky(inducing_gram(process, latent))
    spread = np.array(process.spread[latent])
    mean = root @ np.array(process.location[latent])
    return mean, root @ spread @ spread.T @ root.T


def textbook_at(process: SparseProcess, points):
    """Mean and variance of the outputs by Hensman et al. 2015, eq. 7 and 8: with
    B = k(x, Z) K⁻¹ the latent mean is B m and its variance k(x, x) − B (K − S) Bᵀ."""
    mean = np.repeat(np.array(process.constant)[:, None], len(points), axis=1)
    variance = np.zeros_like(mean)
    for latent in range(len(process.location)):
        centre, spread = inducing_moments(process, latent)
        k = inducing_gram(process, latent)
        b = gram(process, latent, points, np.array(process.inducing)) @ np.linalg.inv(k)
        itself = np.array([gram(process, latent, x[None], x[None])[0, 0] for x in points])
        loading = np.array(process.mixing)[:, latent : latent + 1]
        mean += loading * (b @ centre)
        variance += loading**2 * (itself - np.diag(b @ (k - spread) @ b.T))
    return mean, variance


def textbook_divergence(process: SparseProcess):
    """Σ KL(N(m, S) ‖ N(0, K)) over the latents, of u itself."""
    total = 0.0
    for latent in range(len(process.location)):
        centre, spread = inducing_moments(process, latent)
        k = inducing_gram(process, latent)
        inverse = np.linalg.inv(k)
        total += 0.5 * (
            np.trace(inverse @ spread)
            + centre @ inverse @ centre
            - len(k)
            + np.linalg.slogdet(k)[1]
            - np.linalg.slogdet(spread)[1]
        )
    return total


SAMPLE = sizes(1, n=300, k=3)
CANDIDATES = candidate_inputs(SAMPLE).features

# ---- inputs

POSE = Space(
    (
        Dimension("x", "m"),
        Dimension("length", "m"),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
        Dimension("axis", "rad", DimensionKind.ANGLE_MODULO_PI),
    )
)


def poses(seed, n=200):
    random = np.random.default_rng(seed)
    place, length = random.normal(0, 30, n), np.exp(random.normal(1, 0.3, n))
    yaw, axis = random.uniform(-np.pi, np.pi, n), random.uniform(-np.pi / 2, np.pi / 2, n)
    mean = np.stack([place, length, yaw, axis], axis=1)
    variance = np.exp(random.normal(size=(n, 4)))
    return rows_from(mean, variance, random.normal(size=(n, 4)), space=POSE)


def kinds(inputs):
    return [(str(feature.kind), feature.dimension) for feature in inputs.features]


def test_candidates_are_means_by_their_kind_and_all_deviations_standardised_over_the_rows():
    rows = poses(2)
    inputs = candidate_inputs(rows)
    assert kinds(inputs) == [
        *(("mean", 0), ("log-mean", 1), ("cosine", 2), ("sine", 2)),
        *(("cosine-of-twice", 3), ("sine-of-twice", 3)),
        *(("log-deviation", i) for i in range(4)),
    ]
    mean, sigma = rows.estimates.mean, rows.deviation
    raw = [mean[:, 0], np.log(mean[:, 1]), np.cos(mean[:, 2]), np.sin(mean[:, 2])]
    raw += [np.cos(2 * mean[:, 3]), np.sin(2 * mean[:, 3]), *np.log(sigma).T]
    for column, values in zip(inputs.of(rows.estimates).T, raw, strict=True):
        assert column == pytest.approx((values - values.mean()) / values.std(), abs=1e-12)


def test_a_dimension_that_is_not_positive_throughout_enters_as_it_is():
    rows = sizes(4, k=2)
    rows.estimates.mean[17, 1] = -1.0
    assert kinds(candidate_inputs(rows))[:2] == [("log-mean", 0), ("mean", 1)]


@given(st.integers(0, 2**32 - 1))
def test_whatever_the_estimate_its_point_is_within_the_range_of_the_fit(seed):
    rows = poses(5)
    inputs = candidate_inputs(rows)
    seen = inputs.of(rows.estimates)
    points = inputs.of(wild_estimates(seed, 50, 4))
    assert (points >= seen.min(axis=0)).all()
    assert (points <= seen.max(axis=0)).all()


@pytest.mark.parametrize("n", [1, 300])
def test_what_does_not_vary_is_no_candidate(n):
    mean = np.column_stack([np.full(n, 1234.5), np.full(n, 0.1) + 0.2])
    rows = rows_from(mean, np.full((n, 2), 0.1) * 0.3, np.ones((n, 2)))
    assert not candidate_inputs(rows).features
    assert Inputs(()).of(rows.estimates).shape == (n, 0)


# ---- the kernel


@pytest.mark.parametrize("k", [1, 2, 4])
def test_every_entry_of_the_matrix_is_the_kernel_of_two_points(k):
    left, right = random_points(1, 7, k), random_points(2, 5, k)
    scale = np.array([0.7, 1.3, 2.0, 0.4])[:k]
    inverse = np.diag(1 / scale**2)
    expected = [[np.exp(-0.5 * (x - y) @ inverse @ (x - y)) for y in right] for x in left]
    assert kernel(scale, left, right) == pytest.approx(np.array(expected), rel=1e-12)


@given(st.floats(-5, 5), st.floats(0.0, 2.0), st.floats(-2, 2))
def test_the_mean_of_an_exponential_is_that_of_a_lognormal(mean, variance, rate):
    class Exponential(ScalarLikelihood):
        def log_likelihood(self, latent):
            return np.exp(rate * latent), rate * np.exp(rate * latent)

    found = Exponential().expected(np.array([[mean]]), np.array([[variance]]))
    exact = math.exp(rate * mean + 0.5 * rate * rate * variance)
    assert found.value.item() == pytest.approx(exact, rel=1e-9)
    assert found.by_mean.item() == pytest.approx(rate * exact, rel=1e-9, abs=1e-12)
    # A difference of values over √v, which digits are lost in as v falls.
    assert found.by_variance.item() == pytest.approx(
        0.5 * rate * rate * exact, rel=1e-6, abs=1e-4 * exact if variance < 1e-9 else 1e-9 * exact
    )


# ---- processes


@pytest.mark.parametrize("seed", range(3))
def test_means_and_variances_are_those_of_the_textbook(seed):
    process = random_process(10 * seed, outputs=3)
    points = random_points(seed, 40)
    for found, expected in zip(process.at(points), textbook_at(process, points), strict=True):
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-8)


# ---- stacks


def looking(process, *places):
    return replace(process, inputs=tuple(CANDIDATES[i] for i in places))


CONSTANT = SparseProcess((0.3, -0.2))
MIXED = (
    looking(random_process(1, outputs=1), 0, 3),
    CONSTANT,
    looking(random_process(2, outputs=3, size=7, width=1), 3),
    looking(random_process(3, outputs=2, size=3), 5, 0),
)


@pytest.mark.parametrize("processes", [MIXED, (CONSTANT,), MIXED[:1]])
def test_together_they_say_what_each_says_alone(processes):
    found = LatentStack.of(processes, SAMPLE.estimates, 0.5).at(SAMPLE.estimates)
    parts = zip(*(process.of(SAMPLE.estimates) for process in processes), strict=True)
    for one, expected in zip(found, parts, strict=True):
        assert one == pytest.approx(np.concatenate(expected), abs=1e-9)


def test_what_is_served_is_the_mean_or_the_log_of_the_expectation_within_the_range():
    served, estimates = LatentStack.of(MIXED, SAMPLE.estimates, 0.5), wild_estimates(3, 50, 3)
    low, high = np.array(served.low)[:, None], np.array(served.high)[:, None]
    mean, variance = served.at(estimates)
    assert np.array_equal(served.means(estimates), np.clip(mean, low, high))
    expected = np.clip(mean + 0.5 * variance, low, high)
    assert served.log_expectations(estimates) == pytest.approx(expected, abs=1e-12)
    # The range is that of the fit and a margin.
    mean, variance = served.at(SAMPLE.estimates)
    for expectations, seen in ((False, mean), (True, mean + 0.5 * variance)):
        found = LatentStack.of(MIXED, SAMPLE.estimates, 0.5, expectations=expectations)
        assert found.low == pytest.approx(seen.min(axis=1) - 0.5)
        assert found.high == pytest.approx(seen.max(axis=1) + 0.5)


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


def test_a_likelihood_that_is_finite_at_its_start_alone_leaves_the_constant():
    class Brittle(Regression):
        def expected(self, mean, variance):
            found = super().expected(mean, variance)
            return replace(found, value=np.where(variance.any(), np.inf, found.value))

    points = random_points(14, 30)
    process, _ = fit_process(Brittle(points[:, :1].T), points, 1.0)
    assert not process.inducing


def test_slopes_by_kernels_and_amplitudes_are_those_of_differences():
    points, likelihood = factors(2, 300, 2)
    search = Search(likelihood, likelihood.start, points, 1.0, 6)
    seen = Points(likelihood, 0.7, 300, in_blocks(points, ROWS), points[:6])
    random = np.random.default_rng(3)
    start = search.place.packed
    packed = start + 0.2 * random.normal(size=start.size)
    root = 0.3 * np.tril(random.normal(size=(2, 6, 6)), -1) + 2 * np.eye(6)
    precise = root @ root.transpose(0, 2, 1)
    posterior = Posterior(likelihood.start, random.normal(size=(2, 6)), precise)

    def at(packed):
        scales, amplitude = search.unpacked(packed)
        design = design_of(scales, amplitude, seen)
        return scales, design, bound(design, posterior)

    scales, design, found = at(packed)
    slope = hyper_slope(scales, design, posterior, found)
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
