"""What a sidecar tells of itself as protobuf messages, and back."""

from __future__ import annotations

from monitor.status import Status, StreamStatus, TrackerStatus
from monitor.v1 import status_pb2

# ---- to messages


def status_response(status: Status) -> status_pb2.GetStatusResponse:
    """The answer of GetStatus."""
    return status_pb2.GetStatusResponse(
        version=status.version,
        started_ns=status.started_ns,
        now_ns=status.now_ns,
        streams=map(_stream, status.streams),
        tracker=None if status.tracker is None else _tracker(status.tracker),
        configuration=_text(status.configuration),
        waiting_keys=status.waiting_keys,
        configuration_refused=_text(status.configuration_refused),
    )


def _text(path: str) -> str:
    """Names of files are bytes, which need not be text."""
    return path.encode("utf-8", "replace").decode("utf-8")


def _stream(stream: StreamStatus) -> status_pb2.StreamStatus:
    return status_pb2.StreamStatus(
        stream=stream.stream,
        frames=stream.frames,
        detections=stream.detections,
        stamp_ns=stream.stamp_ns,
        stamped_received_ns=stream.stamped_received_ns,
        received_ns=stream.received_ns,
        matched=stream.matched,
        matched_received_ns=stream.matched_received_ns,
    )


def _tracker(tracker: TrackerStatus) -> status_pb2.TrackerStatus:
    return status_pb2.TrackerStatus(address=tracker.address, up=tracker.up, trouble=tracker.trouble)


# ---- from messages


def status_of(message: status_pb2.GetStatusResponse) -> Status:
    """The inverse of status_response."""
    return Status(
        message.version,
        message.started_ns,
        message.now_ns,
        tuple(map(_stream_of, message.streams)),
        _tracker_of(message.tracker) if message.HasField("tracker") else None,
        message.configuration,
        tuple(message.waiting_keys),
        message.configuration_refused,
    )


def _stream_of(message: status_pb2.StreamStatus) -> StreamStatus:
    return StreamStatus(
        message.stream,
        message.frames,
        message.detections,
        message.stamp_ns if message.HasField("stamp_ns") else None,
        message.stamped_received_ns if message.HasField("stamped_received_ns") else None,
        message.received_ns if message.HasField("received_ns") else None,
        message.matched,
        message.matched_received_ns if message.HasField("matched_received_ns") else None,
    )


def _tracker_of(message: status_pb2.TrackerStatus) -> TrackerStatus:
    return TrackerStatus(message.address, message.up, message.trouble)
