"""A wall clock that is set is told from one that is corrected."""

from __future__ import annotations

import pytest

from monitor.pipeline.housekeeping import SECOND, WallClock

LOOK = SECOND // 20


def looked(clock: WallClock, wall, monotonic) -> list[float]:
    found = (clock.look(w, m) for w, m in zip(wall, monotonic, strict=True))
    return [step for step in found if step is not None]


@pytest.mark.parametrize("step", [-3600.0, -0.6, -0.4, 0.4, 0.6, 86400.0 * 365 * 30])
def test_a_step_of_half_a_second_begins_an_epoch_and_tells_how_far(step):
    clock = WallClock(epoch=7)
    monotonic = [LOOK * i for i in range(1000)]
    wall = [m + (round(step * SECOND) if i >= 50 else 0) for i, m in enumerate(monotonic)]
    steps = [pytest.approx(step)] if abs(step) > 0.5 else []
    assert looked(clock, wall, monotonic) == steps
    assert (clock.epoch, clock.steps) == (7 + len(steps), len(steps))


def test_small_steps_that_add_up_are_one():
    monotonic = [LOOK * i for i in range(100)]
    wall = [m + i // 20 * SECOND // 5 for i, m in enumerate(monotonic)]  # 0.2 s every second
    assert looked(WallClock(), wall, monotonic) == [pytest.approx(0.6, abs=0.01)]


@pytest.mark.parametrize("rate", [-5e-4, 5e-4])
@pytest.mark.parametrize("pause", [LOOK, 20 * SECOND])
def test_a_clock_that_is_corrected_slowly_never_steps(rate, pause):
    monotonic = [pause * i for i in range(50_000)]
    wall = [m + round(rate * m) for m in monotonic]
    assert looked(WallClock(), wall, monotonic) == []


def test_a_loop_that_stood_still_is_no_step_and_the_limit_is_an_argument():
    assert looked(WallClock(), [10, 10 + 300 * SECOND], [0, 300 * SECOND]) == []
    assert looked(WallClock(step_seconds=5.0), [0, 4 * SECOND], [0, 0]) == []
    assert looked(WallClock(step_seconds=3.0), [0, 4 * SECOND], [0, 0]) == [4.0]
