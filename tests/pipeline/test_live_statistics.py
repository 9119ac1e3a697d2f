"""The statistics of a running sidecar: windows of event time, jumps of it, work in steps between
which frames pass, and what a restart or another sidecar brings."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from monitor.config import Config
from monitor.frames.frame import MatchedClasses, MatchedRows, Origin
from monitor.frames.slices import TOTAL
from monitor.frames.space import plain_space
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.state import SliceStatistics, StatisticsState, no_statistics
from monitor.statistics.windows import AHEAD, BACK
from tests import laws
from tests.statistics.matched_frames import UV, XY, matched

SECOND = 10**9
NAMES = ("car", "truck", "bus")
# Panes of 10 s, 60 s and 240 s.
SETTINGS: dict[str, Any] = {
    "windows": ("1m", "6m", "24m"),
    "panes": 6,
    "micro_bins_per_octave": 8,
    "live_seconds": 5.0,
    "fold_rows": 50,
}


def empty(limits: dict[str, Any] | None = None, sample: int = 0, **changes: Any) -> LiveStatistics:
    config = {
        "statistics": SETTINGS | changes,
        "limits": limits or {},
        "fleet": {"sample": sample},
    }
    return LiveStatistics(Config.model_validate(config))


def live(**changes: Any) -> LiveStatistics:
    """With three slices: car and truck over x and y, and car in the image."""
    statistics = empty(**changes)
    for space, name in ((XY, "car"), (XY, "truck"), (UV, "car")):
        statistics.slices.index(space, "s", name)
    return statistics


def rows_at(stamp_s: float | None, n=6, seed=0, **changes) -> MatchedRows:
    stamp = None if stamp_s is None else int(stamp_s * SECOND)
    return matched([seed, n], n, stamp_ns=stamp, **changes)


def fed(statistics: LiveStatistics, *frames: MatchedRows) -> LiveStatistics:
    """Frames with labels at once."""
    for rows in frames:
        statistics.see(rows.stamp_ns)
        statistics.count(rows)
        statistics.fold_some()
    return statistics


def read(statistics: LiveStatistics, level: int | None = None) -> dict[str, SliceStatistics]:
    return dict(finished(statistics.in_steps(level)))


def state_of(statistics: LiveStatistics) -> StatisticsState:
    return finished(statistics.state_in_steps())


def imported(statistics: LiveStatistics, theirs: LiveStatistics) -> tuple[int, int]:
    return finished(statistics.import_in_steps(state_of(theirs)))


def counts(statistics: LiveStatistics) -> list[int]:
    """Rows in every window, and since epoch."""
    nothing = no_statistics(XY, statistics.binning)
    levels = range(statistics.windows.older + 1)
    return [read(statistics, level).get(TOTAL, nothing).raw.n for level in levels]


def counted_live(statistics: LiveStatistics) -> int:
    return sum(int(bins.stages[0][1].n[0].sum()) for bins in statistics.export_bins())


def come_to(statistics: LiveStatistics, now_s: int) -> None:
    """Lets event time come so far, as frames without labels do."""
    clock_ns = statistics.clock.now_ns
    assert clock_ns is not None
    for stamp in (*range(clock_ns, now_s * SECOND, 60 * SECOND), now_s * SECOND):
        statistics.see(stamp)


# ---- event time


def test_rows_move_from_window_to_window_as_event_time_comes_on():
    statistics = fed(live(), rows_at(1000))
    found = []
    for now in (1000, 1069, 1070, 1419, 1420, 2639, 2640):
        come_to(statistics, now)
        found.append((now, counts(statistics)))
    assert found == [
        (1000, [6, 6, 6, 6]),
        (1069, [6, 6, 6, 6]),
        (1070, [0, 6, 6, 6]),
        (1419, [0, 0, 6, 6]),
        (1420, [0, 0, 6, 6]),
        (2639, [0, 0, 6, 6]),
        (2640, [0, 0, 0, 6]),
    ]


def test_rows_of_a_wild_stamp_or_of_none_are_older_than_every_window():
    statistics = fed(live(), rows_at(None, seed=3), rows_at(1000), rows_at(10**6, seed=1))
    fed(statistics, rows_at(1001, seed=2))
    assert statistics.clock.now_ns == 1001 * SECOND
    assert counts(statistics) == [12, 12, 12, 24]
    assert counted_live(statistics) == 24


@pytest.mark.parametrize(("start", "enough"), [(10**6, AHEAD), (100, BACK)])
def test_after_enough_frames_of_another_time_what_came_before_is_older(start, enough):
    statistics = fed(live(), *(rows_at(10_000 + i, seed=i) for i in range(20)))
    before = counts(statistics)[-1]
    if start < 10_000:
        # What waits to be folded is of the old time as well.
        fed(statistics, rows_at(10_020, seed=20))
        before += 6
    fed(statistics, *(rows_at(start + i / 10, seed=i) for i in range(enough + 10)))
    now = start + (enough + 9) / 10
    assert statistics.clock.now_ns == pytest.approx(now * SECOND, abs=1)
    assert statistics.clock.jumps == 1
    # Only those after the jump, and the one that made it, are of its time.
    assert counts(statistics) == [66, 66, 66, before + 6 * (enough + 10)]


# ---- states


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "clock"),
    [
        (100, 160, [12, 18, 18, 18], 160),  # later, and believed: the panes move on
        (100, 161, [12, 12, 12, 18], 100),  # not believed: older than every window
        (100, 10**6, [12, 12, 12, 18], 100),
        (10**4, 100, [12, 12, 12, 18], 10**4),  # of long ago
        (10**6, 100, [12, 12, 12, 18], 10**6),
    ],
)
def test_an_imported_state_moves_event_time_as_far_as_it_is_believed(ours, theirs, expected, clock):
    statistics = fed(live(), rows_at(ours - 5), rows_at(ours, seed=1))
    counts(statistics)
    imported(statistics, fed(live(), rows_at(theirs, seed=2)))
    assert counts(statistics) == expected
    assert statistics.clock.now_ns == ours * SECOND
    assert statistics.accumulator.clock_ns == clock * SECOND
    # What is imported is in no counter.
    assert counted_live(statistics) == 12


# ---- work in steps

IN_STEPS: dict[str, Any] = {"fold_rows": 12, "slice_by": ("class",)}


def see(statistics: LiveStatistics, stamp_ns: int, seed: int) -> None:
    """A frame with labels: two rows in each of three slices, and three of class probabilities."""
    for name in NAMES:
        statistics.slices.index(XY, "s", name)
    statistics.see(stamp_ns)
    for index in range(3):
        statistics.count(matched([seed, index], 2, slices=(index,), stamp_ns=stamp_ns))
    place = statistics.class_slices.index("s", NAMES)
    assert place is not None
    random = np.random.default_rng(seed)
    opinions, label = random.dirichlet(np.ones(3), (3, 1)), random.integers(0, 3, 3)
    statistics.count(MatchedClasses(place, opinions, label, stamp_ns))


class Sidecar(RuleBasedStateMachine):
    """Every frame has as many rows in each slice: a read that is torn would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = empty(**IN_STEPS)
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
        theirs = empty(**IN_STEPS)
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
            assert len({held.raw.n for name, held in result if name in NAMES}) <= 1
        else:
            found = {entry.n for entry in result.slices}
            assert len(found) <= 1
            for entry in (*result.slices, *result.class_slices):
                for key in entry.panes:
                    assert not result.windows.too_old(key, result.clock_ns)
            if found:
                assert 2 * begun <= found.pop() <= 2 * self.frames

    def teardown(self) -> None:
        for kind, work, begun in self.running:
            self.ended(kind, finished(work), begun)
        state = state_of(self.statistics)
        assert [entry.n for entry in state.slices] == [2 * self.frames] * (3 if self.frames else 0)
        assert sum(entry.n for entry in state.class_slices) == 3 * self.frames
        since_epoch = read(self.statistics)
        for entry in state.slices:
            together = no_statistics(XY, self.statistics.binning)
            for held in entry.panes.values():
                together = together.merge(held)
            laws.assert_same(since_epoch[entry.name], together)


TestSidecar = Sidecar.TestCase
TestSidecar.settings = settings(laws.costly, stateful_step_count=25)


def other(max_slices: int = 16, *, spaces: int = 0, lists: int = 0) -> LiveStatistics:
    """With slices of so many sets of dimensions and lists of classes."""
    statistics = empty({"max_spaces": 3}, **IN_STEPS, max_slices=max_slices)
    for i in range(spaces):
        statistics.slices.index(plain_space((f"d{i}", "y")), "s", "car")
    for i in range(lists):
        statistics.class_slices.index("s", (f"a{i}", "b"))
    return statistics


def test_an_import_of_more_spaces_or_lists_of_classes_than_there_is_room_for_is_refused():
    ours = other()
    ours.spaces.add(UV)
    with pytest.raises(IncompatibleStatistics, match=r"slices\[2\]\.space: d2, y.*max_spaces"):
        imported(ours, other(spaces=3))
    assert len(ours.slices.names) == 0
    assert imported(ours, other(spaces=2)) == (0, 2)
    ours = other(3, lists=1)
    with pytest.raises(IncompatibleStatistics, match=r"class_slices\[3\].*a3, b.*max_slices"):
        imported(ours, other(lists=4))
    assert imported(ours, other(lists=3)) == (0, 2)


def test_a_sample_goes_through_a_restart_and_no_farther_than_it_is_asked_for():
    """Labels of frames before the restart are retracted after it."""
    frames = [
        replace(rows, origin=Origin("s", i, rows.stamp_ns, np.arange(rows.n), rows.error + i))
        for i in range(40)
        for rows in [rows_at(i, seed=i)]
    ]
    frames += [replace(rows, retracts=True) for rows in frames[10:30:3]]
    whole = state_of(fed(live(sample=8), *frames))
    before = fed(live(sample=8), *frames[:25])
    after = live(sample=8)
    imported(after, before)
    assert parts_of(state_of(fed(after, *frames[25:]))) == parts_of(whole)
    assert [rows[1] for rows in parts_of(whole)] == [8, 8]
    fewer, none = live(sample=3), live()
    for other in (fewer, none):
        imported(other, before)
    assert [rows[1] for rows in parts_of(state_of(fewer))] == [3, 3]
    assert state_of(none).sample == ()
    assert state_of(fed(live(), *frames)).sample == ()


def parts_of(state: StatisticsState) -> list[tuple[str, int, bytes, bytes]]:
    """Slices with how many rows they have, and these."""
    return [
        (entry.name, entry.rows.key.size, entry.rows.values.tobytes(), entry.rows.key.tobytes())
        for entry in state.sample
    ]
