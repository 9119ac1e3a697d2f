"""Compares tracking of one sensor with recalibrated covariances to tracking with raw ones.

The sidecar's tracks are fed what it forwards; an equal tracker in here is fed what the detector
reported. The drive knows which object each detection is of, so that nothing has to be matched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from monitor.commands.demo.scene import CLASSES, SPACE, SimulatedFrame
from monitor.frames.detections import IdArray
from monitor.frames.frame import ReportedTracks, TrackStatus
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.tracking.motion import TrackerSettings
from monitor.tracking.quality import rmse
from monitor.tracking.tracker import Sightings, Tracker, follow, tracker_model
from monitor.wire.client_messages import Answered, AnsweredTracks

# A true velocity is taken from places no farther apart in time, seconds.
_LONGEST_DIFFERENCE = 0.35
_PLACE = slice(0, 3)  # x, y, z in SPACE
_VELOCITY = slice(SPACE.k, SPACE.k + 3)  # and their velocities in the state


class Fed(StrEnum):
    """The covariance that a tracker takes as R."""

    RAW = "raw"  # the covariance that the detector reports
    RECALIBRATED = "recalibrated"  # the one that the sidecar forwards


@dataclass(frozen=True, slots=True)
class TrackingQuality:
    """Tracking of the true detections of a phase.

    detections     how many
    tracked        how many of them updated a confirmed track
    id_switches    how often an object went on under another track
    wrong          how many updated a track most of whose detections are of another object
    position_rmse  m, of the tracks at these detections; NaN without any
    velocity_rmse  m/s
    """

    detections: int
    tracked: int
    id_switches: int
    wrong: int
    position_rmse: float
    velocity_rmse: float


# A true detection: who, when, in which phase, the confirmed track it updated (0 for none), where it
# truly is, and that track's state.
_ROW = np.dtype(
    [("object", np.int64), ("stamp_ns", np.int64), ("phase", "U16"), ("track", np.uint64)]
    + [(name, float, (3,)) for name in ("truth", "position", "velocity")]
)
_MODEL = tracker_model(SPACE, len(CLASSES), TrackerSettings())
_Rows = npt.NDArray[np.void]


@dataclass(slots=True)
class TrackingRecord:
    """Tracks of one sensor's drive, by both trackers."""

    _own: Tracker = field(default_factory=lambda: Tracker(_MODEL))
    _numbered: int = 0
    _rows: dict[Fed, list[_Rows]] = field(default_factory=lambda: {fed: [] for fed in Fed})

    def add(self, frame: SimulatedFrame, phase: str, answer: Answered) -> None:
        """Adds a frame as it was reported, with the answer to it."""
        self._note(Fed.RECALIBRATED, frame, phase, answer.track_id, answer.tracks)
        self.add_raw(frame, phase)

    def add_raw(self, frame: SimulatedFrame, phase: str) -> None:
        """Tracks a frame as it was reported."""
        n = frame.ids.size
        self._own, step, _ = follow(
            self._own,
            Sightings(
                stamp_ns=frame.stamp_ns,
                mean=frame.mean,
                covariance=frame.covariance,
                class_index=frame.classes,
                row=np.arange(n),
                number=np.arange(1, n + 1, dtype=np.uint64) + np.uint64(self._numbered),
                score=frame.score,
            ),
        )
        self._numbered += n
        if step is not None:
            tracks = step.reported()
            self._note(Fed.RAW, frame, phase, tracks.of_detections(n), tracks)

    def _note(
        self,
        fed: Fed,
        frame: SimulatedFrame,
        phase: str,
        track_id: IdArray,
        tracks: AnsweredTracks | ReportedTracks,
    ) -> None:
        """Notes the true detections, each under its track_id (N,) if that track is confirmed."""
        confirmed = tracks.status == TrackStatus.CONFIRMED
        place = {id: row for row, id in enumerate(tracks.id[confirmed].tolist())}
        # The last row is of detections without a confirmed track.
        nowhere = np.full((1, SPACE.k + 3), np.nan)
        states = np.concatenate([tracks.state[confirmed].reshape(-1, SPACE.k + 3), nowhere])
        true = np.flatnonzero(frame.track >= 0)
        at = np.array([place.get(id, -1) for id in track_id[true].tolist()], np.int64)
        rows = np.zeros(true.size, _ROW)
        rows["object"], rows["stamp_ns"], rows["phase"] = frame.track[true], frame.stamp_ns, phase
        rows["track"] = np.where(at < 0, np.uint64(0), track_id[true])
        rows["truth"] = frame.truth[true, _PLACE]
        rows["position"], rows["velocity"] = states[at, _PLACE], states[at, _VELOCITY]
        self._rows[fed].append(rows)

    def quality(self) -> Mapping[str, Mapping[Fed, TrackingQuality]]:
        """Measures quality by phase and by what the tracker was fed."""
        found: dict[str, dict[Fed, TrackingQuality]] = {}
        for fed, parts in self._rows.items():
            if not parts:
                continue
            for phase, quality in _by_phase(np.concatenate(parts)).items():
                found.setdefault(phase, {})[fed] = quality
        return found


def _by_phase(rows: _Rows) -> dict[str, TrackingQuality]:
    rows = rows[np.lexsort((rows["stamp_ns"], rows["object"]))]
    tracked = rows["track"] > 0
    switched, wrong = _switched(rows, tracked), tracked & (_owner(rows) != rows["object"])
    position, velocity = rows["position"] - rows["truth"], rows["velocity"] - _true_velocity(rows)
    return {
        phase: TrackingQuality(
            detections=int(np.count_nonzero(here)),
            tracked=int(np.count_nonzero(here & tracked)),
            id_switches=int(np.count_nonzero(here & switched)),
            wrong=int(np.count_nonzero(here & wrong)),
            position_rmse=rmse(position[here]),
            velocity_rmse=rmse(velocity[here]),
        )
        for phase in np.unique(rows["phase"]).tolist()
        for here in [rows["phase"] == phase]
    }


def _switched(rows: _Rows, tracked: BoolArray) -> BoolArray:
    """(n,) where an object's confirmed track is another than when it last had one."""
    at = np.flatnonzero(tracked)
    same = rows["object"][at[1:]] == rows["object"][at[:-1]]
    switched = np.zeros(rows["object"].size, bool)
    switched[at[1:]] = same & (rows["track"][at[1:]] != rows["track"][at[:-1]])
    return switched


def _owner(rows: _Rows) -> IntArray:
    """(n,) the object that most detections of each row's track are of."""
    count = Counter(zip(rows["track"].tolist(), rows["object"].tolist(), strict=True))
    owner = dict(sorted(count, key=lambda pair: (count[pair], pair)))
    return np.array([owner[track] for track in rows["track"].tolist()], np.int64)


def _true_velocity(rows: _Rows) -> FloatArray:
    """(n, 3) central differences of an object's places; NaN at the ends and across gaps."""
    velocity = np.full(rows["truth"].shape, np.nan)
    seconds = (rows["stamp_ns"][2:] - rows["stamp_ns"][:-2]) * 1e-9
    usable = (rows["object"][2:] == rows["object"][:-2]) & (seconds <= _LONGEST_DIFFERENCE)
    difference = (rows["truth"][2:] - rows["truth"][:-2])[usable]
    velocity[1:-1][usable] = difference / seconds[usable, None]
    return velocity
