"""How far event time has come: a wild stamp is not believed, ten or a hundred that agree are."""

from __future__ import annotations

import pytest

from monitor.statistics.windows import AHEAD, BACK, EventClock

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


@pytest.mark.parametrize(("start", "enough"), [(10**9, AHEAD), (-(10**9), BACK)])
def test_those_that_make_time_jump_need_not_be_equal_and_make_it_jump_once(start, enough):
    clock = clock_at()
    jumped = []
    for i in range(enough + 50):
        jumped.append(clock.see(start + i))
        assert clock.now_ns == (5000 if i < enough - 1 else start + i)
    assert jumped == [start < 0 and i == enough - 1 for i in range(enough + 50)]
    assert (clock.now_ns, clock.jumps) == (start + enough + 49, 1)


def test_wild_stamps_among_good_ones_never_add_up_to_a_jump():
    clock = clock_at()
    for i in range(10 * BACK):
        for wild in (10**9, -(10**9)):
            assert not any(clock.see(wild) for _ in range(AHEAD - 1))
            assert not clock.see(5000 + i)
    assert (clock.now_ns, clock.jumps) == (5000 + 10 * BACK - 1, 0)
