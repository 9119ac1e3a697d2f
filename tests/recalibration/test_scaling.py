"""Variance and covariance scaling: against the likelihood, against direct computation, and the
laws that every recalibrator obeys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import chi2, multivariate_normal, norm

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.recalibration import scaling as scaling_module
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import (
    QUANTILE_LEVEL,
    WINSOR_LEVEL,
    CovarianceScaling,
    FullInput,
    Objective,
    fit_scale,
)
from monitor.statistics.bins import Binning
from monitor.statistics.stage import no_stage_statistics, observe

BINNING = Binning()
XYZ = plain_space(("x", "y", "z"), "m")
# The order of whitening is here not the order of the dimensions.
YAW_XY = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XYZ.dimensions[:2]))
SPACES = [XYZ, YAW_XY, plain_space(("x",))]
NEES_BIN = 2 ** (1 / 16)
quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def simulated(seed, n=300, k=3, *, diagonal=False, factors=(1.5, 0.4, 2.5)):
    """Errors that correlate, whatever the covariances say, and are off by a factor a dimension."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, k, k)) + np.eye(k)
    covariance = np.exp(random.normal(size=n))[:, None, None] * (root @ root.transpose(0, 2, 1))
    mixing = np.eye(k) + 0.5 * np.tril(np.ones((k, k)), -1)
    draw = (mixing @ random.normal(size=(n, k, 1))) * np.array(factors[:k])[:, None]
    error = (np.linalg.cholesky(covariance) @ draw)[..., 0]
    if diagonal:
        covariance = covariance * np.eye(k)
    return error, covariance


def estimates(covariance, diagonal) -> Estimates:
    n, k = covariance.shape[:2]
    flags = np.full(n, diagonal) if isinstance(diagonal, bool) else np.array(diagonal)
    return Estimates(np.arange(n * k, dtype=float).reshape(n, k), covariance, flags)


def seen(error, covariance, space=XYZ):
    return observe(space, BINNING, error, covariance)


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


# ---- variance scaling


@pytest.mark.parametrize("seed", range(3))
def test_the_factor_on_sigma_maximises_the_likelihood(seed):
    error, covariance = simulated(seed)
    found = scaling_module.fit_variance_scaling(seen(error, covariance)).scale
    for i in range(3):
        sigma = np.sqrt(covariance[:, i, i])
        e = error[:, i]

        def loss(s, e=e, sigma=sigma):
            return -norm.logpdf(e, scale=np.exp(s[0]) * sigma).mean()

        best = minimize(loss, [0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
        assert found[i] == pytest.approx(np.exp(best.x[0]), rel=1e-6)
        assert found[i] == pytest.approx(np.sqrt(np.mean((e / sigma) ** 2)), rel=1e-9)


def test_every_dimension_has_its_own_scale_and_correlations_stay():
    error, covariance = simulated(1)
    model = scaling_module.fit_variance_scaling(seen(error, covariance))
    before = estimates(covariance, False)
    made = model.apply(before)
    s = np.diag(model.scale)
    assert made.covariance == pytest.approx(s @ covariance @ s, rel=1e-12)
    assert made.mean is before.mean
    assert made.diagonal is before.diagonal

    def correlation(c):
        size = np.sqrt(np.diagonal(c, axis1=1, axis2=2))
        return c / (size[:, :, None] * size[:, None, :])

    assert correlation(made.covariance) == pytest.approx(correlation(covariance), rel=1e-12)


# ---- covariance scaling


@pytest.mark.parametrize("space", SPACES)
def test_variances_become_d_m_d_with_the_moment_of_normalised_errors(space):
    error, covariance = simulated(2, k=space.k, diagonal=True)
    model = scaling_module.fit_covariance_scaling(seen(error, covariance, space))
    made = model.apply(estimates(covariance, True))
    z = normalised(error, covariance)
    moment = z.T @ z / len(z)
    deviation = np.sqrt(covariance)
    assert_close(made.covariance, deviation @ moment @ deviation)
    assert not made.diagonal.any()


@pytest.mark.parametrize("space", SPACES)
def test_covariances_become_s_sigma_s(space):
    error, covariance = simulated(3, k=space.k)
    model = scaling_module.fit_covariance_scaling(seen(error, covariance, space))
    made = model.apply(estimates(covariance, False))
    s = np.diag(np.sqrt((normalised(error, covariance) ** 2).mean(axis=0)))
    assert_close(made.covariance, s @ covariance @ s)


@pytest.mark.parametrize("space", SPACES)
def test_covariances_become_l_a_l_with_the_moment_of_whitened_errors(space):
    error, covariance = simulated(4, k=space.k)
    statistics = seen(error, covariance, space)
    model = scaling_module.fit_covariance_scaling(statistics, full_input=FullInput.WHITEN)
    made = model.apply(estimates(covariance, False)).covariance
    order = np.array(space.order)
    u = whitened(error, covariance, order)
    factor = np.linalg.cholesky(covariance[:, order[:, None], order])
    expected = factor @ (u.T @ u / len(u)) @ factor.transpose(0, 2, 1)
    back = np.argsort(order)
    assert_close(made, expected[:, back[:, None], back])


@quick
@given(seeds, st.sampled_from(SPACES), st.booleans(), st.sampled_from(list(FullInput)))
def test_after_a_fit_the_mean_nees_of_every_dimension_is_one(seed, space, diagonal, full_input):
    error, covariance = simulated(seed, k=space.k, diagonal=diagonal)
    statistics = seen(error, covariance, space)
    for model in (
        scaling_module.fit_variance_scaling(statistics),
        scaling_module.fit_covariance_scaling(statistics, full_input=full_input),
    ):
        if not diagonal and getattr(model, "full_input", None) is FullInput.WHITEN:
            continue  # it corrects the whole, not each dimension
        made = model.apply(estimates(covariance, diagonal)).covariance
        nees = (normalised(error, made) ** 2).mean(axis=0)
        assert nees == pytest.approx(np.ones(space.k), abs=1e-9)


@quick
@given(seeds, st.sampled_from(SPACES))
def test_after_a_whitening_fit_the_whitened_errors_have_the_unit_moment(seed, space):
    error, covariance = simulated(seed, k=space.k)
    model = scaling_module.fit_covariance_scaling(
        seen(error, covariance, space), full_input=FullInput.WHITEN
    )
    made = model.apply(estimates(covariance, False)).covariance
    u = whitened(error, made, space.order)
    assert u.T @ u / len(u) == pytest.approx(np.eye(space.k), abs=1e-7)


def test_after_an_estimation_the_normalised_errors_correlate_as_the_covariance_says():
    error, covariance = simulated(6, n=4000, diagonal=True, factors=(1.0, 1.0, 1.0))
    made = scaling_module.fit_covariance_scaling(seen(error, covariance)).apply(
        estimates(covariance, True)
    )
    nees = (whitened(error, made.covariance, (0, 1, 2)) ** 2).sum(axis=1)
    assert nees.mean() == pytest.approx(3.0, rel=1e-9)
    before, after = (
        -np.mean([multivariate_normal.logpdf(e, cov=c) for e, c in zip(error, cov, strict=True)])
        for cov in (covariance, made.covariance)
    )
    assert after < before - 0.1


def test_a_frame_of_variances_and_covariances_is_recalibrated_row_by_row():
    error, covariance = simulated(5)
    flags = np.arange(300) % 3 == 0
    covariance[flags] *= np.eye(3)
    for full_input in FullInput:
        model = scaling_module.fit_covariance_scaling(
            seen(error, covariance), full_input=full_input
        )
        made = model.apply(estimates(covariance, flags)).covariance
        plain = model.apply(estimates(covariance[flags], True)).covariance
        full = model.apply(estimates(covariance[~flags], False)).covariance
        assert np.array_equal(made[flags], plain)
        assert np.array_equal(made[~flags], full)


def test_whitening_alone_may_leave_a_covariance_that_is_not_definite():
    near = 1 - 1e-9
    whitened = ((1.0, near), (near, 1.0))
    unit = ((1.0, 0.0), (0.0, 1.0))
    whitening, scaling = (
        CovarianceScaling((1.0, 1.0), unit, whitened, (0, 1), full_input)
        for full_input in (FullInput.WHITEN, FullInput.SCALE)
    )
    assert scaling.keeps_definite
    assert not whitening.keeps_definite
    sent = np.array([[[1.0, 1 - 1e-9], [1 - 1e-9, 1.0]]])
    made = whitening.apply(estimates(sent, False)).covariance[0]
    # What rounding leaves of it: a share of 1e-18 is below the last place.
    assert np.linalg.eigvalsh(made)[0] < 1e-15


@pytest.mark.parametrize("factor", [1.0, 1 / 25, 25.0])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_wrong_unit_of_variance_is_fitted_away(factor, diagonal):
    error, covariance = simulated(7, diagonal=diagonal)
    for full_input in FullInput:
        expected, found = (
            scaling_module.fit_covariance_scaling(
                seen(error, c * covariance), full_input=full_input
            )
            .apply(estimates(c * covariance, diagonal))
            .covariance
            for c in (1.0, factor)
        )
        assert_close(found, expected)
    expected, found = (
        scaling_module.fit_variance_scaling(seen(error, c * covariance))
        .apply(estimates(c * covariance, diagonal))
        .covariance
        for c in (1.0, factor)
    )
    assert_close(found, expected)


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
def test_robust_objectives_are_those_of_the_values_within_a_bin_of_the_histogram(seed):
    error, covariance = simulated(seed, n=3000)
    statistics = seen(error, covariance)
    nees = normalised(error, covariance) ** 2
    quantile = fit_scale(statistics, Objective.QUANTILE) ** 2
    winsor = fit_scale(statistics, Objective.WINSORISED_MEAN) ** 2
    for i in range(3):
        exact = np.quantile(nees[:, i], QUANTILE_LEVEL) / chi2.ppf(QUANTILE_LEVEL, 1)
        assert 1 / NEES_BIN < quantile[i] / exact < NEES_BIN
        # Values fall anywhere in their bins, so the mean is far better than one of them.
        assert winsor[i] == pytest.approx(winsorised(nees[:, i], WINSOR_LEVEL), rel=0.003)


@pytest.mark.parametrize("objective", Objective)
def test_calibrated_gaussian_errors_need_no_scale_by_any_objective(objective):
    random = np.random.default_rng(1)
    sigma = np.exp(random.normal(size=(20_000, 3)))
    error = sigma * random.normal(size=sigma.shape)
    statistics = seen(error, np.eye(3) * (sigma**2)[:, None, :])
    assert fit_scale(statistics, objective) == pytest.approx(np.ones(3), abs=0.03)
    assert scaling_module.fit_variance_scaling(statistics, objective).objective is objective


@pytest.mark.parametrize("objective", [Objective.WINSORISED_MEAN, Objective.QUANTILE])
def test_one_giant_error_moves_the_mean_and_not_the_robust_objectives(objective):
    error, covariance = simulated(8, n=500)
    spoilt = error.copy()
    spoilt[0] = 1e6
    before, after = (seen(e, covariance) for e in (error, spoilt))
    assert (fit_scale(after, Objective.MEAN) > 1000 * fit_scale(before, Objective.MEAN)).all()
    assert fit_scale(after, objective) == pytest.approx(fit_scale(before, objective), rel=0.02)


@pytest.mark.parametrize("objective", Objective)
def test_the_objective_sets_the_size_and_not_the_correlation(objective):
    statistics = seen(*simulated(9))
    found = scaling_module.fit_covariance_scaling(statistics, objective)
    mean = scaling_module.fit_covariance_scaling(statistics)
    assert found.correlation == mean.correlation
    assert np.diagonal(np.array(found.correlation)) == pytest.approx(np.ones(3))
    assert found.scale == tuple(fit_scale(statistics, objective).tolist())
    ratio = np.array(found.whitened) / np.array(mean.whitened)
    gain = np.array(found.scale) / np.array(mean.scale)
    assert ratio == pytest.approx(np.full((3, 3), np.prod(gain) ** (2 / 3)))


# ---- data that do not determine a recalibrator

FITS = {
    "variance": scaling_module.fit_variance_scaling,
    "covariance": scaling_module.fit_covariance_scaling,
}


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("objective", Objective)
def test_nothing_can_be_fitted_on_no_rows(fit, objective):
    with pytest.raises(UnfitData, match="cannot fit on 0 detections with ground truth: widen"):
        fit(no_stage_statistics(XYZ, BINNING), objective)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("objective", Objective)
def test_a_dimension_without_errors_is_named(fit, objective):
    error, covariance = simulated(1)
    error[:, 1] = 0.0
    with pytest.raises(UnfitData, match=r"dimension 'y' has no error in 300 rows: .*Leave the dim"):
        fit(seen(error, covariance), objective)


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_rows_for_a_correlation_are_refused(n):
    error, covariance = simulated(1, n=n)
    with pytest.raises(
        UnfitData, match=rf"of {n} rows over \('x', 'y', 'z'\) are singular.*more d"
    ):
        scaling_module.fit_covariance_scaling(seen(error, covariance))
    assert len(scaling_module.fit_variance_scaling(seen(error, covariance)).scale) == 3


def test_errors_that_repeat_each_other_are_refused():
    error, covariance = simulated(1, diagonal=True)
    error[:, 2] = error[:, 0] * np.sqrt(covariance[:, 2, 2] / covariance[:, 0, 0])
    with pytest.raises(UnfitData, match=r"the correlation of 300 rows .* are singular"):
        scaling_module.fit_covariance_scaling(seen(error, covariance))
