"""The statistics of a running sidecar: what is counted where, at what event time, and what a
restart or another sidecar brings back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import Config
from monitor.frames.frame import MatchedRows
from monitor.frames.slices import TOTAL
from monitor.pipeline.live_statistics import LiveStatistics, live_statistics
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.stage import SliceStatistics, no_statistics
from monitor.statistics.state import StatisticsState
from monitor.statistics.windows import AHEAD, BACK
from tests import laws
from tests.calibration.matched_frames import UV, XY, matched
from tests.exported import FIELDS
from tests.states import assert_same_state, merged_in_any_order

SECOND = 10**9
# Panes of 10 s, 60 s and 240 s.
SETTINGS: dict[str, Any] = {
    "windows": ("1m", "6m", "24m"),
    "panes": 6,
    "micro_bins_per_octave": 8,
    "live_seconds": 5.0,
    "fold_rows": 50,
}
quick = settings(max_examples=20)
seeds = st.integers(0, 2**32 - 1)


def live(**changes) -> LiveStatistics:
    """With three slices: car and truck over x and y, and car in the image."""
    statistics = live_statistics(Config.model_validate({"statistics": SETTINGS | changes}))
    for space, name in ((XY, "car"), (XY, "truck"), (UV, "car")):
        statistics.slices.index(space, "s", name)
    return statistics


def rows_at(stamp_s: float | None, n=6, seed=0, **changes) -> MatchedRows:
    stamp = None if stamp_s is None else int(stamp_s * SECOND)
    return matched([seed, n], n, stamp_ns=stamp, **changes)


def fed(statistics: LiveStatistics, frames: Sequence[MatchedRows]) -> LiveStatistics:
    """Frames with truth at once."""
    for rows in frames:
        statistics.see(rows.stamp_ns)
        statistics.count(rows)
        statistics.fold_some()
    return statistics


def read(statistics: LiveStatistics, level: int | None = None) -> dict[str, SliceStatistics]:
    return dict(finished(statistics.in_steps(level)))


def state_of(statistics: LiveStatistics) -> StatisticsState:
    return finished(statistics.state_in_steps())


def counts(statistics: LiveStatistics) -> list[int]:
    """Rows in every window, and since epoch."""
    return [
        read(statistics, level).get(TOTAL, no_statistics(XY, statistics.binning)).raw.n
        for level in range(statistics.windows.older + 1)
    ]


def counted_live(statistics: LiveStatistics) -> int:
    return sum(int(bins.stages[0][1].n[0].sum()) for bins in statistics.export_bins())


def come_to(statistics: LiveStatistics, now_s: int) -> None:
    """Let event time come so far, as frames without labels do."""
    clock_ns = statistics.clock.now_ns
    assert clock_ns is not None
    for stamp in range(clock_ns, now_s * SECOND, 60 * SECOND):
        statistics.see(stamp)
    statistics.see(now_s * SECOND)


def drive(seed: int, frames: int, longest_gap_s=60.0) -> list[MatchedRows]:
    """Frames in order, at most so far apart: a longer pause than a minute is not believed."""
    random = np.random.default_rng(seed)
    stamps = random.uniform(0, longest_gap_s, frames).cumsum().tolist()
    return [
        rows_at(stamp, int(random.integers(1, 8)), seed + i, changed=bool(random.random() < 0.5))
        for i, stamp in enumerate(stamps)
    ]


# ---- event time


def test_rows_move_from_window_to_window_as_event_time_comes_on():
    statistics = fed(live(), [rows_at(1000)])
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


@pytest.mark.parametrize("age", [0, 30, 100, 500, 1439, 1441, 1650, 1700, 10_000])
def test_late_rows_lie_where_they_would_had_they_come_at_once(age):
    now = 20_000
    early, late = (live() for _ in range(2))
    early.see((now - age) * SECOND)
    early.count(rows_at(now - age))
    late.see((now - age) * SECOND)
    for statistics in (early, late):
        come_to(statistics, now)
    late.count(rows_at(now - age))
    assert_same_state(state_of(late), state_of(early))


@pytest.mark.parametrize("age", [0, 60, 10**5])
def test_rows_whose_truth_came_late_are_in_windows_and_in_no_counter(age):
    statistics = live()
    statistics.see(200_000 * SECOND)
    statistics.count(rows_at(200_000 - age, live=False))
    statistics.count(rows_at(200_000 - age, seed=1))
    assert counts(statistics)[-1] == 12
    assert counted_live(statistics) == 6


def test_every_slice_has_its_counters_from_the_first_detection_on_zeros_at_first():
    statistics = live()
    zeros = list(statistics.export_bins())
    assert [(bins.name, bins.dimensions) for bins in zeros] == [
        ("car", ("x", "y")),
        ("truck", ("x", "y")),
        ("car (u,v)", ("u", "v")),
    ]
    for bins in zeros:
        assert [stage for stage, _ in bins.stages] == ["raw", "recalibrated"]
        for _, found in bins.stages:
            assert found.n.shape == (3, statistics.accumulator.edges.count)
            assert not any(np.any(getattr(found, name)) for name in FIELDS)
    # The first rows of one slice leave those of the others as they are.
    fed(statistics, [rows_at(10, slices=(1,))])
    read(statistics)
    assert [int(bins.stages[0][1].n[0].sum()) for bins in statistics.export_bins()] == [0, 6, 0]
    assert [bins.name for bins in statistics.export_bins()] == [bins.name for bins in zeros]


def test_a_wild_stamp_is_not_believed_and_its_rows_are_older_than_every_window():
    statistics = fed(live(), [rows_at(1000), rows_at(10**6, seed=1), rows_at(1001, seed=2)])
    assert statistics.clock.now_ns == 1001 * SECOND
    assert counts(statistics) == [12, 12, 12, 18]
    assert counted_live(statistics) == 18


@pytest.mark.parametrize(("start", "enough"), [(10**6, AHEAD), (100, BACK)])
def test_after_enough_frames_of_another_time_what_came_before_is_older(start, enough):
    statistics = fed(live(), [rows_at(10_000 + i, seed=i) for i in range(20)])
    before = counts(statistics)[-1]
    if start < 10_000:
        # What waits to be folded is of the old time as well.
        fed(statistics, [rows_at(10_020, seed=20)])
        before += 6
    fed(statistics, [rows_at(start + i / 10, seed=i) for i in range(enough + 10)])
    now = start + (enough + 9) / 10
    assert statistics.clock.now_ns == pytest.approx(now * SECOND, abs=1)
    assert statistics.clock.jumps == 1
    # Only those after the jump, and the one that made it, are of its time.
    assert counts(statistics) == [66, 66, 66, before + 6 * (enough + 10)]


def test_rows_without_a_stamp_are_counted_since_epoch_alone():
    statistics = fed(live(), [rows_at(None), rows_at(50, seed=1)])
    assert counts(statistics) == [6, 6, 6, 12]
    assert counted_live(statistics) == 12


@quick
@given(seeds)
def test_windows_do_not_depend_on_when_they_are_read(seed):
    frames = drive(seed, 60)
    often, once = live(), live()
    random = np.random.default_rng(seed)
    for rows in frames:
        fed(often, [rows])
        if random.random() < 0.3:
            read(often, int(random.integers(4)))
    fed(once, frames)
    assert_same_state(state_of(often), state_of(once))
    for level in range(4):
        ours, theirs = read(often, level), read(once, level)
        assert ours.keys() == theirs.keys()
        for name, one in ours.items():
            laws.assert_same(one, theirs[name])


def test_what_did_not_change_is_read_as_the_very_same_however_many_panes_it_lies_in():
    statistics = fed(live(), drive(4, 80))
    for level in (None, 0, 1, 2):
        before = read(statistics, level)
        assert before
        assert all(one is before[name] for name, one in read(statistics, level).items())


# ---- states


@quick
@given(seeds)
def test_a_state_comes_back_after_a_restart_bit_for_bit_and_under_the_same_labels(seed):
    statistics = fed(live(), drive(seed, 40))
    state = state_of(statistics)
    again = live_statistics(Config.model_validate({"statistics": SETTINGS}))
    assert finished(again.import_in_steps(state)) == (sum(entry.n for entry in state.slices), 3)
    assert_same_state(state_of(again), state)
    assert again.slices.names == statistics.slices.names == ("car", "truck", "car (u,v)")
    assert again.clock.now_ns == statistics.clock.now_ns
    assert {name: one.raw.n for name, one in read(again, 1).items()} == {
        name: one.raw.n for name, one in read(statistics, 1).items()
    }


@pytest.mark.parametrize("seed", range(10))
def test_states_of_any_partition_of_the_frames_add_up_to_that_of_one_sidecar(seed):
    random = np.random.default_rng(seed)
    # Each sidecar has one of any four frames, so that none makes a pause of a minute.
    frames = drive(seed, 160, longest_gap_s=8.0)
    owner = np.concatenate([random.permutation(4) for _ in range(40)])
    parts = [fed(live(), [frames[i] for i in np.flatnonzero(owner == j)]) for j in range(4)]
    whole = state_of(fed(live(), frames))
    merged = merged_in_any_order([state_of(part) for part in parts], StatisticsState.merge, random)
    assert_same_state(merged, whole)
    # Added to a sidecar that runs, in the middle of a fold, they make the same.
    first = parts[0]
    first.count(rows_at(5, seed=77))
    first.accumulator.step()
    for part in parts[1:]:
        finished(first.import_in_steps(state_of(part)))
    first.count(replace(rows_at(5, seed=77), live=False))
    found = state_of(first)
    assert sum(entry.n for entry in found.slices) == sum(entry.n for entry in whole.slices) + 12


def test_a_state_on_other_bins_is_refused_and_nothing_is_added():
    statistics = fed(live(), drive(1, 10))
    before = state_of(statistics)
    other = state_of(fed(live(micro_bins_per_octave=16), drive(2, 10)))
    with pytest.raises(IncompatibleStatistics):
        finished(statistics.import_in_steps(other))
    assert_same_state(state_of(statistics), before)


def test_a_state_of_a_later_time_moves_the_panes_on_as_far_as_it_is_believed():
    statistics = fed(live(), [rows_at(95), rows_at(100, seed=1)])
    finished(statistics.import_in_steps(state_of(fed(live(), [rows_at(160, seed=2)]))))
    assert counts(statistics) == [12, 18, 18, 18]
    assert statistics.accumulator.clock_ns == 160 * SECOND


@pytest.mark.parametrize("theirs", [161, 10_000, 10**6])
def test_a_state_whose_time_is_not_believed_is_older_than_every_window(theirs):
    statistics = fed(live(), [rows_at(100)])
    finished(
        statistics.import_in_steps(
            state_of(fed(live(), [rows_at(theirs, seed=1), rows_at(None, seed=2)]))
        )
    )
    assert counts(statistics) == [6, 6, 6, 18]
    assert statistics.clock.now_ns == 100 * SECOND
    # Ours go on as if it had not come.
    fed(statistics, [rows_at(150, seed=3)])
    assert counts(statistics) == [12, 12, 12, 24]


@pytest.mark.parametrize("ours", [10**4, 10**6])
def test_a_state_of_long_ago_is_older_than_every_window(ours):
    statistics = fed(live(), [rows_at(ours)])
    finished(statistics.import_in_steps(state_of(fed(live(), [rows_at(100, seed=1)]))))
    assert counts(statistics) == [6, 6, 6, 12]
    assert statistics.clock.now_ns == ours * SECOND


def test_an_imported_state_is_in_no_counter():
    statistics = fed(live(), [rows_at(100)])
    counts(statistics)
    finished(statistics.import_in_steps(state_of(fed(live(), [rows_at(100, seed=1)]))))
    assert counted_live(statistics) == 6
