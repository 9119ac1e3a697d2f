"""The time in which a budget is counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.clocks import DrivingClock
from tests.calibration.drift.family_oracle import SlowClock

SECOND = 10**9
seeds = st.integers(0, 2**32 - 1)


def driven(clock: DrivingClock, source: int, *seconds: float) -> list[float]:
    return [clock.drive(source, round(at * SECOND)) for at in seconds]


@settings(max_examples=60)
@given(seeds)
def test_a_clock_goes_as_the_slow_one_does(seed):
    random = np.random.default_rng(seed)
    clock, slow, at = DrivingClock(), SlowClock(), np.zeros(4, np.int64)
    for _ in range(200):
        source = int(random.integers(4)) if random.random() < 0.3 else 0
        steps = [0.1, 0.1, 1.0, 4.0, 20.0, 0.0, -0.1, -9.0, -11.0]
        at[source] += round(random.choice(steps) * SECOND)
        assert clock.drive(source, int(at[source])) == pytest.approx(
            slow.drive(source, int(at[source])), abs=1e-12
        )
    assert clock.driven == pytest.approx(slow.driven)


def test_the_first_frame_of_a_source_adds_nothing_and_the_next_one_its_step():
    assert driven(DrivingClock(), 0, 7.0, 7.5, 7.6) == pytest.approx([0, 0.5, 0.1])


def test_of_a_long_pause_five_seconds_count():
    assert driven(DrivingClock(), 0, 0.0, 3600.0, 3601.0) == pytest.approx([0, 5, 1])


@pytest.mark.parametrize("sources", [1, 2, 5])
def test_sources_of_one_vehicle_drive_the_same_hour_together(sources):
    clock = DrivingClock()
    for number in range(1000):
        for source in range(sources):
            # Each by a clock of its own.
            clock.drive(source, source * 10**15 + number * SECOND // 10)
    assert clock.driven == pytest.approx(99.9, abs=0.1)


def test_a_source_that_waits_for_its_truth_does_not_hold_the_others_up():
    clock = DrivingClock()
    driven(clock, 0, *np.arange(0, 100, 0.1))
    driven(clock, 1, *np.arange(0, 100, 0.1))
    assert clock.driven == pytest.approx(197, abs=2)


def test_streams_that_begin_anew_again_and_again_drive_on():
    clock = DrivingClock()
    for number in range(6000):
        clock.drive(number // 200, number * SECOND // 10)
    assert clock.driven > 400


def test_truth_of_an_earlier_frame_adds_nothing_and_gives_nothing_twice():
    assert driven(DrivingClock(), 0, 0.0, 1.0, 0.5, 1.0, 1.5) == pytest.approx([0, 1, 0, 0, 0.5])


def test_a_clock_that_was_set_back_goes_on_from_there():
    assert driven(DrivingClock(), 0, 100.0, 101.0, 50.0, 51.0) == pytest.approx([0, 1, 0, 1])


def test_what_a_source_drove_waits_for_its_tracks_and_is_given_once():
    clock = DrivingClock()
    for source, seconds in ((0, 0.5), (0, 0.25), (1, 1.0)):
        clock.drive(source, SECOND)
        clock.wait(source, seconds)
    assert [clock.waited(source) for source in (0, 0, 1, 2)] == [0.75, 0, 1, 0]


def test_what_a_source_waited_for_is_forgotten_with_it():
    clock = DrivingClock()
    driven(clock, 1, 0.0)
    clock.wait(1, 3.0)
    driven(clock, 0, *np.arange(0, 420, 0.1))
    driven(clock, 2, 0.0)
    clock.wait(1, 3.0)
    assert clock.waited(1) == 0


def test_a_source_that_is_gone_leaves_the_whole_time_to_the_others():
    clock = DrivingClock()
    driven(clock, 1, 0.0)
    before = driven(clock, 0, *np.arange(0, 20, 1.0))
    driven(clock, 0, *np.arange(20, 100, 1.0))
    assert before[1:] == pytest.approx([0.5] * 19)
    assert clock.drive(0, 100 * SECOND) == pytest.approx(1.0)
