"""Windows in event time: where a stamp lies at any clock, that nothing is lost on the way, and sums
over panes and slices, made again only where one changed."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.slices import TOTAL, Slice
from monitor.statistics.observations import finished
from monitor.statistics.state import SliceStatistics, SliceTotals, no_statistics
from monitor.statistics.windows import (
    AHEAD,
    BACK,
    EventClock,
    PaneKey,
    Windows,
    WindowTotals,
    advance,
    put,
)
from tests import laws
from tests.states import within
from tests.statistics.matched_frames import BINNING, UV, WINDOWS, XY, drive, expected_panes

# Panes of 2, 6 and 12 ns: small enough for every case to be met.
SMALL = Windows((6, 18, 36), 3)
stamps = st.integers(-80, 200)


@dataclass(frozen=True, slots=True)
class Count:
    n: int

    @property
    def is_zero(self) -> bool:
        return self.n == 0

    def merge(self, other: Any) -> Any:
        return Count(self.n + other.n)


def counted(numbers, clock):
    panes: dict[tuple[int, int], Count] = {}
    for stamp in numbers:
        put(panes, SMALL.place(stamp, clock), Count(1))
    return panes


@given(stamps, stamps)
def test_a_stamp_lies_in_the_shortest_window_that_reaches_back_to_it(stamp, clock):
    """The first whose panes, the one not yet full included, reach back to the stamp."""
    level, number = SMALL.place(stamp, clock)
    reach = [(max(clock, stamp) // length - 3) * length for length in (2, 6, 12)]
    assert level == next((i for i, oldest in enumerate(reach) if stamp >= oldest), 3)
    if level < SMALL.older:
        length = SMALL.pane_ns[level]
        assert number * length <= stamp < (number + 1) * length
    else:
        assert number == 0


@given(st.lists(stamps, max_size=30), st.none() | stamps, st.lists(stamps, min_size=1, max_size=5))
def test_panes_that_move_on_in_steps_or_at_once_are_those_of_the_later_clock(numbers, clock, later):
    last = max(numbers, default=later[0])
    clock = last if clock is None else max(clock, last)
    end = max(clock, *later)
    stepwise, at_once = (counted(numbers, clock) for _ in range(2))
    for step in sorted(later):
        advance(stepwise, SMALL, max(clock, step))
    advance(at_once, SMALL, end)
    assert stepwise == at_once == counted(numbers, end)
    assert not advance(stepwise, SMALL, end)


# ---- sums over panes


def summed(parts: list[SliceStatistics], space=XY) -> SliceStatistics:
    return reduce(SliceStatistics.merge, parts, no_statistics(space, BINNING))


def statistics_of(seed, space=XY) -> SliceStatistics:
    frames = [rows for rows in drive(seed, 30) if rows.space == space]
    index = {XY: 0, UV: 2}[space]
    return summed(list(expected_panes(frames, None)[index].values()), space)


pane_keys = st.sampled_from([(level, n) for level in range(3) for n in range(4)] + [(3, 0)])


@given(st.lists(st.tuples(pane_keys, st.integers(0, 3)), min_size=1, max_size=12))
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
            laws.assert_same(found, summed(parts) if parts else None)
            # What has not changed is the very same, of a copy of the panes too.
            assert totals.read(7, dict(panes), WINDOWS, level) is found


# ---- sums over slices


def named(*entries: tuple[str, object]) -> list[tuple[Slice, SliceStatistics]]:
    return [
        (Slice(name, space, key=name), statistics_of(i, space))
        for i, (name, space) in enumerate(entries)
        if space in (XY, UV)
    ]


def test_every_space_has_a_total_made_in_steps_and_again_only_if_a_slice_of_it_changed():
    slices = named(("car", XY), ("car (u,v)", UV), ("truck", XY), ("bus", XY))
    totals = SliceTotals[SliceStatistics]()
    assert sum(1 for _ in totals.read(slices)) == 2
    before = finished(totals.read(slices))
    assert [name for name, _ in before] == [TOTAL, f"{TOTAL} (u,v)"]
    laws.assert_same(before[0][1], summed([slices[i][1] for i in (0, 2, 3)]))
    laws.assert_same(before[1][1], slices[1][1])
    assert sum(1 for _ in totals.read(slices)) == 0
    slices[0] = (slices[0][0], statistics_of(9))
    after = finished(totals.read(slices))
    laws.assert_same(after[0][1], summed([slices[i][1] for i in (0, 2, 3)]))
    assert after[1][1] is before[1][1]
    assert finished(SliceTotals[SliceStatistics]().read([])) == ()
    # A total is never called like a slice.
    slices = named(("car", XY), (TOTAL, XY), ("total (u,v)", UV))
    names = [name for name, _ in finished(SliceTotals[SliceStatistics]().read(slices))]
    assert names == [f"{TOTAL} (x,y)", f"{TOTAL} (u,v; 2)"]


# ---- how far event time has come: a wild stamp is not believed, many that agree are

REACH, NEAR = 1000, 400


def clock_at(now=5000) -> EventClock:
    """The first stamp is believed whatever it is."""
    clock = EventClock(REACH, NEAR)
    assert (clock.now_ns, clock.believes(0)) == (None, False)
    assert not clock.see(now)
    assert clock.now_ns == now
    return clock


@pytest.mark.parametrize("offset", [0, 1, NEAR, -1, -REACH])
def test_a_stamp_within_reach_is_believed_on_either_side(offset):
    clock = clock_at()
    assert clock.believes(5000 + offset)
    assert not clock.see(5000 + offset)
    assert clock.now_ns == 5000 + max(0, offset)


@pytest.mark.parametrize(
    ("wild", "enough"),
    [(5000 + NEAR + 1, AHEAD), (2**63 - 1, AHEAD), (5000 - REACH - 1, BACK), (-(2**63), BACK)],
)
def test_wild_stamps_move_nothing_before_there_are_enough_of_them(wild, enough):
    clock = clock_at()
    for _ in range(enough - 1):
        assert not clock.believes(wild)
        assert not clock.see(wild)
        assert (clock.now_ns, clock.jumps) == (5000, 0)
    # Windows begin anew only where time has gone back.
    assert clock.see(wild) == (enough == BACK)
    assert (clock.now_ns, clock.jumps) == (wild, 1)
    assert clock.believes(wild)


def test_wild_stamps_among_good_ones_never_add_up_to_a_jump():
    clock = clock_at()
    for i in range(10 * BACK):
        for wild in (10**9, -(10**9)):
            assert not any(clock.see(wild) for _ in range(AHEAD - 1))
            assert not clock.see(5000 + i)
    assert (clock.now_ns, clock.jumps) == (5000 + 10 * BACK - 1, 0)
