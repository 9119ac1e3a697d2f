"""The pace of a stream, as a law over any arrivals."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.service.calls import BURST_SECONDS, Pace

RATES = st.sampled_from([0.5, 1.0, 8.0, 128.0])
# Idle times between messages, exact in binary.
GAPS = st.lists(st.integers(0, 256).map(lambda i: i / 128), max_size=200)


def read_times(rate: float, gaps: list[float]) -> list[float]:
    """When each message is read, of one that is ready a gap after the last was read."""
    pace, now, times = Pace(), 0.0, []
    for gap in gaps:
        now += pace.delay(now, rate)
        times.append(now)
        now += gap
    return times


@given(RATES, GAPS)
def test_no_window_holds_more_than_its_rate_and_one_burst(rate, gaps):
    times = read_times(rate, gaps)
    burst = max(BURST_SECONDS, 1 / rate)
    for first in range(0, len(times), 7):
        for last in range(first, len(times)):
            window = times[last] - times[first]
            assert last - first + 1 <= rate * (window + burst) + 1e-9


@given(RATES, st.integers(1, 100))
def test_who_keeps_the_pace_never_waits(rate, count):
    times = read_times(rate, [1 / rate] * count)
    assert times == [i / rate for i in range(count)]


@given(GAPS)
def test_without_a_rate_nobody_waits(gaps):
    pace = Pace()
    assert all(pace.delay(sum(gaps[:i]), 0.0) == 0.0 for i in range(len(gaps)))


def test_a_pace_that_is_changed_is_kept_from_then_on():
    pace = Pace()
    assert pace.delay(10.0, 0.0) == 0.0
    assert [pace.delay(10.0, 1.0) for _ in range(3)] == [0.0, 1.0, 2.0]
    assert pace.delay(10.0, 0.0) == 0.0
