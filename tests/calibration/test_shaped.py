"""Measures under a distribution of another shape: slow formulas over rows, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
import scipy.stats

from monitor.frames.space import Dimension, DimensionKind, FloatArray, IntArray, Space
from monitor.statistics.evaluation import DimensionMeasures
from monitor.statistics.exact_engine import BinCut, BinningKind, OwnDistributions, evaluate_rows
from monitor.statistics.measures import NormalMarginals

SPACE = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
TAU = np.array([0.2, 0.5, 0.9])
# Of the forwarded Gaussian, whatever the shape.
FORWARDED = (
    *("n", "n_eff", "kurtosis", "c_v", "nees_mean", "nees_median_ratio", "mean_sigma"),
    *("mean_variance", "mean_squared_error", "bias"),
)
WITH_VARIANCE = ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce")


@dataclass(frozen=True)
class Skewed:
    """Gumbel distributions."""

    place: FloatArray
    scale: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        density: FloatArray = scipy.stats.gumbel_r.logpdf(value, self.place, self.scale)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        share: FloatArray = scipy.stats.gumbel_r.cdf(value, self.place, self.scale)
        return share

    def quantiles(self, tau: FloatArray) -> FloatArray:
        found = [scipy.stats.gumbel_r.ppf(t, self.place, self.scale) for t in tau]
        return np.stack(found)


@dataclass(frozen=True)
class Rows:
    """n detections: what was sent, what is forwarded, and the truth; some have none."""

    sent: FloatArray
    scale: FloatArray
    mean: FloatArray
    covariance: FloatArray
    truth: FloatArray

    def skewed(self, rows: IntArray) -> Skewed:
        return Skewed(self.sent[rows], self.scale[rows])

    def shaped(self, *, has_variance: bool = True) -> OwnDistributions:
        value = self.sent + SPACE.error(self.truth, self.sent)
        return OwnDistributions(value, self.skewed, has_variance)


def detections(n: int = 300, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    sent = random.normal(0, 5, (n, 3))
    sent[:, 2] = random.uniform(-np.pi, np.pi, n)
    scale = random.uniform(0.1, 0.9, (n, 3))
    truth = sent + scale * random.gumbel(size=(n, 3))
    # As a detector has it: on the other side of ±π as often as not.
    truth[:, 2] = (truth[:, 2] + np.pi) % (2 * np.pi) - np.pi
    truth[::11] = np.nan
    variance = (scale * np.pi) ** 2 / 6
    covariance = np.zeros((n, 3, 3))
    covariance[:, range(3), range(3)] = variance
    return Rows(sent, scale, sent + np.euler_gamma * scale, covariance, truth)


def expected(rows: Rows, i: int, kept: IntArray) -> dict[str, FloatArray]:
    """Straight from the definitions, in plain loops."""
    nll, within, below, pinball, width = [], [], [], [], []
    for row in kept.tolist():
        one = scipy.stats.gumbel_r(rows.sent[row, i], rows.scale[row, i])
        error = rows.truth[row, i] - rows.sent[row, i]
        if SPACE.dimensions[i].kind is DimensionKind.ANGLE:
            error = (error + np.pi) % (2 * np.pi) - np.pi
        y = rows.sent[row, i] + error
        nll.append(-one.logpdf(y))
        within.append([abs(2 * one.cdf(y) - 1) <= t for t in TAU])
        below.append([one.cdf(y) <= t for t in TAU])
        pinball.append([max(t * (y - one.ppf(t)), (t - 1) * (y - one.ppf(t))) for t in TAU])
        width.append([one.ppf((1 + t) / 2) - one.ppf((1 - t) / 2) for t in TAU])
    return {
        "nll": np.mean(nll),
        "within": np.array(within),
        "picp_by_tau": np.mean(within, axis=0),
        "coverage_one_sided_by_tau": np.mean(below, axis=0),
        "pinball_by_tau": np.mean(pinball, axis=0),
        "mpiw_by_tau": np.mean(width, axis=0),
    }


@pytest.mark.parametrize("i", range(3))
def test_likelihood_coverage_and_quantiles_are_those_of_the_own_distribution(i):
    rows = detections()
    kept = np.flatnonzero(np.isfinite(rows.truth).all(axis=1))
    found = evaluate_rows(
        SPACE, rows.mean, rows.covariance, rows.truth, tau=TAU, shaped=rows.shaped()
    ).dimensions[SPACE.names[i]]
    oracle = expected(rows, i, kept)
    for name in (
        "nll",
        "picp_by_tau",
        "coverage_one_sided_by_tau",
        "pinball_by_tau",
        "mpiw_by_tau",
    ):
        assert getattr(found, name) == pytest.approx(oracle[name], rel=1e-12, abs=1e-14), name
    assert found.mpiw == pytest.approx(oracle["mpiw_by_tau"].mean())


@pytest.mark.parametrize("binning", ["equal-count", "equal-width"])
def test_quantile_error_is_the_own_coverage_in_the_bins_of_the_forwarded_deviation(binning):
    rows = detections()
    kept = np.flatnonzero(np.isfinite(rows.truth).all(axis=1))
    found = evaluate_rows(
        SPACE,
        *(rows.mean, rows.covariance, rows.truth),
        tau=TAU,
        cut=BinCut(7, binning),
        shaped=rows.shaped(),
    ).dimensions["y"]
    deviation = np.sqrt(rows.covariance[kept, 1, 1])
    within = expected(rows, 1, kept)["within"]
    if binning == "equal-count":
        parts = np.array_split(np.argsort(deviation, kind="stable"), 7)
    else:
        edges = np.linspace(deviation.min(), deviation.max(), 8)
        cell = np.clip(np.searchsorted(edges, deviation, side="right") - 1, 0, 6)
        parts = [np.flatnonzero(cell == b) for b in range(7)]
    qce = [
        sum(abs(within[part, t].mean() - tau) * part.size for part in parts if part.size)
        / kept.size
        for t, tau in enumerate(TAU)
    ]
    assert found.qce_by_tau == pytest.approx(qce)
    assert found.bins.within.tolist() == [within[part].sum(axis=0).tolist() for part in parts]


def test_what_asks_for_a_variance_and_what_a_tracker_sees_is_the_forwarded_gaussians():
    rows = detections()
    sent = (SPACE, rows.mean, rows.covariance, rows.truth)
    plain, shaped = evaluate_rows(*sent), evaluate_rows(*sent, shaped=rows.shaped())
    for name in SPACE.names:
        for measure in (*FORWARDED, *WITH_VARIANCE):
            theirs = getattr(plain.dimensions[name], measure)
            assert getattr(shaped.dimensions[name], measure) == theirs
    for measure in ("nees_mean", "nees_median_ratio", "n", "k", "n_eff", "deviation"):
        assert getattr(shaped.joint, measure) == getattr(plain.joint, measure)
    assert (shaped.rows, shaped.without_truth) == (plain.rows, plain.without_truth)


def test_without_a_variance_ence_and_uce_are_not_defined():
    rows = detections()
    sent = (SPACE, rows.mean, rows.covariance, rows.truth)
    shaped = evaluate_rows(*sent, shaped=rows.shaped(has_variance=False))
    for name in SPACE.names:
        found = shaped.dimensions[name]
        assert all(np.isnan(getattr(found, measure)) for measure in WITH_VARIANCE)
        assert np.isfinite(found.nll) and np.isfinite(found.qce)


def test_joint_likelihood_is_that_of_independent_dimensions_and_joint_coverage_is_not_defined():
    rows = detections()
    found = evaluate_rows(SPACE, rows.mean, rows.covariance, rows.truth, shaped=rows.shaped())
    parts = [found.dimensions[name].nll for name in ("x", "y")]  # without the angle
    assert found.joint.nll == pytest.approx(sum(parts))
    for measure in ("qce", "qce_marginal", "calibration_area"):
        assert np.isnan(getattr(found.joint, measure))
    assert np.isfinite(found.joint.nees_over_k)


@pytest.mark.parametrize("binning", ["equal-count", "equal-width"])
def test_gaussians_as_a_shape_measure_as_gaussians_do(binning: BinningKind):
    rows = detections(seed=4)
    # Correlations are not in marginals.
    sent = (SPACE, rows.mean, rows.covariance, rows.truth)
    deviation = np.sqrt(np.diagonal(rows.covariance, axis1=1, axis2=2))
    value = rows.mean + SPACE.error(rows.truth, rows.mean)
    gaussians = OwnDistributions(value, lambda i: NormalMarginals(rows.mean[i], deviation[i]), True)
    plain = evaluate_rows(*sent, cut=BinCut(kind=binning))
    shaped = evaluate_rows(*sent, cut=BinCut(kind=binning), shaped=gaussians)
    for name in SPACE.names:
        assert_measures_agree(plain.dimensions[name], shaped.dimensions[name])
    assert shaped.joint.nll == pytest.approx(plain.joint.nll)


def assert_measures_agree(ours: DimensionMeasures, theirs: DimensionMeasures) -> None:
    for entry in fields(ours):
        left, right = getattr(ours, entry.name), getattr(theirs, entry.name)
        if entry.name not in ("bins", "uce_bins", "interval_width_by_tau"):
            assert left == pytest.approx(right, rel=1e-9, abs=1e-12), entry.name
    assert ours.mpiw_by_tau == pytest.approx(theirs.mpiw_by_tau)
    assert np.array_equal(ours.bins.within, theirs.bins.within)


def test_rows_in_many_parts_measure_as_in_one(monkeypatch):
    rows = detections(50)
    sent = (SPACE, rows.mean, rows.covariance, rows.truth)
    whole = evaluate_rows(*sent, shaped=rows.shaped())
    monkeypatch.setattr("monitor.statistics.exact_engine._CHUNK", 7)
    parts = evaluate_rows(*sent, shaped=rows.shaped())
    for name in SPACE.names:
        assert_measures_agree(whole.dimensions[name], parts.dimensions[name])
