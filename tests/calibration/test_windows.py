"""Windows in event time: where a stamp lies at any clock, and that nothing is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.windows import InvalidWindows, Windows, advance, put
from tests.states import within

SECOND = 10**9
DAY = Windows((300 * SECOND, 3600 * SECOND, 86400 * SECOND), 5)
# Panes of 2, 6 and 12 ns: small enough for every case to be met.
SMALL = Windows((6, 18, 36), 3)
quick = settings(max_examples=200)
stamps = st.integers(-80, 200)
clocks = st.none() | stamps


@dataclass(frozen=True, slots=True)
class Count:
    """Statistics of the simplest kind."""

    n: int

    @property
    def is_zero(self) -> bool:
        return self.n == 0

    def merge(self, other: Count) -> Count:
        return Count(self.n + other.n)

    def retract(self, other: Count) -> Count:
        return Count(self.n - other.n)


def counted(numbers, clock, windows=SMALL):
    """Panes of stamps that all were counted at one clock."""
    panes: dict[tuple[int, int], Count] = {}
    for stamp in numbers:
        put(panes, windows.place(stamp, clock), Count(1))
    return panes


def expected_level(stamp, clock):
    """By the definition: the first window whose panes, the one not yet full included, reach back
    to the stamp."""
    for level, length in enumerate((2, 6, 12)):
        oldest = clock // length - 3
        if stamp >= oldest * length:
            return level
    return 3


@quick
@given(stamps, stamps)
def test_a_stamp_lies_in_the_shortest_window_that_reaches_back_to_it(stamp, clock):
    level, number = SMALL.place(stamp, clock)
    assert level == expected_level(stamp, max(clock, stamp))
    if level < SMALL.older:
        length = SMALL.pane_ns[level]
        assert number * length <= stamp < (number + 1) * length
    else:
        assert number == 0


@quick
@given(st.lists(stamps, max_size=30), clocks, stamps)
def test_panes_that_move_on_are_those_of_the_later_clock(numbers, clock, later):
    last = max(numbers, default=later)
    clock = last if clock is None else max(clock, last)
    panes = counted(numbers, clock)
    end = max(clock, later)
    advance(panes, SMALL, end)
    assert panes == counted(numbers, end)


@quick
@given(st.lists(stamps, max_size=30), st.lists(stamps, min_size=1, max_size=5))
def test_moving_on_in_steps_is_moving_on_at_once(numbers, steps):
    stepwise, at_once = (counted(numbers, max(numbers, default=0)) for _ in range(2))
    for clock in sorted(steps):
        advance(stepwise, SMALL, clock)
    advance(at_once, SMALL, max(steps))
    assert stepwise == at_once
    assert not advance(stepwise, SMALL, max(steps))


@quick
@given(st.lists(stamps, min_size=1, max_size=30), stamps)
def test_a_window_holds_its_length_and_at_most_a_pane_more(numbers, later):
    clock = max(*numbers, later)
    panes = counted(numbers, clock)
    for level, length in enumerate(SMALL.lengths_ns):
        n = sum(one.n for one in within(panes, level))
        assert n >= sum(stamp > clock - length for stamp in numbers)
        assert n <= sum(stamp > clock - length - SMALL.pane_ns[level] for stamp in numbers)
    assert sum(one.n for one in within(panes, SMALL.older)) == len(numbers)


def test_what_is_revised_is_taken_from_the_pane_it_lies_in_now():
    panes = counted([100, 101, 160], 160)
    put(panes, SMALL.place(100, 160), Count(-1))
    assert panes == counted([101, 160], 160)
    put(panes, SMALL.place(101, 160), Count(-1))
    assert panes == counted([160], 160)


def test_a_retraction_that_comes_first_waits_for_what_it_takes_back():
    panes = {SMALL.place(160, 160): Count(-1)}
    assert advance(panes, SMALL, 400)
    put(panes, SMALL.place(160, 400), Count(1))
    assert panes == {}


def test_what_has_no_stamp_is_older_than_every_window():
    assert DAY.place(None, 5) == (3, 0)
    assert not DAY.too_old((3, 0), 10**18)


def test_nothing_is_too_old_before_there_is_a_clock():
    panes = {(0, 1): Count(1)}
    assert not advance(panes, SMALL, None)
    assert SMALL.place(2, None) == (0, 1)


def test_windows_of_minutes_hours_and_a_day_have_panes_of_a_fifth():
    assert DAY.pane_ns == (60 * SECOND, 720 * SECOND, 17280 * SECOND)
    now = 1_700_000_000 * SECOND
    ages = {0: 0, 299: 0, 361: 1, 3599: 1, 4321: 2, 86399: 2, 103681: 3}
    for age, level in ages.items():
        assert DAY.place(now - age * SECOND, now)[0] == level


@pytest.mark.parametrize(
    ("lengths", "panes", "said"),
    [
        ((300,), 0, "cannot be cut into 0 panes"),
        ((10,), 3, "cannot be cut into 3 panes"),
        ((0,), 1, "cannot be cut"),
        ((-6,), 3, "cannot be cut"),
        ((6, 15), 3, "is no multiple"),
        ((6, 6), 3, "is no multiple"),
        ((18, 6), 3, "is no multiple"),
    ],
)
def test_lengths_that_do_not_fit_into_each_other_are_refused(lengths, panes, said):
    with pytest.raises(InvalidWindows, match=said):
        Windows(lengths, panes)
