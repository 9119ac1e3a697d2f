"""Micro-bins: every value in one bin, edges to the bin they open, equal in every replica; and the
export bins made of them, whose counters never fall."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import LimitsConfig
from monitor.statistics.bins import (
    EXPONENT,
    Binning,
    BinTotals,
    ExportEdges,
    InvalidExportEdges,
    LogBins,
    StageBins,
)
from monitor.statistics.exact_sums import SparseSums, from_cells

DEVIATION, NEES = Binning().deviation, Binning().nees
ALL = [DEVIATION, NEES, LogBins(1.0, 1, 1), LogBins(0.3, 7, 5), LogBins(2.0**-10, 256, 16)]


@pytest.mark.parametrize("bins", ALL)
def test_an_edge_goes_to_the_bin_it_opens_and_all_that_lies_beyond_to_the_outer_ones(bins):
    opened = np.arange(1, bins.count)
    assert bins.index(bins.edges).tolist() == opened.tolist()
    assert bins.index(np.nextafter(bins.edges, 0)).tolist() == (opened - 1).tolist()
    assert bins.index(np.nextafter(bins.edges, np.inf)).tolist() == opened.tolist()
    value = np.array([0.0, 5e-324, 1e-310, 1e308, np.finfo(float).max, np.inf])
    last = bins.count - 1
    octaves = bins.edges[:: bins.per_octave]
    assert octaves.tolist() == [bins.lowest * 2.0**i for i in range(bins.octaves + 1)]
    with np.errstate(all="raise", under="ignore"):
        assert bins.index(value).tolist() == [0, 0, 0, last, last, last]
    span = np.log2(bins.edges[-1] / bins.edges[0])
    octave = np.random.default_rng(1).uniform(-0.2 * span - 3, 1.2 * span + 3, (40_000, 1))
    value = bins.lowest * 2.0**octave
    assert np.array_equal(bins.index(value), np.searchsorted(bins.edges, value, side="right"))


@given(st.lists(st.floats(0, allow_infinity=True, allow_nan=False), max_size=20))
def test_the_index_is_that_of_a_search_for_any_float_there_is(values):
    value = np.array(values)
    for bins in (DEVIATION, NEES):
        assert np.array_equal(bins.index(value), np.searchsorted(bins.edges, value, side="right"))


def test_the_unit_of_a_bin_is_the_power_of_two_just_below_its_variance():
    binning = Binning()
    lower, upper = binning.deviation.bounds
    unit = 2.0**binning.variance_exponent
    assert (lower[0], upper[-1]) == (0.0, np.inf)
    assert lower[1:].tolist() == upper[:-1].tolist() == binning.deviation.edges.tolist()
    assert (unit[1:] <= lower[1:] ** 2).all()
    assert (2 * unit[1:] > lower[1:] ** 2).all()
    assert unit[0] == upper[0] ** 2
    squares, deviations = binning.scales
    assert np.array_equal(squares, 2.0**32 / unit)
    assert (np.frexp(deviations)[0] == 0.5).all()
    # Of the deviation: the power of two just below it, or half of that.
    relative = 2.0**32 / deviations[1:] / lower[1:]
    assert ((relative > 0.25) & (relative <= 1)).all()


def test_any_change_of_a_bin_or_level_changes_the_hash_which_no_release_does():
    assert Binning().hash == "391bcd92fd1750ad"
    assert Binning().hash in Binning().describe()
    for name in ("deviation", "nees"):
        bins = getattr(Binning(), name)
        for field in ("lowest", "per_octave", "octaves"):
            change: dict[str, Any] = {name: replace(bins, **{field: getattr(bins, field) * 2})}
            assert len({Binning(), Binning(**change)}) == 2
            assert Binning(**change).hash != Binning().hash
    assert Binning(tau=Binning().tau[1:]).hash != Binning().hash


def test_the_default_micro_bins_reach_over_every_deviation_that_is_let_pass():
    limits = LimitsConfig()
    assert DEVIATION.edges[0] <= limits.smallest_deviation
    assert limits.largest_deviation < DEVIATION.edges[-1]


# ---- export bins


BINNING = Binning()
OCTAVES = tuple(2.0**octave for octave in range(-4, 5))
EDGES = ExportEdges(OCTAVES, BINNING)
BINS, LEVELS = BINNING.deviation.count, len(BINNING.tau)
AXES = 4


def as_cells(fold) -> SparseSums:
    none, keys = np.zeros(0, np.int64), sorted(fold)
    flat = [(slot * AXES + axis) * BINS + micro for slot, axis, micro in keys]
    values = np.array([fold[key] for key in keys], np.int64).reshape(-1, LEVELS + 5)
    return from_cells(np.array(flat, np.int64), values, none, none)


def export_bin(micro) -> int:
    """How many of the shared edges lie at or below the micro-bin; its bounds tell."""
    lower, upper = (float(bound[micro]) for bound in BINNING.deviation.bounds)
    below = sum(edge <= lower for edge in OCTAVES)
    assert all(edge >= upper for edge in OCTAVES[below:])
    return below


def drawn(seed: int) -> dict[tuple[int, int, int], list[int]]:
    """Cells of one fold: (slot, axis, micro-bin) → n, within, variance, squared error, error, NEES.

    Most lie near the edges of export bins.
    """
    random = np.random.default_rng(seed)
    near = [int(np.searchsorted(BINNING.deviation.edges, edge)) for edge in OCTAVES]
    micro = [*(i + step for i in near for step in (-1, 0, 1, 2)), *random.integers(0, BINS, 12)]
    found = {}
    for _ in range(random.integers(20)):
        n, most = int(random.integers(1, 1000)), 2**61
        key = int(random.integers(6)), int(random.integers(AXES)), int(random.choice(micro))
        within, sums = random.integers(0, n + 1, LEVELS), random.integers(0, most, 4)
        sums[2] -= random.integers(0, most)
        found[key] = [n, *within.tolist(), *sums.tolist()]
    return found


@given(st.lists(st.integers(0, 2**32 - 1).map(drawn), max_size=4))
def test_totals_are_what_plain_loops_over_the_cells_add_up_to_and_never_fall(several):
    totals = BinTotals(EDGES, AXES)
    for number, fold in enumerate(several):
        before = [totals.of(slot) for slot in range(7)]
        totals.add(as_cells(fold))
        for slot, old in enumerate(before):
            new = totals.of(slot)
            assert_totals(new, several[: number + 1], slot)
            for name in ("n", "variance", "squared_error", "nees", "within"):
                assert (getattr(new, name) >= getattr(old, name)).all(), name
            # What was read stays as it was.
            assert_totals(old, several[:number], slot)


def assert_totals(found: StageBins, several: Any, slot: int) -> None:
    n = np.zeros((AXES, 10), int)
    variance, squared_error = np.zeros((AXES - 1, 10)), np.zeros((AXES - 1, 10))
    nees, within = np.zeros(10), np.zeros((10, LEVELS), int)
    for fold in several:
        for (of, axis, micro), values in fold.items():
            if of != slot:
                continue
            b = export_bin(micro)
            n[axis, b] += values[0]
            unit = 2.0 ** (EXPONENT + int(BINNING.variance_exponent[micro]))
            if axis < AXES - 1:
                variance[axis, b] += values[1 + LEVELS] * unit
                squared_error[axis, b] += values[2 + LEVELS] * unit
            else:
                nees[b] += values[4 + LEVELS] * 2.0**EXPONENT
                within[b] += values[1 : 1 + LEVELS]
    assert np.array_equal(found.n, n)
    assert np.array_equal(found.within, within)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-13)
    np.testing.assert_allclose(found.squared_error, squared_error, rtol=1e-13)
    np.testing.assert_allclose(found.nees, nees, rtol=1e-13)


@given(st.lists(st.floats(2e-3, 60), min_size=1, max_size=9, unique=True).map(sorted))
def test_an_edge_moves_to_the_edge_of_a_micro_bin_that_is_nearest_by_ratio(wanted):
    micro = BINNING.deviation.edges
    nearest = [min(micro, key=lambda edge: max(edge / each, each / edge)) for each in wanted]
    if len(set(nearest)) < len(nearest):
        with pytest.raises(InvalidExportEdges):
            ExportEdges(tuple(wanted), BINNING)
    else:
        found = ExportEdges(tuple(wanted), BINNING)
        np.testing.assert_allclose(found.edges, nearest, rtol=1e-12)
        # Ascending, and every bin is made of micro-bins that lie within it.
        assert set(np.diff(found.of_micro_bin).tolist()) <= {0, 1}
        lower, upper = BINNING.deviation.bounds
        for b, (low, high) in enumerate(
            zip([0, *found.edges], [*found.edges, np.inf], strict=True)
        ):
            assert lower[found.of_micro_bin == b].min() == low
            assert upper[found.of_micro_bin == b].max() == high


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ((1.0, 1.001), "1 and 1.001 .* at least 1/32 of an octave apart"),
        ((2e6, 3e6), r"2e\+06 and 3e\+06 .* within \[9\.53674e-07, 1\.04858e\+06\]"),
    ],
)
def test_edges_that_cannot_be_told_apart_are_refused_with_what_to_do(wanted, shown):
    with pytest.raises(InvalidExportEdges, match=shown):
        ExportEdges(wanted, BINNING)


def test_edges_of_whole_octaves_stay_and_other_micro_bins_make_other_edges():
    assert EDGES.edges.tolist() == list(OCTAVES)
    assert EDGES.count == 10
    coarse = ExportEdges((1.3, 7.0), Binning(deviation=LogBins(1.0, 1, 4)))
    assert coarse.edges.tolist() == [1.0, 8.0]
    # Micro-bins: below 1, then by octaves up to 16, then above.
    assert coarse.of_micro_bin.tolist() == [0, 1, 1, 1, 2, 2]
