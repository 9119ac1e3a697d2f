"""What goes in and comes out of a tracker beside the estimates: motion of the sensor, tracks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import IdArray
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# Tracks of a tracker elsewhere have numbers up to this one, those of ours that stands in higher.
FOREIGN_TRACKS = 2**62


class TrackStatus(IntEnum):
    """How far a track can be relied on; the values are those of the wire."""

    TENTATIVE = 1  # not yet confirmed by enough detections
    CONFIRMED = 2  # and updated by this frame
    COASTING = 3  # confirmed, predicted to this frame


@dataclass(frozen=True, slots=True)
class Pose:
    """Where a sensor is in a frame that stands still.

    position     (3,) m
    orientation  (4,) unit quaternion w, x, y, z, from the sensor's axes into the fixed ones
    """

    position: FloatArray
    orientation: FloatArray


@dataclass(frozen=True, slots=True)
class Twist:
    """How a sensor moves, in its own axes.

    linear   (3,) m/s
    angular  (3,) rad/s
    """

    linear: FloatArray
    angular: FloatArray


@dataclass(frozen=True, slots=True)
class EgoMotion:
    """Motion of the sensor as a frame tells it."""

    pose: Pose | None = None
    twist: Twist | None = None


@dataclass(frozen=True, slots=True)
class ReportedTracks:
    """M tracks at the capture time of a frame.

    id            (M,) unique in the stream
    class_index   (M,)
    status        (M,) of TrackStatus
    detections    (M,) how many each has had
    detection     (M,) row in the frame of the one that updated or began it; −1 for none
    nis           (M,) normalised innovation squared of the update, NaN for none
    state         (M, S) the dimensions of the stream, then the velocities
    covariance    (M, S, S)
    """

    id: IdArray
    class_index: IntArray
    status: npt.NDArray[np.uint8]
    detections: IntArray
    detection: IntArray
    nis: FloatArray
    state: FloatArray
    covariance: FloatArray

    @property
    def m(self) -> int:
        """Number of tracks."""
        return int(self.id.size)

    @property
    def updated(self) -> BoolArray:
        """(M,) which of them have a detection in the frame."""
        has_one: BoolArray = self.detection >= 0
        return has_one

    def of_detections(self, n: int) -> IdArray:
        """(n,) the track that each detection of the frame updated or began; 0 is no track's id."""
        track = np.zeros(n, np.uint64)
        track[self.detection[self.updated]] = self.id[self.updated]
        return track
