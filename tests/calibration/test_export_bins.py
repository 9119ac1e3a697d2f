"""Export bins against plain loops over cells, and that no counter ever falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.statistics.bins import (
    EXPONENT,
    Binning,
    BinTotals,
    ExportEdges,
    InvalidExportEdges,
    LogBins,
)
from monitor.statistics.exact_sums import SparseSums, from_cells, total

BINNING = Binning()
OCTAVES = tuple(2.0**octave for octave in range(-4, 5))
EDGES = ExportEdges(OCTAVES, BINNING)
BINS, LEVELS = BINNING.deviation.count, len(BINNING.tau)
AXES = 4
COUNTS = st.integers(1, 1000)
SUMS = st.integers(0, 2**61 - 1)


@st.composite
def folds(draw, slots=6):
    """Cells of one fold: (slot, axis, micro-bin) → n, within, variance, squared error, error, NEES.

    Three in four lie near the edges of export bins.
    """
    near = [int(np.searchsorted(BINNING.deviation.edges, edge)) for edge in OCTAVES]
    micro = st.sampled_from([i + step for i in near for step in (-1, 0, 1, 2)])
    key = st.tuples(
        st.integers(0, slots - 1), st.integers(0, AXES - 1), micro | st.integers(0, BINS - 1)
    )
    found = {}
    for each in draw(st.sets(key, max_size=20)):
        n = draw(COUNTS)
        within = [draw(st.integers(0, n)) for _ in range(LEVELS)]
        error = draw(st.integers(-(2**61), 2**61 - 1))
        found[each] = [n, *within, draw(SUMS), draw(SUMS), error, draw(SUMS)]
    return found


def as_cells(fold) -> SparseSums:
    none = np.zeros(0, np.int64)
    keys = sorted(fold)
    flat = [(slot * AXES + axis) * BINS + micro for slot, axis, micro in keys]
    if not flat:
        return SparseSums.zero(LEVELS + 5)
    values = np.array([fold[key] for key in keys], np.int64)
    return from_cells(np.array(flat, np.int64), values, none, none)


def export_bin(micro) -> int:
    """How many of the shared edges lie at or below the micro-bin; its bounds tell."""
    lower, upper = (float(bound[micro]) for bound in BINNING.deviation.bounds)
    below = sum(edge <= lower for edge in OCTAVES)
    assert all(edge >= upper for edge in OCTAVES[below:])
    return below


def totals_of(*parts) -> BinTotals:
    totals = BinTotals(EDGES, AXES)
    for part in parts:
        totals.add(part)
    return totals


@given(st.lists(folds(), max_size=4))
def test_totals_are_what_plain_loops_over_the_cells_add_up_to(several):
    totals = totals_of(*(as_cells(fold) for fold in several))
    for slot in range(6):
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
        found = totals.of(slot)
        assert np.array_equal(found.n, n)
        assert np.array_equal(found.within, within)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-13)
        np.testing.assert_allclose(found.squared_error, squared_error, rtol=1e-13)
        np.testing.assert_allclose(found.nees, nees, rtol=1e-13)


@given(st.lists(folds(), min_size=1, max_size=5))
def test_no_total_ever_falls(several):
    totals = BinTotals(EDGES, AXES)
    before = [totals.of(slot) for slot in range(6)]
    for fold in several:
        totals.add(as_cells(fold))
        after = [totals.of(slot) for slot in range(6)]
        for old, new in zip(before, after, strict=True):
            for name in ("n", "variance", "squared_error", "nees", "within"):
                assert (getattr(new, name) >= getattr(old, name)).all(), name
        before = after


def test_sums_that_spilled_count_in_full():
    fold = {(1, 0, 200): [1, *[0] * LEVELS, 2**61 - 1, 7, 0, 2**61 - 1]}
    cells = total([as_cells(fold)] * 5)
    assert cells.spill.size
    unit = 2.0 ** (EXPONENT + int(BINNING.variance_exponent[200]))
    found = totals_of(cells).of(1)
    assert found.variance[0].sum() == pytest.approx(5 * (2**61 - 1) * unit, rel=1e-15)
    assert found.n.sum() == 5


def test_what_was_read_stays_as_it_was_and_what_was_never_seen_is_zero():
    cells = as_cells({(0, AXES - 1, 300): [3, *[1] * LEVELS, 5, 0, 0, 5]})
    totals = totals_of(cells)
    first = totals.of(0)
    totals.add(cells)
    assert first.n.sum() == 3 and totals.of(0).n.sum() == 6
    assert first.within.sum() == LEVELS
    unseen = totals.of(9)
    assert unseen.n.shape == (AXES, 10) and unseen.variance.shape == (AXES - 1, 10)
    assert not unseen.n.any() and not unseen.nees.any()


def test_cells_of_a_retraction_are_our_own_mistake():
    cells = as_cells({(0, 0, 3): [3, *[1] * LEVELS, 5, 0, 0, 5]})
    with pytest.raises(AssertionError, match="never falls"):
        totals_of(-cells)


def test_edges_of_whole_octaves_stay_where_they_are():
    assert EDGES.edges.tolist() == list(OCTAVES)
    assert EDGES.count == 10


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
        ((2.0, 1.0), "2 and 1 are not ascending"),
        ((1.0, 1.001), "1 and 1.001 .* at least 1/32 of an octave apart"),
        ((2e6, 3e6), r"2e\+06 and 3e\+06 .* within \[9\.53674e-07, 1\.04858e\+06\]"),
    ],
)
def test_edges_that_cannot_be_told_apart_are_refused_with_what_to_do(wanted, shown):
    with pytest.raises(InvalidExportEdges, match=shown):
        ExportEdges(wanted, BINNING)


def test_other_micro_bins_make_other_edges():
    coarse = Binning(deviation=LogBins(1.0, 1, 4))
    assert ExportEdges((1.3, 7.0), coarse).edges.tolist() == [1.0, 8.0]
    # Micro-bins: below 1, then by octaves up to 16, then above.
    assert ExportEdges((1.3, 7.0), coarse).of_micro_bin.tolist() == [0, 1, 1, 1, 2, 2]
