"""Sums over panes and over slices: those of all parts, and made again only where one changed."""

from __future__ import annotations

from collections.abc import Generator
from functools import reduce
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.slices import TOTAL, Slice
from monitor.statistics.observations import finished
from monitor.statistics.stage import SliceStatistics, no_statistics
from monitor.statistics.windows import PaneKey, SliceTotals, WindowTotals
from tests import laws
from tests.calibration.matched_frames import BINNING, UV, WINDOWS, XY, drive, expected_panes
from tests.states import within

Value = TypeVar("Value")
quick = settings(max_examples=40)


def statistics_of(seed, space=XY) -> SliceStatistics:
    frames = [rows for rows in drive(seed, 30) if rows.space == space]
    index = {XY: 0, UV: 2}[space]
    return summed(list(expected_panes(frames, None)[index].values()), space)


def summed(parts: list[SliceStatistics], space=XY) -> SliceStatistics:
    return reduce(SliceStatistics.merge, parts, no_statistics(space, BINNING))


def steps_of(generator: Generator[None, None, Value]) -> int:
    return sum(1 for _ in generator)


# ---- over panes

pane_keys = st.sampled_from([(level, n) for level in range(3) for n in range(4)] + [(3, 0)])
changes = st.lists(st.tuples(pane_keys, st.integers(0, 3)), min_size=1, max_size=12)


@quick
@given(changes)
def test_a_window_is_the_sum_of_its_panes_however_they_change(drawn):
    totals = WindowTotals[SliceStatistics]()
    panes: dict[PaneKey, SliceStatistics] = {}
    for key, seed in drawn:
        # A pane may come, change, and go.
        if seed == 0:
            panes.pop(key, None)
        else:
            panes[key] = statistics_of(seed)
        for level in range(4):
            found = totals.read(7, panes, WINDOWS, level)
            parts = within(panes, level)
            if parts:
                assert found is not None
                laws.assert_same(found, summed(parts))
            else:
                assert found is None


@pytest.mark.parametrize("level", range(4))
def test_a_window_of_which_no_pane_changed_is_the_very_same(level):
    panes = {key: statistics_of(i) for i, key in enumerate([(0, 5), (0, 6), (1, 1), (2, 0)])}
    totals = WindowTotals[SliceStatistics]()
    found = totals.read(0, panes, WINDOWS, level)
    # Another window, another slice, and a copy of the panes in between.
    totals.read(0, panes, WINDOWS, 3 - level)
    totals.read(1, {(0, 5): statistics_of(9)}, WINDOWS, level)
    assert totals.read(0, dict(panes), WINDOWS, level) is found
    panes[0, 6] = statistics_of(10)
    assert totals.read(0, panes, WINDOWS, level) is not found


def test_a_change_of_older_panes_leaves_the_younger_windows_as_they_were():
    panes = {key: statistics_of(i) for i, key in enumerate([(0, 5), (0, 6), (1, 1), (2, 0)])}
    totals = WindowTotals[SliceStatistics]()
    before = [totals.read(0, panes, WINDOWS, level) for level in range(4)]
    panes[1, 1] = statistics_of(10)
    after = [totals.read(0, panes, WINDOWS, level) for level in range(4)]
    assert [one is other for one, other in zip(before, after, strict=True)] == [
        True,
        False,
        False,
        False,
    ]


# ---- over slices


def named(*entries: tuple[str, object]) -> list[tuple[Slice, SliceStatistics]]:
    return [
        (Slice(name, space, key=name), statistics_of(i, space))
        for i, (name, space) in enumerate(entries)
        if space in (XY, UV)
    ]


def test_every_space_has_a_total_of_its_slices_in_steps():
    slices = named(("car", XY), ("car (u,v)", UV), ("truck", XY), ("bus", XY))
    found = dict(finished(SliceTotals().read(slices)))
    assert list(found) == [TOTAL, f"{TOTAL} (u,v)"]
    laws.assert_same(found[TOTAL], summed([slices[i][1] for i in (0, 2, 3)]))
    laws.assert_same(found[f"{TOTAL} (u,v)"], slices[1][1])
    assert steps_of(SliceTotals().read(slices)) == 2


def test_a_total_is_made_again_only_if_a_slice_of_its_space_changed():
    slices = named(("car", XY), ("car (u,v)", UV), ("truck", XY), ("truck (u,v)", UV))
    totals = SliceTotals()
    before = dict(finished(totals.read(slices)))
    assert steps_of(totals.read(slices)) == 0
    slices[0] = (slices[0][0], statistics_of(9))
    after = dict(finished(totals.read(slices)))
    assert after[TOTAL] is not before[TOTAL]
    assert after[f"{TOTAL} (u,v)"] is before[f"{TOTAL} (u,v)"]
    more = dict(finished(totals.read([*slices, *named(("bus", XY))])))
    assert more[TOTAL].raw.n > after[TOTAL].raw.n


def test_without_slices_there_is_no_total():
    assert finished(SliceTotals().read([])) == ()


def test_a_total_is_never_called_like_a_slice():
    slices = named(("car", XY), (TOTAL, XY), ("total (u,v)", UV))
    names = [name for name, _ in finished(SliceTotals().read(slices))]
    assert names == [f"{TOTAL} (x,y)", f"{TOTAL} (u,v; 2)"]
