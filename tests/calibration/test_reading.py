"""Measures read off micro-bins, against the exact engine that has every row."""

import dataclasses
import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, LogBins
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.evaluation import DimensionMeasures, Evaluation, JointMeasures
from monitor.statistics.exact_engine import EQUAL_COUNT, BinCut, evaluate_rows, freeze_edges
from monitor.statistics.reading import (
    OccupiedCells,
    cut_equal_count,
    quantile_of_histogram,
    read,
)
from monitor.statistics.stage import StageStatistics, no_stage_statistics, observe

BINNING = Binning()
TAU = BINNING.tau_array
XYZ = plain_space(("x", "y", "z"), "m")
WITH_YAW = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XYZ.dimensions[:2]))
SPACES = [XYZ, WITH_YAW]
EQUAL_WIDTH = BinCut(kind="equal-width")
SUMS = ("nll", "c_v", "nees_mean", "std_scaling", "bias", "pinball", "qce_marginal", "n_eff")

pytestmark = pytest.mark.filterwarnings("error")


def simulated(seed, n=5000, k=3, factor=1.3):
    """Errors and covariances; σ spreads over a decade, errors are `factor` times as large."""
    random = np.random.default_rng(seed)
    root = 0.3 * random.normal(size=(n, k, k)) + np.eye(k)
    scale = np.exp(0.5 * random.normal(size=n))[:, None, None]
    covariance = scale * (root @ root.transpose(0, 2, 1))
    error = factor * (np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1)))[..., 0]
    return error, covariance


def both_engines(space, seed, cut=EQUAL_COUNT, **settings) -> tuple[Evaluation, Evaluation]:
    truth, covariance = simulated(seed, **settings)
    error = space.error(truth, np.zeros_like(truth))
    found = read(observe(space, BINNING, error, covariance), cut)
    exact = evaluate_rows(space, np.zeros_like(truth), covariance, truth, tau=TAU, cut=cut)
    return found, exact


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("seed", range(3))
def test_what_needs_no_bins_is_what_the_exact_engine_says(space, seed):
    found, exact = both_engines(space, seed)
    assert found.rows == exact.rows
    for name, ours in found.dimensions.items():
        theirs = exact.dimensions[name]
        for measure in (*SUMS, "rmse", "rmv", "mpiw", "calibration_area"):
            expected = pytest.approx(getattr(theirs, measure), rel=1e-9, abs=1e-9)
            assert getattr(ours, measure) == expected, measure
        assert ours.pinball_by_tau == pytest.approx(theirs.pinball_by_tau, rel=1e-9)
        assert ours.picp_by_tau == pytest.approx(theirs.picp_by_tau, rel=1e-12)
    assert found.joint.k == exact.joint.k == len(space.joint)
    assert found.joint.nll == pytest.approx(exact.joint.nll, rel=1e-9)
    assert found.joint.nees_mean == pytest.approx(exact.joint.nees_mean, rel=1e-9)
    assert found.joint.nees_over_k == pytest.approx(exact.joint.nees_over_k, rel=1e-9)
    assert found.joint.coverage_by_tau == pytest.approx(exact.joint.coverage_by_tau, rel=1e-12)
    assert found.joint.qce_marginal == pytest.approx(exact.joint.qce_marginal, abs=1e-12)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("seed", range(5))
def test_measures_from_micro_bins_are_close_to_those_from_rows(space, factor, seed):
    # Largest differences over these seeds: ENCE 0.0076 (its noise floor here is 0.036),
    # UCE 0.021 unit², QCE 0.0063, joint QCE 0.0044, median ratio 0.3 %.
    found, exact = both_engines(space, seed, factor=factor)
    for name, ours in found.dimensions.items():
        theirs = exact.dimensions[name]
        assert ours.ence == pytest.approx(theirs.ence, abs=0.01)
        assert ours.uce == pytest.approx(theirs.uce, abs=0.03)
        assert ours.qce_by_tau == pytest.approx(theirs.qce_by_tau, abs=0.01)
        assert ours.bins.n.size == 20
        # Bins of whole micro-bins are not quite equal, and NEES is read off a histogram.
        assert ours.ence_noise_floor == pytest.approx(theirs.ence_noise_floor, rel=0.02)
        assert ours.ence_noise_floor_gaussian == theirs.ence_noise_floor_gaussian
        assert ours.kurtosis == pytest.approx(theirs.kurtosis, rel=0.01)
        assert ours.nees_median_ratio == pytest.approx(theirs.nees_median_ratio, rel=0.01)
    assert found.joint.qce_by_tau == pytest.approx(exact.joint.qce_by_tau, abs=0.01)
    # The histogram of NEES has 16 bins an octave; inside a bin it is interpolated.
    assert found.joint.nees_median_ratio == pytest.approx(exact.joint.nees_median_ratio, rel=0.01)


@pytest.mark.parametrize("ends", [None, (0.55, 1.9), (0.0, 10.0)])
@pytest.mark.parametrize("seed", range(3))
def test_bins_of_equal_width_are_close_to_those_from_rows(ends, seed):
    # Largest differences over these seeds: ENCE 0.014, UCE 1.9 %, QCE 0.0009, rows 0.5 %.
    found, exact = both_engines(XYZ, seed, BinCut(10, "equal-width", ends), n=20_000)
    for name, ours in found.dimensions.items():
        theirs = exact.dimensions[name]
        assert ours.ence == pytest.approx(theirs.ence, abs=0.02)
        assert ours.uce == pytest.approx(theirs.uce, rel=0.03)
        assert ours.qce_by_tau == pytest.approx(theirs.qce_by_tau, abs=0.002)
        assert abs(int(ours.bins.n.sum()) - int(theirs.bins.n.sum())) <= 0.01 * exact.rows


@pytest.mark.parametrize("seed", range(3))
def test_frozen_bins_are_close_to_those_from_rows(seed):
    reference = simulated(seed + 50)[1]
    cut = BinCut(kind="frozen", frozen=freeze_edges(XYZ, reference, 10))
    error, covariance = simulated(seed)
    found = read(observe(XYZ, BINNING, error, covariance), cut)
    exact = evaluate_rows(XYZ, np.zeros_like(error), covariance, error, tau=TAU, cut=cut)
    for name, ours in found.dimensions.items():
        theirs = exact.dimensions[name]
        assert ours.ence == pytest.approx(theirs.ence, abs=0.01)
        assert ours.uce == pytest.approx(theirs.uce, abs=0.03)
        assert ours.bins.n.sum() == 5000
        assert np.abs(ours.bins.n - theirs.bins.n).max() <= 100
    assert found.joint.qce_by_tau == pytest.approx(exact.joint.qce_by_tau, abs=0.01)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("seed", range(3))
def test_effective_samples_are_those_of_the_exact_engine(space, seed):
    random = np.random.default_rng(seed)
    error, covariance = simulated(seed)
    track = random.integers(-1, 200, 5000)
    error *= np.exp(0.5 * random.normal(size=201))[track][:, None]
    ids = np.where(track < 0, ALONE, cluster_id((track,)))
    found = read(observe(space, BINNING, space.error(error, 0 * error), covariance, ids))
    exact = evaluate_rows(space, 0 * error, covariance, error, cluster=track)
    for name, ours in found.dimensions.items():
        theirs = exact.dimensions[name]
        assert theirs.n_eff < 5000 / 2
        assert ours.n_eff == pytest.approx(theirs.n_eff, rel=0.01)
        assert ours.ence_noise_floor == pytest.approx(theirs.ence_noise_floor, rel=0.02)
    assert found.joint.n_eff == pytest.approx(exact.joint.n_eff, rel=0.01)


@pytest.mark.parametrize("space", SPACES)
def test_all_axes_at_once_are_each_axis_on_its_own(space):
    statistics = observe(space, BINNING, *simulated(2))
    held = OccupiedCells.of(statistics)
    for i in range(statistics.joint_axis + 1):
        assert leaves(held.axis(i)) == leaves(statistics.axis(i))
        assert held.totals(held.cells.nees)[i] == pytest.approx(statistics.axis(i).nees.sum())


def test_growing_deviations_do_not_lead_the_bins_astray():
    # Predicted deviations grow 1.6-fold in mid-stream: fixed micro-bins know nothing of ranges.
    random = np.random.default_rng(0)
    sigma = random.uniform(0.1, 1.0, 200_000)
    error = (sigma * random.normal(size=sigma.size))[:, None]
    sigma[100_000:] *= 1.6
    covariance = (sigma**2)[:, None, None]
    x = plain_space(("x",))
    exact = evaluate_rows(x, 0 * error, covariance, error).dimensions["x"].ence
    assert exact > 0.1
    for per_octave in (32, 256):
        binning = Binning(LogBins(2.0**-10, per_octave, 16))
        found = read(observe(x, binning, error, covariance)).dimensions["x"].ence
        assert found == pytest.approx(exact, abs=5e-4)


@pytest.mark.parametrize("seed", range(3))
def test_bins_hold_the_rows_between_their_edges_and_the_sums_of_these(seed):
    error, covariance = simulated(seed)
    found = read(observe(XYZ, BINNING, error, covariance))
    for i, name in enumerate(XYZ.names):
        variance = covariance[:, i, i]
        sigma, nees = np.sqrt(variance), error[:, i] ** 2 / variance
        bins = found.dimensions[name].bins
        for b in range(bins.n.size):
            here = (sigma >= bins.lower[b]) & (sigma < bins.upper[b])
            assert bins.n[b] == np.count_nonzero(here)
            assert bins.variance[b] == pytest.approx(variance[here].sum(), rel=1e-9)
            assert bins.squared_error[b] == pytest.approx((error[here, i] ** 2).sum(), rel=1e-9)
            assert bins.nees[b] == pytest.approx(nees[here].sum(), rel=1e-9)
            inside = (nees[here, None] <= BINNING.chi_square(1)).sum(axis=0)
            assert bins.within[b].tolist() == inside.tolist()


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(seeds, st.integers(1, 300), st.integers(1, 50))
def test_cuts_of_equal_count_hold_all_rows_in_whole_micro_bins(seed, n, bins):
    statistics = observe(XYZ, BINNING, *simulated(seed, n))
    for axis, cut in enumerate(cut_equal_count(OccupiedCells.of(statistics), bins)):
        cells = statistics.axis(axis)
        assert cut.n.sum() == n
        assert 1 <= cut.n.size <= bins
        assert (cut.n > 0).all()
        assert set(cut.lower.tolist()) <= set(cells.lower.tolist())
        assert set(cut.upper.tolist()) <= set(cells.upper.tolist())
        assert (cut.upper[:-1] <= cut.lower[1:]).all()
        assert cut.variance.sum() == pytest.approx(cells.variance.sum())
        # A cut is at most half of a micro-bin's rows away from its share.
        share = n * np.arange(1, bins) / bins
        after = np.append(0, np.cumsum(cut.n))
        gap = np.abs(after[:, None] - share).min(axis=0)
        assert (gap <= cells.n.max() / 2).all()


@settings(max_examples=20)
@given(seeds, st.integers(1, 5))
def test_cuts_of_merged_replicas_are_those_of_one_that_saw_everything(seed, replicas):
    error, covariance = simulated(seed, 200)
    parts = [
        observe(XYZ, BINNING, error[i::replicas], covariance[i::replicas]) for i in range(replicas)
    ]
    merged = read(reduce(StageStatistics.merge, parts), BinCut(10))
    whole = read(observe(XYZ, BINNING, error, covariance), BinCut(10))
    assert leaves(merged) == leaves(whole)


def leaves(value):
    """All numbers of a reading, named; arrays as lists, so that equality is of every bit."""
    if dataclasses.is_dataclass(value):
        return {f.name: leaves(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: leaves(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("cut", [EQUAL_COUNT, EQUAL_WIDTH, BinCut(20, "equal-width", (0.1, 1.0))])
@pytest.mark.parametrize("space", SPACES)
def test_without_truth_every_measure_is_nan(space, cut):
    found = read(no_stage_statistics(space, BINNING), cut)
    assert found.rows == 0
    parts: list[DimensionMeasures | JointMeasures] = [*found.dimensions.values(), found.joint]
    for part in parts:
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name == "n":
                assert value == 0
            elif field.name in ("coverage_one_sided_by_tau", "interval_width_by_tau"):
                assert value is None
            elif field.name not in ("k", "tau", "bins", "uce_bins"):
                assert np.isnan(value).all(), field.name
        assert part.bins.n.size == 0
        assert math.isnan(part.qce)
    assert math.isnan(found.joint.nees_over_k)
    assert np.isnan(found.joint.qce_marginal_by_tau).all()
    assert math.isnan(found.dimensions[space.names[0]].pinball)


@pytest.mark.parametrize("cut", [EQUAL_COUNT, EQUAL_WIDTH])
def test_one_row_is_measured_but_for_its_spread(cut):
    error, covariance = np.array([[0.6, -1.0, 2.0]]), np.diag([0.09, 1.0, 4.0])[None]
    found = read(observe(XYZ, BINNING, error, covariance), cut)
    x, y, z = (found.dimensions[name] for name in "xyz")
    # σ 0.3, 1 and 2 against errors of 0.6, 1 and 2.
    assert [x.ence, y.ence, z.ence] == pytest.approx([1.0, 0.0, 0.0], abs=1e-9)
    assert x.ence_noise_floor == pytest.approx(math.sqrt(1 / math.pi))
    assert [x.uce, y.uce] == pytest.approx([0.27, 0.0], abs=1e-9)
    assert [x.nees_mean, y.nees_mean] == pytest.approx([4.0, 1.0], abs=1e-9)
    assert x.nll == pytest.approx(0.5 * (math.log(2 * math.pi * 0.09) + 4.0), abs=1e-9)
    assert [x.bias, y.bias] == pytest.approx([0.6, -1.0], abs=1e-9)
    assert math.isnan(x.c_v)
    assert found.joint.nees_mean == pytest.approx(6.0, abs=1e-9)
    expected = 0.5 * (3 * math.log(2 * math.pi) + math.log(0.36) + 6.0)
    assert found.joint.nll == pytest.approx(expected, abs=1e-9)
    assert found.joint.bins.n.tolist() == [1]


@pytest.mark.parametrize("cut", [EQUAL_COUNT, EQUAL_WIDTH])
@pytest.mark.parametrize("sigma", [0.02, 0.3, 5.0])
def test_a_constant_deviation_is_one_bin_without_spread(sigma, cut):
    random = np.random.default_rng(1)
    error = sigma * random.normal(size=(400, 3))
    covariance = np.broadcast_to(sigma**2 * np.eye(3), (400, 3, 3))
    found = read(observe(XYZ, BINNING, error, covariance), cut)
    for i, name in enumerate("xyz"):
        x = found.dimensions[name]
        assert x.bins.n.tolist() == [400]
        assert x.ence == pytest.approx(abs(1 - np.sqrt((error[:, i] ** 2).mean()) / sigma))
        assert x.uce == pytest.approx(abs((error[:, i] ** 2).mean() - sigma**2), abs=1e-9)
        # The root of what rounding to 2^-37 leaves, over σ.
        assert x.c_v == pytest.approx(0.0, abs=2.0**-18 / math.sqrt(sigma))
    assert found.joint.bins.n.tolist() == [400]


def test_a_fixed_range_leaves_out_the_micro_bins_beyond_it_but_not_their_rows_from_n():
    sigma = np.array([0.1, 1.0, 1.0, 10.0])
    error, covariance = (2 * sigma)[:, None], (sigma**2)[:, None, None]
    x = plain_space(("x",))
    found = read(observe(x, BINNING, error, covariance), BinCut(4, "equal-width", (0.5, 2.0)))
    measures = found.dimensions["x"]
    assert measures.bins.n.tolist() == [0, 2, 0, 0]
    assert (measures.bins.below, measures.bins.above) == (1, 1)
    assert measures.ence == pytest.approx(1.0)
    assert measures.uce == pytest.approx(2 / 4 * 3.0)
    assert measures.nees_mean == pytest.approx(4.0)


@settings(max_examples=60)
@given(seeds, st.integers(1, 2000), st.floats(0.01, 0.99))
def test_a_quantile_of_a_histogram_is_off_by_one_bin_at_most(seed, n, level):
    bins = LogBins(2.0**-16, 16, 32)
    value = np.random.default_rng(seed).chisquare(2, n) + 2.0**-15
    counts = np.bincount(bins.index(value), minlength=bins.count)
    exact = float(np.quantile(value, level, method="inverted_cdf"))
    ratio = quantile_of_histogram(bins, counts, level) / exact
    assert 2 ** (-1 / 16) * (1 - 1e-9) <= ratio <= 2 ** (1 / 16) * (1 + 1e-9)


def test_a_quantile_beyond_the_histogram_is_its_end():
    bins = LogBins(1.0, 1, 3)
    assert bins.count == 5
    assert quantile_of_histogram(bins, np.array([9, 1, 0, 0, 0]), 0.5) == 1.0
    assert quantile_of_histogram(bins, np.array([0, 1, 0, 0, 9]), 0.5) == 8.0
    assert math.isnan(quantile_of_histogram(bins, np.zeros(5, np.int64), 0.5))
