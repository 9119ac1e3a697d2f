"""Statistics in which more was taken back than came, as a replica has them that sees a
correction before, or without, what it corrects: everything can be read off them all the same."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import plain_space
from monitor.statistics.class_evaluation import ClassEvaluation, read_classes
from monitor.statistics.class_statistics import no_class_statistics
from monitor.statistics.evaluation import DimensionMeasures, Evaluation
from monitor.statistics.exact_engine import BinCut, freeze_edges
from monitor.statistics.reading import OccupiedCells, read
from monitor.statistics.stage import StageStatistics, no_statistics, observe
from tests.calibration.matched_frames import BINNING as TRACKED
from tests.calibration.matched_frames import XY, accumulated, matched
from tests.states import BINNING, BOX, CLASSES, counted, random_rows

pytestmark = pytest.mark.filterwarnings("error")
quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def read_in_every_way(statistics: StageStatistics) -> Evaluation:
    spread = np.geomspace(0.1, 30.0, 60)
    k = statistics.space.k
    covariance = spread[:, None, None] ** 2 * np.eye(k)
    frozen = freeze_edges(statistics.space, covariance, 5)
    for fewest_rows in (1, 3):
        for cut in (
            BinCut(7, fewest_rows=fewest_rows),
            BinCut(7, "equal-width", None, None, fewest_rows),
            BinCut(7, "equal-width", (0.1, 40.0), None, fewest_rows),
            BinCut(7, "frozen", None, frozen, fewest_rows),
        ):
            found = read(statistics, cut)
            held = OccupiedCells.of(statistics).cells
            assert statistics.n <= 0 or (held.n > 0).all()
    return found


@quick
@given(seeds, st.integers(0, 12), st.integers(1, 12))
def test_any_merge_with_any_retraction_can_be_read(seed, added, taken):
    random = np.random.default_rng(seed)
    state = counted(random_rows(seed, added + taken + 20))
    held = [(part, statistics) for part in state.slices for statistics in part.panes.values()]
    for space in {part.space for part, _ in held}:
        found = no_statistics(space, BINNING)
        for part, statistics in held:
            if part.space != space:
                continue
            found = (
                found.merge(statistics.negated())
                if random.random() < 0.5
                else found.merge(statistics)
            )
        read_in_every_way(found.raw)
        read_in_every_way(found.recalibrated)


@quick
@given(seeds, st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_tracks_taken_back_before_they_came_can_be_read(seed, came, taken, narrow):
    plus = accumulated([matched([seed % 2**32, 1], came, slices=(0,), tracks=5)])
    minus = accumulated([matched([seed % 2**32, 2], taken, slices=(0,), tracks=5)])
    found = no_statistics(XY, TRACKED)
    for statistics in plus.panes.get(0, {}).values():
        found = found.merge(statistics)
    for statistics in minus.panes.get(0, {}).values():
        found = found.merge(statistics.negated())
    evaluation = read_in_every_way(found.recalibrated if narrow else found.raw)
    assert evaluation.rows == max(came - taken, 0)


@pytest.mark.parametrize("taken", [5, 9])
def test_what_holds_no_rows_reads_as_nothing(taken):
    random = np.random.default_rng(taken)

    def some(n: int) -> StageStatistics:
        covariance = np.exp(random.normal(size=(n, 1, 1))) * np.eye(3)
        return observe(BOX, BINNING, random.normal(size=(n, 3)), covariance)

    found = read_in_every_way(some(5).merge(some(taken).negated()))
    assert found.rows == 0
    for measures in found.dimensions.values():
        for field in fields(DimensionMeasures):
            value = getattr(measures, field.name)
            if isinstance(value, float):
                assert np.isnan(value), field.name


def test_a_correction_that_has_come_wholly_changes_no_measure():
    random = np.random.default_rng(3)
    covariance = np.exp(random.normal(size=(40, 1, 1))) * np.eye(3)
    error = random.normal(size=(40, 3))
    kept = observe(BOX, BINNING, error[:25], covariance[:25])
    gone = observe(BOX, BINNING, error[25:], covariance[25:])
    early = kept.merge(gone.negated())
    whole, cut = early.merge(gone), BinCut(7)
    assert read(whole, cut).dimensions["x"].ence == read(kept, cut).dimensions["x"].ence


def test_bins_of_equal_width_hold_every_row_where_a_correction_came_in_part():
    def of(*sigma: float) -> StageStatistics:
        variance = np.square(sigma)[:, None, None]
        return observe(plain_space(("x",)), BINNING, np.zeros((len(sigma), 1)), variance)

    # What is left in [1, 1.19) has a root mean square of 1.4, beyond the micro-bin above it.
    left = of(1.15, 1.15, 1.15, 1.2).merge(of(1.0, 1.0).negated())
    found = read(left, BinCut(4, "equal-width"))
    bins = found.dimensions["x"].bins
    assert (bins.n.tolist(), bins.below, bins.above) == ([1, 0, 0, 1], 0, 0)
    lowest, highest, _ = found.joint.deviation
    assert (lowest, highest) == pytest.approx((1.2, 1.4027), rel=1e-4)


@quick
@given(seeds, st.integers(1, 40))
def test_any_class_statistics_can_be_read(seed, n):
    random = np.random.default_rng(seed)
    (state,) = counted(random_rows(seed, n)).class_slices
    found = no_class_statistics(len(CLASSES))
    for statistics in state.panes.values():
        found = (
            found.merge(statistics.negated()) if random.random() < 0.4 else found.merge(statistics)
        )
    read_back = read_classes(found)
    assert read_back.n == max(found.n, 0) or found.n > 0
    assert {field.name for field in fields(ClassEvaluation)}
