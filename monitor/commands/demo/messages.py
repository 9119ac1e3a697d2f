"""Simulated frames as messages to a sidecar."""

from __future__ import annotations

from monitor.commands.demo.scene import SimulatedFrame
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_truth


def frame_message(frame: SimulatedFrame) -> bytes:
    """Encodes a frame as its sensor sends it, without ground truth."""
    return encode_frame(
        OutgoingFrame(
            frame_id=frame.frame_id,
            stamp_ns=frame.stamp_ns,
            id=frame.ids,
            class_index=frame.classes,
            mean=frame.mean,
            covariance=frame.covariance,
            score=frame.score,
        )
    )


def truth_message(frame: SimulatedFrame) -> bytes:
    """Labels of all its detections that are of an object; the others are of none."""
    true = frame.track >= 0
    return encode_truth(
        frame.sensor, frame.frame_id, frame.ids[true], frame.truth[true], complete=True
    )
