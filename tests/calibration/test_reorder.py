"""The reorder buffer: nothing is lost or doubled, order is that of the stamps, late is marked."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.reorder import Held, ReorderBuffer, ReorderState, SourceOrder

DISORDER = 20
Put = tuple[int, int]  # stamp, source; the item is its position


arrivals = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=60)


def buffer_of() -> ReorderBuffer[int]:
    """One whose sources have come DISORDER behind before: it waits for that."""
    buffer = ReorderBuffer[int](DISORDER)
    seen = tuple((source, DISORDER) for source in range(3))
    buffer.restore(ReorderState(order=SourceOrder(seen=seen)))
    return buffer


def left(buffer: ReorderBuffer[int]) -> list[Held[int]]:
    """All that it holds, in the order in which it would give it out."""
    state = buffer.state()
    return [*state.out, *state.held]


def items(held: list[Held[int]]) -> list[int]:
    return [one.item for one in held]


def run(buffer: ReorderBuffer[int], puts: list[Put], asked: list[bool]) -> list[Held[int]]:
    """All that comes out; `asked` tells after which puts somebody asks."""
    out: list[Held[int]] = []
    for number, (stamp, source) in enumerate(puts):
        buffer.put(stamp, source, number)
        if asked[number % len(asked)]:
            out += buffer.ready()
    return out + left(buffer)


def in_time(out: list[Held[int]], source: int) -> list[Held[int]]:
    return [held for held in out if held.source == source and not held.late]


asking = st.lists(st.booleans(), min_size=1, max_size=7)


@given(arrivals, asking)
def test_every_item_comes_out_exactly_once_and_is_held_until_then(puts, asked):
    buffer = buffer_of()
    out = run(buffer, puts, asked)
    assert sorted(held.item for held in out) == list(range(len(puts)))
    assert [(held.stamp_ns, held.source) for held in sorted(out, key=lambda h: h.item)] == puts
    assert buffer.rows == len(buffer.state().held)


@given(arrivals, asking)
def test_stamps_of_a_source_never_go_back_but_for_the_late_ones(puts, asked):
    out = run(buffer_of(), puts, asked)
    for source in range(3):
        stamps = [held.stamp_ns for held in in_time(out, source)]
        assert stamps == sorted(stamps)


@given(st.integers(0, 2**32 - 1), st.integers(1, 80), asking, asking)
@settings(max_examples=60)
def test_another_order_of_arrival_within_the_disorder_gives_the_same_sequence(
    seed, n, asked, asked_again
):
    random = np.random.default_rng(seed)
    stamps = np.sort(random.integers(0, 300, n))
    # An item is put less than the disorder behind every newer one.
    one, other = (np.argsort(stamps + random.uniform(0, DISORDER, n)) for _ in range(2))
    sequences = []
    for order, when in ((one, asked), (other, asked_again)):
        buffer = buffer_of()
        out = []
        for place, number in enumerate(order.tolist()):
            buffer.put(int(stamps[number]), 0, number, order=number)
            if when[place % len(when)]:
                out += buffer.ready()
        out += left(buffer)
        assert not any(held.late for held in out)
        sequences.append(items(out))
    assert sequences[0] == sequences[1] == list(range(n))


@given(arrivals, asking, st.integers(0, 60))
def test_one_that_was_restored_goes_on_as_if_never_stopped(puts, asked, stopped):
    found: list[list[Held[int]]] = []
    for restarted in (False, True):
        buffer = buffer_of()
        out: list[Held[int]] = []
        for number, (stamp, source) in enumerate(puts):
            if restarted and number == stopped:
                state = buffer.state()
                buffer = ReorderBuffer[int](DISORDER)
                buffer.put(5, 1, -1)  # whatever it held is gone
                buffer.restore(state)
                assert buffer.state() == state
            buffer.put(stamp, source, number)
            if asked[number % len(asked)]:
                out += buffer.ready()
        found.append(out + left(buffer))
    assert found[0] == found[1]


def test_an_item_waits_until_none_of_its_source_can_overtake_it():
    buffer = buffer_of()
    buffer.put(100, 0, 1)
    buffer.put(119, 0, 2)
    assert buffer.ready() == []
    buffer.put(90, 0, 3)
    buffer.put(120, 0, 4)
    assert items(buffer.ready()) == [3, 1]
    assert items(left(buffer)) == [2, 4]


def test_a_source_that_keeps_its_order_waits_for_nothing_and_another_as_far_as_it_has_come_behind():
    buffer = ReorderBuffer[int](DISORDER)
    for stamp in (100, 110):
        buffer.put(stamp, 0, stamp)
        assert items(buffer.ready()) == [stamp]
    buffer.put(105, 0, 105)
    buffer.put(114, 0, 114)
    assert items(buffer.ready()) == [105]
    buffer.put(115, 0, 115)
    buffer.put(119, 0, 119)
    assert items(buffer.ready()) == [114]
    buffer.put(200, 0, 200)
    buffer.put(120, 0, 120)  # so far behind that nothing waits for the like of it
    buffer.put(219, 0, 219)
    assert items(buffer.ready()) == [115, 119, 120]


def test_what_has_waited_for_as_long_as_any_is_waited_for_waits_no_longer():
    buffer = buffer_of()
    buffer.put(100, 0, 1, now_ns=1000)
    assert buffer.ready(1000 + DISORDER - 1) == []
    assert items(buffer.ready(1000 + DISORDER)) == [1]


def test_a_source_that_stands_still_holds_up_no_other():
    buffer = buffer_of()
    buffer.put(0, 0, 1)
    buffer.put(100, 1, 2)
    buffer.put(200, 1, 3)
    assert items(buffer.ready()) == [2]
    assert items(left(buffer)) == [1, 3]


def test_an_item_behind_what_was_given_out_goes_out_at_once_and_is_marked():
    buffer = buffer_of()
    buffer.put(100, 0, 1)
    buffer.put(200, 0, 2)
    assert items(buffer.ready()) == [1]
    buffer.put(99, 0, 3)
    buffer.put(100, 0, 4)
    assert [(held.item, held.late) for held in buffer.ready()] == [(3, True), (4, False)]


def test_rows_are_counted_while_they_are_held():
    buffer = buffer_of()
    buffer.put(3, 0, 3, rows=6)
    buffer.put(1, 1, 1, rows=4)
    assert buffer.rows == 10
    buffer.put(1 + DISORDER, 1, 2, rows=3)
    assert items(buffer.ready()) == [1]
    assert buffer.rows == 9


def test_sources_whose_time_begins_anew_are_not_late_and_wait_for_nothing_as_at_first():
    buffer = buffer_of()
    buffer.put(1000, 0, 1)
    buffer.put(1100, 0, 2)
    buffer.put(500, 1, 3)
    assert items(buffer.ready()) == [1]
    buffer.begin_anew()
    buffer.put(5, 0, 4)
    out = buffer.ready()
    assert [(held.item, held.late) for held in out] == [(2, False), (3, False), (4, False)]
    assert left(buffer) == []
    assert buffer.rows == 0
