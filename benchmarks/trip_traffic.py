"""Frames and late labels that are the same in every run, and streams to send them on; nothing of
the sidecar but its messages is known here.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from monitor.v1 import frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1.perception_monitor_pb2_grpc import PerceptionMonitorStub

OBJECTS = 12  # seen at once
_SHORTEST_LIFE, _LONGEST_LIFE = 10, 40  # frames that each is seen
_APART = 20.0  # m between two objects: no label can be taken for its neighbour's
_PERIOD_NS = 10**8  # between two frames
_BEGIN_NS = 1_699_999_980 * 10**9  # a whole minute: the ledger begins a new partition at each
_CLASS = "car"

Truth: TypeAlias = list[tuple[float, float]]
Labels: TypeAlias = Callable[[str, frame_pb2.Frame, Truth], truth_pb2.FrameTruth]


def by_id(stream: str, frame: frame_pb2.Frame, truth: Truth) -> truth_pb2.FrameTruth:
    """Labels a frame by the ids of its detections."""
    labels = truth_pb2.FrameTruth(stream=stream, frame_id=frame.frame_id)
    for detection, position in zip(frame.detections, truth, strict=True):
        labels.detections.add(detection_id=detection.id, ground_truth=position)
    return labels


def as_objects(stream: str, frame: frame_pb2.Frame, truth: Truth) -> truth_pb2.FrameTruth:
    """Labels a frame as objects in the labeller's own ids, stamped 10 ms later than it."""
    labels = truth_pb2.FrameTruth(
        stream=stream, frame_id=frame.frame_id, complete=True, class_names=[_CLASS]
    )
    stamp = frame.stamp_ns + _PERIOD_NS // 10
    for detection, position in zip(frame.detections, truth, strict=True):
        labels.objects.add(
            object_id=detection.upstream_track_id + 10**6,
            class_index=0,
            ground_truth=position,
            stamp_ns=stamp,
        )
    return labels


@dataclass(slots=True)
class Detector:
    """Makes frames of objects far from each other, and their labels.

    variance  sent over true
    """

    stream: str
    labels: Labels
    variance: float = 1.0
    _frames: int = 0
    _born: int = 0
    _left: list[tuple[int, int]] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    def header(self) -> pb.ProcessRequest:
        """Makes the header of its stream."""
        dimensions = [frame_pb2.Dimension(name=name, unit="m") for name in "xy"]
        return pb.ProcessRequest(
            header=frame_pb2.StreamHeader(
                stream=self.stream, dimensions=dimensions, class_names=[_CLASS]
            )
        )

    def next(self) -> tuple[frame_pb2.Frame, truth_pb2.FrameTruth]:
        """Makes the next frame, and its labels."""
        number, chance = self._frames, self._random
        self._frames += 1
        # Objects of which frames are left, by number; others come where some have gone.
        self._left = [(name, frames - 1) for name, frames in self._left if frames > 1]
        while len(self._left) < OBJECTS:
            self._left.append((self._born, chance.randint(_SHORTEST_LIFE, _LONGEST_LIFE)))
            self._born += 1
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=_BEGIN_NS + number * _PERIOD_NS)
        truth: Truth = []
        for name, _ in self._left:
            x, y = _APART * (name % 100), 10.0
            deviation = chance.uniform(0.1, 0.3)
            frame.detections.add(
                id=name,
                class_index=0,
                mean=(chance.gauss(x, deviation), chance.gauss(y, deviation)),
                covariance=[self.variance * deviation**2] * 2,
                upstream_track_id=name,
            )
            truth.append((x, y))
        return frame, self.labels(self.stream, frame, truth)


class Conversation:
    """Sends messages on a stream, each of which waits for its answer."""

    def __init__(self, method: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self._answers = method(iter(self._requests.get, None))

    def ask(self, message: object) -> Any:
        """Returns the answer to a message."""
        self._requests.put(message)
        return next(self._answers)

    def close(self) -> None:
        """Ends the stream in order."""
        self._requests.put(None)
        if list(self._answers):
            raise RuntimeError("an answer came that nobody asked for: the sidecar is not in order.")


class Talk:
    """Speaks to a sidecar as one detector and its labeller do."""

    def __init__(self, monitor: PerceptionMonitorStub, detector: Detector) -> None:
        self.detector = detector
        self._frames = Conversation(monitor.Process)
        self._labels = Conversation(monitor.ReportGroundTruth)
        answer = self._frames.ask(detector.header()).header
        if not answer.accepted:
            raise RuntimeError(f"the header was refused: {answer.notice}")

    def frame(self) -> truth_pb2.FrameTruth:
        """Sends the next frame, and returns its labels."""
        frame, labels = self.detector.next()
        status = self._frames.ask(pb.ProcessRequest(frame=frame)).frame.status
        if status != frame_pb2.STATUS_RECALIBRATED:
            raise RuntimeError(f"frame {frame.frame_id} was answered with status {status}.")
        return labels

    def label(self, labels: truth_pb2.FrameTruth) -> None:
        """Sends labels, all of which must be matched and durable."""
        answer = self._labels.ask(pb.ReportGroundTruthRequest(truth=labels))
        if answer.account.matched != OBJECTS or not answer.durable:
            raise RuntimeError(f"labels of frame {labels.frame_id} were answered with {answer}")

    def send(self, frames: int) -> None:
        """Sends so many frames, each with its labels before the next one but one."""
        waiting = self.frame()
        for _ in range(frames - 1):
            following = self.frame()
            self.label(waiting)
            waiting = following
        self.label(waiting)

    def close(self) -> None:
        """Ends both streams in order."""
        self._frames.close()
        self._labels.close()
