"""The reorder buffer: nothing is lost or doubled, and order is that of the stamps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.reorder import ReorderBuffer

DISORDER = 20
Put = tuple[int, int, int]  # stamp, source, item


def buffer_of() -> ReorderBuffer[int]:
    """One whose sources have come DISORDER behind before: it waits for that."""
    buffer = ReorderBuffer[int](DISORDER)
    buffer._seen = dict.fromkeys(range(3), DISORDER)
    return buffer


def left(buffer: ReorderBuffer[int]) -> list[int]:
    """All that it holds, source by source."""
    buffer.begin_anew()
    return buffer.ready()


def run(puts: list[Put], asked: list[bool]) -> list[int]:
    """All that comes out; `asked` tells after which puts somebody asks."""
    buffer, out = buffer_of(), []
    for place, (stamp, source, item) in enumerate(puts):
        buffer.put(stamp, source, item)
        if asked[place % len(asked)]:
            out += buffer.ready()
    out += left(buffer)
    assert buffer.rows == 0
    return out


asking = st.lists(st.booleans(), min_size=1, max_size=7)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=60), asking)
def test_every_item_comes_out_once_in_the_order_of_its_source_but_for_those_too_late(puts, asked):
    out = run([(*put, number) for number, put in enumerate(puts)], asked)
    assert sorted(out) == list(range(len(puts)))
    for source in range(3):
        given = [number for number in out if puts[number][1] == source]
        for place, number in enumerate(given):
            # Who is behind one that was given out came after it.
            assert all(puts[one][0] <= puts[number][0] or one < number for one in given[:place])


@given(st.integers(0, 2**32 - 1), st.integers(1, 80), asking)
def test_another_order_of_arrival_within_the_disorder_gives_the_same_sequence(seed, n, asked):
    random = np.random.default_rng(seed)
    stamps = np.sort(random.choice(300, n, replace=False))
    # An item is put less than the disorder behind every newer one.
    order = np.argsort(stamps + random.uniform(0, DISORDER, n)).tolist()
    assert run([(int(stamps[one]), 0, one) for one in order], asked) == list(range(n))


def test_an_item_waits_until_none_of_its_source_can_overtake_it_and_late_ones_go_at_once():
    buffer = buffer_of()
    buffer.put(100, 0, 1, rows=6)
    buffer.put(119, 0, 2, rows=4)
    assert (buffer.ready(), buffer.rows) == ([], 10)
    buffer.put(90, 0, 3)
    buffer.put(120, 0, 4)
    assert (buffer.ready(), buffer.rows) == ([3, 1], 5)
    buffer.put(99, 0, 5)
    buffer.put(100, 0, 6)
    assert buffer.ready() == [5, 6]
    # Another source that goes on holds up none, nor is it held up.
    buffer.put(900, 1, 7)
    buffer.put(1000, 1, 8)
    assert buffer.ready() == [7]
    assert left(buffer) == [2, 4, 8]


def test_a_source_that_keeps_its_order_waits_for_nothing_and_another_as_far_as_it_has_come_behind():
    buffer = ReorderBuffer[int](DISORDER)
    for stamp in (100, 110):
        buffer.put(stamp, 0, stamp)
        assert buffer.ready() == [stamp]
    buffer.put(105, 0, 105)
    buffer.put(114, 0, 114)
    assert buffer.ready() == [105]
    buffer.put(115, 0, 115)
    buffer.put(119, 0, 119)
    assert buffer.ready() == [114]
    buffer.put(200, 0, 200)
    buffer.put(120, 0, 120)  # so far behind that nothing waits for the like of it
    buffer.put(219, 0, 219)
    assert buffer.ready() == [115, 119, 120]


def test_what_has_waited_long_or_is_of_sources_that_begin_anew_waits_no_longer():
    buffer = buffer_of()
    buffer.put(100, 0, 1, now_ns=1000)
    assert buffer.ready(1000 + DISORDER - 1) == []
    assert buffer.ready(1000 + DISORDER) == [1]
    buffer.put(1100, 0, 2)
    buffer.put(500, 1, 3)
    buffer.begin_anew()
    buffer.put(5, 0, 4)
    assert buffer.ready() == [2, 3, 4]
