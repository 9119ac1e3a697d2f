"""The exact engine, which has every row: slow formulas from the papers, and its edges."""

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.statistics.evaluation import TAU, Evaluation, EvaluationError, as_json
from monitor.statistics.exact_engine import BinCut, OwnDistributions, evaluate_rows, freeze_edges
from tests.statistics import oracle

XYZ = plain_space(("x", "y", "z"), "m")
# What `evaluate --json` prints is a contract.
DIMENSION_KEYS = {
    *("n", "n_eff", "ence", "ence_noise_floor", "ence_noise_floor_gaussian", "kurtosis"),
    *("uce", "nll", "rmse", "rmv", "sharpness", "c_v", "bias", "std_scaling"),
    *("nees_mean", "nees_interval", "nees_interval_n_eff", "nees_median_ratio"),
    *("qce", "qce_by_tau", "qce_marginal", "qce_marginal_by_tau", "pinball", "pinball_by_tau"),
    *("picp_by_tau", "mpiw", "mpiw_by_tau", "coverage_one_sided_by_tau", "calibration_area"),
    *("bins", "uce_bins", "out_of_range"),
}
JOINT_KEYS = {
    *("k", "n", "n_eff", "nll", "nees_mean", "nees_over_k", "nees_interval"),
    *("nees_interval_n_eff", "nees_median_ratio", "qce", "qce_by_tau", "qce_marginal"),
    *("qce_marginal_by_tau", "coverage_by_tau", "calibration_area", "bins", "out_of_range"),
    *("sgv_std_min", "sgv_std_max", "sgv_std_mean"),
}
BIN_KEYS = {"lower", "upper", "n", "variance", "squared_error", "nees", "within"}


def simulated(seed, n=400, k=3, factor=1.4):
    """Mean, covariance and truth; errors are `factor` times what the covariance says."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    covariance = np.exp(random.normal(size=n))[:, None, None] * (root @ root.transpose(0, 2, 1))
    mean = 10 * random.normal(size=(n, k))
    draw = np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1))
    return mean, covariance, mean + factor * draw[..., 0]


def oracle_rows(data, dimension):
    rows = []
    for m, c, y in zip(*data, strict=True):
        variance, error = c[dimension, dimension], y[dimension] - m[dimension]
        rows.append(oracle.Row(variance, error, error**2 / variance, math.sqrt(variance)))
    return rows


def oracle_joint_rows(data):
    k = data[0].shape[1]
    return [
        oracle.Row(0.0, 0.0, oracle.mahalanobis(c, y - m), oracle.determinant(c) ** (1 / (2 * k)))
        for m, c, y in zip(*data, strict=True)
    ]


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("n", [400, 7])
def test_bins_of_equal_count_hold_as_many_rows_and_frozen_ones_are_those_of_their_reference(n):
    data = simulated(1, n)
    counted, fewer = (evaluate_rows(XYZ, *data, cut=BinCut(bins)) for bins in (10, 7))
    cut = BinCut(kind="frozen", frozen=freeze_edges(XYZ, data[1], 7))
    frozen = evaluate_rows(XYZ, *data, cut=cut)
    for i, name in enumerate(XYZ.names):
        parts = oracle.equal_count(oracle_rows(data, i), 10)
        measured = counted.dimensions[name]
        assert measured.qce_by_tau == near([oracle.qce(parts, t, 1) for t in TAU])
        assert measured.bins.n.tolist() == [len(part) for part in parts if part]
        ours, theirs = frozen.dimensions[name], fewer.dimensions[name]
        assert ours.bins.n.tolist() == theirs.bins.n.tolist()
        assert (ours.ence, ours.uce) == near((theirs.ence, theirs.uce))
        assert ours.qce_by_tau == near(theirs.qce_by_tau)
    joint = oracle.equal_count(oracle_joint_rows(data), 10)
    assert counted.joint.qce_by_tau == near([oracle.qce(joint, t, 3) for t in TAU])
    assert frozen.joint.qce_by_tau == near(fewer.joint.qce_by_tau)


def test_what_no_other_library_says_is_as_the_papers_say():
    data = simulated(6)
    found = evaluate_rows(XYZ, *data)
    for i, name in enumerate(XYZ.names):
        rows, measured = oracle_rows(data, i), found.dimensions[name]
        assert measured.nees_median_ratio == near(median(rows) / oracle.chi_square(0.5, 1))
        z = [row.error / math.sqrt(row.variance) for row in rows]
        assert measured.kurtosis == near(oracle.kurtosis(z))
        assert measured.sharpness == measured.rmv
        for mean in ("pinball", "mpiw", "qce", "qce_marginal"):
            assert getattr(measured, mean) == near(sum(getattr(measured, f"{mean}_by_tau")) / 19)
        assert (measured.n, measured.n_eff) == (400, 400.0)
    rows = oracle_joint_rows(data)
    marginal = [abs(oracle.coverage(rows, t, 3) - t) for t in TAU]
    assert found.joint.nees_median_ratio == near(median(rows) / oracle.chi_square(0.5, 3))
    assert found.joint.qce_marginal_by_tau == near(marginal)
    assert found.joint.qce_marginal == near(sum(marginal) / 19)


def median(rows: oracle.Rows) -> float:
    return sum(sorted(row.nees for row in rows)[199:201]) / 2


@pytest.mark.parametrize("seed", range(2))
def test_the_noise_floor_and_n_eff_are_those_of_their_definitions(seed):
    mean, covariance, truth = simulated(seed)
    track = np.random.default_rng(seed).integers(-1, 30, 400)
    # Errors of one track are alike in size.
    size = np.exp(np.random.default_rng(seed + 100).normal(size=31))[track][:, None]
    data = mean, covariance, mean + size * (truth - mean)
    found = evaluate_rows(XYZ, *data, cut=BinCut(10), cluster=track)
    assert found.tracks == 30

    def effect_of(rows: oracle.Rows, k: int) -> float:
        return oracle.design_effect((track + 1).tolist(), [min(r.nees / k, 64.0) for r in rows])

    for i, name in enumerate(XYZ.names):
        rows, measured = oracle_rows(data, i), found.dimensions[name]
        effect = effect_of(rows, 1)
        assert effect > 2
        assert measured.n_eff == near(400 / effect)
        kappa = oracle.kurtosis([row.error / math.sqrt(row.variance) for row in rows])
        floor = oracle.noise_floor(oracle.equal_count(rows, 10), kappa, effect)
        assert measured.ence_noise_floor == near(floor)
        assert measured.ence_noise_floor_gaussian == near(math.sqrt(10 / (math.pi * 400)))
    assert found.joint.n_eff == near(400 / effect_of(oracle_joint_rows(data), 3))
    assert evaluate_rows(XYZ, *data).tracks is None


def test_frozen_bins_have_no_outside():
    reference = simulated(4)[1]
    edges = freeze_edges(XYZ, reference, 7)
    mean, covariance, truth = simulated(5)
    # Half of them beyond all that the reference has seen.
    scale = np.where(np.arange(400) < 200, 1e-4, 1e4)[:, None, None]
    found = evaluate_rows(
        XYZ, mean, scale * covariance, truth, cut=BinCut(kind="frozen", frozen=edges)
    )
    for bins in (*(part.bins for part in found.dimensions.values()), found.joint.bins):
        assert bins.n.tolist() == [200, 0, 0, 0, 0, 0, 200]
        assert (bins.below, bins.above) == (0, 0)
    printed = json.dumps(as_json(found), allow_nan=False)
    assert json.loads(printed)["joint"]["bins"][-1]["upper"] is None


def test_equal_deviations_are_one_frozen_bin_and_edges_need_a_covariance():
    edges = freeze_edges(plain_space(("x",)), np.repeat([[[1.0]], [[4.0]]], 50, axis=0), 10)
    assert edges[0].tolist() == [0.0, 1.0, 2.0, math.inf]
    with pytest.raises(EvaluationError, match="of 5 reference rows none has a positive"):
        freeze_edges(XYZ, np.zeros((5, 3, 3)), 10)


def test_rows_without_truth_and_rows_without_a_gaussian_are_counted_and_left_out():
    mean, covariance, truth = simulated(9, n=50)
    expected = evaluate_rows(XYZ, mean[4:], covariance[4:], truth[4:])
    truth[0, 1] = np.nan
    covariance[1] = 0.0
    covariance[2] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    mean[3, 0] = np.inf
    found = evaluate_rows(XYZ, mean, covariance, truth)
    assert (found.rows, found.without_truth, found.refused) == (46, 1, 3)
    assert found.joint.nll == expected.joint.nll
    assert found.dimensions["z"].ence == expected.dimensions["z"].ence


@pytest.mark.parametrize("binning", ["equal-count", "equal-width"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_few_rows_of_constant_deviation_are_measured(binning, n):
    truth = np.full((n, 1), 2.0)
    found = evaluate_rows(
        plain_space(("x",)), np.zeros((n, 1)), np.ones((n, 1, 1)), truth, cut=BinCut(kind=binning)
    )
    assert found.dimensions["x"].ence == pytest.approx(1.0)
    assert found.dimensions["x"].uce == pytest.approx(3.0)
    assert found.joint.nees_over_k == pytest.approx(4.0)


def test_json_holds_plain_values_and_null_for_what_cannot_be_said():
    one = np.ones((1, 1))
    found = evaluate_rows(plain_space(("x",)), 0 * one, one[None], one)
    printed = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert printed["rows"] == 1
    assert printed["dimensions"]["x"]["c_v"] is None
    assert printed["dimensions"]["x"]["std_scaling"] == 1.0
    assert set(printed["dimensions"]["x"]) == DIMENSION_KEYS
    assert set(printed["joint"]) == JOINT_KEYS
    (only,) = printed["dimensions"]["x"]["bins"]
    assert set(only) == BIN_KEYS
    assert printed["tau"][2] == 0.15


def test_nothing_to_evaluate_is_an_error_that_says_why():
    mean, covariance, truth = simulated(1, n=4)
    truth[:3] = np.nan
    covariance[3] = 0.0
    with pytest.raises(EvaluationError, match=r"of 4 rows, 3 have no truth and 1 have a mean"):
        evaluate_rows(XYZ, mean, covariance, truth)


# ---- distributions of another shape

LEVELS = np.array([0.2, 0.5, 0.9])
YAWING = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
# Of the forwarded Gaussian, whatever the shape.
FORWARDED = (
    *("n", "n_eff", "kurtosis", "c_v", "nees_mean", "nees_median_ratio", "mean_sigma"),
    *("mean_variance", "mean_squared_error", "bias"),
)
WITH_VARIANCE = ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce")


class Skewed:
    """Gumbel distributions."""

    def __init__(self, place: FloatArray, scale: FloatArray) -> None:
        self.each = scipy.stats.gumbel_r(place, scale)

    def log_density(self, value: FloatArray) -> FloatArray:
        return np.asarray(self.each.logpdf(value))

    def cumulative(self, value: FloatArray) -> FloatArray:
        return np.asarray(self.each.cdf(value))

    def quantiles(self, tau: FloatArray) -> FloatArray:
        return np.stack([self.each.ppf(t) for t in tau])


RANDOM = np.random.default_rng(0)
SENT = RANDOM.normal(0, 5, (300, 3))
SENT[:, 2] = RANDOM.uniform(-np.pi, np.pi, 300)
SCALE = RANDOM.uniform(0.1, 0.9, (300, 3))
TRUTH = SENT + SCALE * RANDOM.gumbel(size=(300, 3))
# As a detector has it: on the other side of ±π as often as not.
TRUTH[:, 2] = (TRUTH[:, 2] + np.pi) % (2 * np.pi) - np.pi
TRUTH[::11] = np.nan
KEPT = np.flatnonzero(np.isfinite(TRUTH).all(axis=1))
DEVIATION = SCALE * np.pi / np.sqrt(6)


def shaped(*, has_variance: bool = True) -> OwnDistributions:
    value = SENT + YAWING.error(TRUTH, SENT)
    return OwnDistributions(value, lambda rows: Skewed(SENT[rows], SCALE[rows]), has_variance)


def forwarded(shape: OwnDistributions | None, bins: int = 20) -> Evaluation:
    covariance = DEVIATION[:, :, None] ** 2 * np.eye(3)
    sent = YAWING, SENT + np.euler_gamma * SCALE, covariance, TRUTH
    return evaluate_rows(*sent, tau=LEVELS, cut=BinCut(bins), shaped=shape)


@pytest.mark.parametrize("i", range(3))
def test_likelihood_coverage_and_quantiles_are_those_of_the_own_distribution(i, monkeypatch):
    nll, within, below, pinball, width = [], [], [], [], []
    for row in KEPT.tolist():
        one = scipy.stats.gumbel_r(SENT[row, i], SCALE[row, i])
        error = TRUTH[row, i] - SENT[row, i]
        y = SENT[row, i] + ((error + np.pi) % (2 * np.pi) - np.pi if i == 2 else error)
        nll.append(-one.logpdf(y))
        within.append([abs(2 * one.cdf(y) - 1) <= t for t in LEVELS])
        below.append([one.cdf(y) <= t for t in LEVELS])
        pinball.append([max(t * (y - one.ppf(t)), (t - 1) * (y - one.ppf(t))) for t in LEVELS])
        width.append([one.ppf((1 + t) / 2) - one.ppf((1 - t) / 2) for t in LEVELS])
    by_tau = {"picp": within, "coverage_one_sided": below, "pinball": pinball, "mpiw": width}
    # The own coverage in the bins of the forwarded deviation.
    parts = np.array_split(np.argsort(DEVIATION[KEPT, i], kind="stable"), 7)
    held = [np.array(within)[part].sum(axis=0) for part in parts]
    gaps = [abs(n - LEVELS * part.size) for n, part in zip(held, parts, strict=True)]
    # Rows in many parts measure as in one.
    for chunk in (2**16, 7):
        monkeypatch.setattr("monitor.statistics.exact_engine._CHUNK", chunk)
        found = forwarded(shaped(), 7).dimensions[YAWING.names[i]]
        assert found.nll == near(np.mean(nll))
        for name, each in by_tau.items():
            assert getattr(found, f"{name}_by_tau") == near(np.mean(each, axis=0)), name
        assert found.mpiw == near(np.mean(width))
        assert found.qce_by_tau == near(sum(gaps) / KEPT.size)
        assert found.bins.within.tolist() == [n.tolist() for n in held]


def test_what_asks_for_a_variance_is_the_forwarded_gaussians_and_undefined_without_one():
    plain, own, without = map(forwarded, (None, shaped(), shaped(has_variance=False)))
    for name in YAWING.names:
        for measure in (*FORWARDED, *WITH_VARIANCE):
            theirs = getattr(plain.dimensions[name], measure)
            assert getattr(own.dimensions[name], measure) == theirs
        found = without.dimensions[name]
        assert all(np.isnan(getattr(found, measure)) for measure in WITH_VARIANCE)
        assert np.isfinite(found.nll) and np.isfinite(found.qce)
    for measure in ("nees_mean", "nees_median_ratio", "n", "k", "n_eff", "deviation"):
        assert getattr(own.joint, measure) == getattr(plain.joint, measure)
    assert (own.rows, own.without_truth) == (plain.rows, plain.without_truth)
    # Jointly, the dimensions are independent, without the angle; joint coverage is undefined.
    parts = [own.dimensions[name].nll for name in ("x", "y")]
    assert own.joint.nll == pytest.approx(sum(parts))
    for measure in ("qce", "qce_marginal", "calibration_area"):
        assert np.isnan(getattr(own.joint, measure))
