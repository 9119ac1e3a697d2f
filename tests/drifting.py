"""Streams of a detector whose covariances go wrong at some moment, sent to a real sidecar as fast
as it answers; and what that says of drift meanwhile. No tests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from monitor.drift.alarms import StageStanding
from monitor.v1 import drift_pb2, frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.fields import value_of
from tests.labelled import header
from tests.promoted import Watcher
from tests.served import PATIENCE, Conversation, Sidecar

PAGE, TICKET = drift_pb2.DRIFT_SEVERITY_PAGE, drift_pb2.DRIFT_SEVERITY_TICKET
RAISED, NEW_EPOCH = drift_pb2.DRIFT_CHANGE_RAISED, drift_pb2.DRIFT_CHANGE_NEW_EPOCH
ALARM = drift_pb2.DRIFT_STATE_ALARM
QUIET = (drift_pb2.DRIFT_STATE_OK, drift_pb2.DRIFT_STATE_TOO_FEW)
TOO_SMALL, TOO_LARGE = 1 / 5, 5.0  # variances that are sent, over those that are true

FRAMES_A_SECOND = 10
# Frames that an object is seen, and how errors resemble those of the frame before.
_SHORTEST_LIFE, _LONGEST_LIFE, _CORRELATION = 10, 40, 0.65
# Frames that are on their way before their answers are read.
_AT_A_TIME = 50
# s for which a stream may last: a whole test.
_LIFETIME = 12 * PATIENCE


class Known(Enum):
    """Who says which detections are of one object."""

    BY_MESSAGE = auto()  # the detector
    BY_LABELLER = auto()
    BY_NOBODY = auto()


def settings(drift: str = "", more: str = "") -> str:
    """A sidecar with the default budget, that keeps nothing; drift: further lines of [drift]."""
    promotion = "" if "[promotion]" in more else "[promotion]\nmode = 'manual'\n"
    return f"""
[metrics]
refresh_seconds = 0.2
[drift]
reference_seconds = 5.0
{drift}
{promotion}{more}
"""


@dataclass(slots=True)
class Drive:
    """One stream; its event time goes on whatever becomes of it.

    objects        that are seen at once
    degrees        of freedom of Student-t errors, of unit variance; inf: Gaussian
    variance       by class: what is sent over what is true; 1 is calibrated
    delay_seconds  after which the truth comes by ReportGroundTruth; 0: with the detections, but
                   where the labeller says what is one object, right after
    frames         that were sent, of which every one was answered
    versions       in force as the latest frame was answered
    """

    sidecar: Sidecar
    classes: Sequence[str] = ("car",)
    seed: int = 1
    stream: str = "lidar"
    objects: int = 8
    known: Known = Known.BY_MESSAGE
    degrees: float = math.inf
    variance: dict[str, float] = field(default_factory=dict)
    delay_seconds: float = 0.0
    frames: int = 0
    versions: tuple[str, ...] = ()
    _random: np.random.Generator = field(init=False)
    _track: np.ndarray = field(init=False)
    _left: np.ndarray = field(init=False)
    _error: np.ndarray = field(init=False)
    _born: int = 0
    _frames: Conversation = field(init=False)
    _truth: Conversation = field(init=False)
    _waiting: deque[pb.ReportGroundTruthRequest] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._track = np.zeros(self.objects, np.int64)
        self._left = np.zeros(self.objects, np.int64)
        self._error = np.zeros((self.objects, 2))
        monitor = self.sidecar.monitor
        self._frames = Conversation(lambda sent, timeout: monitor.Process(sent, timeout=_LIFETIME))
        self._truth = Conversation(
            lambda sent, timeout: monitor.ReportGroundTruth(sent, timeout=_LIFETIME)
        )
        answer = self._frames.ask(header(self.stream, self.classes)).header
        assert answer.accepted, answer.notice

    @property
    def seconds(self) -> float:
        """Event time of the next frame."""
        return self.frames / FRAMES_A_SECOND

    def close(self) -> None:
        """In order: every frame has its answer."""
        self._frames.close()
        self._truth.close()

    def send(self, seconds: float) -> None:
        """So much driving: each frame is answered whole and in order, its truth is counted."""
        rest = round(seconds * FRAMES_A_SECOND)
        while rest:
            some = min(rest, _AT_A_TIME)
            rest -= some
            sent = [self._next() for _ in range(some)]
            for frame in sent:
                self._frames.send(pb.ProcessRequest(frame=frame))
            for frame in sent:
                answer = self._frames.receive().frame
                assert answer.frame_id == frame.frame_id
                assert len(answer.detections) == self.objects
                assert {d.status for d in answer.detections} == {frame_pb2.STATUS_RECALIBRATED}
            self.versions = tuple(answer.recalibrator_versions)
            self._tell()

    def _tell(self) -> None:
        """Truth that is due by now."""
        due = len(self._waiting) - round(self.delay_seconds * FRAMES_A_SECOND)
        for _ in range(due):
            self._truth.send(self._waiting.popleft())
        for _ in range(due):
            account = self._truth.receive().account
            assert account.matched == self.objects, account

    def _next(self) -> frame_pb2.Frame:
        number = self.frames
        self.frames += 1
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=number * (10**9 // FRAMES_A_SECOND))
        truth = truth_pb2.FrameTruth(stream=self.stream, frame_id=number)
        inline = not self.delay_seconds and self.known is not Known.BY_LABELLER
        error = self._errors()
        classes = self._track % len(self.classes)
        sent = np.array([self.variance.get(name, 1.0) for name in self.classes])[classes]
        position = self._random.uniform(-50, 50, (self.objects, 2))
        rows = zip(
            self._track.tolist(),
            classes.tolist(),
            (position + error).tolist(),
            position.tolist(),
            sent.tolist(),
            strict=True,
        )
        for i, (track, class_index, mean, label, variance) in enumerate(rows):
            detection = frame.detections.add(
                id=i, class_index=class_index, mean=mean, covariance=[variance, variance]
            )
            if self.known is Known.BY_MESSAGE:
                detection.upstream_track_id = track
            if inline:
                detection.ground_truth.extend(label)
                continue
            told = truth.detections.add(detection_id=i, ground_truth=label)
            if self.known is Known.BY_LABELLER:
                told.object_id = track
        if not inline:
            self._waiting.append(pb.ReportGroundTruthRequest(truth=truth))
        return frame

    def _errors(self) -> np.ndarray:
        """Of the objects of the next frame, (objects, 2), of unit variance."""
        random = self._random
        fresh = random.normal(size=(self.objects, 2))
        born = self._left == 0
        self._track[born] = self._born + np.arange(born.sum())
        self._born += int(born.sum())
        lives = random.integers(_SHORTEST_LIFE, _LONGEST_LIFE, self.objects, endpoint=True)
        self._left[born] = lives[born]
        self._left -= 1
        goes_on = _CORRELATION * self._error + math.sqrt(1 - _CORRELATION**2) * fresh
        self._error = np.where(born[:, None], fresh, goes_on)
        if not math.isfinite(self.degrees):
            return self._error
        # The same divisor for both dimensions: a Student-t of the plane.
        divisor = random.chisquare(self.degrees, (self.objects, 1)) / (self.degrees - 2)
        found: np.ndarray = self._error / np.sqrt(divisor)
        return found


def standing(sidecar: Sidecar, slice: str = "car", severity: int = PAGE) -> drift_pb2.DriftStanding:
    """As GetCalibration has it; all truth that came before is in it."""
    told: Iterable[drift_pb2.DriftStanding] = sidecar.calibration(slice).drift
    (found,) = (one for one in told if (one.slice, one.severity) == (slice, severity))
    return found


def stage(sidecar: Sidecar, number: int, slice: str = "car") -> StageStanding:
    """What is known of a slice at one stage."""
    told: Iterable[drift_pb2.DriftStageStanding] = sidecar.calibration(slice).drift_stages
    (found,) = (one for one in told if (one.slice, one.stage) == (slice, number))
    return value_of(StageStanding, found)


def drive_until_alarm(
    drive: Drive, seconds: float, slice: str = "car", severity: int = PAGE
) -> drift_pb2.DriftAlarm:
    """Traffic until there is one, which must be within so many seconds of driving."""
    end = drive.seconds + seconds
    while drive.seconds < end:
        drive.send(1.0)
        found = standing(drive.sidecar, slice, severity)
        if found.HasField("alarm"):
            assert found.state == ALARM
            return found.alarm
    raise AssertionError(f"no alarm within {seconds} s: {found}")


def acknowledge(sidecar: Sidecar, *slices: str) -> list[drift_pb2.DriftAlarm]:
    """End alarms; those that there were."""
    request = pb.AcknowledgeDriftRequest(slices=slices, actor="test")
    return list(sidecar.monitor.AcknowledgeDrift(request, timeout=PATIENCE).acknowledged)


def drift_events(watcher: Watcher, *changes: int) -> list[drift_pb2.DriftEvent]:
    """What was told of alarms, in order."""
    told = [one.event.drift for one in watcher.events if one.event.WhichOneof("event") == "drift"]
    return [one for one in told if not changes or one.change in changes]
