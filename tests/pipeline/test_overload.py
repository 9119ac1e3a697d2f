"""When monitoring gives way to frames, when it comes back, and how old a frame is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.pipeline.housekeeping import Overload
from monitor.pipeline.streams import Staleness
from tests.piped import SECOND

PERIOD = SECOND // 10
CALM = (0.0, 0)


def shed(overload: Overload, *samples: tuple[float, float, int]) -> list[bool]:
    """Looks at (s now, s late, rows that wait); whether it sheds after each."""
    found = []
    for sample in samples:
        overload.look(*sample)
        found.append(overload.shedding)
    return found


def both() -> Overload:
    return Overload(lag_seconds=0.1, waiting_rows=100, calm_seconds=1.0)


@pytest.mark.parametrize(
    ("limits", "samples", "sheds"),
    [
        # A loop that stays late sheds; a single long step sheds nothing.
        ({"lag_seconds": 0.1}, [(0.0, 0.11, 0), (0.2, 0.3, 0)], [False, True]),
        ({"lag_seconds": 0.1}, [(0.0, 5.0, 0), (0.1, 0.0, 0), (0.2, 5.0, 0)], [False] * 3),
        # Too many rows that wait shed at once.
        ({"waiting_rows": 100}, [(0.0, 0.0, 100), (0.1, 0.0, 101)], [False, True]),
        # Without limits nothing is ever shed, and what has no limit holds up no end.
        ({"lag_seconds": 0.0, "waiting_rows": 0}, [(t, 100.0, 10**9) for t in range(20)], None),
        (
            {"lag_seconds": 0.0, "waiting_rows": 100, "calm_seconds": 1.0},
            [(0.0, 9.0, 101), (1.0, 9.0, 0), (2.0, 9.0, 0)],
            [True, True, False],
        ),
    ],
)
def test_monitoring_gives_way_where_the_loop_stays_late_or_rows_pile_up(limits, samples, sheds):
    assert shed(Overload(**limits), *samples) == (sheds or [False] * len(samples))


def test_it_ends_after_a_while_well_below_both_limits():
    overload = both()
    assert overload.look(0.0, 0.0, 101)
    for now in (0.1, 0.5, 1.0):
        assert not overload.look(now, *CALM)
    assert overload.shedding
    assert overload.look(1.1, *CALM)
    assert not overload.shedding
    assert overload.look(2.0, 0.0, 101)
    assert overload.episodes == 2


@pytest.mark.parametrize(("lag", "waiting"), [(0.09, 0), (0.0, 99)])
def test_what_is_just_below_a_limit_is_not_calm_and_begins_the_calm_anew(lag, waiting):
    assert all(shed(both(), (0.0, 0.0, 101), *((t, lag, waiting) for t in range(1, 50))))
    broken = [(0.0, 0.0, 101), (0.1, *CALM), (1.0, lag, waiting), (1.2, *CALM), (2.1, *CALM)]
    assert shed(both(), *broken, (2.2, *CALM)) == [True] * 5 + [False]


# ---- the age of frames, without a common clock


def ages(staleness: Staleness, arrivals, stamps) -> list[float]:
    pairs = zip(arrivals, stamps, strict=True)
    return [staleness.age(int(arrival), int(stamp)) for arrival, stamp in pairs]


def steady(n: int, begin: int = 0) -> np.ndarray:
    return begin + PERIOD * np.arange(n, dtype=np.int64)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**40))
def test_the_difference_of_the_clocks_is_no_age(offset, begin):
    assert ages(Staleness(), steady(50, begin), steady(50, offset)) == [0.0] * 50


def test_frames_that_queue_grow_old_and_are_young_again_when_the_queue_is_gone():
    stamps = steady(40)
    arrivals = stamps + 5 * SECOND  # of another clock
    arrivals[10:20] += 2 * SECOND
    assert ages(Staleness(), arrivals, stamps) == [0.0] * 10 + [2.0] * 10 + [0.0] * 20


@pytest.mark.parametrize("drift", [-1e-4, 1e-4])
def test_a_clock_that_runs_faster_or_slower_makes_nothing_old(drift):
    stamps = steady(20_000)
    found = ages(Staleness(), stamps + (drift * stamps).astype(np.int64), stamps)
    assert max(found) <= 60 * 1e-4 + 1e-9


def test_a_path_that_became_longer_for_good_is_the_usual_one_after_a_minute():
    arrivals = steady(1200)
    arrivals[100:] += SECOND
    found = ages(Staleness(), arrivals, steady(1200))
    assert (found[100], found[-1]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("arrives_s", "captured_s", "found", "restarts"),
    [
        # They were read later than they were captured: a pause of our own is an age.
        (30.0, 0.0, [30.0] * 30, 0),
        # Stamps that jump begin the estimate anew: at once, or after a few.
        *((0.0, jump, [0.0] * 30, 1) for jump in (-3600.0, -5.0, 11.0, 3600.0)),
        (0.0, -0.8, [0.8, 0.8] + [0.0] * 28, 1),
    ],
)
def test_a_pause_is_an_age_and_a_jump_of_stamps_is_none(arrives_s, captured_s, found, restarts):
    arrivals, stamps = steady(60), steady(60)
    arrivals[30:] += round(arrives_s * SECOND)
    stamps[30:] += round(captured_s * SECOND)
    staleness = Staleness()
    assert ages(staleness, arrivals, stamps)[30:] == pytest.approx(found)
    assert staleness.restarts == restarts


def test_a_straggler_is_old_and_disturbs_nothing():
    stamps = steady(60)
    stamps[30] -= 5 * PERIOD
    staleness = Staleness()
    assert ages(staleness, steady(60), stamps) == [0.0] * 30 + [0.5] + [0.0] * 29
    assert staleness.restarts == 0


def test_only_what_waited_longer_than_the_limit_is_stale():
    staleness = Staleness()
    assert not staleness.is_stale(0, 0, 1.0)
    assert not staleness.is_stale(2 * SECOND, SECOND, 1.0)
    assert staleness.is_stale(3 * SECOND + 1, 2 * SECOND, 1.0)
    assert not staleness.is_stale(3 * SECOND + 2, None, 1.0)
    assert not staleness.is_stale(1000 * SECOND, 1, 0.0)  # no limit


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-(2**63), 2**63 - 1)), max_size=50))
def test_an_age_is_never_negative_and_memory_is_bounded(steps):
    staleness, arrival = Staleness(), 0
    for step, stamp in steps:
        arrival += step * SECOND
        assert staleness.age(arrival, stamp) >= 0
        assert len(staleness._parts) <= 13
