"""Where the micro-bins of class probabilities lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.class_statistics import (
    CLASS_BINNING,
    CONFIDENCE,
    DIVISORS,
    equal_width_bins,
)
from tests.calibration.class_oracle import bin_of

BINNING = CLASS_BINNING
unit = st.one_of(
    st.floats(0, 1),
    st.integers(0, 60).map(lambda k: k / 60),
    st.sampled_from(DIVISORS).flatmap(lambda d: st.sampled_from(np.linspace(0, 1, d + 1).tolist())),
)


@settings(max_examples=300)
@given(unit, st.sampled_from([10, 15, 20, 60, 4]))
def test_micro_bins_make_up_the_bins_of_linspace_exactly(value, bins):
    edges = np.linspace(0, 1, bins + 1).tolist()
    for axis in (*BINNING.axes[:2], *BINNING.coarse_axes[:2], BINNING.sixtieths):
        index = axis.index(np.array([value]))
        assert equal_width_bins(axis, bins)[index].tolist() == [bin_of(value, edges)]


@pytest.mark.parametrize("axis", range(4))
def test_bins_are_numbered_from_certain_to_uncertain(axis):
    for each in (BINNING.axes[axis], BINNING.coarse_axes[axis]):
        assert each.index(each.lower).tolist() == list(range(each.count))
        assert (np.diff(each.lower) < 0).all() == (axis == CONFIDENCE)


@pytest.mark.parametrize("axis", range(4))
def test_a_coarse_bin_is_made_of_whole_micro_bins(axis):
    fine, coarse = BINNING.axes[axis], BINNING.coarse_axes[axis]
    assert np.isin(coarse.edges, fine.edges).all()
    of = BINNING.coarse_of[axis]
    assert (coarse.lower[of] <= fine.lower).all() and (fine.upper <= coarse.upper[of]).all()


def test_a_confident_detector_is_told_apart():
    confidence = np.array([0.99, 0.999, 0.9999, 0.99995, 0.99999, 1.0])
    assert (np.diff(BINNING.axes[CONFIDENCE].index(confidence)) < 0).all()


def test_what_rounding_puts_beyond_an_end_stays_in_the_last_bin():
    axes = BINNING.axes
    assert [axis.index(np.array([-0.0]))[0] for axis in axes[1:]] == [0, 0, 0]
    assert axes[3].index(np.array([1.001]))[0] == axes[3].count - 1
    assert axes[2].upper[axes[2].index(np.array([149 * np.log(2)]))] < 128
