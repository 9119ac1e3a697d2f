"""Detections with their truth, made into the rows that the statistics take in, and into those that
recalibrators learn from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.clusters import cluster_id
from monitor.calibration.detections import FrameBatch
from monitor.calibration.matched import MatchedRows, TrackIds
from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.promotion.labelled import LabelledRows
from monitor.recalibration.recalibrator import Estimates


@dataclass(frozen=True, slots=True)
class Origin:
    """Where detections come from: event time of the frame, stream, and their tracks.

    delay_ns  how much later their truth has come, in the time of the stream
    live      whether that is in time for the counters
    """

    stamp_ns: int | None
    source: int
    tracks: TrackIds | None
    delay_ns: int = 0
    live: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class TrueRows:
    """m detections of a frame, as sent and as made, with their truth (m, K); slices (m,)."""

    space: Space
    slices: IntArray
    sent: Estimates
    made: Estimates
    truth: FloatArray
    origin: Origin

    def matched(self) -> MatchedRows:
        """What the truth says of them, at both stages."""
        sent, made, origin = self.sent, self.made, self.origin
        error = self.space.error(self.truth, sent.mean)
        same = made.mean is sent.mean
        return MatchedRows(
            space=self.space,
            slices=self.slices,
            error=error,
            covariance=sent.covariance,
            recalibrated_error=error if same else self.space.error(self.truth, made.mean),
            recalibrated_covariance=made.covariance,
            stamp_ns=origin.stamp_ns,
            live=origin.live,
            tracks=origin.tracks,
            source=origin.source,
        )

    def labelled(self) -> LabelledRows | None:
        """What recalibrators learn from them; nothing where they are of no known time."""
        origin = self.origin
        if origin.stamp_ns is None or self.slices.size == 0:
            return None
        return LabelledRows(
            self.space,
            self.slices,
            self.sent,
            self.truth,
            origin.stamp_ns,
            origin.delay_ns,
            origin.tracks,
            origin.source,
        )


def inline_rows(
    batch: FrameBatch, rows: IntArray, slices: IntArray, made: Estimates, origin: Origin
) -> TrueRows:
    """Rows (m,) of a batch whose truth came with them; slices (n,) and made are of all of it."""
    sent = Estimates(batch.mean[rows], batch.covariance[rows], batch.diagonal[rows])
    scored = sent
    if made.mean is not batch.mean or made.covariance is not batch.covariance:
        scored = Estimates(made.mean[rows], made.covariance[rows], made.diagonal[rows])
    return TrueRows(batch.space, slices[rows], sent, scored, batch.truth[rows], origin)


def tracks_of_rows(tracks: TrackIds | None, rows: IntArray) -> TrackIds | None:
    """Of some detections of a frame."""
    return None if tracks is None else tracks.take(rows)


def tracks_told(tracks: TrackIds | None, objects: TrackIds | None) -> TrackIds | None:
    """Of labelled detections: the labeller's own objects, and a tracker's tracks where it knows
    none.

    Their numbers are another space of ids: mixed, so that no object is taken for a track.
    """
    if objects is None:
        return tracks
    told = cluster_id((objects.id, 1))
    if tracks is None:
        return TrackIds(told, objects.known)
    return TrackIds(np.where(objects.known, told, tracks.id), objects.known | tracks.known)
