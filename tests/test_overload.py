"""When monitoring gives way, and when it comes back."""

from hypothesis import given
from hypothesis import strategies as st

from monitor.pipeline.housekeeping import Overload


def after(overload: Overload, *samples: tuple[float, float, int]) -> bool:
    for now, lag, waiting in samples:
        overload.look(now, lag, waiting)
    return overload.shedding


def test_a_loop_that_stays_late_sheds():
    assert after(Overload(lag_seconds=0.1), (0.0, 0.11, 0), (0.2, 0.3, 0))


def test_a_single_long_step_sheds_nothing():
    assert not after(Overload(lag_seconds=0.1), (0.0, 5.0, 0), (0.1, 0.0, 0), (0.2, 5.0, 0))


def test_too_many_waiting_rows_shed_at_once():
    assert not after(Overload(waiting_rows=100), (0.0, 0.0, 100))
    assert after(Overload(waiting_rows=100), (0.0, 0.0, 101))


def test_without_limits_nothing_is_ever_shed():
    unlimited = Overload(lag_seconds=0.0, waiting_rows=0)
    assert not after(unlimited, *((float(t), 100.0, 10**9) for t in range(20)))


def test_what_has_no_limit_holds_up_no_end():
    overload = Overload(lag_seconds=0.0, waiting_rows=100)
    assert after(overload, (0.0, 9.0, 101))
    assert not after(overload, (1.0, 9.0, 0), (2.0, 9.0, 0))


def test_it_ends_after_a_while_well_below_both_limits():
    overload = Overload(lag_seconds=0.1, waiting_rows=100, calm_seconds=1.0)
    assert overload.look(0.0, 0.0, 101)
    for now in (0.1, 0.5, 1.0):
        assert not overload.look(now, 0.0, 0)
    assert overload.shedding
    assert overload.look(1.1, 0.0, 0)
    assert not overload.shedding


def test_what_is_just_below_a_limit_is_not_calm():
    for lag, waiting in ((0.09, 0), (0.0, 99)):
        overload = Overload(lag_seconds=0.1, waiting_rows=100, calm_seconds=1.0)
        assert after(overload, (0.0, 0.0, 101), *((float(t), lag, waiting) for t in range(1, 50)))


def test_a_break_in_the_calm_begins_it_anew():
    overload = Overload(lag_seconds=0.1, waiting_rows=100, calm_seconds=1.0)
    assert after(overload, (0.0, 0.0, 101), (0.1, 0.0, 0), (1.0, 0.08, 0), (1.2, 0.0, 0))
    assert after(overload, (2.1, 0.0, 0))
    assert not after(overload, (2.2, 0.0, 0))


def test_episodes_are_counted():
    overload = Overload(waiting_rows=10, calm_seconds=0.0)
    for _ in range(2):
        assert after(overload, (0.0, 0.0, 11))
        assert not after(overload, (1.0, 0.0, 0))
    assert overload.episodes == 2


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 200), st.floats(0.01, 0.5)),
        max_size=60,
    )
)
def test_told_changes_are_all_there_are_and_no_episode_is_shorter_than_the_calm(samples):
    overload = Overload(lag_seconds=0.1, waiting_rows=100, calm_seconds=1.0)
    now, began, before = 0.0, 0.0, False
    for lag, waiting, step in samples:
        now += step
        changed = overload.look(now, lag, waiting)
        assert changed == (overload.shedding != before)
        if changed and overload.shedding:
            began = now
        elif changed:
            assert now - began >= overload.calm_seconds
        before = overload.shedding
