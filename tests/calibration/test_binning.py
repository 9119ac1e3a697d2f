"""Micro-bins: every value in one bin, edges to the bin they open, equal in every replica."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import LimitsConfig
from monitor.statistics.bins import Binning, LogBins
from tests.calibration.oracle import chi_square
from tests.calibration.statistics_oracle import log_edges

DEVIATION, NEES = Binning().deviation, Binning().nees
ALL = [DEVIATION, NEES, LogBins(1.0, 1, 1), LogBins(0.3, 7, 5), LogBins(1e-6, 24, 40)]
DENORMAL = 5e-324


def by_search(bins: LogBins, value):
    return np.searchsorted(bins.edges, value, side="right")


@pytest.mark.parametrize("bins", ALL)
def test_an_edge_goes_to_the_bin_it_opens_and_an_ulp_below_to_the_one_before(bins):
    opened = np.arange(1, bins.count)
    assert bins.index(bins.edges).tolist() == opened.tolist()
    assert bins.index(np.nextafter(bins.edges, 0)).tolist() == (opened - 1).tolist()
    assert bins.index(np.nextafter(bins.edges, np.inf)).tolist() == opened.tolist()


@pytest.mark.parametrize("bins", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_the_index_is_that_of_a_search_among_the_edges(bins, seed):
    random = np.random.default_rng(seed)
    span = np.log2(bins.edges[-1] / bins.edges[0])
    value = bins.lowest * 2.0 ** random.uniform(-0.2 * span - 3, 1.2 * span + 3, 20_000)
    assert np.array_equal(bins.index(value), by_search(bins, value))


@settings(max_examples=300)
@given(st.lists(st.floats(0, allow_infinity=True, allow_nan=False), min_size=1, max_size=20))
def test_the_index_is_that_of_a_search_for_any_float_there_is(values):
    value = np.array(values)
    for bins in (DEVIATION, NEES):
        assert np.array_equal(bins.index(value), by_search(bins, value))


@pytest.mark.parametrize("bins", ALL)
def test_nothing_falls_outside_the_first_and_the_last_bin(bins):
    value = np.array([0.0, DENORMAL, 1e-310, 1e308, np.finfo(float).max, np.inf])
    last = bins.count - 1
    with np.errstate(all="raise", under="ignore"):
        assert bins.index(value).tolist() == [0, 0, 0, last, last, last]


def test_an_index_keeps_the_shape_of_its_values():
    assert DEVIATION.index(np.ones((3, 4, 2))).shape == (3, 4, 2)
    assert DEVIATION.index(np.ones((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("bins", ALL)
def test_bounds_enclose_the_edges_from_zero_to_infinity(bins):
    lower, upper = bins.bounds
    assert (lower[0], upper[-1]) == (0.0, np.inf)
    assert lower.shape == upper.shape == (bins.count,)
    assert np.array_equal(lower[1:], upper[:-1])
    assert (lower < upper).all()


@pytest.mark.parametrize("bins", ALL)
def test_edges_are_spaced_evenly_in_the_logarithm_and_whole_octaves_are_exact(bins):
    edges = log_edges(bins.lowest, bins.per_octave, bins.octaves)
    assert bins.edges == pytest.approx(edges, rel=1e-14)
    octaves = bins.edges[:: bins.per_octave]
    assert octaves.tolist() == [bins.lowest * 2.0**i for i in range(bins.octaves + 1)]


def test_the_default_micro_bins_reach_over_every_deviation_that_is_let_pass():
    assert (DEVIATION.per_octave, DEVIATION.octaves) == (32, 40)
    assert DEVIATION.count == 32 * 40 + 2
    limits = LimitsConfig()
    assert DEVIATION.edges[0] <= limits.smallest_deviation
    assert limits.largest_deviation < DEVIATION.edges[-1]


def test_the_unit_of_a_bin_is_the_power_of_two_just_below_its_variance():
    binning = Binning()
    lower, upper = binning.deviation.bounds
    unit = 2.0**binning.variance_exponent
    assert (unit[1:] <= lower[1:] ** 2).all()
    assert (2 * unit[1:] > lower[1:] ** 2).all()
    assert unit[0] == upper[0] ** 2
    squares, deviations = binning.scales
    assert np.array_equal(squares, 2.0**32 / unit)
    assert (np.frexp(deviations)[0] == 0.5).all()
    # Of the deviation: the power of two just below it, or half of that.
    relative = 2.0**32 / deviations[1:] / lower[1:]
    assert ((relative > 0.25) & (relative <= 1)).all()


@pytest.mark.parametrize("k", [1, 2, 7])
def test_thresholds_are_the_quantiles_of_chi_square(k):
    binning = Binning()
    assert binning.chi_square(k) == pytest.approx([chi_square(t, k) for t in binning.tau])


CHANGES: list[dict[str, Any]] = [
    {"deviation": LogBins(2.0**-11, 32, 16)},
    {"deviation": LogBins(2.0**-10, 16, 16)},
    {"deviation": LogBins(2.0**-10, 32, 17)},
    {"nees": LogBins(2.0**-15, 16, 32)},
    {"nees": LogBins(2.0**-16, 8, 32)},
    {"nees": LogBins(2.0**-16, 16, 31)},
    {"tau": (0.5, 0.68, 0.9, 0.95)},
    {"tau": (0.5, 0.68, 0.9, 0.95, 0.99, 0.999)},
    {"tau": (0.5, 0.6827, 0.9, 0.95, 0.99)},
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_a_bin_or_level_changes_the_hash(change):
    assert Binning(**change).hash != Binning().hash
    assert Binning(**change) != Binning()


def test_no_two_of_the_changes_share_a_hash():
    hashes = {Binning(**change).hash for change in CHANGES}
    assert len(hashes) == len(CHANGES)


def test_the_hash_is_the_same_in_every_replica_and_release():
    assert Binning().hash == Binning().hash == "391bcd92fd1750ad"
    assert Binning().hash in Binning().describe()
