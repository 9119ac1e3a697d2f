"""The age of frames without a common clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.pipeline.streams import SECOND, Staleness

PERIOD = SECOND // 10


def ages(staleness: Staleness, arrivals, stamps) -> list[float]:
    return [
        staleness.age(int(arrival), int(stamp))
        for arrival, stamp in zip(arrivals, stamps, strict=True)
    ]


def steady(n: int, begin: int = 0) -> np.ndarray:
    return begin + PERIOD * np.arange(n, dtype=np.int64)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**40))
def test_the_difference_of_the_clocks_is_no_age(offset, begin):
    assert ages(Staleness(), steady(50, begin), steady(50, offset)) == [0.0] * 50


def test_frames_that_queue_grow_old_and_are_young_again_when_the_queue_is_gone():
    stamps = steady(40)
    arrivals = stamps + 5 * SECOND  # of another clock
    arrivals[10:20] += 2 * SECOND
    found = ages(Staleness(), arrivals, stamps)
    assert found[:10] == [0.0] * 10
    assert found[10:20] == [2.0] * 10
    assert found[20:] == [0.0] * 20


def test_a_pause_of_our_own_is_an_age_and_no_jump_of_stamps():
    stamps = steady(40)
    arrivals = stamps.copy()
    arrivals[20:] += 30 * SECOND  # they were read so much later, as they were captured before
    staleness = Staleness()
    found = ages(staleness, arrivals, stamps)
    assert found[20:] == [30.0] * 20
    assert staleness.restarts == 0


@pytest.mark.parametrize("drift", [-1e-4, 1e-4])
def test_a_clock_that_runs_faster_or_slower_makes_nothing_old(drift):
    stamps = steady(20_000)
    found = ages(Staleness(), stamps + (drift * stamps).astype(np.int64), stamps)
    assert max(found) <= 60 * 1e-4 + 1e-9


def test_a_path_that_became_longer_for_good_is_the_usual_one_after_a_minute():
    stamps = steady(1200)
    arrivals = stamps.copy()
    arrivals[100:] += SECOND
    found = ages(Staleness(), arrivals, stamps)
    assert found[100] == 1.0
    assert found[-1] == 0.0


@pytest.mark.parametrize("jump", [-3600, -5, 11, 3600])
def test_stamps_that_jump_begin_the_estimate_anew(jump):
    stamps = steady(60)
    stamps[30:] += jump * SECOND
    staleness = Staleness()
    assert ages(staleness, steady(60), stamps) == [0.0] * 60
    assert staleness.restarts == 1


def test_stamps_set_back_by_less_than_a_straggler_may_be_are_found_after_a_few():
    stamps = steady(60)
    stamps[30:] -= 8 * PERIOD
    staleness = Staleness()
    found = ages(staleness, steady(60), stamps)
    assert found[30:32] == pytest.approx([0.8, 0.8])
    assert found[32:] == [0.0] * 28
    assert staleness.restarts == 1


def test_a_straggler_is_old_and_disturbs_nothing():
    stamps = steady(60)
    arrivals = steady(60)
    stamps[30] -= 5 * PERIOD
    staleness = Staleness()
    found = ages(staleness, arrivals, stamps)
    assert found[30] == 0.5
    assert found[:30] + found[31:] == [0.0] * 59
    assert staleness.restarts == 0


def test_only_what_waited_longer_than_the_limit_is_stale():
    staleness = Staleness()
    assert not staleness.is_stale(0, 0, 1.0)
    assert not staleness.is_stale(2 * SECOND, SECOND, 1.0)
    assert staleness.is_stale(3 * SECOND + 1, 2 * SECOND, 1.0)
    assert not staleness.is_stale(3 * SECOND + 2, None, 1.0)


def test_without_a_limit_nothing_is_stale():
    staleness = Staleness()
    assert not staleness.is_stale(0, 0, 0.0)
    assert not staleness.is_stale(1000 * SECOND, 1, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 100 * SECOND), st.integers(-(2**63), 2**63 - 1)), max_size=50)
)
def test_an_age_is_never_negative_and_what_is_kept_is_bounded(steps):
    staleness, arrival = Staleness(), 0
    for step, stamp in steps:
        arrival += step
        assert staleness.age(arrival, stamp) >= 0
        assert len(staleness._parts) <= 13
