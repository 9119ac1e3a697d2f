"""Drift of class probabilities in a pipeline: what is watched, what an alarm names, and what
another recalibrator or a restart changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from monitor.drift.alarms import Alarm, AlarmChange, AlarmReason, DriftState
from monitor.drift.charts import Detector, Direction, Quantity, Severity, Stage
from monitor.frames.frame import Header, TrackIds
from monitor.frames.slices import CLASS_PROBABILITIES
from monitor.pipeline.drift_watch import WatchedClasses
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.restart import drift_of, restore_drift
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, ClassSelection
from monitor.statistics.observations import finished
from monitor.store.documents import read_family
from tests.drift.class_drives import CLASSES, Seen, seen
from tests.drift.drives import text_of
from tests.piped_classes import XY, opened, recalibrating
from tests.received import Label, Sent, frame, labels

HEADER = Header("lidar", XY, tuple("abcde"))
WARM = ClassSelection(HEADER.classes, Temperature(3.0))
HASTY = {"hours_between_false_pages": 0.1, "hours_between_false_tickets": 0.1}


def told_of(pipeline: Pipeline) -> list[Alarm]:
    """Alarms that will have been raised, from now on."""
    alarms: list[Alarm] = []

    def announce(change: AlarmChange) -> None:
        if change.why is AlarmReason.RAISED:
            alarms.append(change.alarm)

    pipeline.drift.announce = announce
    return alarms


def sent(one: Seen, *, covariance: bool = True, inline: bool = True) -> list[Sent]:
    """Detections that meet their truth by about a deviation, or tell nothing of it."""
    random = np.random.default_rng(one.stamp_ns)
    return [
        Sent(
            track,
            (0.0, 0.0),
            (1.0, 1.0) if covariance else (),
            0,
            tuple(random.normal(size=2).tolist()) if covariance and inline else (),
            upstream_track=track,
            class_probabilities=tuple(said.tolist()),
            true_class=int(true) if inline else None,
        )
        for track, said, true in zip(one.track.tolist(), one.said, one.told, strict=True)
    ]


def drive(
    pipeline: Pipeline, frames: Iterable[Seen], header: Header = HEADER, **other: bool
) -> None:
    """Frames with their labels, all of which are taken in."""
    stream = opened(pipeline, header)
    for one in frames:
        pipeline.process(stream, frame(sent(one, **other), one.stamp_ns, one.stamp_ns))
        pipeline.remember_answered()
    finished(pipeline.drift.catch_up(everything=True))
    assert pipeline.counters.internal_errors == 0


@pytest.mark.parametrize("covariance", [True, False])
def test_an_alarm_names_the_slice_of_class_probabilities_and_how_far_off_they_are(covariance):
    pipeline = recalibrating(CLASS_IDENTITY, drift=HASTY)
    alarms = told_of(pipeline)
    drive(pipeline, seen(1, 120.0, sharper=4.0, every=2), covariance=covariance)
    assert alarms
    first = alarms[0]
    assert (first.slice, first.severity) == (CLASS_PROBABILITIES, Severity.PAGE)
    assert (first.stage, first.direction) == (Stage.RECALIBRATED, Direction.OVER)
    assert (first.detector, first.quantity) == (Detector.CONFIDENCE, Quantity.CONFIDENCE)
    assert (first.dimension, first.unit) == ("", "")
    assert -0.2 < first.size < -0.05
    assert {one.slice for one in alarms} == {CLASS_PROBABILITIES}
    names = pipeline.drift.family.names
    assert (names[-1], len(names)) == (CLASS_PROBABILITIES, 2)


def test_labels_of_one_frame_in_ten_are_enough():
    pipeline = recalibrating(CLASS_IDENTITY, drift=HASTY)
    alarms, stream = told_of(pipeline), opened(pipeline, HEADER)
    for number, one in enumerate(seen(1, 150.0, sharper=4.0)):
        pipeline.process(
            stream, frame(sent(one, inline=number % 10 == 0), one.stamp_ns, one.stamp_ns)
        )
    pipeline.remember_answered()
    finished(pipeline.drift.catch_up(everything=True))
    assert [one.slice for one in alarms[:1]] == [CLASS_PROBABILITIES]


def test_a_calibrated_classifier_has_no_alarm_and_its_hours_are_those_of_driving():
    pipeline = recalibrating(CLASS_IDENTITY)
    alarms = told_of(pipeline)
    drive(pipeline, seen(2, 120.0))
    reading = finished(pipeline.drift.reading(everything=True))
    assert not alarms
    assert reading.driven * 3600 == pytest.approx(120, abs=4)
    assert not any(count for _, count in reading.left_out)


def test_labels_of_classes_that_are_left_out_do_not_hide_the_votes_that_were_not():
    """They are many to a vote: a slice with enough votes is well, however many are late."""
    pipeline = recalibrating(CLASS_IDENTITY)
    drive(pipeline, seen(2, 90.0), covariance=False)
    late = np.full((2, 1000), 0.5), np.ones((2, 1000), bool), None, None, False, 0, True, 1
    pipeline.drift.add(WatchedClasses(0, *late))
    reading = finished(pipeline.drift.reading(everything=True))
    assert dict(reading.left_out)["late"] == 1000
    states = {one.state for one in reading.standings if one.slice == CLASS_PROBABILITIES}
    assert states == {DriftState.OK}


def test_labels_that_come_later_count_with_the_objects_of_the_labeller():
    """Two tracks of the tracker are one object of the labeller: one vote."""
    pipeline = recalibrating(CLASS_IDENTITY)
    stream = opened(pipeline, HEADER)
    said = np.full((2, CLASSES), 0.2)
    for number in range(14):
        stamp = number * 10**9
        one = Seen(stamp, np.array([1 + number % 2, 3 + number]), said, np.array([0, 1]))
        pipeline.process(stream, frame(sent(one, inline=False), number, stamp))
        told = [Label(1 + number % 2, (0.0, 0.0), class_index=0)]
        objects = TrackIds(np.array([77], np.uint64), np.array([True]))
        pipeline.report(replace(labels(told, number), objects=objects))
    finished(pipeline.drift.catch_up(everything=True))
    assert pipeline.drift.family.slices[-1].labelled == 1


def test_slices_follow_those_of_the_statistics():
    pipeline = recalibrating(CLASS_IDENTITY, statistics={"slice_by": ["stream"]})
    for name in ("front", "rear"):
        drive(pipeline, seen(3, 4.0), Header(name, XY, HEADER.classes))
    names = pipeline.drift.family.names
    # Covariances and class probabilities in the order in which they came.
    assert set(names) == {
        *("front", "front, class probabilities"),
        *("rear", "rear, class probabilities"),
    }
    assert pipeline.drift._places == [names.index("front"), names.index("rear")]


def test_another_class_recalibrator_begins_an_epoch_of_class_probabilities_alone():
    pipeline = recalibrating(CLASS_IDENTITY, drift=HASTY)
    alarms, frames = told_of(pipeline), list(seen(4, 240.0, sharper=3.0, every=2))
    drive(pipeline, frames[:600])
    assert {one.severity for one in alarms} == {Severity.PAGE}
    watch, stream = pipeline.drift, opened(pipeline, HEADER)
    late = frames[600]
    pipeline.process(stream, frame(sent(late, inline=False), late.stamp_ns, late.stamp_ns))
    version = pipeline.recalibrators.learn(WARM.to_json()).version
    pipeline.activate(version)
    assert not watch.is_paged
    assert {one.name: one.epoch for one in watch.family.slices} == {"a": 0, CLASS_PROBABILITIES: 1}
    # What the one before has made counts no more.
    track = int(late.track[0])
    pipeline.report(labels([Label(track, class_index=int(late.told[0]))], late.stamp_ns))
    finished(watch.catch_up(everything=True))
    assert watch.left_out["superseded"] == 1
    alarms.clear()
    drive(pipeline, frames[601:])
    # It is compensated, which stays visible.
    assert {(one.severity, one.stage) for one in alarms} == {(Severity.TICKET, Stage.RAW)}


def test_a_restart_goes_on_with_evidence_and_another_recalibrator_begins_anew():
    pipeline = recalibrating(WARM)
    drive(pipeline, seen(5, 30.0, sharper=3.0))
    pipeline.drift.classes_since = 7
    state = drift_of(pipeline)
    assert state.begins[CLASS_PROBABILITIES] == 7
    assert state.gathered.selection == f"{IDENTITY.version} {WARM.version}"
    state = read_family(text_of(pipeline.drift.family, state.gathered.selection))
    state = replace(state, begins={CLASS_PROBABILITIES: 7})
    for classes, goes_on in ((WARM, True), (CLASS_IDENTITY, False)):
        fresh = recalibrating(classes)
        fresh.ledger.sequence = 1000
        restore_drift(fresh, state)
        assert fresh.drift.classes_since == (7 if goes_on else 1000)
        opened(fresh, HEADER)
        drive(fresh, seen(5, 0.1))
        (one,) = (one for one in fresh.drift.family.slices if one.name == CLASS_PROBABILITIES)
        place = fresh.drift.family.names.index(CLASS_PROBABILITIES)
        assert one.epoch == (0 if goes_on else 1)
        assert bool(one.labelled) == goes_on
        assert bool(fresh.drift.family.evidence.sums[place, 0].any()) == goes_on


def test_no_class_may_have_the_name_of_such_a_slice():
    pipeline = recalibrating(CLASS_IDENTITY)
    for name in (CLASS_PROBABILITIES, "car, class probabilities"):
        found = pipeline.register(replace(HEADER, classes=("b", name)))
        assert "class_names" in str(found)
