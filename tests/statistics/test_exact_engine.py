"""The exact engine, which has every row: slow formulas from the papers, and its edges."""

import json
import math
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expi, gammainc, gammaincc

from monitor.frames.space import Dimension, DimensionKind, IntArray, Space, plain_space
from monitor.statistics import measures
from monitor.statistics.exact_engine import (
    BinCut,
    OwnDistributions,
    evaluate_rows,
    freeze_edges,
)
from monitor.statistics.measures import (
    TAU,
    Evaluation,
    EvaluationError,
    ReliabilityBins,
    as_json,
)
from monitor.statistics.row_columns import sorted_by
from tests.laws import assert_near
from tests.statistics import oracle

XYZ = plain_space(("x", "y", "z"), "m")


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


@pytest.mark.parametrize("seed", range(3))
def test_sparsification_and_scores_are_those_of_plain_loops(seed):
    mean, covariance, truth = simulated(seed, 157)
    # Some rows share a deviation, and some have no error.
    covariance[::3] = covariance[0]
    truth[::20] = mean[::20]
    found = evaluate_rows(XYZ, mean, covariance, truth)
    error = truth - mean
    axes = [(np.sqrt(covariance[:, i, i]), error[:, i] ** 2) for i in range(3)]
    deviation = [oracle.determinant(one) ** (1 / 6) for one in covariance.tolist()]
    # Equal covariances have equal σ_G, whatever the rounding.
    axes.append((np.round(deviation, 12), (error**2).sum(axis=1)))
    for (sigma, squares), one in zip(axes, [*found.dimensions.values(), found.joint], strict=True):
        rows = sigma.tolist(), squares.tolist()
        ause, left = oracle.ause(*rows), one.rejection
        assert (one.ause, one.ause_relative) == close((ause, ause / squares.mean()))
        for i, share in enumerate(left.fraction.tolist()):
            assert share == pytest.approx(i / 20)
            best = oracle.left_after_rejecting(rows[1], rows[1], i)
            assert left.mean_squared_error[i] == close(oracle.left_after_rejecting(*rows, i))
            assert left.oracle[i] == close(best)
        assert one.ucs == pytest.approx(1 - 4 * one.calibration_area)
    for i, part in enumerate(found.dimensions.values()):
        sigma = axes[i][0].tolist()
        assert part.crps == close(np.mean(list(map(oracle.crps, sigma, error[:, i].tolist()))))


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_squares_of_several_units_do_not_add_up_and_a_score_can_be_negative():
    data = simulated(3)
    mixed = Space((Dimension("x", "m"), Dimension("y", "m"), Dimension("v", "m/s")))
    found = evaluate_rows(mixed, *data)
    assert np.isnan([found.joint.ause, found.joint.ause_relative]).all()
    assert np.isnan(found.joint.rejection.mean_squared_error).all()
    assert found.dimensions["v"].ause > 0
    # No error lies in any of 19 intervals.
    assert evaluate_rows(XYZ, *simulated(3, factor=1e9)).joint.ucs == pytest.approx(-0.9)


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


def test_equal_deviations_are_one_frozen_bin_and_edges_need_a_covariance():
    edges = freeze_edges(plain_space(("x",)), np.repeat([[[1.0]], [[4.0]]], 50, axis=0), 10)
    assert edges[0].tolist() == [0.0, 1.0, 2.0, math.inf]
    with pytest.raises(EvaluationError, match="of 5 reference rows none has a positive"):
        freeze_edges(XYZ, np.zeros((5, 3, 3)), 10)


@pytest.mark.parametrize("binning", ["equal-count", "equal-width"])
def test_one_row_is_measured_and_null_is_printed_for_what_cannot_be_said(binning):
    one = np.ones((1, 1))
    x = plain_space(("x",))
    found = evaluate_rows(x, 0 * one, one[None], 2 * one, cut=BinCut(kind=binning))
    printed = json.loads(json.dumps(as_json(found), allow_nan=False))
    measured = printed["dimensions"]["x"]
    assert [measured[name] for name in ("ence", "uce", "std_scaling", "c_v")] == [1, 3, 2, None]
    assert (printed["rows"], printed["tau"][2], printed["joint"]["nees_over_k"]) == (1, 0.15, 4)


def test_nothing_to_evaluate_is_an_error_that_says_why():
    mean, covariance, truth = simulated(1, n=4)
    truth[:3] = np.nan
    covariance[3] = 0.0
    with pytest.raises(EvaluationError, match=r"of 4 rows, 3 have no truth and 1 have a mean"):
        evaluate_rows(XYZ, mean, covariance, truth)


# ---- measures worked out by hand from the papers


def bins_of(*n: int) -> ReliabilityBins:
    """Their edges do not matter to any measure."""
    counts, one = np.array(n, np.int64), (np.array(n) > 0).astype(np.float64)
    return ReliabilityBins(one, one, counts, one, one, one, counts[:, None])


def test_bins_with_few_rows_can_be_left_out():
    two = bins_of(4, 2)
    assert two.with_rows(2) is two
    kept = two.with_rows(3)
    assert (kept.n.tolist(), kept.within.tolist()) == ([4], [[4]])
    assert two.with_rows(5).n.tolist() == []


def test_equal_count_bins_keep_the_order_of_equal_rows():
    sigma, error = np.array([[1.0, 1.0, 1.0, 1.0, 3.0], [1.0, 2.0, 3.0, 4.0, 3.0]])
    rows = 0 * error[:, None], np.square(sigma)[:, None, None], error[:, None]
    found = evaluate_rows(plain_space(("x",)), *rows, tau=np.array([0.9]), cut=BinCut(2))
    bins = found.dimensions["x"].bins
    assert bins.n.tolist() == [3, 2]
    assert bins.squared_error.tolist() == [14.0, 25.0]
    assert bins.within.tolist() == [[1], [1]]
    assert (bins.lower.tolist(), bins.upper.tolist()) == ([1.0, 1.0], [1.0, 3.0])


@pytest.mark.parametrize("kind", ["equal-count", "equal-width"])
@pytest.mark.parametrize("levels", [19, 50])
def test_rows_in_many_portions_measure_as_in_one(kind, levels, monkeypatch):
    """Half of the deviations are rounded, so that there are ties; levels come in any order."""
    mean, covariance, truth = simulated(4, n=3000)
    covariance[::2] = np.round(np.maximum(covariance[::2] * np.eye(3), 0.1), 1) * np.eye(3)
    tau = np.random.default_rng(1).permutation(np.arange(1, levels + 1) / (levels + 1))
    track = np.arange(3000) // 20
    words: dict[str, Any] = {"tau": tau, "cut": BinCut(30, kind), "cluster": track}
    whole = as_json(evaluate_rows(XYZ, mean, covariance, truth, **words))
    for module in ("exact_engine", "row_columns"):
        monkeypatch.setattr(f"monitor.statistics.{module}.PORTION", 70)
    parts = as_json(evaluate_rows(XYZ, mean, covariance, truth, **words))
    assert_near(parts, whole)


@given(st.lists(st.integers(0, 5), min_size=1))
def test_rows_are_sorted_stably(values):
    order, found = sorted_by(np.array(values, np.float64))
    assert order.tolist() == sorted(range(len(values)), key=values.__getitem__)
    assert found.tolist() == sorted(values)


@pytest.mark.parametrize(("n", "k"), list(product([0.7, 100, 250_000, 1_000_000], [1, 4])))
def test_the_interval_of_the_mean_nees_leaves_a_fortieth_on_either_side(n, k):
    low, high = measures.nees_interval(n, k)
    shape = n * k / 2
    assert gammainc(shape, low * n / 2) == pytest.approx(0.025, rel=1e-8)
    assert gammaincc(shape, high * n / 2) == pytest.approx(0.025, rel=1e-8)
    for nothing in (0, math.nan):
        assert all(map(math.isnan, measures.nees_interval(nothing, k)))


def test_the_area_counts_both_sides_of_a_crossing():
    # From (0, 0) up to 0.1 above at 0.25, down to 0.1 below at 0.75: triangles.
    area = measures.calibration_area(np.array([0.35, 0.65]), np.array([0.25, 0.75]))
    assert area == pytest.approx(4 * 0.25 * 0.1 / 2)
    same_side = measures.calibration_area(np.array([0.35, 0.85]), np.array([0.25, 0.75]))
    assert same_side == pytest.approx(2 * 0.25 * 0.1 / 2 + 0.5 * 0.1)


def test_the_estimated_floor_is_the_gaussian_one_where_kurtosis_is_three_and_counts_are_equal():
    equal = bins_of(5, 5, 0)
    gaussian = measures.ence_noise_floor_gaussian(equal)
    assert measures.ence_noise_floor(equal, 3.0, 1.0) == pytest.approx(gaussian)
    # Heavier tails and correlated rows: sqrt((κ − 1)/2 · D) times as much.
    assert measures.ence_noise_floor(equal, 9.0, 4.0) == pytest.approx(4 * gaussian)


# ---- distributions of another shape

LEVELS = np.array([0.2, 0.5, 0.9])
YAWING = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)


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


def skewed(rows: IntArray) -> Any:
    each = scipy.stats.gumbel_r(SENT[rows], SCALE[rows])
    found = SimpleNamespace(
        log_density=each.logpdf,
        cumulative=each.cdf,
        quantiles=lambda tau: np.stack([each.ppf(t) for t in tau]),
    )
    found.crps = lambda value: measures.integrated_crps(cast(Any, found), value)
    return found


def shaped(*, has_variance: bool = True) -> OwnDistributions:
    value = SENT + YAWING.error(TRUTH, SENT)
    return OwnDistributions(value, skewed, has_variance)


def forwarded(shape: OwnDistributions | None, bins: int = 20) -> Evaluation:
    covariance = DEVIATION[:, :, None] ** 2 * np.eye(3)
    sent = YAWING, SENT + np.euler_gamma * SCALE, covariance, TRUTH
    return evaluate_rows(*sent, tau=LEVELS, cut=BinCut(bins), shaped=shape)


@pytest.mark.parametrize("i", range(3))
def test_likelihood_coverage_and_quantiles_are_those_of_the_own_distribution(i, monkeypatch):
    nll, crps, within, below, pinball, width = [], [], [], [], [], []
    for row in KEPT.tolist():
        one = scipy.stats.gumbel_r(SENT[row, i], SCALE[row, i])
        error = TRUTH[row, i] - SENT[row, i]
        y = SENT[row, i] + ((error + np.pi) % (2 * np.pi) - np.pi if i == 2 else error)
        nll.append(-one.logpdf(y))
        # Of a Gumbel: Jordan et al. 2019, E1 the exponential integral (Euler's constant is γ).
        crps.append(SCALE[row, i] * crps_of_gumbel((y - SENT[row, i]) / SCALE[row, i]))
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
        assert found.crps == pytest.approx(np.mean(crps), rel=1e-8)
        for name, each in by_tau.items():
            assert getattr(found, f"{name}_by_tau") == near(np.mean(each, axis=0)), name
        assert found.mpiw == near(np.mean(width))
        assert found.qce_by_tau == near(sum(gaps) / KEPT.size)
        assert found.bins.within.tolist() == [n.tolist() for n in held]


def crps_of_gumbel(z: float) -> float:
    return float(-z - 2 * expi(-math.exp(-z)) + np.euler_gamma - math.log(2))


def test_gaussian_marginals_are_those_of_scipy():
    ours, theirs = measures.NormalMarginals(SENT, SCALE), scipy.stats.norm(SENT, SCALE)
    np.testing.assert_allclose(ours.log_density(TRUTH), theirs.logpdf(TRUTH), 1e-12)
    np.testing.assert_allclose(ours.quantiles(LEVELS), [theirs.ppf(t) for t in LEVELS], 1e-9)
    # Truths from near the mean to 30 deviations off.
    value = SENT + SCALE * np.geomspace(1e-3, 30, 900).reshape(300, 3) * RANDOM.choice([-1, 1], 3)
    slow = [oracle.crps(s, e) for s, e in zip(SCALE.ravel(), (value - SENT).ravel(), strict=True)]
    np.testing.assert_allclose(ours.crps(value).ravel(), slow, 1e-9, 1e-12)
    put_through = measures.integrated_crps(ours, value)
    np.testing.assert_allclose(put_through.ravel(), slow, 1e-9, 1e-10)


def test_without_a_variance_what_asks_for_one_is_undefined_and_jointly_dimensions_are_independent():
    own, without = forwarded(shaped()), forwarded(shaped(has_variance=False))
    for name in YAWING.names:
        for measure in ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce"):
            assert np.isnan(getattr(without.dimensions[name], measure))
    # The angle is not in the joint block; its coverage is undefined.
    assert own.joint.nll == pytest.approx(sum(own.dimensions[name].nll for name in ("x", "y")))
    assert np.isnan([own.joint.qce, own.joint.qce_marginal, own.joint.calibration_area]).all()


@pytest.mark.parametrize(("draw", "kurtosis"), [("normal", 3.0), ("laplace", 6.0)])
def test_the_mean_of_calibrated_squares_lies_in_its_band_in_95_of_100_sets(draw, kurtosis):
    generator = np.random.default_rng(5)
    values = getattr(generator, draw)(size=(4000, 300))
    mean = np.square(values).mean(axis=1) / (1.0 if draw == "normal" else 2.0)
    low, high = measures.mean_square_band(300, kurtosis)
    assert 0.94 <= np.mean((low < mean) & (mean < high)) <= 0.96


@pytest.mark.parametrize("seed", range(5))
def test_one_covariance_turned_to_the_bearing_of_each_row_ranks_nothing(seed):
    random, n = np.random.default_rng(seed), 300
    bearing = random.uniform(-np.pi, np.pi, n)
    turn = np.array([[np.cos(bearing), -np.sin(bearing)], [np.sin(bearing), np.cos(bearing)]])
    turn = turn.transpose(2, 0, 1)
    covariance = turn @ np.diag([0.04, 0.36]) @ turn.transpose(0, 2, 1)
    error = random.normal(size=(n, 2))
    joint = evaluate_rows(plain_space(("x", "y"), "m"), 0 * error, covariance, error).joint
    squares = np.sort(np.square(error).sum(axis=1))
    of_oracle = np.mean(np.cumsum(squares) / np.arange(1, n + 1))
    assert joint.ause == pytest.approx(squares.mean() - of_oracle, rel=1e-9)
