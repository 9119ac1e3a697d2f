"""Rows on their way into panes: what is counted where, beside which others and after which were
taken back, against sums made row by row."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monitor.frames.frame import MatchedClasses, MatchedRows, TrackIds
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.folding import ClassAccumulator, SliceAccumulator, Slots, chunks
from monitor.statistics.observations import CHUNK
from monitor.statistics.state import ClassStages, Stages
from monitor.statistics.windows import PaneChanges, PaneKey, put
from tests import laws
from tests.laws import costly
from tests.states import bits
from tests.statistics import matched_frames as fed

seeds = st.integers(0, 2**32 - 1)


def back(rows: MatchedRows) -> MatchedRows:
    return replace(rows, live=False, retracts=True)


def revised(rows: MatchedRows, seed: int) -> MatchedRows:
    moved = rows.error + np.random.default_rng([seed, 7]).normal(size=rows.error.shape)
    made = moved if rows.unchanged else rows.recalibrated_error + (moved - rows.error)
    return replace(rows, error=moved, recalibrated_error=made, live=False)


def with_retractions(
    frames: Sequence[MatchedRows], random: np.random.Generator, share: float
) -> tuple[list[MatchedRows], list[MatchedRows]]:
    """What comes, some of it taken back later on or told anew; and what is counted in the end."""
    places: list[tuple[float, MatchedRows]] = []
    rest: list[MatchedRows] = []
    for number, rows in enumerate(frames):
        place, stands = float(number), rows
        places.append((place, stands))
        while random.random() < share:
            place += 0.5 + float(random.integers(len(frames)))
            places.append((place, back(stands)))
            if random.random() < 0.5:
                break
            stands = revised(stands, number)
            places.append((place, stands))
        else:
            rest.append(stands)
    return [rows for _, rows in sorted(places, key=lambda one: one[0])], rest


@given(
    seed=seeds,
    tracks=st.sampled_from([0, 3, 9]),
    changed=st.sampled_from([None, True, False]),
    fold_rows=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.5]),
)
@example(seed=3, tracks=0, changed=None, fold_rows=8192, share=0.5)
@example(seed=7, tracks=9, changed=None, fold_rows=1, share=0.5)
def test_panes_are_the_sums_of_the_rows_that_were_not_taken_back_however_they_were_folded(
    seed, tracks, changed, fold_rows, share
):
    random: Any = np.random.default_rng(seed)
    frames = fed.drive(seed, 24, tracks=tracks, changed=changed)
    stream, rest = with_retractions(frames, random, share)
    if not tracks:
        # A replica may see the retraction of what another one has counted, or will count.
        stream = [stream[i] for i in random.permutation(len(stream))]
        stream = [rows.take(random.permutation(rows.n)) for rows in stream]
    clock = max((rows.stamp_ns for rows in frames if rows.stamp_ns is not None), default=0)
    accumulator = fed.empty(fold_rows)
    for rows in stream:
        accumulator.add(rows)
        fed.fold_some(accumulator)
        if random.random() < 0.1:
            fed.fold(accumulator)
        # Event time may come any part of its way, at any moment, in the middle of a fold too.
        if random.random() < 0.2:
            list(accumulator.move_on(int(random.integers(clock + 1))))
    found = fed.finished(accumulator, clock).panes
    fed.assert_same_panes(found, fed.expected_panes(rest, clock))
    if changed is False:
        held = (one for panes in found.values() for one in panes.values())
        assert share or all(one.recalibrated is one.raw for one in held)


@pytest.mark.parametrize("sizes", [(CHUNK,), (CHUNK + 1,), (3 * CHUNK + 5, 7), (1500, CHUNK, 1)])
def test_frames_larger_than_a_chunk_are_cut_and_lose_nothing(sizes):
    frames = [fed.matched(i, n, stamp_ns=30 * i, tracks=n // 2) for i, n in enumerate(sizes)]
    clock = fed.clock_of(frames)
    expected = fed.expected_panes(frames, clock)
    for fold_rows in (1, 8192):
        fed.assert_same_panes(fed.accumulated(frames, fold_rows, clock).panes, expected)
    found = list(chunks(frames, Slots.plan(frames, fed.WINDOWS, None)))
    assert all(0 < slot.size <= CHUNK for _, slot, _ in found)


@pytest.mark.parametrize("stage", ["covariance", "recalibrated_covariance"])
def test_a_covariance_that_is_singular_by_a_rounding_at_either_stage_is_left_out_of_both(stage):
    rows = fed.matched(5, 30, tracks=12, slices=(0,))
    getattr(rows, stage)[[4, 17]] = 1.0
    rest: Any = np.delete(np.arange(30), [4, 17])
    clean = rows.take(rest)
    found, expected = fed.accumulated([rows, rows]), fed.accumulated([clean, clean])
    fed.assert_same_panes(found.panes, expected.panes)
    assert found.panes[0][fed.OLDER].raw.n == found.panes[0][fed.OLDER].recalibrated.n == 56
    assert found.panes[0][fed.OLDER].raw.pairs > 0


# ---- tracks


def of_tracks(*numbers: int) -> TrackIds:
    return TrackIds(np.array(numbers, np.uint64), np.ones(len(numbers), bool))


SEEN = replace(fed.matched(3, 1, slices=(0,), stamp_ns=45), tracks=of_tracks(0))
UNKNOWN = TrackIds(np.zeros(1, np.uint64), np.zeros(1, bool))


@pytest.mark.parametrize(
    ("other", "pairs"),
    [
        *(({"stamp_ns": stamp}, pairs) for stamp, pairs in ((59, 1), (60, 0), (None, 0), (0, 0))),
        *(({"tracks": tracks}, 0) for tracks in (of_tracks(1), UNKNOWN, None)),
        *(({"source": 1}, 0), ({"slices": np.array([1])}, 0)),
        ({"space": fed.UV, "slices": np.array([2])}, 0),
    ],
)
def test_rows_are_of_one_track_only_in_one_source_slice_and_pane(other, pairs):
    second = replace(SEEN, **other)
    # All in one chunk or in several, in one level or in another.
    for order in ([SEEN, second], [second, SEEN]):
        for fold_rows, clock in ((1, None), (1, 200), (8192, None)):
            panes = fed.accumulated(order, fold_rows, clock).panes
            found = [one.raw.pairs for each in panes.values() for one in each.values()]
            assert sum(found) == pairs


@pytest.mark.parametrize("seed", range(3))
def test_with_its_clusters_another_accumulator_goes_on_as_if_it_were_the_same(seed):
    frames = fed.drive(seed, 40, tracks=6, late=0.1)
    clock = fed.clock_of(frames)
    stream, rest = with_retractions(frames, np.random.default_rng(seed), 0.4)
    half = len(stream) // 2
    first, second = fed.accumulated(stream[:half], 20, clock), fed.empty(20)
    second.panes, second.clock_ns = first.panes, first.clock_ns
    second.restore_clusters(first.clusters())
    for rows in stream[half:]:
        second.add(rows)
    fed.assert_same_panes(fed.finished(second, clock).panes, fed.expected_panes(rest, clock))


# ---- running totals of what came in time


def test_late_imported_and_retracted_rows_change_no_running_total():
    here, late = fed.matched(2, 30, stamp_ns=5), fed.matched(1, 30, live=False)
    alone = fed.accumulated([here])
    accumulator = fed.accumulated([late, here, back(here)])
    changes = PaneChanges(accumulator)
    list(changes.put_all(0, fed.accumulated([fed.matched(3, 30)]).panes[0], timely=True))
    accumulator.take(changes)
    for slot in range(4):
        laws.assert_same(accumulator.live[fed.XY].of(slot), alone.live[fed.XY].of(slot))


# ---- class probabilities

COUNTS = {0: 3, 1: 3, 2: 10}


def classified(seed, n, index=0, opinions=1, stamp_ns=None) -> MatchedClasses:
    """Recalibrated where the last number of the seed is even, but for some rows."""
    random = np.random.default_rng(seed)
    values = random.dirichlet(np.full(COUNTS[index], 0.4), size=(n, opinions))
    made = random.dirichlet(np.full(COUNTS[index], 1.4), size=n)
    made[random.random(n) < 0.2, 0] = random.choice([np.nan, 0.7])
    label = random.integers(COUNTS[index], size=n)
    return MatchedClasses(index, values, label, stamp_ns, made=None if seed[-1] % 2 else made)


def class_panes(frames, clock_ns: int) -> dict[int, dict[PaneKey, ClassStages]]:
    """Row by row, each in the pane it belongs to, with the mean of its opinions added up."""
    found: dict[int, dict[PaneKey, ClassStages]] = {}
    for rows in frames:
        key = fed.WINDOWS.place(rows.stamp_ns, clock_ns)
        for row in range(rows.n):
            opinions = rows.opinions[row]
            mean = sum(opinions[1:], opinions[0]) / len(opinions)
            several = rows.opinions[row : row + 1] if len(opinions) > 1 else None
            label = rows.label[row : row + 1]
            raw = made = observe_classes(mean[None], label, several)
            if rows.made is not None:
                usable = abs(rows.made[row].sum() - 1) < 1e-6
                made = observe_classes((rows.made[row] if usable else mean)[None], label)
            put(found.setdefault(rows.index, {}), key, Stages(raw, made))
    return found


@costly
@given(seeds, st.sets(st.integers(0, 14)), st.integers(1, 60))
@example(1, set(), 8192)
@example(2, set(range(15)), 10)
def test_class_panes_are_the_sums_of_the_rows_that_were_not_taken_back(seed, chosen, fold_rows):
    random = np.random.default_rng(seed)
    stream, rest = list[MatchedClasses](), list[MatchedClasses]()
    for number in range(15):
        stamp = None if random.random() < 0.1 else 5 * number - int(random.choice([0, 0, 0, 60]))
        n, index = int(random.integers(20)), int(random.integers(3))
        opinions = [1, 1, 4][number % 3]
        rows = classified([seed, number], n, index, opinions, stamp)
        other = replace(rows, label=(rows.label + 1) % COUNTS[index])
        taken = number in chosen
        stream += [rows, replace(rows, retracts=True), other] if taken else [rows]
        rest.append(other if taken else rows)
    accumulator = ClassAccumulator(fed.WINDOWS, fold_rows)
    for i in random.permutation(len(stream)).tolist():
        accumulator.add(stream[i])
        fed.fold_some(accumulator)
        if random.random() < 0.2:
            list(accumulator.move_on(int(random.integers(75))))
    fed.fold(accumulator)
    list(accumulator.move_on(75))
    assert bits({i: panes for i, panes in accumulator.panes.items() if panes}) == bits(
        class_panes(rest, 75)
    )


# ---- all that takes several steps, advanced by single steps in any order


class Races(RuleBasedStateMachine):
    """Frames of one row in one of three slices; what is of another time has no stamp."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulator = fed.empty(6)
        # Stamp of each frame, the time it is of, and whether it was taken back.
        self.frames: list[tuple[int | None, int, bool]] = []
        self.now = 0
        self.generation = 0
        self.movers: list[Iterator[None]] = []
        self.imports: list[tuple[Iterator[None], Callable[[], None]]] = []

    def row(self, number: int, stamp: int | None) -> MatchedRows:
        return fed.matched(number, 1, slices=fed.SLICES[fed.XY][number % 3 :][:1], stamp_ns=stamp)

    def note(self, stamp: int | None) -> int:
        self.frames.append((stamp, self.generation, False))
        return len(self.frames) - 1

    @rule(age=st.integers(0, 500), stamped=st.booleans())
    def add(self, age: int, stamped: bool) -> None:
        stamp = self.now - age if stamped else None
        self.accumulator.add(self.row(self.note(stamp), stamp))

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.frames) - 1))
        stamp, generation, gone = self.frames[number]
        if not gone:
            self.frames[number] = stamp, generation, True
            stamp = stamp if generation == self.generation else None
            self.accumulator.add(replace(self.row(number, stamp), live=False, retracts=True))

    @rule(times=st.integers(1, 9), early=st.booleans())
    def step(self, times: int, early: bool) -> None:
        for _ in range(times):
            self.accumulator.step() if early else fed.fold_some(self.accumulator)

    @rule(ahead=st.integers(0, 90))
    def begin_to_move_on(self, ahead: int) -> None:
        self.now += ahead
        self.movers.append(self.accumulator.move_on(self.now))

    @precondition(lambda self: self.movers)
    @rule(data=st.data())
    def go_on_moving(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.movers) - 1))
        if next(self.movers[chosen], self) is self:
            del self.movers[chosen]

    @rule(to=st.sampled_from((-3000, -100, 50_000)))
    def jump(self, to: int) -> None:
        self.accumulator.begin_anew()
        self.generation += 1
        self.now += to

    @rule(age=st.integers(0, 500))
    def begin_to_import(self, age: int) -> None:
        changes: PaneChanges[Any] = PaneChanges(self.accumulator)
        elsewhere = fed.expected_panes([self.row(self.note(self.now - age), self.now - age)], None)

        def put_all() -> Iterator[None]:
            for index, panes in elsewhere.items():
                yield from changes.put_all(index, panes, timely=True)

        self.imports.append((put_all(), lambda: self.accumulator.take(changes)))

    @precondition(lambda self: self.imports)
    @rule(data=st.data())
    def go_on_importing(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.imports) - 1))
        steps, done = self.imports[chosen]
        if next(steps, self) is self:
            done()
            del self.imports[chosen]

    @invariant()
    def no_pane_is_torn(self) -> None:
        for panes in self.accumulator.panes.values():
            for key in panes:
                assert not fed.WINDOWS.too_old(key, self.accumulator.clock_ns)

    @rule(ahead=st.integers(0, 30))
    def read(self, ahead: int) -> None:
        """A reader that is not interrupted, while others are under way."""
        for steps, done in self.imports:
            list(steps)
            done()
        self.imports.clear()
        self.now += ahead
        panes = fed.finished(self.accumulator, self.now).panes
        rows = Counter[tuple[int, PaneKey]]()
        sums, together = fed.Panes(), fed.Panes()
        for number, (stamp, generation, gone) in enumerate(self.frames):
            key = fed.OLDER if generation < self.generation else fed.WINDOWS.place(stamp, self.now)
            for index, held in fed.expected_panes(
                [] if gone else [self.row(number, None)], 0
            ).items():
                rows[index, key] += 1
                put(sums.setdefault(index, {}), fed.OLDER, held[fed.OLDER])
        assert rows == Counter(
            {(index, key): held.raw.n for index, one in panes.items() for key, held in one.items()}
        )
        for index, each in panes.items():
            for statistics in each.values():
                put(together.setdefault(index, {}), fed.OLDER, statistics)
        assert bits({i: one for i, one in together.items() if one}) == bits(sums)

    def teardown(self) -> None:
        self.read(0)


TestRaces = Races.TestCase
TestRaces.settings = settings(stateful_step_count=40)


def live_rows(accumulator: SliceAccumulator) -> int:
    return sum(
        int(accumulator.totals(space).of(2 * index).n[-1].sum())
        for space, slices in fed.SLICES.items()
        for index in slices
    )


def test_all_slices_change_together_and_the_running_totals_only_after_them():
    frames = [
        fed.matched(i, 40, slices=fed.SLICES[space], space=space)
        for i, space in enumerate(fed.SLICES)
    ]
    accumulator = fed.accumulated(frames)
    before = dict(accumulator.panes)
    assert before.keys() == {i for slices in fed.SLICES.values() for i in slices}
    for rows in frames:
        accumulator.add(rows)
    seen = []
    while fed.unfinished(accumulator):
        changed = {i for i, panes in before.items() if accumulator.panes[i] is not panes}
        assert changed in (set(), before.keys())
        seen.append((bool(changed), live_rows(accumulator) - 120))
        accumulator.step()
    assert {more for changed, more in seen if not changed} == {0}
    # No total ever falls, and in the end all have what the slices have.
    grown = [more for changed, more in seen if changed]
    assert grown == sorted(grown)
    assert live_rows(accumulator) == fed.counted(accumulator) == 240
