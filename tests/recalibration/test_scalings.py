"""Variance and covariance scaling: against the likelihood and direct computation, drawn towards an
earlier fit, and clamped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.stats import chi2

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.recalibration import scaling
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import (
    QUANTILE_LEVEL,
    WINSOR_LEVEL,
    Clamp,
    CovarianceScaling,
    FullInput,
    Objective,
    Prior,
    clamped_matrix,
    fit_scale,
    own_share,
)
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id, design_effect_of_rows
from monitor.statistics.stage import observe
from tests import laws
from tests.recalibration.rows import as_read, wild_estimates

BINNING = Binning()

XYZ = plain_space(("x", "y", "z"), "m")

# The order of whitening is here not the order of the dimensions.
YAW_XY = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XYZ.dimensions[:2]))

NEES_BIN = 2 ** (1 / 16)

seeds = st.integers(0, 2**32 - 1)
strengths = st.floats(1e-3, 1e6)
FITS = {"variance": scaling.fit_variance_scaling, "covariance": scaling.fit_covariance_scaling}
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)


def simulated(seed, n=300, k=3, *, diagonal=False, factors=(1.5, 0.4, 2.5)):
    """Errors that correlate, whatever the covariances say, and are off by a factor a dimension."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    # Not so near to singular that whitened errors reach a clamp.
    covariance = root @ root.transpose(0, 2, 1) + 0.05 * np.eye(k)
    covariance *= np.exp(random.normal(size=(n, 1, 1)))
    mixing = np.eye(k) + random.uniform(-1, 1) * np.tril(np.ones((k, k)), -1)
    draw = (mixing @ random.normal(size=(n, k, 1)))[..., 0]
    error = (np.linalg.cholesky(covariance) @ draw[..., None])[..., 0] * np.array(factors[:k])
    return error, covariance * np.eye(k) if diagonal else covariance


def statistics_of(error, covariance, space=XYZ, track=None):
    cluster = None if track is None else cluster_id((track,))
    return observe(space, BINNING, error, covariance, cluster)


def seen(seed, n=200):
    return statistics_of(*simulated(seed, n))


def assert_close(found, expected, tolerance=1e-9):
    """Covariances agree to a share of σi σj."""
    size = np.sqrt(np.diagonal(expected, axis1=1, axis2=2))
    gap = np.abs(found - expected) / (size[:, :, None] * size[:, None, :])
    assert gap.max(initial=0.0) <= tolerance


def normalised(error, covariance):
    return error / np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))


def whitened(error, covariance, order):
    order = np.array(order)
    factor = np.linalg.cholesky(covariance[:, order[:, None], order])
    return np.linalg.solve(factor, error[:, order, None])[..., 0]


# ---- the closed forms


def test_the_factor_on_sigma_is_the_root_mean_square_of_errors_in_sigma():
    """Where the likelihood of N(0, (s σ)²) is greatest."""
    error, covariance = simulated(1)
    found = scaling.fit_variance_scaling(statistics_of(error, covariance)).scale
    expected = np.sqrt(np.mean(np.square(normalised(error, covariance)), axis=0))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("space", [XYZ, YAW_XY, plain_space(("x",))])
@pytest.mark.parametrize("form", ["variances", "scale", "whiten"])
def test_covariance_scaling_is_its_equation_in_matrices(space, form):
    """D M D of variances, S Σ S or L A Lᵀ of covariances, with moments of errors in their units."""
    error, covariance = simulated(2, k=space.k, diagonal=form == "variances")
    full_input = FullInput.WHITEN if form == "whiten" else FullInput.SCALE
    statistics = statistics_of(error, covariance, space)
    model = scaling.fit_covariance_scaling(statistics, full_input=full_input)
    z, order = normalised(error, covariance), np.array(space.order)
    if form == "variances":
        half = np.sqrt(covariance)
        expected = half @ (z.T @ z / len(z)) @ half
    elif form == "scale":
        s = np.diag(np.sqrt((z**2).mean(axis=0)))
        expected = s @ covariance @ s
    else:
        u, back = whitened(error, covariance, order), np.argsort(order)
        factor = np.linalg.cholesky(covariance[:, order[:, None], order])
        expected = factor @ (u.T @ u / len(u)) @ factor.transpose(0, 2, 1)
        expected = expected[:, back[:, None], back]
    n, k = error.shape
    sent = Estimates(np.zeros((n, k)), covariance, np.full(n, form == "variances"))
    made = model.apply(sent)
    assert_close(made.covariance, expected)
    assert not made.diagonal.any()


# ---- objectives


def winsorised(nees, level):
    """The v with mean min(NEES/v, c) = E min(χ²₁, c), by bisection over the values themselves."""
    cut = chi2.ppf(level, 1)
    expected = chi2.expect(lambda x: min(x, cut), (1,), epsabs=1e-10)
    low, high = 1e-9, 1e9
    for _ in range(200):
        v = np.sqrt(low * high)
        low, high = (v, high) if np.minimum(nees / v, cut).mean() > expected else (low, v)
    return v


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
def test_robust_objectives_are_those_of_the_values_within_a_bin_of_the_histogram(seed):
    error, covariance = simulated(seed, n=3000)
    statistics = statistics_of(error, covariance)
    nees = normalised(error, covariance) ** 2
    quantile = fit_scale(statistics, Objective.QUANTILE) ** 2
    winsor = fit_scale(statistics, Objective.WINSORISED_MEAN) ** 2
    for i in range(3):
        exact = np.quantile(nees[:, i], QUANTILE_LEVEL) / chi2.ppf(QUANTILE_LEVEL, 1)
        assert 1 / NEES_BIN < quantile[i] / exact < NEES_BIN
        # Values fall anywhere in their bins, so the mean is far better than one of them.
        assert winsor[i] == pytest.approx(winsorised(nees[:, i], WINSOR_LEVEL), rel=0.003)


@pytest.mark.parametrize("objective", Objective)
def test_the_objective_sets_the_size_and_not_the_correlation(objective):
    statistics = statistics_of(*simulated(9))
    found = scaling.fit_covariance_scaling(statistics, objective)
    mean = scaling.fit_covariance_scaling(statistics)
    assert found.correlation == mean.correlation
    assert np.diagonal(np.array(found.correlation)) == pytest.approx(np.ones(3))
    assert found.scale == tuple(fit_scale(statistics, objective).tolist())
    ratio = np.array(found.whitened) / np.array(mean.whitened)
    gain = np.array(found.scale) / np.array(mean.scale)
    assert ratio == pytest.approx(np.full((3, 3), np.prod(gain) ** (2 / 3)))


# ---- drawn towards an earlier fit


PREVIOUS = scaling.fit_covariance_scaling(statistics_of(*simulated(99, factors=(0.7, 0.9, 1.1))))


def matrices(model):
    return {name: np.array(getattr(model, name)) for name in ("correlation", "whitened")}


@given(seeds, strengths)
def test_a_fit_lies_between_its_own_and_the_prior_by_the_rows_of_each(seed, strength):
    statistics = seen(seed)
    own = scaling.fit_covariance_scaling(statistics)
    found = scaling.fit_covariance_scaling(statistics, prior=Prior(PREVIOUS, strength))
    # Independent rows: each counts for one.
    n, n0 = 200, strength
    logs = n * np.log(own.scale) + n0 * np.log(PREVIOUS.scale)
    assert np.log(found.scale) == pytest.approx(logs / (n + n0), abs=1e-12)
    for name, matrix in matrices(found).items():
        mixed = n * np.array(getattr(own, name)) + n0 * np.array(getattr(PREVIOUS, name))
        assert matrix == pytest.approx(mixed / (n + n0), rel=1e-9, abs=1e-12)
    scaled = scaling.fit_variance_scaling(statistics, prior=Prior(PREVIOUS, strength))
    assert scaled.scale == found.scale


@given(seeds, strengths)
def test_rows_of_a_track_count_for_fewer(seed, strength):
    track = np.arange(240) // 8
    error, covariance = simulated(seed, 240)
    statistics = statistics_of(error, covariance, track=track)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    joint = np.einsum("ni,nij,nj->n", error, np.linalg.inv(covariance), error)
    nees = np.column_stack((error**2 / variance, joint))
    effect = design_effect_of_rows(nees, np.array([1.0, 1.0, 1.0, 3.0]), track)
    expected = (240 / effect) / (240 / effect + strength)
    share = own_share(statistics, strength)
    assert share == pytest.approx(expected, rel=0.02)
    own = scaling.fit_variance_scaling(statistics).scale
    found = scaling.fit_variance_scaling(statistics, prior=Prior(PREVIOUS, strength)).scale
    logs = share[:3] * np.log(own) + (1 - share[:3]) * np.log(PREVIOUS.scale)
    assert np.log(found) == pytest.approx(logs)
    both = scaling.fit_covariance_scaling(statistics, prior=Prior(PREVIOUS, strength))
    mixed = share.min() * matrices(scaling.fit_covariance_scaling(statistics))["correlation"]
    mixed += (1 - share.min()) * matrices(PREVIOUS)["correlation"]
    assert matrices(both)["correlation"] == pytest.approx(mixed)


@given(seeds, st.integers(1, 5), strengths)
def test_however_few_the_rows_covariances_stay_positive_definite(seed, n, strength):
    statistics = seen(seed, n)
    model = scaling.fit_covariance_scaling(statistics, prior=Prior(PREVIOUS, strength))
    for matrix in matrices(model).values():
        assert np.linalg.eigvalsh(matrix)[0] > 0
    assert np.diagonal(matrices(model)["correlation"]) == pytest.approx(np.ones(3))
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(seed, 20, 3))
    assert as_read(CovarianceScaling, model.parameters()) == model


def test_a_prior_that_whitens_in_another_order_is_refused():
    other = CovarianceScaling(PREVIOUS.scale, PREVIOUS.correlation, PREVIOUS.whitened, (2, 0, 1))
    with pytest.raises(UnfitData, match=r"order \(2, 0, 1\).*order \(0, 1, 2\)"):
        scaling.fit_covariance_scaling(seen(7), prior=Prior(other))
    # Factors on σ do not depend on it.
    assert scaling.fit_variance_scaling(seen(7), prior=Prior(other)).k == 3


# ---- clamps


@every_fit
@given(seeds, st.floats(0.1, 2.0), st.floats(1.0, 5.0))
def test_no_factor_lies_beyond_the_clamp(fit, seed, lowest, width):
    clamp = Clamp(lowest, lowest * width)
    statistics = seen(seed)
    own = np.array(fit(statistics).scale)
    assert fit(statistics) == fit(statistics, clamp=Clamp(1e-300, 1e300))
    model = fit(statistics, clamp=clamp)
    assert model.scale == tuple(np.clip(own, clamp.lowest, clamp.highest).tolist())
    assert clamp.reached(model) == tuple(~((own > clamp.lowest) & (own < clamp.highest)))
    drawn = fit(statistics, prior=Prior(PREVIOUS), clamp=clamp)
    assert min(drawn.scale) >= clamp.lowest and max(drawn.scale) <= clamp.highest


@given(seeds, st.floats(0.1, 2.0))
def test_whitening_changes_no_deviation_in_any_direction_beyond_the_clamp(seed, lowest):
    error, covariance = simulated(seed, 200)
    statistics, clamp = statistics_of(error, covariance), Clamp(lowest, 2 * lowest)
    model = scaling.fit_covariance_scaling(statistics, full_input=FullInput.WHITEN, clamp=clamp)
    made = model.apply(Estimates(np.zeros((200, 3)), covariance, np.zeros(200, bool))).covariance
    # Of all directions, those of the generalised eigenvectors are furthest.
    for before, after in zip(covariance, made, strict=True):
        factor = np.sqrt(eigh(after, before, eigvals_only=True))
        assert lowest * (1 - 1e-6) <= factor.min()
        assert factor.max() <= 2 * lowest * (1 + 1e-6)
    # What was within stays to the last bit, and the rest keeps its directions.
    own = matrices(scaling.fit_covariance_scaling(statistics))["whitened"]
    assert np.array_equal(clamped_matrix(own, Clamp(1e-9, 1e9)), own)
    found = matrices(model)["whitened"]
    assert np.array_equal(found, found.T)
    assert found @ own == pytest.approx(own @ found, abs=1e-9 * np.abs(own).max())


@pytest.mark.parametrize("ends", [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))])
def test_a_clamp_is_a_range_of_positive_numbers(ends):
    with pytest.raises(ValueError, match=r"cannot be clamped to .*give two positive numbers"):
        Clamp(*ends)
