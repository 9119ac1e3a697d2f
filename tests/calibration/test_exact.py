"""The exact engine against slow formulas from the papers, and at its edges."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.evaluation import TAU, EvaluationError, as_json
from monitor.statistics.exact_engine import (
    BinCut,
    bins_equal_count,
    evaluate_rows,
    freeze_edges,
)
from monitor.statistics.measures import BinSums, bins_between, equal_width_edges
from tests.calibration import oracle

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


def ends(rows):
    return min(row.axis for row in rows), max(row.axis for row in rows)


def over_variance(rows):
    return [replace(row, axis=row.variance) for row in rows]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [400, 7])
def test_equal_count_measures_are_those_of_the_papers(seed, n):
    data = simulated(seed, n)
    found = evaluate_rows(XYZ, *data, cut=BinCut(10))
    for i, name in enumerate(XYZ.names):
        rows, measures = oracle_rows(data, i), found.dimensions[name]
        parts = oracle.equal_count(rows, 10)
        assert measures.ence == pytest.approx(oracle.ence(parts), rel=1e-10)
        assert measures.uce == pytest.approx(oracle.uce(parts, n), rel=1e-10)
        assert measures.qce_by_tau == pytest.approx([oracle.qce(parts, t, 1) for t in TAU])
    joint = oracle.equal_count(oracle_joint_rows(data), 10)
    assert found.joint.qce_by_tau == pytest.approx([oracle.qce(joint, t, 3) for t in TAU])


@pytest.mark.parametrize("seed", range(3))
def test_equal_width_measures_are_those_of_the_papers(seed):
    data = simulated(seed)
    found = evaluate_rows(XYZ, *data, cut=BinCut(10, "equal-width"))
    for i, name in enumerate(XYZ.names):
        rows, measures = oracle_rows(data, i), found.dimensions[name]
        parts = oracle.equal_width(rows, ends(rows), 10)
        squares = over_variance(rows)
        uce = oracle.uce(oracle.equal_width(squares, ends(squares), 10), len(rows))
        assert measures.ence == pytest.approx(oracle.ence(parts), rel=1e-10)
        assert measures.uce == pytest.approx(uce, rel=1e-10)
        assert measures.qce_by_tau == pytest.approx([oracle.qce(parts, t, 1) for t in TAU])
    rows = oracle_joint_rows(data)
    parts = oracle.equal_width(rows, ends(rows), 10)
    assert found.joint.qce_by_tau == pytest.approx([oracle.qce(parts, t, 3) for t in TAU])


def test_rows_beyond_a_fixed_range_leave_ence_and_qce_but_stay_in_the_n_of_uce():
    data = simulated(5)
    found = evaluate_rows(XYZ, *data, cut=BinCut(8, "equal-width", (1.0, 4.0)))
    rows = oracle_rows(data, 0)
    parts = oracle.equal_width(rows, (1.0, 4.0), 8)
    assert 0 < sum(map(len, parts)) < len(rows)
    squares = oracle.equal_width(over_variance(rows), (1.0, 16.0), 8)
    measures = found.dimensions["x"]
    assert measures.ence == pytest.approx(oracle.ence(parts), rel=1e-10)
    assert measures.uce == pytest.approx(oracle.uce(squares, len(rows)), rel=1e-10)
    assert measures.qce_by_tau == pytest.approx([oracle.qce(parts, t, 1) for t in TAU])
    assert measures.nees_mean == pytest.approx(sum(row.nees for row in rows) / len(rows))


def test_measures_without_bins_are_those_of_the_papers():
    data = simulated(6)
    found = evaluate_rows(XYZ, *data)
    for i, name in enumerate(XYZ.names):
        rows, measures = oracle_rows(data, i), found.dimensions[name]
        nees = sum(row.nees for row in rows) / len(rows)
        assert measures.nll == pytest.approx(oracle.nll(rows), rel=1e-12)
        assert measures.c_v == pytest.approx(oracle.c_v(rows), rel=1e-12)
        assert measures.nees_mean == pytest.approx(nees, rel=1e-12)
        assert measures.std_scaling == pytest.approx(math.sqrt(nees), rel=1e-12)
        assert measures.pinball_by_tau == pytest.approx([oracle.pinball(rows, t) for t in TAU])
        assert measures.picp_by_tau == pytest.approx([oracle.coverage(rows, t, 1) for t in TAU])
        assert measures.qce == pytest.approx(sum(measures.qce_by_tau) / 19)
        assert measures.pinball == pytest.approx(sum(measures.pinball_by_tau) / 19)
        one_sided = [oracle.coverage_one_sided(rows, t) for t in TAU]
        assert measures.coverage_one_sided_by_tau == pytest.approx(one_sided)
        widths = [oracle.interval_width(rows, t) for t in TAU]
        assert measures.mpiw_by_tau == pytest.approx(widths, rel=1e-12)
        assert measures.mpiw == pytest.approx(sum(widths) / 19)
        marginal = [abs(oracle.coverage(rows, t, 1) - t) for t in TAU]
        assert measures.qce_marginal_by_tau == pytest.approx(marginal)
        points = [(t, oracle.coverage(rows, t, 1)) for t in TAU]
        assert measures.calibration_area == pytest.approx(oracle.area_to_diagonal(points), abs=1e-6)
        mse = sum(row.error**2 for row in rows) / len(rows)
        mv = sum(row.variance for row in rows) / len(rows)
        assert measures.rmse == pytest.approx(math.sqrt(mse), rel=1e-12)
        assert measures.rmv == measures.sharpness == pytest.approx(math.sqrt(mv), rel=1e-12)
        middle = sorted(row.nees for row in rows)[199:201]
        expected = sum(middle) / 2 / oracle.chi_square(0.5, 1)
        assert measures.nees_median_ratio == pytest.approx(expected)
        z = [row.error / math.sqrt(row.variance) for row in rows]
        assert measures.kurtosis == pytest.approx(oracle.kurtosis(z))
        assert (measures.n, measures.n_eff) == (400, 400.0)


def test_joint_measures_are_those_of_the_papers():
    mean, covariance, truth = simulated(7)
    joint = evaluate_rows(XYZ, mean, covariance, truth).joint
    rows = oracle_joint_rows((mean, covariance, truth))
    nees = [row.nees for row in rows]
    nll = [
        0.5 * (math.log((2 * math.pi) ** 3 * oracle.determinant(c)) + d)
        for c, d in zip(covariance, nees, strict=True)
    ]
    marginal = [abs(oracle.coverage(rows, t, 3) - t) for t in TAU]
    assert joint.k == 3
    assert joint.nll == pytest.approx(sum(nll) / len(nll), rel=1e-10)
    assert joint.nees_mean == pytest.approx(sum(nees) / len(nees), rel=1e-10)
    assert joint.nees_over_k == pytest.approx(sum(nees) / len(nees) / 3, rel=1e-10)
    middle = sorted(nees)[199:201]
    assert joint.nees_median_ratio == pytest.approx(sum(middle) / 2 / oracle.chi_square(0.5, 3))
    assert joint.qce_marginal_by_tau == pytest.approx(marginal)
    assert joint.qce_marginal == pytest.approx(sum(marginal) / 19)


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_floor_and_n_eff_are_those_of_their_definitions(seed):
    data = simulated(seed)
    track = np.random.default_rng(seed).integers(-1, 30, 400)
    # Errors of one track are alike in size.
    size = np.exp(np.random.default_rng(seed + 100).normal(size=31))[track][:, None]
    data = data[0], data[1], data[0] + size * (data[2] - data[0])
    found = evaluate_rows(XYZ, *data, cut=BinCut(10), cluster=track)
    assert found.tracks == 30
    for i, name in enumerate(XYZ.names):
        rows, measures = oracle_rows(data, i), found.dimensions[name]
        effect = oracle.design_effect([row.nees for row in rows], 1, track.tolist())
        assert effect > 2
        assert measures.n_eff == pytest.approx(400 / effect)
        kappa = oracle.kurtosis([row.error / math.sqrt(row.variance) for row in rows])
        floor = oracle.noise_floor(oracle.equal_count(rows, 10), kappa, effect)
        assert measures.ence_noise_floor == pytest.approx(floor)
        gaussian = math.sqrt(10 / (math.pi * 400))
        assert measures.ence_noise_floor_gaussian == pytest.approx(gaussian)
    nees = [row.nees for row in oracle_joint_rows(data)]
    effect = oracle.design_effect(nees, 3, track.tolist())
    assert found.joint.n_eff == pytest.approx(400 / effect)


def test_rows_without_tracks_are_independent():
    data = simulated(3)
    alone = evaluate_rows(XYZ, *data, cluster=np.full(400, -1))
    assert alone.joint.n_eff == 400
    assert alone.tracks == 0
    assert evaluate_rows(XYZ, *data).tracks is None


def test_frozen_bins_of_the_reference_itself_are_its_equal_count_bins():
    data = simulated(4)
    cut = BinCut(kind="frozen", frozen=freeze_edges(XYZ, data[1], 7))
    frozen = evaluate_rows(XYZ, *data, cut=cut)
    counted = evaluate_rows(XYZ, *data, cut=BinCut(7))
    for name in XYZ.names:
        ours, theirs = frozen.dimensions[name], counted.dimensions[name]
        assert ours.bins.n.tolist() == theirs.bins.n.tolist()
        assert ours.ence == pytest.approx(theirs.ence, rel=1e-12)
        assert ours.uce == pytest.approx(theirs.uce, rel=1e-12)
        assert ours.qce_by_tau == pytest.approx(theirs.qce_by_tau)
    assert frozen.joint.qce_by_tau == pytest.approx(counted.joint.qce_by_tau)


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


def test_equal_deviations_are_one_frozen_bin():
    edges = freeze_edges(plain_space(("x",)), np.repeat([[[1.0]], [[4.0]]], 50, axis=0), 10)
    assert edges[0].tolist() == [0.0, 1.0, 2.0, math.inf]


def test_edges_need_a_covariance():
    with pytest.raises(EvaluationError, match="of 5 reference rows none has a positive"):
        freeze_edges(XYZ, np.zeros((5, 3, 3)), 10)


def test_small_bins_leave_ence_and_qce_and_weigh_nothing_in_uce():
    data = simulated(6)
    found = evaluate_rows(XYZ, *data, cut=BinCut(8, "equal-width", fewest_rows=30))
    rows = oracle_rows(data, 0)
    parts = oracle.equal_width(rows, ends(rows), 8)
    large = [part for part in parts if len(part) >= 30]
    assert 0 < len(large) < len(parts)
    x = found.dimensions["x"]
    assert x.ence == pytest.approx(oracle.ence(large))
    assert x.qce_by_tau == pytest.approx([oracle.qce(large, t, 1) for t in TAU])
    squares = over_variance(rows)
    kept = [part for part in oracle.equal_width(squares, ends(squares), 8) if len(part) >= 30]
    assert x.uce == pytest.approx(oracle.uce(kept, 400))
    assert x.bins.n.tolist() == [len(part) for part in parts]


def test_an_angle_is_wrapped_and_stays_out_of_the_joint_block():
    space = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XYZ.dimensions[:2]))
    mean, covariance, truth = simulated(8)
    once = evaluate_rows(space, mean, covariance, truth)
    turned = truth + np.array([2 * math.pi, 0.0, 0.0])
    again = evaluate_rows(space, mean, covariance, turned)
    plain = evaluate_rows(plain_space(("x", "y")), mean[:, 1:], covariance[:, 1:, 1:], truth[:, 1:])
    assert again.dimensions["yaw"].nees_mean == pytest.approx(once.dimensions["yaw"].nees_mean)
    assert again.joint.k == 2
    assert again.joint.nees_mean == pytest.approx(plain.joint.nees_mean)
    assert again.joint.nll == pytest.approx(plain.joint.nll)


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


def bins_of(axis, lower, upper, bins):
    axis = np.array(axis)
    ones = np.ones_like(axis)
    rows = BinSums(axis, axis, ones.astype(np.int64), axis**2, ones, ones, ones[:, None] > 0)
    return bins_between(rows, axis, equal_width_edges(lower, upper, bins))


def test_equal_width_bins_are_closed_on_the_left_and_the_last_on_both_sides():
    bins = bins_of([-0.1, 0.0, 0.4999, 0.5, 1.0, 1.5, 2.0, 2.1], 0.0, 2.0, 4)
    assert bins.n.tolist() == [2, 1, 1, 2]
    assert bins.within.tolist() == [[2], [1], [1], [2]]
    assert (bins.below, bins.above) == (1, 1)
    assert bins.lower.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert bins.upper.tolist() == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("axis", [[3.0], [3.0, 3.0, 3.0]])
def test_a_constant_axis_is_one_bin(axis):
    bins = bins_of(axis, 3.0, 3.0, 20)
    assert bins.n.tolist() == [len(axis)]
    assert bins.variance.tolist() == [9.0 * len(axis)]


def test_equal_count_bins_keep_the_order_of_equal_rows():
    axis = np.array([2.0, 1.0, 1.0, 1.0, 3.0])
    error = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    within = np.array([[True], [False], [True], [True], [False]])
    ones = np.ones(5, np.int64)
    bins = bins_equal_count(BinSums(axis, axis, ones, axis**2, error, error, within), 2)
    assert bins.n.tolist() == [3, 2]
    assert bins.squared_error.tolist() == [9.0, 6.0]
    assert bins.within.tolist() == [[2], [1]]
    assert (bins.lower.tolist(), bins.upper.tolist()) == ([1.0, 2.0], [1.0, 3.0])


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
    found = evaluate_rows(
        plain_space(("x",)), np.zeros((1, 1)), np.ones((1, 1, 1)), np.ones((1, 1))
    )
    printed = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert printed["rows"] == 1
    assert printed["dimensions"]["x"]["c_v"] is None
    assert printed["dimensions"]["x"]["std_scaling"] == 1.0
    assert set(printed["dimensions"]["x"]) == DIMENSION_KEYS
    assert set(printed["joint"]) == JOINT_KEYS
    (only,) = printed["dimensions"]["x"]["bins"]
    assert set(only) == BIN_KEYS
    assert printed["dimensions"]["x"]["out_of_range"] == {
        "std": {"below": 0, "above": 0},
        "variance": {"below": 0, "above": 0},
    }
    assert printed["tau"][2] == 0.15


def test_a_range_that_holds_no_row_leaves_binned_measures_unsaid():
    found = evaluate_rows(XYZ, *simulated(3), cut=BinCut(20, "equal-width", (1e6, 2e6)))
    assert math.isnan(found.dimensions["x"].ence)
    assert math.isnan(found.joint.qce)
    assert math.isfinite(found.joint.nll)
    json.dumps(as_json(found), allow_nan=False)


def test_nothing_to_evaluate_is_an_error_that_says_why():
    mean, covariance, truth = simulated(1, n=4)
    truth[:3] = np.nan
    covariance[3] = 0.0
    with pytest.raises(EvaluationError, match=r"of 4 rows, 3 have no truth and 1 have a mean"):
        evaluate_rows(XYZ, mean, covariance, truth)
    with pytest.raises(EvaluationError, match="of 0 rows"):
        evaluate_rows(XYZ, mean[:0], covariance[:0], truth[:0])
