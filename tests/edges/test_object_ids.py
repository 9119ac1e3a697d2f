"""The labeller's own ids of objects: over the wire, and to the detections they are of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import Config
from monitor.frames.detections import Limits
from monitor.frames.frame import Header, ReceivedTruth, TrackIds
from monitor.frames.space import plain_space
from monitor.matching.labels import match
from monitor.matching.record import LabelRecord
from monitor.pipeline.pending import PendingFrame
from monitor.pipeline.streams import Stream
from monitor.v1 import perception_monitor_pb2, truth_pb2
from monitor.wire.client_messages import encode_truth
from monitor.wire.requests import WireLimits, decode_truth_request
from tests import received
from tests.piped import pipeline_of
from tests.received import Label, Sent

LIMITS = WireLimits(max_message_bytes=2**20, max_detections=64)
IDS = st.integers(0, 2**64 - 1)
LABELS = st.fixed_dictionaries(
    {"detection_id": IDS},
    optional={
        "ground_truth": st.lists(st.floats(width=64, allow_nan=False), max_size=3),
        "ignore": st.booleans(),
        "class_index": st.integers(0, 2**32 - 1),
        "object_id": IDS,
    },
)


def decoded(data: bytes) -> ReceivedTruth:
    found = decode_truth_request(data, LIMITS)
    assert isinstance(found, ReceivedTruth)
    return found


def known(*ids: int | None) -> TrackIds:
    return TrackIds(
        np.array([id or 0 for id in ids], np.uint64), np.array([id is not None for id in ids])
    )


def as_list(objects: TrackIds | None) -> list[int | None] | None:
    if objects is None:
        return None
    pairs = zip(objects.id.tolist(), objects.known.tolist(), strict=True)
    return [id if has else None for id, has in pairs]


# ---- over the wire


@given(st.lists(LABELS, max_size=6))
def test_object_ids_are_decoded_as_protobuf_reads_them_in_any_mix_of_labels(labels):
    message = perception_monitor_pb2.ReportGroundTruthRequest(
        truth=truth_pb2.FrameTruth(
            stream="lidar", detections=[truth_pb2.DetectionTruth(**label) for label in labels]
        )
    )
    found = decoded(message.SerializeToString())
    sent = [label.get("object_id") for label in labels]
    assert as_list(found.objects) == (None if all(id is None for id in sent) else sent)
    assert found.id.tolist() == [label["detection_id"] for label in labels]
    assert found.truth_length.tolist() == [len(label.get("ground_truth", [])) for label in labels]


@given(st.lists(st.none() | IDS, max_size=8), st.integers(1, 3), st.booleans(), st.booleans())
def test_the_client_sends_object_ids_as_protobuf_would_write_them(ids, k, with_truth, with_class):
    n = len(ids)
    truth = np.arange(n * k, dtype=float).reshape(n, k) if with_truth else None
    classes = np.arange(n) if with_class else None
    detection = np.arange(n, dtype=np.uint64)[::-1]
    data = encode_truth(
        "lidar", 7, detection, truth, class_index=classes, objects=known(*ids), complete=True
    )
    message = truth_pb2.FrameTruth(stream="lidar", frame_id=7, complete=True)
    for i, id in enumerate(ids):
        label = message.detections.add(detection_id=n - 1 - i)
        if truth is not None:
            label.ground_truth.extend(truth[i])
        if classes is not None:
            label.class_index = i
        if id is not None:
            label.object_id = id
    request = perception_monitor_pb2.ReportGroundTruthRequest(truth=message)
    assert data == request.SerializeToString()
    found = decoded(data)
    assert as_list(found.objects) == (ids if any(id is not None for id in ids) else None)
    assert found.id.tolist() == detection.tolist()


@given(st.integers(0, 6))
def test_labels_of_no_known_object_are_the_bytes_that_older_clients_send(n):
    ids, truth = np.arange(n, dtype=np.uint64), np.ones((n, 2))
    without = encode_truth("lidar", 7, ids, truth)
    assert encode_truth("lidar", 7, ids, truth, objects=known(*[None] * n)) == without
    assert decoded(without).objects is None


# ---- to the detections


def matched(labels: ReceivedTruth, frame: PendingFrame) -> LabelRecord:
    return match(labels, frame.stored, ~frame.resolved, Config().matching, Limits())


def waiting(n: int) -> PendingFrame:
    """A frame of n detections with ids n − 1 … 0, that waits for its labels."""
    pipeline = pipeline_of()
    stream = pipeline.register(Header("lidar", plain_space(("x", "y")), ("car",)))
    assert isinstance(stream, Stream)
    rows = [Sent(id, (float(id), 0.0), (1.0, 1.0)) for id in range(n - 1, -1, -1)]
    pipeline.process(stream, received.frame(rows))
    frame = pipeline.ledger.fates.store.get(("lidar", 1))
    assert frame is not None
    return frame


@given(st.permutations(range(5)), st.lists(st.none() | IDS, min_size=5, max_size=5), st.data())
def test_each_matched_detection_has_the_object_of_its_own_label(order, ids, data):
    frame = waiting(5)
    useless = data.draw(st.sets(st.integers(0, 4)))
    rows = [Label(id, () if id in useless else (float(id), 1.0)) for id in order]
    labels = replace(received.labels(rows), objects=known(*ids))
    matching = matched(labels, frame)
    of_detection = dict(zip(order, ids, strict=True))
    # The mean of a detection is its id.
    found = frame.stored.sent.estimates(matching.rows).mean[:, 0].astype(int).tolist()
    assert set(found) == set(range(5)) - useless
    assert matching.truth[:, 0].astype(int).tolist() == found
    assert as_list(matching.objects) == [of_detection[id] for id in found]


def test_of_two_labels_of_a_detection_the_object_of_the_first_stands():
    labels = received.labels([Label(0, (1.0, 1.0)), Label(0, (2.0, 2.0))])
    frame = waiting(1)
    labels = replace(labels, objects=known(8, 9))
    matching = matched(labels, frame)
    assert as_list(matching.objects) == [8]


@pytest.mark.parametrize("n", [0, 2])
def test_labels_without_objects_match_detections_without_objects(n):
    labels = received.labels([Label(i, (1.0, 1.0)) for i in range(n)])
    frame = waiting(2)
    assert matched(labels, frame).objects is None
