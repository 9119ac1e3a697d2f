"""Deviation and entropy of all detections: their means, quantiles and shares, from the rows."""

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import PredictedRows
from monitor.frames.space import plain_space
from monitor.statistics.folding import PredictedAccumulator
from monitor.statistics.predicted import (
    CHUNK,
    RANGES,
    Certainty,
    PredictedStatistics,
    certainty,
    no_predicted,
    ranges_of,
)
from monitor.statistics.reading import read_predicted, share_above
from monitor.statistics.windows import PaneKey, put
from tests.laws import costly
from tests.states import bits, observe_predicted
from tests.statistics.matched_frames import WINDOWS, fold

SEEDS = st.integers(0, 2**32 - 1)


PLACES = plain_space(("x", "y", "z"), "m")
PIXELS = plain_space(("u", "v", "w"), "px")


def frame(
    seed, n, slices=3, opinions=1, classes=5, stamp_ns=None, spread=0.7, space=PLACES
) -> PredictedRows:
    """Half as many classes are likely as there are; one row in ten has no class probabilities."""
    random = np.random.default_rng(seed)
    roots = np.exp(random.normal(scale=spread, size=(n, 3)))
    values = random.dirichlet(np.full(classes, 0.5), size=(n, opinions))
    values[random.random(n) < 0.1] = np.nan
    of_classes = values if opinions else None
    mean = random.normal(scale=20, size=(n, 3))
    return PredictedRows(space, random.integers(slices, size=n), mean, roots, of_classes, stamp_ns)


def certainty_of(rows: PredictedRows) -> Certainty:
    return certainty(rows.roots, rows.opinions)


def observed(rows: PredictedRows) -> PredictedStatistics:
    found = no_predicted()
    for a, b in pairwise([*range(0, rows.n, CHUNK), rows.n]):
        found = found.merge(observe_predicted(rows.take(np.arange(a, b))))
    return found


def test_rows_are_what_the_papers_say_of_each_detection():
    random = np.random.default_rng(3)
    n, k, joint = 40, 13, 11
    root = random.normal(size=(n, k, k)) + 3 * np.eye(k)
    covariance = root @ root.transpose(0, 2, 1)
    pivot = np.diagonal(np.linalg.cholesky(covariance), axis1=1, axis2=2)
    opinions = random.dirichlet(np.full(6, 0.2), size=(n, 4))
    rows = certainty(pivot[:, :joint], opinions)
    # σ_G = det(Σ)^(1/2K); Laves et al. 2019, eq. 3, and Wolf et al. 2024, eq. 10, over log C.
    _, log_determinant = np.linalg.slogdet(covariance[:, :joint, :joint])
    assert rows.deviation == pytest.approx(np.exp(log_determinant / (2 * joint)), rel=1e-12)
    each = -(opinions * np.log(np.maximum(opinions, 1e-300))).sum(axis=2) / math.log(6)
    mean = opinions.mean(axis=1)
    whole = -(mean * np.log(mean)).sum(axis=1) / math.log(6)
    assert rows.entropy == pytest.approx(whole, abs=1e-12)
    assert rows.aleatoric == pytest.approx(each.mean(axis=1), abs=1e-12)
    assert rows.epistemic == pytest.approx(whole - each.mean(axis=1), abs=1e-12)


@pytest.mark.parametrize("opinions", [1, 4])
def test_means_are_exact_and_quantiles_within_their_bin(opinions):
    rows = frame(5, 20_000, opinions=opinions)
    read, said = read_predicted("car", observed(rows), observed(rows)), certainty_of(rows)
    assert said.entropy is not None
    entropy = said.entropy[~np.isnan(said.entropy)]
    assert (read.n, read.classified) == (rows.n, entropy.size)
    assert read.opinions == (entropy.size if opinions > 1 else 0)
    assert read.deviation_mean == pytest.approx(said.deviation.mean(), rel=1e-9)
    assert read.entropy_mean == pytest.approx(entropy.mean(), rel=1e-9)
    for level in (50, 95):
        for values, found in (
            (said.deviation, getattr(read, f"deviation_q{level}")),
            (entropy, getattr(read, f"entropy_q{level}")),
        ):
            # On the scale of ranks, where the rows of one bin are all that is not known.
            assert (values <= found).mean() == pytest.approx(level / 100, abs=3e-3)
            assert found == pytest.approx(np.quantile(values, level / 100), rel=5e-3)
    assert read.entropy_above_before == pytest.approx(0.05, abs=1e-12)
    if opinions == 1:
        assert math.isnan(read.aleatoric)
        assert math.isnan(read.epistemic)
    else:
        assert said.aleatoric is not None
        assert read.aleatoric == pytest.approx(np.nanmean(said.aleatoric), rel=1e-9)
        assert read.aleatoric + read.epistemic == pytest.approx(read.entropy_mean, rel=1e-9)


def test_the_share_above_before_is_that_of_the_rows():
    earlier, now = frame(1, 20_000), frame(2, 5_000, classes=3, spread=1.1)
    read = read_predicted("car", observed(now), observed(earlier))
    for name in ("deviation", "entropy"):
        values = (getattr(certainty_of(rows), name) for rows in (earlier, now))
        before, after = (column[~np.isnan(column)] for column in values)
        share = (after > np.quantile(before, 0.95)).mean()
        assert getattr(read, f"{name}_above_before") == pytest.approx(share, abs=2e-3)


def share(counts, before) -> float:
    return share_above(np.array(counts), np.array(before), 0.95)


def test_each_range_is_held_against_itself_and_one_that_is_new_is_left_out():
    # Of rows that are all alike, within one bin, as many are above as ever.
    alike = [[0, 100, 0]]
    assert share(alike, [[0, 3000, 0]]) == pytest.approx(0.05)
    assert share([[0, 0, 7]], alike) == 1.0
    # Too few, fewer than now, and sums that a jump of time has left without the window's own rows.
    for few in ([0, 0, 0], [1, 98, 0], [0, -100, 0], [-50, 99, 0], [0, 99, 0]):
        assert math.isnan(share([[0, 50, 0]], [few]))
    assert math.isnan(share([[0, 101, 0]], alike))
    assert math.isnan(share([[0, 0, 0]], alike))
    # Far away all is less certain; what came most was near, and now is far.
    near, far = [200, 0, 0], [0, 0, 200]
    assert share([[10, 0, 0], [0, 0, 200]], [near, far]) == pytest.approx(0.05)
    assert share([[0, 0, 50], [0, 0, 150]], [near, far]) == pytest.approx((50 + 0.05 * 150) / 200)
    # One range is new: known of the other, as long as that is half of all.
    assert share([[0, 0, 50], [0, 0, 50]], [near, [0, 0, 1]]) == 1.0
    assert math.isnan(share([[0, 0, 50], [0, 0, 51]], [near, [0, 0, 1]]))


def test_ranges_are_half_octaves_of_the_distance_where_there_is_one():
    distance = np.array([0.0, 0.99, 1.0, 1.42, 2.0, 1023.0, 1024.0, 1e9])
    mean = distance[:, None] * np.array([[0.6, 0.8, 0.0]])
    found = ranges_of(PLACES, mean, ("x", "y")).tolist()
    assert found == [1, 1, 2, 3, 4, 21, 22, 22]
    assert found[-1] == RANGES - 1
    for space, position in ((PIXELS, ("x", "y", "z")), (PLACES, ())):
        assert not ranges_of(space, mean, position).any()
    # Without a position σ_G is not compared: it follows the scene.
    rows = frame(1, 2000, space=PIXELS)
    read = read_predicted("car", observed(rows), observed(rows))
    assert math.isnan(read.deviation_above_before)
    assert read.entropy_above_before == pytest.approx(0.05)


def test_nothing_known_is_nan_and_certain_or_clueless_is_not():
    nothing = read_predicted("car", no_predicted(), no_predicted())
    for name in ("deviation_mean", "deviation_q50", "entropy_mean", "entropy_above_before"):
        assert math.isnan(getattr(nothing, name))
    classes = np.stack([np.eye(4)[np.zeros(100, int)], np.full((100, 4), 0.25)])
    ones = np.ones((100, 3)), np.ones((100, 1))
    sure, clueless = (
        observed(PredictedRows(PLACES, np.zeros(100, np.int64), *ones, values[:, None]))
        for values in classes
    )
    found = read_predicted("car", sure, sure)
    assert found.entropy_mean == 0.0
    assert found.entropy_q95 == pytest.approx(0.0, abs=2.0**-20)
    found = read_predicted("car", clueless, sure)
    assert (found.entropy_mean, found.entropy_q50, found.entropy_above_before) == (1.0, 1.0, 1.0)


@costly
@given(seed=SEEDS, fold_rows=st.integers(1, 60))
def test_panes_hold_the_same_bits_however_rows_are_folded(seed, fold_rows):
    """Each pane is what the rows of its slice and event time give alone."""
    random = np.random.default_rng(seed)
    frames = [
        frame(
            [seed, i],
            int(random.integers(1, 12)),
            opinions=int(random.integers(3)),
            stamp_ns=None if random.random() < 0.1 else int(random.integers(0, 900)),
        )
        for i in range(12)
    ]
    clock = max((rows.stamp_ns for rows in frames if rows.stamp_ns is not None), default=None)
    expected: dict[int, dict[PaneKey, PredictedStatistics]] = defaultdict(dict)
    for rows in frames:
        for index in np.unique(rows.slices).tolist():
            mine = rows.take(rows.slices == index)
            put(expected[index], WINDOWS.place(rows.stamp_ns, clock), observed(mine))
    accumulator = PredictedAccumulator(WINDOWS, fold_rows, PLACES.names)
    for rows in frames:
        accumulator.add(rows)
        while accumulator.busy and random.random() < 0.5:
            accumulator.step()
    fold(accumulator)
    for _ in accumulator.move_on(clock):
        pass
    assert bits(accumulator.panes) == bits(dict(expected))
