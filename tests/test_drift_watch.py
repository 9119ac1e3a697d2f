"""The watch of a sidecar: which truth it takes in, and that a reading has all that came before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monitor.drift.alarms import AlarmChange, AlarmReason, DriftReading
from monitor.drift.evidence import DriftSettings
from monitor.drift.state import family_state, restored_family
from monitor.frames.frame import MatchedRows, TrackIds
from monitor.frames.slices import Slice, SliceBy, SliceTable
from monitor.frames.space import Space, plain_space
from monitor.pipeline import drift_watch
from monitor.pipeline.drift_watch import DriftWatch, NoSuchSlice
from monitor.statistics.observations import finished

XY, XYZ = plain_space(("x", "y"), "m"), plain_space(("x", "y", "z"), "m")
PERIOD = 10**8


def table() -> SliceTable:
    found = SliceTable(frozenset({SliceBy.CLASS}), 10)
    for name, space in (("car", XY), ("van", XY), ("box", XYZ)):
        found.slices.append(Slice(name, space))
        found.chains.append((name,))
    return found


def watch_of(**other) -> DriftWatch:
    told: list[object] = other.pop("told", [])
    return DriftWatch(other.pop("settings", DriftSettings()), table(), told.append, **other)


def rows_of(
    number: int,
    *,
    slices: Sequence[int] = (0, 0, 0, 0),
    space: Space = XY,
    scale: float = 1.0,
    stamp: bool = True,
    live: bool = True,
    source: int = 0,
    made: float | None = None,
) -> MatchedRows:
    """A frame of tracks; covariances are I. `made`: errors of the recalibrated stage times it."""
    error = scale * np.random.default_rng(number).normal(size=(len(slices), space.k))
    covariance = np.tile(np.eye(space.k), (len(slices), 1, 1))
    known = np.ones(len(slices), bool)
    return MatchedRows(
        space,
        np.array(slices, np.int64),
        error,
        covariance,
        error if made is None else made * error,
        covariance,
        number * PERIOD if stamp else None,
        live,
        TrackIds(np.arange(len(slices), dtype=np.uint64), known),
        source,
    )


def reading_of(watch: DriftWatch) -> DriftReading:
    return finished(watch.reading(everything=True))


def left_out(watch: DriftWatch) -> dict[str, int]:
    return dict(reading_of(watch).left_out)


def labelled(watch: DriftWatch) -> list[int]:
    finished(watch.catch_up(everything=True))
    return [int(one) for one in watch.family.labelled]


def test_truth_that_is_late_or_of_no_known_time_is_counted_and_not_watched():
    watch = watch_of()
    watch.add(rows_of(0, live=False), "a")
    watch.add(rows_of(1, stamp=False), "a")
    watch.add(rows_of(2, slices=(0, 1)), "a")
    counts = left_out(watch)
    assert (counts["late"], counts["undated"]) == (4, 4)
    assert (counts["superseded"], counts["overload"]) == (0, 0)
    assert labelled(watch) == [1, 1, 0]


def test_what_an_earlier_recalibrator_of_a_slice_made_is_superseded():
    watch = watch_of()
    watch.changed("a", [])
    watch.add(rows_of(0, slices=(0, 0, 1)), "a")
    assert labelled(watch) == [2, 1, 0]
    watch.changed("b", [0])
    watch.add(rows_of(1, slices=(0, 0, 1)), "a")
    assert left_out(watch)["superseded"] == 2
    assert labelled(watch) == [0, 2, 0]
    watch.add(rows_of(2, slices=(0, 0, 1)), "b")
    assert labelled(watch) == [2, 3, 0]


def test_frames_that_wait_when_another_epoch_begins_are_superseded():
    watch = watch_of()
    watch.changed("a", [])
    watch.add(rows_of(0, slices=(0, 1)), "a")
    watch.changed("b", [0, 1])
    assert labelled(watch) == [0, 0, 0]
    assert left_out(watch)["superseded"] == 2
    assert reading_of(watch).driven == 0


def test_a_recalibrator_that_goes_on_from_the_one_before_begins_no_epoch():
    watch = watch_of()
    watch.changed("a", [])
    watch.add(rows_of(0), "a")
    finished(watch.catch_up(everything=True))
    watch.family, _ = restored_family(family_state(watch.family, "a"), watch.settings, {}, "a")
    watch.slices.slices.clear()
    watch.changed("b", [], follows=True)
    assert [one.epoch for one in watch.family.left.values()] == [0] * 3
    watch.changed("c", [])
    assert [one.epoch for one in watch.family.left.values()] == [1] * 3


def test_what_could_not_join_the_bet_of_its_track_is_told():
    watch = watch_of()
    watch.family.seconds.late, watch.family.seconds.left_out = 3, 6
    counts = left_out(watch)
    assert (counts["late_seconds"], counts["tracks"]) == (3, 6)


def test_what_waits_beyond_measure_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(drift_watch, "_WAITING", 10)
    watch = watch_of()
    for number in range(5):
        watch.add(rows_of(number), "a")
    assert watch.left_out["overload"] == 12
    assert labelled(watch) == [8, 0, 0]
    watch.add(rows_of(6), "a")
    assert labelled(watch) == [12, 0, 0]


def test_frames_of_two_spaces_are_each_taken_with_their_degrees():
    watch = watch_of()
    for number in range(100):
        watch.add(rows_of(2 * number), "a")
        watch.add(rows_of(2 * number + 1, slices=(2, 2), space=XYZ, source=1), "a")
    assert labelled(watch) == [400, 0, 200]
    assert watch.family.degrees == [2, 2, 3]
    assert all(one.evidence < 1 for one in reading_of(watch).standings)


def test_a_reading_has_everything_that_was_added_before():
    watch = watch_of()
    for number in range(300):
        watch.add(rows_of(number), "a")
    assert reading_of(watch).driven == pytest.approx(29.9 / 3600)
    assert watch.family.labelled[0] == 1200


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_work_that_is_dropped_half_way_does_not_block_the_next(steps):
    watch = watch_of()
    for number in range(300):
        watch.add(rows_of(number), "a")
    work = watch.catch_up(everything=True)
    for _ in range(steps):
        next(work)
    work.close()
    watch.add(rows_of(300), "a")
    reading_of(watch)
    assert watch._waiting_rows == 0
    # What was on its way when it was dropped may be lost, and no more than that.
    assert watch.family.labelled[0] >= 4 * (301 - 64)


def test_what_goes_on_is_taken_in_when_a_source_comes_to_another_second_or_somebody_asks():
    watch = watch_of()
    for number in range(10):
        watch.add(rows_of(number, source=number % 2), "a")
    assert finished(watch.reading()).driven == 0
    watch.add(rows_of(10, source=1), "a")
    finished(watch.catch_up())
    assert watch.family.labelled[0] == 40
    assert labelled(watch)[0] == 44


def test_a_portion_ends_by_frames_rows_and_spaces_too(monkeypatch):
    monkeypatch.setattr(drift_watch, "_FRAMES", 3)
    monkeypatch.setattr(drift_watch, "_ROWS", 8)
    watch = watch_of()

    def taken(*rows):
        for one in rows:
            watch.add(one, "a")
        finished(watch.catch_up())
        return int(watch.family.labelled.sum())

    one = rows_of(0, slices=(0,))
    assert taken(one, one, one) == 0
    assert taken(one) == 3
    assert taken(rows_of(1), rows_of(1)) == 8
    assert taken(rows_of(1, space=XYZ, slices=(2,), source=1)) == 12


def test_what_was_forwarded_before_an_epoch_is_not_learned_in_it():
    watch = watch_of()
    watch.changed("a", [])
    for number in range(10):
        watch.add(rows_of(number), "a")
    work = watch.catch_up(everything=True)
    next(work)
    watch.changed("b", [0])
    finished(work)
    raw, made = watch.family.usual.learners[0]
    assert raw is not None
    assert made is not None
    assert (raw.detections, made.detections) == (40, 0)


def test_it_is_behind_from_half_of_what_may_wait(monkeypatch):
    monkeypatch.setattr(drift_watch, "_WAITING", 16)
    watch = watch_of()
    for second in range(3):
        assert not watch.behind
        watch.add(rows_of(10 * second), "a")
    assert watch.behind
    finished(watch.catch_up())
    assert not watch.behind


def test_two_at_work_take_in_everything_once():
    watch = watch_of()
    for number in range(300):
        watch.add(rows_of(number), "a")
    both = [watch.catch_up(everything=True), watch.catch_up(everything=True)]
    while both:
        for work in list(both):
            try:
                next(work)
            except StopIteration:
                both.remove(work)
    assert watch.family.labelled[0] == 1200


def test_who_does_not_watch_takes_nothing_in():
    watch = watch_of(watching=False)
    watch.add(rows_of(0), "a")
    watch.add(rows_of(0, live=False), "a")
    assert reading_of(watch) == DriftReading()
    assert watch._waiting_rows == 0
    assert watch.left_out["late"] == 0


def test_alarms_are_told_as_they_are_raised_and_when_they_are_over():
    told: list[AlarmChange] = []
    watch = watch_of(told=told)
    for number in range(600):
        watch.add(rows_of(number, scale=4.0), "a")
    finished(watch.catch_up(everything=True))
    assert (told[0].why, told[0].alarm.slice) == (AlarmReason.RAISED, "car")
    (over,) = watch.acknowledge(["car"], "anna")
    assert over == told[0].alarm
    assert (told[-1].why, told[-1].actor) == (AlarmReason.ACKNOWLEDGED, "anna")
    assert watch.acknowledge([], "anna") == ()


def test_a_change_of_recalibrator_ends_the_alarms_of_its_slices():
    told: list[AlarmChange] = []
    watch = watch_of(told=told)
    watch.changed("a", [])
    for number in range(600):
        watch.add(rows_of(number, slices=(0, 0, 1, 1), scale=4.0), "a")
    finished(watch.catch_up(everything=True))
    told.clear()
    watch.changed("b", [1])
    assert [(one.why, one.alarm.slice) for one in told] == [(AlarmReason.NEW_EPOCH, "van")]
    assert dict(reading_of(watch).epochs) == {"car": 0, "van": 1, "box": 0}


def test_a_slice_that_is_unknown_is_refused_with_those_there_are():
    watch = watch_of()
    with pytest.raises(NoSuchSlice, match=r"'bus'.*box, car, total, van"):
        watch.acknowledge(["bus"], "anna")
    assert watch.acknowledge(["total", "box"], "anna") == ()


def test_the_raw_stage_is_watched_where_a_recalibrator_changed_something():
    watch = watch_of()
    watch.add(rows_of(0), "a")
    watch.add(rows_of(1), "a")
    finished(watch.catch_up(everything=True))
    assert watch.family.evidence.sums[0, 2:].max() == 0
    watch.add(rows_of(2, made=0.5), "a")
    finished(watch.catch_up(everything=True))
    assert watch.family.evidence.sums[0, 2:].max() > 0


def test_frames_without_detections_are_nothing():
    watch = watch_of()
    watch.add(rows_of(0, slices=()), "a")
    assert watch._waiting_rows == 0
    assert reading_of(watch).driven == 0


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_detections_whose_nees_is_no_number_are_left_out_of_evidence():
    watch = watch_of()
    rows = rows_of(0)
    rows.error[1] = 1e200
    watch.add(rows, "a")
    watch.add(rows_of(1), "a")
    reading_of(watch)
    assert np.isfinite(watch.family.evidence.sums).all()
