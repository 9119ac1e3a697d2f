"""Labels of a frame: protobuf bytes to arrays, by detection id and in ids of the labeller's own.

Never raises: what cannot be read becomes a Refusal, which is answered like any other message.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.detections import Reason
from monitor.calibration.limits import MOST_CLASSES
from monitor.calibration.matched import TrackIds
from monitor.edges.record_columns import columns_by_layout, record_columns
from monitor.edges.records import Kind, Schema, TailReader
from monitor.edges.wire import (
    DETECTIONS,
    WIDEST,
    WIDEST_COVARIANCE,
    WireLimits,
    parse,
    too_many,
)
from monitor.frames import ReceivedObjects, ReceivedRegion, ReceivedTruth, Refusal
from monitor.v1 import perception_monitor_pb2, truth_pb2

# Regions of one message: each is looked at with every detection of the frame.
MOST_REGIONS = 256

_LABEL: Schema = {
    1: Kind.FIXED64,
    2: Kind.DOUBLES,
    3: Kind.FLAG,
    4: Kind.FIXED32,
    5: Kind.FIXED64,
}
_OBJECT: Schema = {
    1: Kind.FIXED64,
    2: Kind.FIXED32,
    3: Kind.DOUBLES,
    4: Kind.DOUBLES,
    5: Kind.FLAG,
    6: Kind.FIXED64,
}
# It remembers the last layout only to save a walk; what it reads does not depend on that.
_TAIL = TailReader(DETECTIONS, _LABEL)


def decode_truth_request(data: bytes, limits: WireLimits) -> ReceivedTruth | Refusal:
    """A message of ReportGroundTruth."""
    request = perception_monitor_pb2.ReportGroundTruthRequest()
    refusal = parse(request, data, limits)
    if refusal is not None:
        return refusal
    truth = request.truth
    refusal = _beyond_limits(truth, limits)
    if refusal is not None:
        return refusal
    foreign = _objects(truth) if truth.objects else None
    regions = tuple(_region(region) for region in truth.ignore_regions)
    # What is read is left out: the rest, but for the detections, is small.
    truth.ClearField("objects")
    truth.ClearField("ignore_regions")
    columns, _ = record_columns(truth, _head(truth).ByteSize(), _TAIL)
    values, lengths = columns.doubles(2, WIDEST)
    return ReceivedTruth(
        stream=truth.stream,
        frame_id=truth.frame_id if truth.HasField("frame_id") else None,
        complete=truth.complete,
        id=columns.scalar(1, np.uint64),
        has_id=columns.present(1),
        truth=values,
        truth_length=lengths,
        ignore=columns.scalar(3, np.uint8).astype(bool),
        class_index=columns.index(4),
        objects=(
            TrackIds(columns.scalar(5, np.uint64), columns.present(5)) if columns.sent(5) else None
        ),
        revision=truth.revision,
        coordinate_frame=truth.coordinate_frame,
        class_names=tuple(truth.class_names),
        foreign=foreign,
        regions=regions,
        stamp_ns=truth.stamp_ns if truth.HasField("stamp_ns") else None,
    )


def _beyond_limits(truth: truth_pb2.FrameTruth, limits: WireLimits) -> Refusal | None:
    refusal = too_many(truth, limits)
    if refusal is not None:
        return refusal
    for field, sent, most, of in (
        ("objects", len(truth.objects), limits.max_detections, " ([limits] max_detections)"),
        ("ignore_regions", len(truth.ignore_regions), MOST_REGIONS, ""),
        ("class_names", len(truth.class_names), MOST_CLASSES, ""),
    ):
        if sent > most:
            message = f"{sent} of them: at most {most} in a message{of}."
            return Refusal(Reason.TOO_MANY_DETECTIONS, field, message)
    return None


def _head(truth: truth_pb2.FrameTruth) -> truth_pb2.FrameTruth:
    """All but the records."""
    head = truth_pb2.FrameTruth(
        stream=truth.stream,
        complete=truth.complete,
        revision=truth.revision,
        coordinate_frame=truth.coordinate_frame,
        class_names=truth.class_names,
    )
    if truth.HasField("frame_id"):
        head.frame_id = truth.frame_id
    if truth.HasField("stamp_ns"):
        head.stamp_ns = truth.stamp_ns
    return head


def _objects(truth: truth_pb2.FrameTruth) -> ReceivedObjects:
    # Fields of a newer client end up behind the known ones, where no layout expects them.
    for sent in truth.objects:
        sent.DiscardUnknownFields()
    columns = columns_by_layout([sent.SerializeToString() for sent in truth.objects], _OBJECT)
    values, lengths = columns.doubles(3, WIDEST)
    covariance, covariance_lengths = columns.doubles(4, WIDEST_COVARIANCE)
    return ReceivedObjects(
        id=columns.scalar(1, np.uint64),
        has_id=columns.present(1),
        class_index=columns.index(2),
        truth=values,
        truth_length=lengths,
        covariance=covariance,
        covariance_length=covariance_lengths,
        ignore=columns.scalar(5, np.uint8).astype(bool),
        # sfixed64: the same eight bytes, with a sign.
        stamp_ns=columns.scalar(6, np.uint64).view(np.int64),
        has_stamp=columns.present(6),
    )


def _region(region: truth_pb2.IgnoreRegion) -> ReceivedRegion:
    return ReceivedRegion(
        class_index=region.class_index if region.HasField("class_index") else -1,
        dimensions=tuple(region.dimensions),
        lower=np.array(region.lower[:], np.float64),
        upper=np.array(region.upper[:], np.float64),
    )
