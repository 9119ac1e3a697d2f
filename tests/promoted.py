"""A detector of correlated errors, sent to a real sidecar, and what that says of it; no tests."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from scipy.special import softmax

from monitor.v1 import frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import recalibration_record_pb2 as records_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.v1.recalibration_record_pb2 import RecalibrationRecord as Record
from tests.labelled import header
from tests.pipeline.fit_processes import children, is_there
from tests.served import PATIENCE, Conversation, Sidecar, eventually

BEGAN, PROVEN = records_pb.HAPPENED_BEGAN, records_pb.HAPPENED_PROVEN
PROMOTED, ROLLED_BACK = records_pb.HAPPENED_PROMOTED, records_pb.HAPPENED_ROLLED_BACK
PINNED = records_pb.HAPPENED_PINNED
SWAPS = (PROMOTED, ROLLED_BACK, records_pb.HAPPENED_ADAPTED)

_PERIOD = 0.1  # s of event time between two frames
# Frames that each object lives, and how errors resemble those of the frame before.
_SHORTEST_LIFE, _LONGEST_LIFE, _CORRELATION = 10, 40, 0.65
# Frames that are sent in one go, and s of rest after them: the sidecar learns every 0.25 s, so that
# some hundred tracks end between two looks.
_IN_ONE_GO, _REST = 20, 0.05
# s of rest while a fit runs, which has the lowest priority: it would wait for us otherwise.
_FOR_A_FIT = 2.0
# s for which a stream may last: a whole test.
_LIFETIME = 12 * PATIENCE


def settings(folder: Path | str = "", **promotion: object) -> str:
    """A sidecar that fits as soon as it can and keeps what it learns at once."""
    # Tracks are no longer than an object is seen: what is seen shorter has less to say.
    chosen = {"fit_every_seconds": 0.2, "fit_tracks": 30, "track_seconds": 4.0, **promotion}
    # JSON and TOML write these values alike.
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in chosen.items())
    return f"""
[metrics]
refresh_seconds = 0.2
[state]
folder = "{folder}"
every_seconds = 0.2
[promotion]
{lines}
"""


@dataclass(slots=True)
class _Seen:
    """An object: error is in standard deviations."""

    track: int
    class_index: int
    deviation: np.ndarray
    error: np.ndarray
    frames_left: int


@dataclass(slots=True)
class Traffic:
    """Of one detector: its event time goes on, whatever becomes of the sidecar.

    variance  by class: what is sent over what is true; 1 is calibrated
    too_sure  logits are so many times too large; 0: no class probabilities are sent
    objects   that are seen at once
    tracks    objects that were seen for the last time
    frames    that were sent, of which every one was answered
    versions  in force as the latest frame was answered
    sent, forwarded
              variances of the latest frame, (detections, 2)
    """

    sidecar: Sidecar
    classes: Sequence[str] = ("car",)
    seed: int = 1
    objects: int = 24
    stream: str = "lidar"
    variance: dict[str, float] = field(default_factory=dict)
    too_sure: float = 0.0
    tracks: int = 0
    frames: int = 0
    versions: tuple[str, ...] = ()
    sent: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    forwarded: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    class_indices: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    _objects: list[_Seen] = field(default_factory=list)
    _born: int = 0
    _random: np.random.Generator = field(init=False)
    _frames: Conversation = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.connect(self.sidecar)

    def connect(self, sidecar: Sidecar) -> None:
        """To the sidecar that has come after the one that is gone."""
        self.sidecar = sidecar
        process = sidecar.monitor.Process
        self._frames = Conversation(lambda sent, timeout: process(sent, timeout=_LIFETIME))
        answer = self._frames.ask(header(self.stream, self.classes)).header
        assert answer.accepted, answer.notice

    def close(self) -> None:
        """In order: every frame has its answer."""
        self._frames.close()

    def send(self, frames: int = _IN_ONE_GO) -> None:
        """So many frames, each of which is answered whole and in order, as refused by nobody."""
        for _ in range(frames):
            frame = self._next()
            answer = self._frames.ask(pb.ProcessRequest(frame=frame)).frame
            assert answer.frame_id == frame.frame_id
            assert answer.status == frame_pb2.STATUS_RECALIBRATED, answer.notices
            assert [d.id for d in answer.detections] == [d.id for d in frame.detections]
            assert {d.status for d in answer.detections} == {frame_pb2.STATUS_RECALIBRATED}
        self.versions = tuple(answer.recalibrator_versions)
        self.sent = np.array([d.covariance for d in frame.detections])
        self.forwarded = np.array([d.covariance for d in answer.detections])
        self.class_indices = np.array([d.class_index for d in frame.detections])

    def _next(self) -> frame_pb2.Frame:
        number = self.frames
        self.frames += 1
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=round(number * _PERIOD * 1e9))
        seen = self._alive()
        factor = np.array([self.variance.get(self.classes[s.class_index], 1.0) for s in seen])
        deviation = np.array([s.deviation for s in seen])
        position = self._random.uniform(-50, 50, (self.objects, 2))
        mean = position + deviation * np.array([s.error for s in seen])
        columns = (one.tolist() for one in (mean, factor[:, None] * deviation**2, position))
        for one, estimate, covariance, label in zip(seen, *columns, strict=True):
            detection = frame.detections.add(
                id=one.track,
                class_index=one.class_index,
                mean=estimate,
                covariance=covariance,
                upstream_track_id=one.track,
                ground_truth=label,
            )
            if self.too_sure:
                logits = self._random.normal(scale=2, size=len(self.classes))
                detection.class_probabilities.extend(softmax(self.too_sure * logits))
                true_class = self._random.choice(logits.size, p=softmax(logits))
                detection.ground_truth_class = int(true_class)
        return frame

    def _alive(self) -> list[_Seen]:
        """Objects of the next frame, with their errors in it."""
        random = self._random
        alive = [seen for seen in self._objects if seen.frames_left]
        self.tracks += len(self._objects) - len(alive)
        fresh = math.sqrt(1 - _CORRELATION**2) * random.normal(size=(len(alive), 2))
        for seen, change in zip(alive, fresh, strict=True):
            seen.error = _CORRELATION * seen.error + change
        while len(alive) < self.objects:
            life = int(random.integers(_SHORTEST_LIFE, _LONGEST_LIFE, endpoint=True))
            deviation = random.uniform(0.5, 2, 2)
            index = self._born % len(self.classes)
            alive.append(_Seen(self._born, index, deviation, random.normal(size=2), life))
            self._born += 1
        for seen in alive:
            seen.frames_left -= 1
        self._objects = alive
        return alive

    def factors(self, name: str = "car") -> np.ndarray:
        """Variance forwarded over that sent in the latest frame, of a class; (detections, 2)."""
        of_class = self.class_indices == self.classes.index(name)
        found: np.ndarray = self.forwarded[of_class] / self.sent[of_class]
        return found


def drive(
    traffic: Traffic, until: Callable[[], object], tracks: int, seconds: float = 10 * PATIENCE
) -> None:
    """Traffic until something is so, which must be before so many tracks have ended.

    Where a fit runs we rest until it is done, or seems to hang.
    """
    end, most = time.monotonic() + seconds, traffic.tracks + tracks
    while not until():
        assert time.monotonic() < end, "it did not come in time"
        assert traffic.tracks < most, f"it did not come within {tracks} tracks"
        traffic.send()
        time.sleep(_REST)
        eventually(lambda: not workers(traffic.sidecar.process.pid), _FOR_A_FIT)


def drive_for(traffic: Traffic, tracks: int) -> None:
    """Traffic until so many more tracks have ended."""
    most = traffic.tracks + tracks
    while traffic.tracks < most:
        traffic.send()
        time.sleep(_REST)


class Watcher:
    """Hears all that WatchEvents tells of recalibrators from now on."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.records: list[Record] = []
        self.events: list[pb.WatchEventsResponse] = []
        self._call = sidecar.monitor.WatchEvents(pb.WatchEventsRequest(), timeout=_LIFETIME)
        self.events.append(next(self._call))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        # Until the sidecar is gone, or we are.
        with contextlib.suppress(grpc.RpcError):
            for response in self._call:
                event = response.event
                self.events.append(response)
                if event.WhichOneof("event") == "version":
                    version, record = event.version, event.version.record
                    assert (version.before, version.after) == (record.before, record.after)
                    self.records.append(record)
                elif event.WhichOneof("event") == "recalibration":
                    self.records.append(event.recalibration)

    def of(self, *what: int, slice: str | None = None) -> list[Record]:
        """Records of what happened, in order."""
        found = [record for record in self.records if record.what in what]
        return [record for record in found if slice is None or record.slice == slice]

    def close(self) -> None:
        self._call.cancel()
        self._thread.join(PATIENCE)


def listed(sidecar: Sidecar, records: int = 0) -> admin_pb.ListResponse:
    request = admin_pb.ListRequest(records=records)
    found: admin_pb.ListResponse = sidecar.admin.List(request, timeout=PATIENCE)
    return found


def active_version(sidecar: Sidecar) -> str:
    """Version of the recalibrator of estimates."""
    of_estimates = admin_pb.RECALIBRATOR_KIND_ESTIMATES
    known = listed(sidecar).recalibrators
    (version,) = (one.version for one in known if one.promoted and one.kind == of_estimates)
    return version


def trials(sidecar: Sidecar) -> dict[tuple[str, int], admin_pb.Trial]:
    """By slice and state."""
    return {(trial.slice, trial.state): trial for trial in listed(sidecar).trials}


def series(sidecar: Sidecar, name: str) -> dict[str, float]:
    """A family of metrics: values by their labels as they are written."""
    line = rf"^calibration_{name}(?:{{(.*)}})? (\S+)$"
    rows = re.findall(line, sidecar.get("/metrics"), re.MULTILINE)
    return {labels: float(value) for labels, value in rows}


def pin(sidecar: Sidecar, pinned: bool) -> bool:
    """How it was."""
    request = admin_pb.PinRequest(pinned=pinned, actor="test")
    was: bool = sidecar.admin.Pin(request, timeout=PATIENCE).was_pinned
    return was


def rollback(sidecar: Sidecar, slice: str = "") -> admin_pb.RollbackResponse:
    request = admin_pb.RollbackRequest(slice=slice, actor="test")
    found: admin_pb.RollbackResponse = sidecar.admin.Rollback(request, timeout=PATIENCE)
    return found


def workers(server: int) -> set[int]:
    """Processes that a sidecar has started to fit, and that are still there."""
    try:
        return {pid for pid in children(server) if is_there(pid)}
    except FileNotFoundError:
        return set()
