"""What a tracker elsewhere is sent: arrays to bytes. Its answers are read in tracker_answers.py."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from monitor.calibration.space import (
    FloatArray,
    IntArray,
    triangle_in_square,
)
from monitor.edges.records import ByteArray, Kind, build, interleave, varint
from monitor.frames import FrameAnswer, Header
from monitor.recalibration.recalibrator import Estimates
from monitor.tracking.reported import EgoMotion
from monitor.v1 import frame_pb2, tracker_pb2

_DETECTIONS = 15  # the field number of the detections in Frame
_FRAME = 5  # and of the frame in UpdateRequest


def encode_header_update(header: Header) -> bytes:
    """UpdateRequest with a header; without what a client wants of its own answers."""
    told = frame_pb2.StreamHeader(
        stream=header.stream, class_names=header.classes, coordinate_frame=header.coordinate_frame
    )
    for dimension in header.space.dimensions:
        told.dimensions.add(
            name=dimension.name,
            unit=dimension.unit,
            kind=cast("frame_pb2.DimensionKind", int(dimension.kind)),
        )
    return tracker_pb2.UpdateRequest(stream=header.stream, header=told).SerializeToString()


def encode_frame_update(
    stream: str, answer: FrameAnswer, sequence: int, left_ns: int | None
) -> bytes:
    """UpdateRequest with the frame as it goes back to the detector.

    Recalibrated where it was, else as it came. Ground truth that came along stays here; logits
    go out as the probabilities they stand for.

    left_ns  nanoseconds that are left of the detector's call; None: it has no deadline
    """
    head = tracker_pb2.UpdateRequest(stream=stream, sequence=sequence)
    if left_ns is not None:
        head.deadline_ns = max(0, left_ns)
    parts = (_head(answer), _detections(answer))
    tag = varint(_FRAME << 3 | 2) + varint(sum(map(len, parts)))
    return b"".join((head.SerializeToString(), tag, *parts))


def _head(answer: FrameAnswer) -> bytes:
    """All of the Frame but its detections."""
    received = answer.received
    head = frame_pb2.Frame(frame_id=received.frame_id, stamp_ns=received.stamp_ns)
    ego = received.ego or EgoMotion()
    if (pose := ego.pose) is not None:
        told = frame_pb2.Pose(position=pose.position, orientation=pose.orientation)
        head.ego_pose.CopyFrom(told)
    if (twist := ego.twist) is not None:
        head.ego_twist.CopyFrom(frame_pb2.Twist(linear=twist.linear, angular=twist.angular))
    return head.SerializeToString()


def _detections(answer: FrameAnswer) -> bytes:
    """All Detection records, in the order the detections came."""
    received, n = answer.received.detections, answer.received.detections.n
    if n == 0:
        return b""
    values = {4: _means(answer), 5: _covariances(answer)}
    probabilities = _probabilities(answer)
    if probabilities is not None:
        values[8] = probabilities
    scalars: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
        1: (Kind.FIXED64, received.id),
        2: (Kind.FIXED32, received.class_index),
    }
    present = [received.has_id, received.class_index >= 0]
    numbers = [1, 2]
    if received.score is not None:
        scalars[3] = (Kind.DOUBLE, received.score)
        present.append(~np.isnan(received.score))
        numbers.append(3)
    if received.upstream_track is not None:
        scalars[7] = (Kind.FIXED64, received.upstream_track[0])
        present.append(received.upstream_track[1])
        numbers.append(7)
    layout = np.stack([*present, *(length for _, length in values.values())]).astype(np.int64)

    def records(rows: IntArray | slice, first: int, count: int) -> ByteArray:
        """Of rows that are alike."""
        here = layout[:, first].tolist()
        fields: dict[int, tuple[Kind, npt.NDArray[np.generic]]] = {
            number: (scalars[number][0], scalars[number][1][rows])
            for number, there in zip(numbers, here, strict=False)
            if there
        }
        lengths = here[len(numbers) :]
        for (number, (array, _)), length in zip(values.items(), lengths, strict=True):
            fields[number] = (Kind.DOUBLES, array[rows, :length])
        return build(_DETECTIONS, dict(sorted(fields.items())), count)

    overlong = answer.received.overlong
    if not overlong and (layout == layout[:, :1]).all():
        return records(slice(None), 0, n).tobytes()
    pieces: list[tuple[IntArray, ByteArray]] = [
        (rows, records(rows, int(rows[0]), rows.size)) for rows in _alike(layout, list(overlong))
    ]
    pieces.extend((np.array([row]), _overlong(record)) for row, record in overlong.items())
    return interleave(n, pieces)


def _alike(layout: IntArray, left_out: list[int]) -> list[IntArray]:
    """Rows by their columns in the layout, but those left out; ascending."""
    rows = np.setdiff1d(np.arange(layout.shape[1]), left_out)
    _, kind = np.unique(layout[:, rows], axis=1, return_inverse=True)
    return [rows[kind.ravel() == which] for which in range(int(kind.max(initial=-1)) + 1)]


def _means(answer: FrameAnswer) -> tuple[FloatArray, IntArray]:
    received = answer.received.detections
    if answer.forwarded is None or answer.rows.size == 0:
        return received.mean, received.mean_length
    mean = received.mean.copy()
    # Whoever was recalibrated came with K values.
    mean[answer.rows, : answer.forwarded.mean.shape[1]] = answer.forwarded.mean
    return mean, received.mean_length


def _covariances(answer: FrameAnswer) -> tuple[FloatArray, IntArray]:
    """In the form that goes back: the one that was sent, if it still fits."""
    received = answer.received.detections
    if answer.forwarded is None or answer.rows.size == 0:
        return received.covariance, received.covariance_length
    rows, made = answer.rows, answer.forwarded
    length = received.covariance_length.copy()
    length[rows] = form = _forms(made, received.covariance_length[rows])
    if rows.size == received.n and (form == form[0]).all():
        return _packed(made.covariance, int(form[0])), length
    width = max(received.covariance.shape[1], int(form.max()))
    covariance = np.full((received.n, width), np.nan)
    covariance[:, : received.covariance.shape[1]] = received.covariance
    for wanted in np.unique(form).tolist():
        here = np.flatnonzero(form == wanted)
        covariance[rows[here], :wanted] = _packed(made.covariance[here], wanted)
    return covariance, length


def _forms(made: Estimates, sent: IntArray) -> IntArray:
    """(m,) how many values each covariance goes out with."""
    k = made.mean.shape[1]
    full = np.where(sent == k * k, k * k, k * (k + 1) // 2)
    forms: IntArray = np.where(made.diagonal, k, full)
    return forms


def _packed(covariance: FloatArray, form: int) -> FloatArray:
    k = covariance.shape[1]
    if form == k:
        return np.diagonal(covariance, axis1=1, axis2=2)
    flat = covariance.reshape(-1, k * k)
    return flat if form == k * k else flat[:, triangle_in_square(k)]


def _probabilities(answer: FrameAnswer) -> tuple[FloatArray, IntArray] | None:
    """Recalibrated where they were, else as they came; None where none are."""
    sent, extras = answer.received.detections.class_probabilities, answer.extras
    made = None if extras is None else extras.class_probabilities
    if made is None or sent is None:
        return sent
    rows = np.flatnonzero(~np.isnan(made[:, 0]))
    values, length = sent[0].copy(), sent[1].copy()
    values[rows, : made.shape[1]] = made[rows]
    length[rows] = made.shape[1]
    return values, length


def _overlong(record: bytes) -> ByteArray:
    """The record of a detection that fits no array, as it came."""
    sent = frame_pb2.Detection.FromString(record)
    sent.ClearField("ground_truth")
    sent.ClearField("ground_truth_class")
    body = sent.SerializeToString()
    framed = varint(_DETECTIONS << 3 | 2) + varint(len(body)) + body
    return np.frombuffer(framed, np.uint8).reshape(1, -1)
