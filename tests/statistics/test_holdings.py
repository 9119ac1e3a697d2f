"""Which uploads a state holds: each once, however they come together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.statistics.holdings import AlreadyHeld, Holdings
from monitor.statistics.observations import finished
from monitor.store.statistics_state import StoredState, parsed
from tests.laws import costly
from tests.states import assert_same_state, counted, joined, random_rows

LIVES = [("car 1", "a"), ("car 1", "b"), ("car 2", "a")]
uploads = st.lists(st.tuples(st.sampled_from(LIVES), st.integers(1, 8)), unique=True)


def held(*some) -> Holdings:
    found = Holdings()
    for (vehicle, epoch), sequence in some:
        found = found.merge(Holdings.of(vehicle, epoch, sequence))
    return found


@given(ours=uploads, theirs=uploads)
def test_holdings_are_sets_of_uploads(ours, theirs):
    one, other, both = held(*ours), held(*theirs), set(ours) & set(theirs)
    assert one == held(*reversed(ours))
    assert len(one) == len(ours)
    assert one.shared(other) == held(*sorted(both))
    if both:
        with pytest.raises(AlreadyHeld, match=r"car [12]/[ab]/\d"):
            one.merge(other)
    else:
        assert one.merge(other) == other.merge(one) == held(*ours, *theirs)
    assert one.vehicles == tuple(sorted({vehicle for (vehicle, _), _ in ours}))


def test_an_overlap_is_described_by_its_runs():
    one = held(*((life, number) for life in LIVES for number in (1, 2, 3, 5)))
    assert one.described() == "car 1/a/1…3, car 1/a/5, car 1/b/1…3 and others, 12 in all"
    assert held((LIVES[0], 7)).described() == "car 1/a/7"


@costly
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 60))
def test_what_a_state_has_gained_makes_it_again_with_what_it_was(seed, cut):
    """As rows come, as they are taken back, and as time moves panes on."""
    rows = random_rows(seed, 60)
    earlier, now = counted(rows[:cut]), counted(rows)
    gained = finished(now.since(earlier))
    assert_same_state(earlier.merge(gained), now)
    lost = finished(earlier.since(now))
    assert_same_state(now.merge(lost), counted([], now.clock_ns).merge(earlier))
    assert not finished(now.since(now)).slices


@given(some=uploads)
def test_holdings_go_through_a_state_and_with_it_through_merge(some):
    state = counted(random_rows(1, 5))
    mine = StoredState(replace(state, holds=held(*some)))
    assert parsed(joined(mine)).state.holds == mine.state.holds == held(*some)
    if some:
        with pytest.raises(AlreadyHeld):
            mine.merge(mine)
