"""Evidence in hours keeps its budget: by simulation, many streams side by side; and the clocks and
the order by which the hours are counted.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.bets import ABSOLUTE, SCALE, Aim, row_log_likelihoods
from monitor.drift.charts import ONLY_OVER, Detector, Direction, Origin
from monitor.drift.clocks import SET_BACK_NS, DrivingClock, ReorderBuffer, SourceTimes
from monitor.drift.evidence import (
    OF_TRACKS,
    ONLY_COVERAGE,
    WITH_TRACKS,
    WITHOUT_TRACKS,
    Evidence,
    Shares,
    Unit,
    by_severity,
    scale_of,
    shares_of,
)
from monitor.drift.reference import shipped, shipped_levels
from monitor.frames.space import FloatArray
from tests.drift.drives import seeds
from tests.drift.family_oracle import SlowClock

K = 4
FORWARDED = slice(0, 2)


def streams(many: int, shares: Shares) -> Evidence:
    found = Evidence()
    found.grow(many)
    found.degrees[:] = K
    set_shares(found, shares)
    return found


def set_shares(board: Evidence, shares: Shares) -> None:
    for number in range(board.slices):
        for chart in range(FORWARDED.start, FORWARDED.stop):
            board.set_shares(number, chart, shares)


def add(board: Evidence, nees: FloatArray, aims: tuple[Aim, Aim]) -> None:
    """A detection of each stream, an hour each."""
    ones = np.ones(nees.size)
    said = row_log_likelihoods(K, nees, nees, aims, [ones] * len(aims))
    board.add_detections(FORWARDED, ones, np.exp(said))


def alarms_of(nees: FloatArray, budget: float) -> FloatArray:
    """(2,) alarms by severity, of (steps, streams) NEES; one hour a detection."""
    board, found = streams(nees.shape[1], WITHOUT_TRACKS), np.zeros(2)
    for e in nees:
        add(board, e, (Aim(Direction.OVER, 1.0), Aim(Direction.UNDER, 1.0)))
        over = by_severity(board.by_chart(board.weights)) >= budget
        found += over.sum(axis=0)
        for stream, severity in np.argwhere(over).tolist():
            board.begin_anew(stream, np.array([severity == 0, severity == 1, False, False]))
    return found


SECOND = 10**9


def test_run_lengths_keep_the_budget_and_a_fault_is_found_in_a_few_detections():
    nees = np.random.default_rng(0).chisquare(K, (2000, 80))
    alarms = alarms_of(nees, 200.0)
    assert (alarms >= 200).all()
    assert (nees.size / alarms >= 200).all()
    few = nees[:400]
    assert few.size / alarms_of(4.0 * few, 200.0)[0] < 10
    assert few.size / alarms_of(0.25 * few, 200.0)[1] < 20


def test_a_detector_that_had_no_share_begins_at_nothing_and_others_go_on():
    board = streams(1, ONLY_COVERAGE)
    board.add_detections(FORWARDED, np.ones(1), np.ones((1, 2, ABSOLUTE + SCALE + 2)))
    set_shares(board, WITH_TRACKS)
    assert (board.sums[0, FORWARDED, :ABSOLUTE] == 1).all()
    assert (board.sums[0, FORWARDED, ABSOLUTE:] == 0).all()
    assert (board.sums[0, FORWARDED, OF_TRACKS] == 0).all()


NOTHING = replace(shipped(K), levels=None)
KNOWN = replace(shipped(K), origin=Origin.LEARNED)
REFERENCES = (
    shipped(K),
    NOTHING,
    *(replace(KNOWN, levels=replace(shipped_levels(K), tracks=tracks)) for tracks in (12, 40)),
    replace(KNOWN, levels=None),
)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("unit", Unit)
def test_shares_are_at_most_one_in_sum_and_none_that_goes_on_rises_as_a_reference_is_learned(
    unit, direction
):
    found = [shares_of(one, unit, direction, of_change=False) for one in REFERENCES]
    of_change = [shares_of(one, unit, direction, of_change=True) for one in REFERENCES]
    for shares in (*found, *of_change):
        assert sum(shares.values()) <= 1 + 1e-12
        assert min(shares.values(), default=0) >= 0
        assert direction is Direction.OVER or not {*shares} & {*ONLY_OVER}
    # A change of what was never known is asked for by none; calibration by none that asks for one.
    assert of_change[:2] == [{}, {}]
    assert not {Detector.ABSOLUTE, Detector.SHIPPED} & {*itertools.chain(*of_change)}
    for before in found[:2]:
        for after in found[2:]:
            assert all(share <= before.get(one, 1.0) for one, share in after.items()), after
    if unit is Unit.DETECTION:
        assert {*itertools.chain(*found)} == {Detector.ABSOLUTE, Detector.RELATIVE}
    else:
        assert [Detector.SHIPPED in one for one in found] == [True, False, True, False, False]


def test_the_scale_is_the_root_of_the_mean_with_its_interval_and_unknown_of_fewer_than_two():
    found = scale_of(np.array([4.0, 16.0, 80.0]), 0.5)
    half = 1.96 * math.sqrt(4 / 2)  # variance 80/4 − 4², of 4 detections worth 2
    assert (found.estimate, found.lower) == pytest.approx((2.0, math.sqrt(4 - half)))
    assert found.upper == pytest.approx(math.sqrt(4 + half))
    alike = scale_of(np.array([10.0, 40.0, 160.0]), 0.5)
    assert (alike.estimate, alike.lower, alike.upper) == pytest.approx((2, 2, 2))
    for n in (0.0, 1.0):
        found = scale_of(np.full(3, n), 0.5)
        assert np.isnan([found.estimate, found.lower, found.upper]).all()


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


def test_what_a_source_drove_waits_for_its_tracks_is_given_once_and_forgotten_with_it():
    clock = DrivingClock()
    for source, seconds in ((0, 0.5), (0, 0.25), (1, 1.0)):
        clock.drive(source, SECOND)
        clock.wait(source, seconds)
    assert [clock.waited(source) for source in (0, 0, 1, 2)] == [0.75, 0, 1, 0]
    clock.wait(1, 3.0)
    for _ in range(4200):
        clock.drive(0, SECOND)
    clock.drive(2, 0)
    clock.wait(1, 3.0)
    assert clock.waited(1) == 0


def came(times: SourceTimes, *frames: tuple[int, float]):
    """Frames (source, seconds)."""
    source, seconds = zip(*frames, strict=True)
    return times.take(
        np.array(source, np.int64), (np.array(seconds) * SECOND).round().astype(np.int64)
    )


def test_a_source_begins_anew_only_when_it_is_set_back_by_more_than_the_limit():
    back = SET_BACK_NS / SECOND
    arrivals = came(SourceTimes(9), (0, 50.0), (0, 50.0 - back), (0, 49.9 - back))
    assert arrivals.life.tolist() == [1, 1, 2]
    assert (arrivals.time_ns[-1], arrivals.ended) == (round((49.9 - back) * SECOND), {1: 2})


def test_of_too_many_sources_the_one_not_heard_of_for_longest_is_over():
    times = SourceTimes(2)
    arrivals = came(times, (0, 1.0), (1, 1.0), (0, 1.5), (2, 1.0))
    assert arrivals.ended == {2: 3}
    *_, goes_on = times.now(np.array([1, 2, 3, 4]))
    assert goes_on.tolist() == [True, False, True, False]


def test_time_with_labels_goes_by_at_most_one_step_from_a_frame_to_the_next():
    times = SourceTimes(9, SECOND // 2)
    arrivals = came(times, (0, 1.0), (0, 1.1), (0, 4.1), (0, 3.0), (0, 4.2), (1, 9.0))
    assert (arrivals.heard_ns / SECOND).tolist() == [0, 0.1, 0.6, 0.6, 0.7, 0]
    # By how much each moved its source; a late one did not, nor did the first.
    assert (arrivals.step_ns / SECOND).tolist() == [0, 0.1, 3.0, 0, 0.1, 0]
    # When the present second began.
    began, heard, _ = times.now(np.array([1, 2]))
    assert (began / SECOND).tolist() == [4, 9]
    assert (heard / SECOND).tolist() == [0.6, 0]


def test_a_source_that_waits_for_labels_while_another_has_minutes_of_them_is_not_over():
    times = SourceTimes(9)
    came(times, (0, 1.0))
    came(times, *((1, second) for second in range(300)))
    assert came(times, (0, 1.1)).life.tolist() == [1]


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


def test_what_is_refused_when_late_is_taken_in_order_and_in_as_much_disorder_as_there_was():
    buffer, limit = ReorderBuffer[int](DISORDER), SET_BACK_NS
    buffer.go_on({0: 100})

    def put(stamp: int, *, late: bool = True) -> tuple[bool, list[int]]:
        return buffer.put(stamp, 0, stamp, refuse_late=late), buffer.ready()

    # Behind the last run.
    assert put(79) == (False, [])
    assert [put(100), put(110)] == [(True, [100]), (True, [110])]
    # So far behind that nothing waits for the like of it, and less far.
    assert [put(89), put(111)] == [(False, []), (True, [111])]
    assert put(105) == (False, [])
    assert [put(119), put(114), put(124)] == [(True, []), (True, []), (True, [114])]
    assert put(113, late=False) == (True, [113])
    assert put(limit + 200) == (True, [119, 124])
    assert put(limit + 209) == (True, [])
    assert put(limit + 230) == (True, [limit + 200, limit + 209])
    # A source begins anew with what comes in time; what is held of it goes out before.
    assert put(104) == (False, [])
    assert put(104, late=False) == (True, [limit + 230])
    assert put(103) == (True, [])
    assert put(115) == (True, [103, 104])


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
