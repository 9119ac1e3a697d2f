"""Measures read off micro-bins, against the exact engine that has every row; also off statistics
from which more was taken back than came."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, LogBins, chi_square
from monitor.statistics.clusters import ALONE, cluster_id
from monitor.statistics.exact_engine import EQUAL_COUNT, BinCut, evaluate_rows, freeze_edges
from monitor.statistics.measures import Evaluation
from monitor.statistics.reading import (
    OccupiedCells,
    cut_equal_count,
    quantile_of_histogram,
    read,
    read_class_slice,
)
from monitor.statistics.state import (
    StageStatistics,
    no_classes,
    no_stage_statistics,
    no_statistics,
    observe,
)
from tests import laws
from tests.laws import costly
from tests.states import BINNING as COARSE
from tests.states import CLASSES, counted, random_rows

seeds = st.integers(0, 2**32 - 1)
BINNING = Binning()
TAU = BINNING.tau_array
XYZ = plain_space(("x", "y", "z"), "m")
WITH_YAW = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *XYZ.dimensions[:2]))
SPACES = [XYZ, WITH_YAW]
pytestmark = pytest.mark.filterwarnings("error")


def simulated(seed, n=5000, k=3, factor=1.3):
    random = np.random.default_rng(seed)
    root = 0.3 * random.normal(size=(n, k, k)) + np.eye(k)
    scale = np.exp(0.5 * random.normal(size=n))[:, None, None]
    covariance = scale * (root @ root.transpose(0, 2, 1))
    error = factor * (np.linalg.cholesky(covariance) @ random.normal(size=(n, k, 1)))[..., 0]
    return error, covariance


def assert_close(found: Evaluation, exact: Evaluation, within: dict[str, Any], joint: Any) -> None:
    pairs = [(part, exact.dimensions[name], within) for name, part in found.dimensions.items()]
    for ours, theirs, tolerances in [*pairs, (found.joint, exact.joint, joint)]:
        for names, tolerance in tolerances.items():
            for name in names.split():
                expected = pytest.approx(getattr(theirs, name), **tolerance)
                assert getattr(ours, name) == expected, name


EXACT = {"rel": 1e-9, "abs": 1e-9}
UNBINNED = {
    "n nll c_v nees_mean std_scaling bias pinball qce_marginal rmse rmv mpiw": EXACT,
    "calibration_area ucs pinball_by_tau picp_by_tau": EXACT,
    # Looked up in a table.
    "crps": {"rel": 1e-5},
    "ence_noise_floor_gaussian": {"rel": 0.0, "abs": 0.0},
}
# Bins of whole micro-bins are not quite equal, and NEES is read off a histogram: the largest
# differences over five seeds are ENCE 0.0076, UCE 0.021, QCE 0.0063, median ratio 0.3 %.
BINNED = {
    "ence qce_by_tau": {"abs": 0.01},
    "uce": {"abs": 0.03},
    "ence_noise_floor": {"rel": 0.02},
    "kurtosis nees_median_ratio n_eff": {"rel": 0.01},
}
JOINT = {
    "k n nll nees_mean nees_over_k coverage_by_tau qce_marginal ucs": EXACT,
    "qce_by_tau": {"abs": 0.01},
    "nees_median_ratio n_eff": {"rel": 0.01},
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("seed", range(2))
def test_measures_are_those_of_the_exact_engine_or_close_to_them(space, factor, seed):
    truth, covariance = simulated(seed, factor=factor)
    random = np.random.default_rng(seed)
    track = random.integers(-1, 200, 5000)
    truth *= np.exp(0.5 * random.normal(size=201))[track][:, None] if seed else 1.0
    ids = np.where(track < 0, ALONE, cluster_id((track,)))
    statistics = observe(space, BINNING, space.error(truth, 0 * truth), covariance, ids)
    found = read(statistics)
    rows = space, 0 * truth, covariance, truth
    exact = evaluate_rows(*rows, tau=TAU, cluster=track)
    assert found.rows == exact.rows
    assert_close(found, exact, UNBINNED | BINNED, JOINT)
    assert not seed or all(part.n_eff < 2500 for part in found.dimensions.values())
    frozen = freeze_edges(space, simulated(seed + 50)[1], 10)
    for cut in (BinCut(kind="frozen", frozen=frozen), BinCut(10, "equal-width", (0.55, 1.9))):
        found, exact = read(statistics, cut), evaluate_rows(*rows, tau=TAU, cut=cut, cluster=track)
        for name, ours in found.dimensions.items():
            theirs = exact.dimensions[name]
            assert (ours.ence, ours.qce) == pytest.approx((theirs.ence, theirs.qce), abs=0.02)
            assert ours.uce == pytest.approx(theirs.uce, abs=0.03, rel=0.03)
            assert np.abs(ours.bins.n - theirs.bins.n).max() <= 100


@pytest.mark.parametrize("per_octave", [1024, 32])
@pytest.mark.parametrize(("tails", "space"), [("normal", XYZ), ("t", XYZ), ("t", WITH_YAW)])
def test_how_deviations_rank_errors_is_as_with_every_row_or_close_to_it(per_octave, tails, space):
    random = np.random.default_rng(per_octave)
    binning = Binning(LogBins(2.0**-20, per_octave, 40))
    sigma = np.exp(0.5 * random.normal(size=(5000, 3)))
    draw = random.normal(size=sigma.shape)
    error = sigma * (draw if tails == "normal" else random.standard_t(4, sigma.shape))
    error = space.error(error, 0 * error)
    covariance = sigma[:, :, None] ** 2 * np.eye(3)
    found = read(observe(space, binning, error, covariance))
    exact = evaluate_rows(space, 0 * error, covariance, error)
    # Coarse micro-bins take more rows as ties.
    near = 1e-3 if per_octave == 1024 else 3e-3
    pairs = [(one, exact.dimensions[name]) for name, one in found.dimensions.items()]
    for ours, theirs in [*pairs, (found.joint, exact.joint)]:
        whole = theirs.rejection.mean_squared_error[0]
        assert theirs.ause_relative > 0.1
        assert ours.ause_relative == pytest.approx(theirs.ause_relative, abs=near)
        assert ours.ause == pytest.approx(theirs.ause, abs=near * whole)
        assert ours.rejection.mean_squared_error[0] == pytest.approx(whole, rel=1e-8)
        assert ours.rejection.oracle == pytest.approx(theirs.rejection.oracle, abs=3e-3 * whole)
        left = theirs.rejection.mean_squared_error
        assert ours.rejection.mean_squared_error == pytest.approx(left, abs=20 * near * whole)


@pytest.mark.parametrize("space", SPACES)
def test_bins_hold_the_rows_between_their_edges_and_the_sums_of_these(space):
    error, covariance = simulated(1)
    statistics = observe(space, BINNING, error, covariance)
    held, found = OccupiedCells.of(statistics), read(statistics)
    for i, name in enumerate(space.names):
        variance = covariance[:, i, i]
        sigma, nees = np.sqrt(variance), error[:, i] ** 2 / variance
        bins = found.dimensions[name].bins
        assert bins.n.size == 20
        for b in range(20):
            here = (sigma >= bins.lower[b]) & (sigma < bins.upper[b])
            assert bins.n[b] == np.count_nonzero(here)
            assert bins.variance[b] == pytest.approx(variance[here].sum(), rel=1e-9)
            assert bins.squared_error[b] == pytest.approx((error[here, i] ** 2).sum(), rel=1e-9)
            assert bins.nees[b] == pytest.approx(nees[here].sum(), rel=1e-9)
            inside = (nees[here, None] <= chi_square(BINNING.tau, 1)).sum(axis=0)
            assert bins.within[b].tolist() == inside.tolist()
    # All axes at once are each axis on its own.
    for i in range(statistics.space.k + 1):
        laws.assert_same(held.axis(i), statistics.axis(i))
        assert held.totals(held.cells.nees)[i] == pytest.approx(statistics.axis(i).nees.sum())


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


# ---- few rows, or none

EQUAL_WIDTH = BinCut(kind="equal-width")


@pytest.mark.parametrize("cut", [EQUAL_COUNT, EQUAL_WIDTH, BinCut(20, "equal-width", (0.1, 1.0))])
def test_without_truth_every_measure_is_nan(cut):
    found = read(no_stage_statistics(WITH_YAW, BINNING), cut)
    assert found.rows == 0
    parts: list[Any] = [*found.dimensions.values(), found.joint]
    for part in parts:
        assert (part.n, part.bins.n.size) == (0, 0)
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name == "ranking":
                value = [value.ause, value.ause_relative, *value.rejection.mean_squared_error]
            if value is not None and field.name not in ("n", "k", "tau", "bins", "uce_bins"):
                assert np.isnan(value).all(), field.name
        assert math.isnan(part.qce)
    assert math.isnan(found.joint.nees_over_k)


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


# ---- more taken back than came


def read_in_every_way(statistics: StageStatistics) -> Evaluation:
    covariance = np.geomspace(0.1, 30.0, 60)[:, None, None] ** 2 * np.eye(statistics.space.k)
    frozen = freeze_edges(statistics.space, covariance, 5)
    for fewest in (1, 3):
        for cut in (
            BinCut(7, fewest_rows=fewest),
            BinCut(7, "equal-width", None, None, fewest),
            BinCut(7, "equal-width", (0.1, 40.0), None, fewest),
            BinCut(7, "frozen", None, frozen, fewest),
        ):
            found = read(statistics, cut)
    held = OccupiedCells.of(statistics).cells
    assert statistics.n <= 0 or (held.n > 0).all()
    assert found.rows == max(statistics.n, 0)
    return found


@costly
@given(seeds, st.integers(20, 44))
def test_any_merge_with_any_retraction_can_be_read(seed, n):
    random = np.random.default_rng(seed)
    state = counted(random_rows(seed, n))
    for part in state.slices:
        found = no_statistics(part.space, state.binning)
        for one in part.panes.values():
            found = found.merge(one.negated() if random.random() < 0.5 else one)
        read_in_every_way(found.raw)
        read_in_every_way(found.recalibrated)
    (classes,) = state.class_slices
    of_classes = no_classes(len(CLASSES))
    for held in classes.panes.values():
        of_classes = of_classes.merge(held.negated() if random.random() < 0.4 else held)
    reading = read_class_slice("lidar", of_classes)
    of_stages = of_classes.raw, of_classes.recalibrated
    for (_, evaluation), sums in zip(reading.stages, of_stages, strict=True):
        assert evaluation.n == max(sums.n, 0) or sums.n > 0


def test_bins_of_equal_width_hold_every_row_where_a_correction_came_in_part():
    def of(*sigma: float) -> StageStatistics:
        variance = np.square(sigma)[:, None, None]
        return observe(plain_space(("x",)), COARSE, np.zeros((len(sigma), 1)), variance)

    # What is left in [1, 1.19) has a root mean square of 1.4, beyond the micro-bin above it.
    left = of(1.15, 1.15, 1.15, 1.2).merge(of(1.0, 1.0).negated())
    found = read(left, BinCut(4, "equal-width"))
    bins = found.dimensions["x"].bins
    assert (bins.n.tolist(), bins.below, bins.above) == ([1, 0, 0, 1], 0, 0)
    lowest, highest, _ = found.joint.deviation
    assert (lowest, highest) == pytest.approx((1.2, 1.4027), rel=1e-4)
