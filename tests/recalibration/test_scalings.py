"""Variance, covariance and adaptive scaling: against direct computation and slow loops, drawn
towards an earlier fit, clamped, and the laws of time."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.stats import chi2

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.frames.words import FullInput, Objective
from monitor.recalibration import scaling
from monitor.recalibration.fitting import FITTINGS, FitOptions, prior_strength
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import (
    PRIOR_TRACKS,
    QUANTILE_LEVEL,
    WIDE,
    WINSOR_LEVEL,
    AdaptiveScaling,
    Clamp,
    CovarianceScaling,
    Prior,
    VarianceScaling,
    clamped_matrix,
    fit_adaptive_scaling,
    fit_scale,
    followed,
    own_share,
)
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id, design_effect_of_rows
from monitor.statistics.state import observe
from tests import laws
from tests.recalibration.rows import as_read, rows_from, wild_estimates

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


def normalised(error, covariance):
    return error / np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))


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
        factor, back = np.linalg.cholesky(covariance[:, order[:, None], order]), np.argsort(order)
        u = np.linalg.solve(factor, error[:, order, None])[..., 0]
        expected = factor @ (u.T @ u / len(u)) @ factor.transpose(0, 2, 1)
        expected = expected[:, back[:, None], back]
    flags = np.full(len(error), form == "variances")
    made = model.apply(Estimates(np.zeros(error.shape), covariance, flags))
    size = np.sqrt(np.diagonal(expected, axis1=1, axis2=2))
    unit = size[:, :, None] * size[:, None, :]
    assert made.covariance / unit == pytest.approx(expected / unit, abs=1e-9)
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


seeds = st.integers(0, 2**32 - 1)


def beginning(time_constant_s=60.0, k=2):
    """Nothing seen yet, and three tracks' worth of nothing being wrong."""
    ones = (1.0,) * k
    return AdaptiveScaling(ones, time_constant_s, 0.0, 0.0, 0.0, (0.0,) * k, ones, 3.0)


def tracks(seed: int, n: int, variance: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Mean z² of tracks worth four independent detections each, and when they ended."""
    random = np.random.default_rng(seed)
    return variance * random.chisquare(4, (n, 2)) / 4, np.cumsum(random.exponential(size=n))


# ---- the formula


@given(seeds, st.integers(1, 40), st.floats(2.0, 300.0))
def test_every_track_is_a_vote_that_fades_with_its_age(seed, n, time_constant_s):
    nees, ended_s = tracks(seed, n)
    found = followed(beginning(time_constant_s), nees, ended_s, 1.0)
    last = max(ended_s.tolist())
    for dimension in range(2):
        votes, total = 3.0, 3.0
        for x, at in zip(nees[:, dimension].tolist(), ended_s.tolist(), strict=True):
            votes += exp(-(last - at) / time_constant_s)
            total += exp(-(last - at) / time_constant_s) * x
        assert found.scale[dimension] == pytest.approx((total / votes) ** 0.5)
        assert found.nees[dimension] == pytest.approx(total - 3.0, abs=1e-9)
        assert found.tracks == pytest.approx(votes - 3.0)
    assert (found.ended_s, found.delay_s) == (last, 1.0)


@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_what_is_followed_in_two_parts_is_followed_at_once(seed, first, second):
    nees, ended_s = tracks(seed, first + second)
    in_parts = followed(beginning(), nees[:first], ended_s[:first], 1.0)
    in_parts = followed(in_parts, nees[first:], ended_s[first:], 1.0)
    whole = followed(beginning(), nees, ended_s, 1.0).parameters()
    for name, value in in_parts.parameters().items():
        assert value == pytest.approx(whole[name], rel=1e-9, abs=1e-12), name


@given(seeds, st.floats(0.0, 100.0))
def test_a_late_track_counts_for_its_age_and_time_does_not_run_backwards(seed, late_s):
    nees, ended_s = tracks(seed, 30)
    seen = followed(beginning(), nees, ended_s, 0.0)
    late = followed(seen, nees[:1], np.array([seen.ended_s - late_s]), 1.0)
    assert late.ended_s == seen.ended_s
    assert late.tracks == pytest.approx(seen.tracks + exp(-late_s / 60))
    assert late.nees == pytest.approx(np.array(seen.nees) + exp(-late_s / 60) * nees[0])


def test_a_clock_that_is_set_back_does_not_stop_it():
    seen = followed(beginning(), *tracks(1, 50), 0.0)
    ahead = followed(seen, np.ones((1, 2)), np.array([1e9]), 0.0)
    nees, ended_s = tracks(2, 400, variance=9.0)
    assert followed(ahead, nees, ended_s, 0.0).scale == pytest.approx((3.0, 3.0), rel=0.15)


# ---- what it finds


@pytest.mark.parametrize("error", [1e3, 1e12, 1e200, float("inf")])
def test_a_gross_outlier_is_one_track(error):
    seen = followed(beginning(), *tracks(4, 300), 0.0)
    outlier = np.array([[1.0, error]])
    struck = followed(seen, outlier, np.array([seen.ended_s]), 0.0)
    assert struck.scale[0] == pytest.approx(seen.scale[0], rel=0.02)
    most = np.square(seen.scale[1]) * (1 + 64 / (seen.tracks + 1))
    assert np.square(struck.scale[1]) <= most * 1.2


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=20),
    st.floats(1e-3, 1e6),
    st.floats(-1e300, 1e300),
)
def test_whatever_is_followed_factors_stay_bounded_and_the_document_readable(errors, tau, at_s):
    nees = np.array(errors)[:, None]
    found = followed(beginning(tau, k=1), nees, np.linspace(0.0, at_s, len(errors)), 0.0)
    assert WIDE.lowest <= found.scale[0] <= WIDE.highest
    assert as_read(AdaptiveScaling, json.loads(json.dumps(found.parameters()))) == found


# ---- fits


def rows(seed, objects=200, delay_s=0.0):
    """Objects seen ten times in a second each, one after the other; σ too small by a factor."""
    random = np.random.default_rng(seed)
    n, track = 10 * objects, np.repeat(np.arange(objects), 10)
    variance = np.exp(random.normal(size=(n, 2)))
    shared = random.normal(size=(objects, 2))[track]
    error = 2.0 * np.sqrt(variance) * (0.8 * shared + 0.6 * random.normal(size=(n, 2)))
    made = rows_from(random.normal(size=(n, 2)), variance, error, track=track)
    return replace(made, delay_s=np.full(n, delay_s))


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_what_the_loop_over_its_tracks_makes(seed):
    sample, time_constant_s = rows(seed, 40), 15.0
    last = float(sample.time_s.max())
    votes, total = PRIOR_TRACKS, np.full(2, PRIOR_TRACKS)
    for track in range(40):
        own = np.flatnonzero(sample.track == track)
        ended = float(sample.time_s[own].max())
        weight = np.exp((sample.time_s[own] - ended) / time_constant_s)
        z = sample.error[own] / np.sqrt(np.einsum("nii->ni", sample.estimates.covariance[own]))
        vote = exp(-(last - ended) / time_constant_s)
        votes += vote
        total = total + vote * (weight[:, None] * z**2).sum(axis=0) / weight.sum()
    found = fit_adaptive_scaling(sample, time_constant_s)
    assert found.scale == pytest.approx(np.sqrt(total / votes))
    assert found.ended_s == last


def test_the_delay_that_is_seen_is_that_of_nearly_all_labels():
    sample = rows(9)
    delay_s = np.where(np.arange(sample.n) % 100 < 3, 500.0, 4.0)
    assert fit_adaptive_scaling(replace(sample, delay_s=delay_s)).delay_s == 4.0
    with pytest.raises(UnfitData, match="labels come 30 s late, and the time constant is 20 s"):
        fit_adaptive_scaling(rows(9, delay_s=30.0), 20.0)
    assert fit_adaptive_scaling(rows(9, delay_s=-0.01)).delay_s == 0.0
    with pytest.raises(UnfitData, match="rows without a time: give every row its t or stamp_ns"):
        fit_adaptive_scaling(replace(sample, time_s=None))


def test_a_prior_of_effective_rows_counts_for_as_many_tracks():
    sample = rows(3, 40)
    towards = VarianceScaling((1.0, 1.0))
    wanted = Prior(towards, prior_strength(sample, 10.0))
    found = FITTINGS["adaptive-scaling"].fit(sample, FitOptions(), wanted)
    assert isinstance(found, AdaptiveScaling)
    assert found.prior_tracks == pytest.approx(10.0)
