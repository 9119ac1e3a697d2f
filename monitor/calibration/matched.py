"""Matched detections of one frame, at both stages, on their way into the statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.calibration.detections import IdArray
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space


@dataclass(frozen=True, eq=False, slots=True)
class TrackIds:
    """The track of each of n detections.

    id     (n,) unique in the stream
    known  (n,) which detections have one
    """

    id: IdArray
    known: BoolArray

    def take(self, rows: IntArray | slice) -> TrackIds:
        """Of some of them."""
        return TrackIds(self.id[rows], self.known[rows])


@dataclass(frozen=True, eq=False, slots=True)
class MatchedRows:
    """n detections of one frame with their truth, at both stages.

    slices                (n,) slice index
    error, covariance     (n, K), (n, K, K) as the detector sent them
    recalibrated_error, recalibrated_covariance
                          as the promoted recalibrator made them; the very same
                          objects where it changed nothing
    stamp_ns              event time of the frame; None where unknown
    live                  whether the truth came in time for what never falls
    tracks                of each detection in its source; None where nobody tracks
    source                tells apart where tracks have their numbers from
    retracts              whether they were counted before, and are taken back
    """

    space: Space
    slices: IntArray
    error: FloatArray
    covariance: FloatArray
    recalibrated_error: FloatArray
    recalibrated_covariance: FloatArray
    stamp_ns: int | None = None
    live: bool = True
    tracks: TrackIds | None = None
    source: int = 0
    retracts: bool = False

    @property
    def n(self) -> int:
        """How many."""
        return int(self.slices.size)

    def cut(self, part: slice) -> MatchedRows:
        """Some of them."""
        error, covariance = self.error[part], self.covariance[part]
        same = self.unchanged
        return replace(
            self,
            slices=self.slices[part],
            error=error,
            covariance=covariance,
            recalibrated_error=error if same else self.recalibrated_error[part],
            recalibrated_covariance=covariance if same else self.recalibrated_covariance[part],
            tracks=None if self.tracks is None else self.tracks.take(part),
        )

    def unstamped(self) -> MatchedRows:
        """The same, of no known time."""
        return replace(self, stamp_ns=None)

    @property
    def unchanged(self) -> bool:
        """Whether both stages are the same."""
        return (
            self.recalibrated_error is self.error
            and self.recalibrated_covariance is self.covariance
        )
