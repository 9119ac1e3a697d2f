"""Frames of logs are counted as the sidecar counts them, whatever they are cut into."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.config import Config
from monitor.fleet.counting import (
    Detections,
    Joined,
    Objects,
    counted,
    joined,
    merged,
    packed,
    piece_key,
    unpacked,
)
from monitor.frames.detections import ReceivedDetections
from monitor.frames.frame import Header, ReceivedFrame, ReceivedObjects, ReceivedTruth, TrackIds
from monitor.frames.space import plain_space
from monitor.statistics.observations import finished
from monitor.store.statistics_state import StoredState
from tests import states
from tests.fleet.logged import CLASSES, CONFIG, OBJECTS, apart, driven, inline, plainly
from tests.piped import opened, pipeline_of, reported

XY = plain_space(("x", "y"), "")
EVERY, NONE = np.ones(OBJECTS, bool), np.zeros(OBJECTS, np.int64)


def as_sidecar(frames: list[tuple[Detections, Objects]], *, by_place: bool) -> bytes:
    """The state of a sidecar that got the same frames, each with its labels behind it."""
    pipeline = pipeline_of()
    stream = opened(pipeline, Header("front", XY, CLASSES))
    n = np.full(OBJECTS, 2)
    for frame, labels in frames:
        assert frame.probabilities is not None and frame.truth is not None
        detections = ReceivedDetections(
            id=np.arange(OBJECTS, dtype=np.uint64),
            has_id=EVERY,
            class_index=frame.class_index,
            mean=frame.mean,
            mean_length=n,
            covariance=frame.covariance,
            covariance_length=n + 1,
            truth=np.zeros((OBJECTS, 0)),
            truth_length=NONE,
            uniform=True,
            class_probabilities=(frame.probabilities, n + 1),
        )
        pipeline.process(stream, ReceivedFrame(frame.frame_id, frame.stamp_ns, detections))
        objects = ReceivedObjects(
            labels.object, EVERY, labels.class_index, labels.position, n,
            np.zeros((OBJECTS, 0)), NONE, ~EVERY, NONE, ~EVERY,
        )  # fmt: skip
        none = slice(0, 0 if by_place else None)
        told = ReceivedTruth(
            stream="front",
            frame_id=frame.frame_id,
            complete=True,
            id=detections.id[none],
            has_id=EVERY[none],
            truth=frame.truth[none],
            truth_length=n[none],
            ignore=~EVERY[none],
            class_index=frame.class_index[none],
            objects=None if by_place else TrackIds(labels.object, EVERY),
            class_names=CLASSES,
            foreign=objects if by_place else None,
        )
        reported(pipeline, told)
    return states.joined(StoredState(finished(pipeline.live.state_in_steps()).in_order()))


@pytest.mark.parametrize("by_place", [False, True])
def test_logs_are_counted_as_the_sidecar_counts_them(by_place):
    frames = driven("car1", 130)
    logged = apart(frames) if by_place else inline(frames)
    assert plainly(logged) == as_sidecar(frames, by_place=by_place)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_in_any_order_are_counted_as_the_whole(seed):
    frames = [one for name in ("car1", "car2") for one in driven(name, 130)]
    pieces: dict[bytes, list[Joined]] = {}
    for (frame, _), one in zip(frames, inline(frames), strict=True):
        pieces.setdefault(piece_key(frame, CONFIG), []).append(one)
    assert len(pieces) == 6
    random = np.random.default_rng(seed)
    shuffled = [[of[i] for i in random.permutation(len(of))] for of in pieces.values()]
    parts = [plainly(shuffled[i]) for i in random.permutation(len(shuffled))]
    assert merged(parts) == plainly(inline(frames))


def test_bad_rows_are_refused_by_reason_and_their_neighbours_count():
    (frame, _), *_ = driven("car1", 1)
    assert frame.truth is not None
    mean, covariance, truth = frame.mean.copy(), frame.covariance.copy(), frame.truth.copy()
    mean[0, 1], covariance[3, 0], truth[5] = np.nan, -1.0, np.inf
    bad = replace(frame, mean=mean, covariance=covariance, truth=truth)
    kept = np.delete(np.arange(OBJECTS), (0, 3))
    names = "mean", "covariance", "class_index", "truth", "object", "true_class", "probabilities"
    good = replace(frame, **{name: getattr(bad, name)[kept] for name in names})
    state, account = counted([(packed(bad), None)], CONFIG)
    assert state == plainly([(packed(good), None)])
    assert account["refused_mean_value"] == account["refused_covariance_not_positive_definite"] == 1
    assert account["detections"] == OBJECTS


def test_frame_without_labels_is_counted_without_truth():
    ((frame, labels), *_) = driven("car1", 1)
    bare = packed(replace(frame, truth=None, true_class=None))
    one, account = joined([bare], [])
    assert one == (bare, None) and account["frames_without_labels"] == 1
    none, account = joined([], [packed(labels)])
    assert none is None and account["labels_orphan"] == OBJECTS
    twice, account = joined([bare, bare], [packed(labels)])
    assert twice == (bare, packed(labels)) and account["frames_repeated"] == 1


def test_stamp_of_a_time_to_come_is_in_no_window():
    early, late = driven("car1", 2)
    wild = replace(late[0], stamp_ns=2**62)
    unknown = replace(late[0], stamp_ns=None)
    state, account = counted(inline([early, (wild, late[1])]), CONFIG, latest_ns=2**61)
    assert account["frames_later_than_now"] == 1
    assert state == plainly(inline([early, (unknown, late[1])]))


def test_slices_and_windows_are_those_of_the_configuration():
    config = Config.model_validate({"statistics": {"slice_by": ("class", "stream")}})
    ((frame, _), *_) = driven("car1", 1)
    assert packed(unpacked(Detections, packed(frame))) == packed(frame)
    state, _ = counted([(packed(frame), None)], config)
    assert b"front/Car" in state and b"front/Car" not in plainly([(packed(frame), None)])
