"""The demo's account of tracking: scenes small enough to count by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from monitor.commands.demo.scene import SPACE, SimulatedFrame
from monitor.commands.demo.tracks import Fed, TrackingRecord
from monitor.frames.frame import TrackStatus
from monitor.wire.client_messages import Answered, AnsweredTracks

STATES = SPACE.k + 3
PERIOD_NS = 100_000_000


def frame_of(number: int, places: dict[int, tuple[float, float]]) -> SimulatedFrame:
    """Objects by number at x, y; −1 is a false detection."""
    n = len(places)
    mean = np.zeros((n, SPACE.k))
    mean[:, :2] = list(places.values())
    objects = np.array(list(places), np.int64)
    truth = np.where(objects[:, None] >= 0, mean, np.nan)
    covariance = np.broadcast_to(0.01 * np.eye(SPACE.k), (n, SPACE.k, SPACE.k)).copy()
    return SimulatedFrame(
        "front", number, number * PERIOD_NS, np.arange(n, dtype=np.uint64), np.zeros(n, np.int64),
        np.ones(n), mean, covariance, truth, objects,
    )  # fmt: skip


def answer_of(
    frame: SimulatedFrame,
    ids: list[int],
    status: TrackStatus = TrackStatus.CONFIRMED,
    velocity: tuple[float, float] = (0.0, 0.0),
) -> Answered:
    """Each detection under a track of this id, the tracks where the detections are."""
    n = len(ids)
    state = np.zeros((n, STATES))
    state[:, : SPACE.k] = frame.mean
    state[:, SPACE.k : SPACE.k + 2] = velocity
    track_id = np.array(ids, np.uint64)
    # The sidecar is free in the order of its tracks.
    order = np.arange(n)[::-1]
    tracks = AnsweredTracks(
        id=track_id[order],
        class_index=np.zeros(n, np.int64),
        status=np.full(n, int(status), np.uint8),
        detections=np.full(n, 5),
        detection_id=frame.ids[order],
        has_detection=np.ones(n, bool),
        nis=np.ones(n),
        state=state[order],
        covariance=np.zeros((n, STATES, STATES)),
    )
    nothing = np.zeros(n, np.uint8)
    gaussians = (frame.mean, frame.covariance, None)
    return Answered(
        nothing, nothing, *gaussians, ("v",), track_id, tracks, nothing, None, None, "", nothing
    )


def test_a_drive_without_frames_has_no_quality():
    assert TrackingRecord().quality() == {}


def test_an_object_that_goes_on_under_another_track_is_a_switch_of_that_phase():
    record = TrackingRecord()
    for number, (ids, phase) in enumerate(
        [([7, 8], "fault"), ([7, 8], "fault"), ([7, 9], "corrected"), ([8, 9], "corrected")]
    ):
        frame = frame_of(number, {1: (10.0, 0.0), 2: (50.0, 0.0)})
        record.add(frame, phase, answer_of(frame, ids))
    quality = record.quality()
    assert quality["fault"][Fed.RECALIBRATED].id_switches == 0
    assert quality["corrected"][Fed.RECALIBRATED].id_switches == 2
    assert quality["corrected"][Fed.RECALIBRATED].tracked == 4
    assert quality["corrected"][Fed.RAW].id_switches == 0


def test_a_detection_on_a_track_that_is_mostly_of_another_object_is_wrong():
    record = TrackingRecord()
    for number, ids in enumerate([[7, 8], [7, 8], [7, 8], [8, 7], [7, 8]]):
        frame = frame_of(number, {1: (10.0, 0.0), 2: (50.0, 0.0)})
        record.add(frame, "after", answer_of(frame, ids))
    quality = record.quality()["after"]
    assert quality[Fed.RECALIBRATED].wrong == 2
    assert quality[Fed.RAW].wrong == 0


def test_an_answer_without_tracks_has_tracked_nothing():
    record, frame = TrackingRecord(), frame_of(0, {1: (10.0, 0.0)})
    answer = answer_of(frame, [0])
    none = replace(
        answer.tracks,
        **{f.name: getattr(answer.tracks, f.name)[:0] for f in fields(AnsweredTracks)},
    )
    record.add(frame, "healthy", replace(answer, tracks=replace(none, state=np.zeros((0, 0)))))
    assert record.quality()["healthy"][Fed.RECALIBRATED].tracked == 0


def test_unconfirmed_tracks_and_false_detections_count_for_nothing():
    record = TrackingRecord()
    first, second = (frame_of(number, {1: (10.0, 0.0), -1: (50.0, 0.0)}) for number in range(2))
    record.add(first, "healthy", answer_of(first, [3, 4]))
    record.add(second, "healthy", answer_of(second, [5, 6], TrackStatus.TENTATIVE))
    found = record.quality()["healthy"][Fed.RECALIBRATED]
    assert (found.detections, found.tracked, found.id_switches) == (2, 1, 0)


def test_velocities_are_held_against_central_differences_and_not_across_gaps():
    record = TrackingRecord()
    for number in (0, 1, 2, 9):
        frame = frame_of(number, {1: (10.0 + 0.5 * number, 0.0)})
        record.add(frame, "healthy", answer_of(frame, [3], velocity=(5.0, 2.0)))
    found = record.quality()["healthy"][Fed.RECALIBRATED]
    assert found.velocity_rmse == pytest.approx(2.0)
    assert found.position_rmse == 0.0


def test_without_neighbours_in_time_there_is_no_velocity_to_compare_with():
    record = TrackingRecord()
    frame = frame_of(0, {1: (10.0, 0.0)})
    record.add(frame, "healthy", answer_of(frame, [3]))
    assert math.isnan(record.quality()["healthy"][Fed.RECALIBRATED].velocity_rmse)


def test_the_own_tracker_follows_what_was_reported():
    record = TrackingRecord()
    for number in range(12):
        frame = frame_of(number, {1: (10.0 + 0.4 * number, 0.0), 2: (10.0, 30.0)})
        record.add(frame, "healthy", answer_of(frame, [1, 2]))
    found = record.quality()["healthy"][Fed.RAW]
    assert (found.detections, found.tracked, found.id_switches) == (24, 20, 0)
    assert found.velocity_rmse < 1.5
