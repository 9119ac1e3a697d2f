"""Scalings drawn towards an earlier fit: against the formula, its limits, and the clamps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.recalibration import scaling
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import (
    WIDE,
    Clamp,
    CovarianceScaling,
    FullInput,
    Objective,
    Prior,
    VarianceScaling,
    clamped_matrix,
    own_share,
)
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id, design_effect_of_rows
from monitor.statistics.stage import no_stage_statistics, observe
from tests import laws
from tests.recalibration.rows import as_read, reference_rows, wild_estimates

BINNING = Binning()
XYZ = plain_space(("x", "y", "z"), "m")
quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
strengths = st.floats(1e-3, 1e6)
FITS = {"variance": scaling.fit_variance_scaling, "covariance": scaling.fit_covariance_scaling}
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)


def seen(seed, n=200, factors=(1.5, 0.4, 2.5), track=None):
    """Statistics of correlated errors that are off by a factor a dimension."""
    random = np.random.default_rng(seed)
    root = 0.4 * random.normal(size=(n, 3, 3)) + np.eye(3)
    # Not so near to singular that whitened errors reach a clamp.
    covariance = root @ root.transpose(0, 2, 1) + 0.05 * np.eye(3)
    mixing = np.eye(3) + random.uniform(-1, 1) * np.tril(np.ones((3, 3)), -1)
    draw = mixing @ random.normal(size=(n, 3, 1))
    error = (np.linalg.cholesky(covariance) @ draw)[..., 0] * factors
    cluster = None if track is None else cluster_id((track,))
    return observe(XYZ, BINNING, error, covariance, cluster), error, covariance


PREVIOUS = scaling.fit_covariance_scaling(seen(99, factors=(0.7, 0.9, 1.1))[0])


def matrices(model):
    return {name: np.array(getattr(model, name)) for name in ("correlation", "whitened")}


# ---- the formula


@quick
@given(seeds, strengths)
def test_a_fit_lies_between_its_own_and_the_prior_by_the_rows_of_each(seed, strength):
    statistics = seen(seed)[0]
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


@quick
@given(seeds, strengths)
def test_rows_of_a_track_count_for_fewer(seed, strength):
    track = np.arange(240) // 8
    statistics, error, covariance = seen(seed, 240, track=track)
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


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("full_input", FullInput)
def test_the_limits_are_the_own_fit_and_the_prior(objective, full_input):
    statistics = seen(1)[0]
    own = scaling.fit_covariance_scaling(statistics, objective, full_input)
    for strength, limit in ((1e-9, own), (1e15, PREVIOUS)):
        found = scaling.fit_covariance_scaling(
            statistics, objective, full_input, Prior(PREVIOUS, strength)
        )
        assert found.scale == pytest.approx(limit.scale, rel=1e-8)
        for name, matrix in matrices(found).items():
            assert matrix == pytest.approx(np.array(getattr(limit, name)), rel=1e-8, abs=1e-9)
        assert found.full_input is full_input
        assert found.objective is objective


@quick
@given(seeds, strengths)
def test_more_rows_of_the_same_kind_lead_away_from_the_prior(seed, strength):
    statistics = seen(seed)[0]
    twice = statistics.merge(statistics)
    prior = Prior(PREVIOUS, strength)
    own = np.log(scaling.fit_variance_scaling(statistics).scale)
    few, many = (
        np.abs(np.log(scaling.fit_variance_scaling(s, prior=prior).scale) - own)
        for s in (statistics, twice)
    )
    assert (many <= few + 1e-12).all()


def test_thirty_rows_and_the_default_prior_meet_halfway():
    statistics = seen(3, n=30)[0]
    own = scaling.fit_variance_scaling(statistics).scale
    found = scaling.fit_variance_scaling(statistics, prior=Prior(PREVIOUS)).scale
    assert found == pytest.approx(np.sqrt(np.array(own) * PREVIOUS.scale))


# ---- few rows


@quick
@given(seeds, st.integers(1, 5), strengths)
def test_however_few_the_rows_covariances_stay_positive_definite(seed, n, strength):
    statistics = seen(seed, n)[0]
    model = scaling.fit_covariance_scaling(statistics, prior=Prior(PREVIOUS, strength))
    for matrix in matrices(model).values():
        assert np.linalg.eigvalsh(matrix)[0] > 0
    assert np.diagonal(matrices(model)["correlation"]) == pytest.approx(np.ones(3))
    laws.recalibrated_covariances_are_positive_definite(model, wild_estimates(seed, 20, 3))
    assert as_read(CovarianceScaling, model.parameters()) == model


def test_one_row_is_refused_alone_and_leaves_the_prior_nearly_as_it_was():
    statistics = seen(4, n=1)[0]
    with pytest.raises(UnfitData, match="singular"):
        scaling.fit_covariance_scaling(statistics)
    found = scaling.fit_covariance_scaling(statistics, prior=Prior(PREVIOUS, 1000.0))
    assert found.scale == pytest.approx(PREVIOUS.scale, rel=0.01)
    assert np.abs(matrices(found)["correlation"] - matrices(PREVIOUS)["correlation"]).max() < 0.01


@every_fit
def test_a_prior_alone_is_no_fit(fit):
    with pytest.raises(UnfitData, match="cannot fit on 0 detections"):
        fit(no_stage_statistics(XYZ, BINNING), prior=Prior(PREVIOUS))


@every_fit
def test_a_dimension_without_errors_is_named_even_with_a_prior(fit):
    _, error, covariance = seen(5)
    error[:, 1] = 0.0
    with pytest.raises(UnfitData, match="dimension 'y' has no error in 200 rows"):
        fit(observe(XYZ, BINNING, error, covariance), prior=Prior(PREVIOUS))


def test_a_prior_that_whitens_in_another_order_is_refused():
    other = CovarianceScaling(PREVIOUS.scale, PREVIOUS.correlation, PREVIOUS.whitened, (2, 0, 1))
    with pytest.raises(UnfitData, match=r"order \(2, 0, 1\).*order \(0, 1, 2\)"):
        scaling.fit_covariance_scaling(seen(7)[0], prior=Prior(other))
    # Factors on σ do not depend on it.
    assert scaling.fit_variance_scaling(seen(7)[0], prior=Prior(other)).k == 3


# ---- clamps


@every_fit
@quick
@given(seeds, st.floats(0.1, 2.0), st.floats(1.0, 5.0))
def test_no_factor_lies_beyond_the_clamp(fit, seed, lowest, width):
    clamp = Clamp(lowest, lowest * width)
    statistics = seen(seed)[0]
    own = np.array(fit(statistics).scale)
    model = fit(statistics, clamp=clamp)
    assert model.scale == tuple(np.clip(own, clamp.lowest, clamp.highest).tolist())
    assert clamp.reached(model) == tuple(~((own > clamp.lowest) & (own < clamp.highest)))
    drawn = fit(statistics, prior=Prior(PREVIOUS), clamp=clamp)
    assert min(drawn.scale) >= clamp.lowest and max(drawn.scale) <= clamp.highest


@quick
@given(seeds, st.floats(0.1, 2.0))
def test_whitening_changes_no_deviation_in_any_direction_beyond_the_clamp(seed, lowest):
    statistics, _, covariance = seen(seed)
    clamp = Clamp(lowest, 2 * lowest)
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


def test_the_clamp_holds_where_the_diagonal_alone_would_not_show_it():
    whitened = np.array([[1.0, 0.9], [0.9, 1.0]])
    found = clamped_matrix(whitened, Clamp(0.999, 1.001))
    lower = np.array([[1.0, 0.0], [1.0, 1.0]])
    ratio = np.sqrt(np.diagonal(lower @ found @ lower.T) / np.diagonal(lower @ lower.T))
    assert (np.abs(ratio - 1) <= 0.001 + 1e-12).all()


@every_fit
def test_the_default_clamp_leaves_even_cauchy_errors_alone(fit):
    rows = reference_rows("cauchy_1d", slice(0, 2000))
    statistics = observe(rows.space, BINNING, rows.error, rows.estimates.covariance)
    model = fit(statistics)
    assert model.scale == pytest.approx((120.165,), abs=5e-4)
    assert WIDE.reached(model) == (False,)


def test_a_wrong_unit_is_seen_at_the_clamp():
    _, error, covariance = seen(8)
    model = scaling.fit_variance_scaling(observe(XYZ, BINNING, error, covariance * 1e-8))
    assert model.scale == (1e3, 1e3, 1e3)
    assert WIDE.reached(model) == (True, True, True)


@pytest.mark.parametrize("ends", [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
def test_a_clamp_is_a_range_of_positive_numbers(ends):
    with pytest.raises(ValueError, match=r"cannot be clamped to .*give two positive numbers"):
        Clamp(*ends)


# ---- without a prior nothing has changed


@every_fit
@quick
@given(seeds)
def test_a_wide_clamp_and_no_prior_give_the_closed_form_bit_for_bit(fit, seed):
    statistics, error, _ = seen(seed)
    endless = Clamp(1e-300, 1e300)
    assert fit(statistics) == fit(statistics, clamp=endless)
    nees = np.diagonal(statistics.normalised) / len(error)
    assert fit(statistics).scale == tuple(np.sqrt(nees).tolist())


def test_documents_of_earlier_versions_are_read():
    assert as_read(VarianceScaling, {"scale": [2.0]}).scale == (2.0,)
    matrix = [[1.0]]
    old = {"scale": [5000.0], "correlation": matrix, "whitened": matrix}
    assert as_read(CovarianceScaling, old).scale == (5000.0,)
