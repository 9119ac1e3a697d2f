"""The reorder buffer: nothing is lost or doubled, order is that of the stamps, late is counted."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration.reorder import Held, ReorderBuffer

DISORDER = 20
Put = tuple[int, int]  # stamp, source; the item is its position


arrivals = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=60)


def run(buffer: ReorderBuffer[int], puts: list[Put], asked: list[bool]) -> list[Held[int]]:
    """All that comes out; `asked` tells after which puts somebody asks."""
    out: list[Held[int]] = []
    for number, (stamp, source) in enumerate(puts):
        buffer.put(stamp, source, number)
        if asked[number % len(asked)]:
            out += buffer.ready()
    return out + buffer.drain()


def in_time(out: list[Held[int]], source: int) -> list[Held[int]]:
    return [held for held in out if held.source == source and not held.late]


asking = st.lists(st.booleans(), min_size=1, max_size=7)


@given(arrivals, asking, st.integers(1, 30))
def test_every_item_comes_out_exactly_once_and_the_late_ones_are_counted(puts, asked, capacity):
    buffer = ReorderBuffer[int](DISORDER, capacity)
    out = run(buffer, puts, asked)
    assert sorted(held.item for held in out) == list(range(len(puts)))
    assert [(held.stamp_ns, held.source) for held in sorted(out, key=lambda h: h.item)] == puts
    assert buffer.late == sum(held.late for held in out)
    assert (len(buffer), buffer.rows, buffer.pending()) == (0, 0, ())


@given(arrivals, asking, st.integers(1, 30))
def test_stamps_of_a_source_never_go_back_but_for_the_late_ones(puts, asked, capacity):
    out = run(ReorderBuffer[int](DISORDER, capacity), puts, asked)
    for source in range(3):
        stamps = [held.stamp_ns for held in in_time(out, source)]
        assert stamps == sorted(stamps)


@given(arrivals, asking, st.integers(1, 30))
def test_no_more_is_held_than_there_is_room_for(puts, asked, capacity):
    buffer = ReorderBuffer[int](DISORDER, capacity)
    for number, (stamp, source) in enumerate(puts):
        buffer.put(stamp, source, number)
        assert buffer.rows <= capacity
    assert buffer.forced >= len(puts) - capacity - buffer.late


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
        buffer = ReorderBuffer[int](DISORDER)
        out = []
        for place, number in enumerate(order.tolist()):
            buffer.put(int(stamps[number]), 0, number, order=number)
            if when[place % len(when)]:
                out += buffer.ready()
        out += buffer.drain()
        assert buffer.late == buffer.forced == 0
        sequences.append([held.item for held in out])
    assert sequences[0] == sequences[1] == list(range(n))


@given(arrivals, asking, st.integers(0, 60), st.integers(1, 30))
def test_one_that_was_restored_goes_on_as_if_never_stopped(puts, asked, stopped, capacity):
    found: list[list[Held[int]]] = []
    for restarted in (False, True):
        buffer = ReorderBuffer[int](DISORDER, capacity)
        out: list[Held[int]] = []
        for number, (stamp, source) in enumerate(puts):
            if restarted and number == stopped:
                state = buffer.state()
                buffer = ReorderBuffer[int](DISORDER, capacity)
                buffer.put(5, 1, -1)  # whatever it held is gone
                buffer.restore(state)
                assert buffer.state() == state
            buffer.put(stamp, source, number)
            if asked[number % len(asked)]:
                out += buffer.ready()
        found.append([*out, *buffer.pending()])
        assert found[-1] == out + buffer.drain()
    assert found[0] == found[1]


def test_an_item_waits_until_none_of_its_source_can_overtake_it():
    buffer = ReorderBuffer[str](DISORDER)
    buffer.put(100, 0, "first")
    buffer.put(119, 0, "newer")
    assert buffer.ready() == []
    buffer.put(90, 0, "older, but in time")
    buffer.put(120, 0, "newest")
    assert [held.item for held in buffer.ready()] == ["older, but in time", "first"]
    assert [held.item for held in buffer.pending()] == ["newer", "newest"]


def test_a_source_that_stands_still_holds_up_no_other():
    buffer = ReorderBuffer[str](DISORDER)
    buffer.put(0, 0, "still")
    buffer.put(100, 1, "moves")
    buffer.put(200, 1, "moves on")
    assert [held.item for held in buffer.ready()] == ["moves"]
    assert [held.item for held in buffer.drain()] == ["still", "moves on"]


def test_an_item_behind_what_was_given_out_goes_out_at_once_and_is_marked():
    buffer = ReorderBuffer[str](DISORDER)
    buffer.put(100, 0, "a")
    buffer.put(200, 0, "b")
    assert [held.item for held in buffer.ready()] == ["a"]
    buffer.put(99, 0, "too late")
    buffer.put(100, 0, "just in time")
    assert [(held.item, held.late) for held in buffer.ready()] == [
        ("too late", True),
        ("just in time", False),
    ]
    assert buffer.late == 1


def test_where_there_is_no_room_the_oldest_goes_out_early_by_rows():
    buffer = ReorderBuffer[str](DISORDER, capacity=10)
    buffer.put(3, 0, "c", rows=6)
    buffer.put(1, 1, "a", rows=4)
    buffer.put(2, 0, "b", rows=3)
    assert [held.item for held in buffer.ready()] == ["a"]
    assert (buffer.forced, buffer.rows) == (1, 9)
    buffer.put(4, 0, "larger than all", rows=11)
    assert [held.item for held in buffer.ready()] == ["b", "c", "larger than all"]


def test_a_source_whose_time_begins_anew_is_not_late():
    buffer = ReorderBuffer[str](DISORDER)
    buffer.put(1000, 0, "before")
    buffer.put(1100, 0, "last before")
    buffer.put(500, 1, "another")
    assert [held.item for held in buffer.ready()] == ["before"]
    buffer.restart(0)
    buffer.put(5, 0, "anew")
    assert [held.item for held in buffer.ready()] == ["last before"]
    assert [held.item for held in buffer.drain()] == ["anew", "another"]
    assert buffer.late == 0
