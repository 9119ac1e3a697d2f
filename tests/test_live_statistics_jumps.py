"""A running sidecar whose readers, exports and imports take steps between which frames pass, and
event time moves on or jumps; and what an import may not bring."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from monitor.config import Config
from monitor.frames.frame import MatchedClasses
from monitor.frames.space import plain_space
from monitor.pipeline.live_statistics import LiveStatistics, live_statistics
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.stage import no_statistics
from monitor.statistics.state import Slicing, StatisticsState
from monitor.statistics.windows import AHEAD, BACK
from tests import laws
from tests.calibration.matched_frames import UV, XY, matched
from tests.states import assert_same_state

SECOND = 10**9
# Panes of 10 s, 60 s and 240 s.
SETTINGS: dict[str, Any] = {
    "windows": ("1m", "6m", "24m"),
    "panes": 6,
    "micro_bins_per_octave": 8,
    "fold_rows": 12,
    "slice_by": ("class",),
}
NAMES = ("car", "truck", "bus")


def live(limits: dict[str, Any] | None = None, **changes: Any) -> LiveStatistics:
    config = Config.model_validate({"statistics": SETTINGS | changes, "limits": limits or {}})
    return live_statistics(config)


def see(statistics: LiveStatistics, stamp_ns: int, seed: int) -> None:
    """A frame with truth: two rows in each of three slices, and three of class probabilities."""
    for name in NAMES:
        statistics.slices.index(XY, "s", name)
    statistics.see(stamp_ns)
    for index in range(3):
        rows = matched([seed, index], 2, slices=(index,), stamp_ns=stamp_ns)
        statistics.count(rows)
    place = statistics.class_slices.index("s", NAMES)
    assert place is not None
    random = np.random.default_rng(seed)
    opinions, label = random.dirichlet(np.ones(3), (3, 1)), random.integers(0, 3, 3)
    statistics.count(MatchedClasses(place, opinions, label, stamp_ns))


def state_of(statistics: LiveStatistics) -> StatisticsState:
    return finished(statistics.state_in_steps())


class Sidecar(RuleBasedStateMachine):
    """Every frame has as many rows in each slice: a read that is torn would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = live()
        self.now = 10_000
        self.number = 0
        self.frames = 0
        self.running: list[tuple[str, Generator[None, None, Any], int]] = []

    @rule(ahead=st.integers(0, 40), times=st.integers(1, 6))
    def frames_come(self, ahead: int, times: int) -> None:
        for _ in range(times):
            self.number += 1
            self.frames += 1
            self.now += ahead
            see(self.statistics, self.now * SECOND, self.number)
            self.statistics.fold_some()

    @precondition(lambda self: self.frames)
    @rule(by=st.sampled_from((-5_000, 5_000)))
    def time_jumps(self, by: int) -> None:
        self.now += by
        jumps = self.statistics.clock.jumps
        # Some of them take back what others have voted for.
        for _ in range(BACK + AHEAD):
            self.statistics.see(self.now * SECOND)
        assert self.statistics.clock.jumps == jumps + 1

    @rule(level=st.sampled_from((None, 0, 1, 2)))
    def begin_to_read(self, level: int | None) -> None:
        self.running.append(("read", self.statistics.in_steps(level), self.frames))

    @rule()
    def begin_to_export(self) -> None:
        self.running.append(("export", self.statistics.state_in_steps(), self.frames))

    @rule(frames=st.integers(1, 4), age=st.integers(-50, 3000))
    def begin_to_import(self, frames: int, age: int) -> None:
        theirs = live()
        for i in range(frames):
            self.number += 1
            see(theirs, (self.now - age + i) * SECOND, self.number)
        work = self.statistics.import_in_steps(state_of(theirs))
        assert next(work, None) is None
        self.running.append((f"import {frames}", work, self.frames))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        chosen = data.draw(st.integers(0, len(self.running) - 1))
        kind, work, begun = self.running[chosen]
        for _ in range(steps):
            try:
                next(work)
            except StopIteration as end:
                del self.running[chosen]
                self.ended(kind, end.value, begun)
                return

    def ended(self, kind: str, result: Any, begun: int) -> None:
        if kind.startswith("import"):
            frames = int(kind.split()[1])
            assert result[0] == 6 * frames
            self.frames += frames
        elif kind == "read":
            counts = {held.raw.n for name, held in result if name in NAMES}
            assert len(counts) <= 1
        else:
            counts = {entry.n for entry in result.slices}
            assert len(counts) <= 1
            for entry in (*result.slices, *result.class_slices):
                for key in entry.panes:
                    assert not result.windows.too_old(key, result.clock_ns)
            if counts:
                assert 2 * begun <= counts.pop() <= 2 * self.frames

    def teardown(self) -> None:
        for kind, work, begun in self.running:
            self.ended(kind, finished(work), begun)
        state = state_of(self.statistics)
        assert [entry.n for entry in state.slices] == [2 * self.frames] * (3 if self.frames else 0)
        assert sum(entry.n for entry in state.class_slices) == 3 * self.frames
        since_epoch = dict(finished(self.statistics.in_steps()))
        for entry in state.slices:
            together = no_statistics(XY, self.statistics.binning)
            for held in entry.panes.values():
                together = together.merge(held)
            laws.assert_same(since_epoch[entry.name], together)


TestSidecar = Sidecar.TestCase
TestSidecar.settings = settings(max_examples=40, stateful_step_count=25)


def test_a_jump_while_a_state_is_exported_leaves_no_row_out_and_none_of_two_times():
    statistics = live()
    for i in range(20):
        see(statistics, (10_000 + 20 * i) * SECOND, i)
    whole = finished(statistics.in_steps())
    again = 0
    work = statistics.state_in_steps()
    while True:
        try:
            next(work)
        except StopIteration as end:
            state: StatisticsState = end.value
            break
        again += 1
        if again in (2, 9):
            for _ in range(BACK):
                statistics.see((5_000 - 1_000 * again) * SECOND)
    assert statistics.clock.jumps == 2
    assert {entry.name: entry.n for entry in state.slices} == dict.fromkeys(NAMES, 40)
    for entry in state.slices:
        assert set(entry.panes) == {statistics.windows.oldest}
        laws.assert_same(entry.panes[statistics.windows.oldest], dict(whole)[entry.name])


def test_an_import_is_seen_wholly_or_not_at_all():
    ours, theirs = live(), live()
    see(ours, 1_000 * SECOND, 1)
    for i in range(5):
        see(theirs, (1_000 - 100 * i) * SECOND, 10 + i)
    before, state = state_of(ours), state_of(theirs)
    work = ours.import_in_steps(state)
    seen = 0
    for _ in work:
        assert {held.raw.n for name, held in finished(ours.in_steps()) if name in NAMES} == {2}
        seen += 1
    assert seen >= sum(len(entry.panes) for entry in state.slices)
    assert_same_state(state_of(ours), before.merge(state))


def test_what_is_folded_during_an_import_is_not_lost():
    ours, theirs, whole = live(), live(), live()
    for i in range(5):
        see(theirs, (1_000 - 100 * i) * SECOND, 10 + i)
    work = ours.import_in_steps(state_of(theirs))
    number = 0
    for _ in work:
        for one in (ours, whole):
            see(one, (1_000 + number) * SECOND, 100 + number)
            one.fold_some()
        number += 1
    assert number > 5
    assert_same_state(state_of(ours), state_of(whole).merge(state_of(theirs)))


# ---- what an import may not bring


def refused(statistics: LiveStatistics, state: StatisticsState) -> str:
    before = state_of(statistics)
    names = statistics.slices.names, [entry.label for entry in statistics.class_slices.slices]
    with pytest.raises(IncompatibleStatistics) as error:
        next(statistics.import_in_steps(state))
    assert names == (
        statistics.slices.names,
        [entry.label for entry in statistics.class_slices.slices],
    )
    assert_same_state(state_of(statistics), before)
    return str(error.value)


def of_spaces(count: int, **changes: Any) -> LiveStatistics:
    statistics = live({"max_spaces": 64}, **changes)
    for i in range(count):
        statistics.slices.index(plain_space((f"d{i}", "y")), "s", "car")
    return statistics


def test_an_import_of_more_spaces_than_there_may_be_is_refused():
    ours = live({"max_spaces": 3})
    ours.spaces.add(UV)
    said = refused(ours, state_of(of_spaces(3)))
    assert "slices[2].space: d2, y" in said
    assert "[limits] max_spaces" in said
    assert finished(ours.import_in_steps(state_of(of_spaces(2)))) == (0, 2)
    # They count from the first step on.
    assert len(ours.spaces) == 3
    assert "set 4 of dimensions" in refused(ours, state_of(of_spaces(3)))


def of_lists(count: int, **changes: Any) -> LiveStatistics:
    statistics = live(**changes)
    for i in range(count):
        assert statistics.class_slices.index("s", (f"a{i}", "b")) is not None
    return statistics


def test_an_import_of_more_lists_of_classes_than_find_a_slice_is_refused():
    ours = of_lists(1, max_slices=3)
    said = refused(ours, state_of(of_lists(4, max_slices=16)))
    assert "class_slices[3].class_names: a3, b (2 classes)" in said
    assert "[statistics] max_slices" in said
    assert finished(ours.import_in_steps(state_of(of_lists(3, max_slices=16)))) == (0, 2)


def test_slices_without_room_go_to_the_overflow_slice_of_classes_that_are_known():
    theirs = live(max_slices=16, slice_by=("class", "stream"))
    for stream in ("s", "t", "u"):
        theirs.class_slices.index(stream, NAMES)
    ours = live(max_slices=2, slice_by=("class", "stream"))
    assert finished(ours.import_in_steps(state_of(theirs))) == (0, 3)
    assert [entry.overflow for entry in ours.class_slices.slices] == [False, False, True]


def test_an_overflow_slice_alone_does_not_bring_a_list_of_classes():
    theirs = live(max_slices=1, slice_by=("class", "stream"))
    for stream in ("s", "t"):
        theirs.class_slices.index(stream, NAMES)
    state = state_of(theirs)
    alone = StatisticsState(
        state.binning,
        state.windows,
        class_slices=state.class_slices[1:],
        slicing=state.slicing,
    )
    assert "class_slices[0].class_names: car, truck, bus" in refused(
        live(slice_by=("class", "stream")), alone
    )


def test_a_state_says_what_tells_its_slices_apart():
    assert state_of(live()).slicing == Slicing(("class",))
    by_range = live(slice_by=("stream", "range", "class"), range_edges=(10.0, 20.0))
    assert state_of(by_range).slicing == Slicing(
        ("class", "range", "stream"), (10.0, 20.0), ("x", "y", "z")
    )
    assert "slices by class" in refused(by_range, state_of(live()))
