"""The other end of the wire: a client's arrays to bytes. Its answers are read in answered.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.matched import TrackIds
from monitor.calibration.space import FloatArray, IntArray, triangle
from monitor.edges.records import Kind, build, interleave, varint
from monitor.frames import Header
from monitor.tracking.reported import EgoMotion
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2

_DETECTIONS = 15


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """A frame to send.

    covariance           (N, K, K), or (N, K) variances
    truth                (N, K) inline truth, or None
    upstream_track       (N,) from a tracker of the detector's own, or None
    ego                  motion of the sensor, where known
    class_probabilities  (N, C), or (N, M, C) of M opinions, or None
    true_class           (N,) known at once: index into the header's class names, or None
    class_logits         in place of class_probabilities, in the same shapes, or None
    """

    frame_id: int
    stamp_ns: int
    id: IdArray
    class_index: IntArray
    mean: FloatArray
    covariance: FloatArray
    score: FloatArray | None = None
    truth: FloatArray | None = None
    upstream_track: IdArray | None = None
    ego: EgoMotion | None = None
    class_probabilities: FloatArray | None = None
    true_class: IntArray | None = None
    class_logits: FloatArray | None = None


def encode_header(header: Header) -> bytes:
    """ProcessRequest with a header."""
    return perception_monitor_pb2.ProcessRequest(
        header=frame_pb2.StreamHeader(
            stream=header.stream,
            dimensions=[
                frame_pb2.Dimension(
                    name=d.name, unit=d.unit, kind=cast("frame_pb2.DimensionKind", int(d.kind))
                )
                for d in header.space.dimensions
            ],
            class_names=header.classes,
            coordinate_frame=header.coordinate_frame,
            return_tracks=header.return_tracks,
            quantile_levels=header.quantile_levels,
        )
    ).SerializeToString()


def encode_frame(frame: OutgoingFrame) -> bytes:
    """ProcessRequest with a frame; full covariances go out as their lower triangles."""
    body = _head(frame).SerializeToString() + _detections(frame)
    return b"\x12" + varint(len(body)) + body  # field 2, length-delimited


def _head(frame: OutgoingFrame) -> frame_pb2.Frame:
    """All of the frame but its detections."""
    head = frame_pb2.Frame(frame_id=frame.frame_id, stamp_ns=frame.stamp_ns)
    ego = frame.ego or EgoMotion()
    if (pose := ego.pose) is not None:
        told = frame_pb2.Pose(position=pose.position, orientation=pose.orientation)
        head.ego_pose.CopyFrom(told)
    if (twist := ego.twist) is not None:
        head.ego_twist.CopyFrom(frame_pb2.Twist(linear=twist.linear, angular=twist.angular))
    return head


def _detections(frame: OutgoingFrame) -> bytes:
    n = frame.id.size
    if n == 0:
        return b""
    covariance = frame.covariance
    if covariance.ndim == 3:
        i, j = triangle(covariance.shape[1])
        covariance = covariance[:, i, j]
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
        1: (Kind.FIXED64, frame.id),
        2: (Kind.FIXED32, frame.class_index),
    }
    if frame.score is not None:
        fields[3] = (Kind.DOUBLE, frame.score)
    fields[4] = (Kind.DOUBLES, frame.mean)
    fields[5] = (Kind.DOUBLES, covariance)
    if frame.truth is not None:
        fields[6] = (Kind.DOUBLES, frame.truth)
    if frame.upstream_track is not None:
        fields[7] = (Kind.FIXED64, frame.upstream_track)
    if frame.class_probabilities is not None:
        fields[8] = (Kind.DOUBLES, frame.class_probabilities.reshape(n, -1))
    if frame.true_class is not None:
        fields[9] = (Kind.FIXED32, frame.true_class)
    if frame.class_logits is not None:
        fields[10] = (Kind.DOUBLES, frame.class_logits.reshape(n, -1))
    return build(_DETECTIONS, fields, n).tobytes()


def encode_truth(
    stream: str,
    frame_id: int,
    ids: IdArray,
    truth: FloatArray | None,
    *,
    class_index: IntArray | None = None,
    objects: TrackIds | None = None,
    complete: bool = False,
) -> bytes:
    """ReportGroundTruthRequest for n detections by their ids.

    truth        (n, K), or None where only classes are labelled
    class_index  (n,) true classes, or None
    objects      (n,) the labeller's own ids, or None
    """
    head = truth_pb2.FrameTruth(stream=stream, frame_id=frame_id, complete=complete)
    body = head.SerializeToString()
    if ids.size:
        labels: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {1: (Kind.FIXED64, ids)}
        if truth is not None:
            labels[2] = (Kind.DOUBLES, truth)
        if class_index is not None:
            labels[4] = (Kind.FIXED32, class_index)
        body += _labels(labels, ids.size, objects)
    return b"\x0a" + varint(len(body)) + body  # field 1, length-delimited


def _labels(
    fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]], n: int, objects: TrackIds | None
) -> bytes:
    """n labels, n > 0; those of a known object carry its id."""
    if objects is None or not objects.known.any():
        return build(_DETECTIONS, fields, n).tobytes()
    pieces = []
    for known in (True, False):
        rows = np.flatnonzero(objects.known == known)
        if rows.size == 0:
            continue
        chosen = {number: (kind, values[rows]) for number, (kind, values) in fields.items()}
        if known:
            chosen[5] = (Kind.FIXED64, objects.id[rows])
        pieces.append((rows, build(_DETECTIONS, chosen, rows.size)))
    return interleave(n, pieces)
