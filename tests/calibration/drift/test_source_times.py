"""The time of every source, as its frames come."""

from __future__ import annotations

import numpy as np

from monitor.drift.clocks import SET_BACK_NS, SourceTimes

SECOND = 10**9


def came(times: SourceTimes, *frames: tuple[int, float]):
    """Frames (source, seconds)."""
    source, seconds = zip(*frames, strict=True)
    return times.take(
        np.array(source, np.int64), (np.array(seconds) * SECOND).round().astype(np.int64)
    )


def test_time_is_the_latest_stamp_of_a_source_and_a_late_one_changes_nothing():
    arrivals = came(SourceTimes(9), (0, 5.2), (1, 100.0), (0, 5.9), (0, 4.0), (0, 6.1))
    assert (arrivals.time_ns / SECOND).tolist() == [5.2, 100.0, 5.9, 5.9, 6.1]
    assert arrivals.life.tolist() == [1, 2, 1, 1, 1]
    assert arrivals.turn.tolist() == [1, 2, 1, 1, 3]
    assert arrivals.ended == (1,)


def test_a_source_begins_anew_only_when_it_is_set_back_by_more_than_the_limit():
    back = SET_BACK_NS / SECOND
    arrivals = came(SourceTimes(9), (0, 50.0), (0, 50.0 - back), (0, 49.9 - back))
    assert arrivals.life.tolist() == [1, 1, 2]
    assert (arrivals.time_ns[-1], arrivals.ended) == (round((49.9 - back) * SECOND), (1,))


def test_of_too_many_sources_the_one_not_heard_of_for_longest_is_over():
    times = SourceTimes(2)
    arrivals = came(times, (0, 1.0), (1, 1.0), (0, 1.5), (2, 1.0))
    assert arrivals.ended == (2,)
    _, goes_on = times.now(np.array([1, 2, 3, 4]))
    assert goes_on.tolist() == [True, False, True, False]


def test_a_source_that_waits_for_labels_while_another_has_minutes_of_them_is_not_over():
    times = SourceTimes(9)
    came(times, (0, 1.0))
    came(times, *((1, second) for second in range(300)))
    assert came(times, (0, 1.1)).life.tolist() == [1]


def test_frames_are_numbered_over_all_calls():
    times = SourceTimes(9)
    came(times, (0, 1.0), (1, 1.0))
    assert came(times, (0, 1.0)).number.tolist() == [2]
