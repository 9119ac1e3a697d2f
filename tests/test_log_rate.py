"""Buckets of lines: what passes is bounded, and nothing is left out without being told of."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.service.log import MINUTE_NS, OTHERS, LineKind, LineRate

SECOND = 10**9
LONG = 10 * MINUTE_NS


def rate_of(lines_a_minute: int = 12, burst: int = 6, most_kinds: int = 1024) -> LineRate:
    return LineRate(lines_a_minute, burst, most_kinds)


def kind_of(name: str) -> LineKind:
    return LineKind("monitor.tried", "info", (name,), name)


def passing(rate: LineRate, name: str, times: list[int]) -> list[int | None]:
    return [rate.admit(kind_of(name), now) for now in times]


KINDS = "abcdefgh"

# Kinds, how long after the line before, and now and then a look at what is overdue.
lines = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.one_of(st.just(0), st.integers(0, 2 * SECOND), st.integers(0, 3 * MINUTE_NS)),
        st.sampled_from(("log", "log", "log", "tell")),
    ),
    max_size=80,
)
limits = st.tuples(st.integers(1, 200), st.integers(1, 8))


@given(lines, limits, st.integers(1, 9))
def test_no_kind_passes_more_often_than_its_burst_and_its_rate_allow(lines, limits, most_kinds):
    lines_a_minute, burst = limits
    rate, now = rate_of(lines_a_minute, burst, most_kinds), 0
    passed: dict[str, list[int]] = {}
    most = 1 if most_kinds >= len(KINDS) else 2  # a bucket of its own, and that of all others
    for name, pause, what in lines:
        now += pause
        if what == "tell":
            rate.overdue(now, MINUTE_NS)
        elif rate.admit(kind_of(name), now) is not None:
            passed.setdefault(name, []).append(now)
    for times in passed.values():
        for i, first in enumerate(times):
            for n, last in enumerate(times[i:], 1):
                # In whole numbers: n <= most * (burst + rate * minutes).
                assert (n - most * burst) * MINUTE_NS <= most * lines_a_minute * (last - first)


@given(lines, limits, st.integers(1, 9), st.integers(0, 3))
def test_what_passed_and_what_was_told_of_is_all_that_came(lines, limits, most_kinds, unwritten):
    lines_a_minute, burst = limits
    rate, now, told, came = rate_of(lines_a_minute, burst, most_kinds), 0, 0, 0
    for number, (name, pause, what) in enumerate(lines):
        now += pause
        if what == "tell":
            told += sum(count for _, count in rate.overdue(now, MINUTE_NS))
            continue
        came += 1
        kind = kind_of(name)
        before = rate.admit(kind, now)
        if before is None:
            continue
        if number % 4 < unwritten:
            rate.leave_out(kind, before + 1, now)  # it passed, but went nowhere
        else:
            told += before + 1
    told += sum(count for _, count in rate.overdue(now, 0))
    assert told == came
    assert rate.overdue(now + LONG, 0) == []


@given(lines, limits)
def test_where_kinds_fit_each_is_as_if_it_were_alone(lines, limits):
    together, now = rate_of(*limits), 0
    alone: dict[str, LineRate] = {}
    for name, pause, _ in lines:
        now += pause
        own, kind = alone.setdefault(name, rate_of(*limits)), kind_of(name)
        assert together.admit(kind, now) == own.admit(kind, now)


def test_a_burst_passes_then_one_in_an_interval_which_tells_of_the_others():
    rate = rate_of(lines_a_minute=12, burst=3)
    assert passing(rate, "a", [0] * 5) == [0, 0, 0, None, None]
    assert passing(rate, "a", [5 * SECOND - 1, 5 * SECOND, 5 * SECOND]) == [None, 3, None]
    assert passing(rate, "a", [10 * SECOND]) == [1]


def test_a_kind_that_was_silent_for_long_has_its_burst_again_and_no_more():
    rate = rate_of(lines_a_minute=12, burst=3)
    passing(rate, "a", [0] * 9)
    assert passing(rate, "a", [LONG] * 5) == [6, 0, 0, None, None]


def test_another_kind_passes_while_one_is_held_back():
    rate = rate_of(burst=1)
    assert passing(rate, "a", [0, 0]) == [0, None]
    assert passing(rate, "b", [0, 0]) == [0, None]


def test_without_a_limit_all_pass():
    assert passing(rate_of(lines_a_minute=0, burst=1), "a", [0] * 1000) == [0] * 1000


def test_what_a_silent_kind_left_out_is_overdue_after_the_patience_and_told_once():
    rate = rate_of(burst=1)
    passing(rate, "a", [0, 7, 8, 9])
    assert rate.overdue(SECOND + 6, SECOND) == []
    assert rate.overdue(SECOND + 7, SECOND) == [(kind_of("a"), 3)]
    assert rate.overdue(LONG, SECOND) == []


def test_the_first_of_a_kind_passes_however_many_others_were_held_back():
    rate = rate_of(burst=1)
    for number in range(500):
        assert passing(rate, f"kind {number}", [0, 0]) == [0, None]


def test_kinds_beyond_the_most_share_a_bucket_until_one_can_be_forgotten():
    rate = rate_of(lines_a_minute=60, burst=2, most_kinds=2)
    passing(rate, "a", [0] * 3)
    passing(rate, "b", [0] * 3)
    assert [rate.admit(kind_of(name), 0) for name in "cdef"] == [0, 0, None, None]
    # Their buckets are full again, but what they left out must be told first.
    assert passing(rate, "c", [LONG] * 3) == [0, 0, None]
    assert Counter(dict(rate.overdue(LONG, 0))) == {
        kind_of("a"): 1,
        kind_of("b"): 1,
        OTHERS: 3,
    }
    assert passing(rate, "g", [LONG] * 3) == [0, 0, None]


@pytest.mark.parametrize("apart", [1, MINUTE_NS])
def test_memory_is_bounded_by_the_most_kinds(apart):
    rate = rate_of(most_kinds=10)
    for number in range(1000):
        rate.admit(kind_of(f"kind {number}"), number * apart)
        assert len(rate._buckets) <= 11  # with that of all others


@pytest.mark.parametrize(("lines_a_minute", "burst"), [(600, 6), (12, 1), (0, 1)])
def test_other_limits_hold_from_the_next_line_on_and_old_debts_end(lines_a_minute, burst):
    rate = rate_of(lines_a_minute=1, burst=60)
    passing(rate, "a", [0] * 100)  # by these, the bucket is full in an hour
    rate.lines_a_minute, rate.burst = lines_a_minute, burst
    if lines_a_minute:
        assert passing(rate, "a", [0, MINUTE_NS // lines_a_minute]) == [None, 41]
    else:
        assert passing(rate, "a", [0, 0]) == [40, 0]
    assert passing(rate, "b", [0]) == [0]


def test_other_limits_forget_nothing_that_is_to_be_told():
    rate = rate_of(burst=1)
    passing(rate, "a", [0, 0, 0])
    rate.lines_a_minute, rate.burst = 6, 2
    assert rate.overdue(0, 0) == [(kind_of("a"), 2)]
