"""Runs the tracker of one stream on the estimates of each frame, before its answer.

Association and filtering never happen here, but in `tracking`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from monitor.frames.counters import Counters
from monitor.frames.detections import Estimates, Examined, Reason
from monitor.frames.frame import EgoMotion, Header, ReceivedFrame, ReportedTracks, TrackStatus
from monitor.frames.reasons import Notice
from monitor.frames.slices import StreamSlices
from monitor.frames.space import Dimension, FloatArray, IntArray
from monitor.pipeline.housekeeping import contained
from monitor.tracking.ego import InvalidEgoMotion, checked_motion
from monitor.tracking.kalman import InnovationSums, TrackerSettings, no_innovations
from monitor.tracking.rewind import Order, Tracker, follow
from monitor.tracking.tracker import Sightings, tracker_model

log = logging.getLogger(__name__)

# Why a frame with a stamp was not tracked.
_WHY_NOT = {
    Order.TOO_LATE: "{}: too late to be tracked. Send frames in the order of their stamps.",
    Order.REPEATED: "{}: another frame has this stamp, and was tracked. Give each its own.",
    Order.UNMOVED: "{}: not tracked without ego_pose or ego_twist, which frames before it had. "
    "Send it with every frame.",
}
_NO_STAMP = Notice(
    Reason.MISSING_STAMP, "stamp_ns", "absent: the frame was not tracked. Send the capture time."
)


# The tracks of a frame at its stamp, None if it was not tracked; and why it was not, or why ego
# motion was not used.
Tracked = tuple[ReportedTracks | None, tuple[Notice, ...]]


@dataclass(slots=True)
class StreamTracker:
    """Live state of a stream's tracks.

    numbered  detections numbered so far; a track has the number of its first detection
    orders    frames by their order in time
    """

    tracker: Tracker
    numbered: int = 0
    orders: Counter[Order] = field(default_factory=Counter)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Dimensions of a track's state."""
        return self.tracker.model.motion.dimensions

    def reset(self) -> None:
        """Forgets all tracks; their numbers are not used again."""
        self.tracker = Tracker(self.tracker.model)

    def track(self, frame: ReceivedFrame, examined: Examined, forwarded: Estimates) -> Tracked:
        """Updates the tracks by a frame.

        forwarded  (n,) estimates of examined.batch, as forwarded
        """
        if frame.stamp_ns is None:
            self.orders[Order.UNSTAMPED] += 1
            return None, (_NO_STAMP,)
        ego, notices = None, tuple[Notice, ...]()
        try:
            ego = None if frame.ego is None else checked_motion(frame.ego)
        except InvalidEgoMotion as error:
            notices = (Notice(Reason.EGO_MOTION_INVALID, error.field, error.message),)
        seen = _sightings(frame, examined, forwarded, self.numbered, ego)
        self.numbered += frame.detections.n
        self.tracker, step, order = follow(self.tracker, seen)
        self.orders[order] += 1
        if step is not None:
            return step.reported(), notices
        message = _WHY_NOT[order].format(frame.stamp_ns)
        return None, (*notices, Notice(Reason.NOT_TRACKED, "stamp_ns", message))

    def counts(self) -> IntArray:
        """Counts tracks (3, C) by status and class, in the order of TrackStatus."""
        classes = self.tracker.model.classes
        if self.tracker.last is None:
            return np.zeros((len(TrackStatus), classes), np.int64)
        tracks = self.tracker.last.reported()
        place = (tracks.status.astype(np.int64) - 1) * classes + tracks.class_index
        counted = np.bincount(place, minlength=len(TrackStatus) * classes)
        return counted.reshape(len(TrackStatus), classes)

    @property
    def innovations(self) -> InnovationSums:
        """Sums of the innovations, by class."""
        return self.tracker.state.innovations


def _sightings(
    frame: ReceivedFrame,
    examined: Examined,
    forwarded: Estimates,
    numbered: int,
    ego: EgoMotion | None,
) -> Sightings:
    """Collects the detections that can be tracked: with a usable covariance, or with none."""
    received, batch = frame.detections, examined.batch
    row, mean, covariance = batch.rows, forwarded.mean, forwarded.covariance
    class_index, missing = batch.class_index, np.zeros(row.size, bool)
    bare = np.flatnonzero(examined.reason == Reason.MISSING_COVARIANCE)
    if bare.size:
        # Without bare detections the received means need not be K wide.
        k = batch.space.k
        row = np.concatenate([row, bare])
        mean = np.concatenate([mean, received.mean[bare, :k]])
        covariance = np.concatenate([covariance, np.zeros((bare.size, k, k))])
        class_index = np.concatenate([class_index, received.class_index[bare]])
        missing = np.concatenate([missing, np.ones(bare.size, bool)])
        order = np.argsort(row)
        row, mean, covariance = row[order], mean[order], covariance[order]
        class_index, missing = class_index[order], missing[order]
    upstream = received.upstream_track
    assert frame.stamp_ns is not None
    return Sightings(
        stamp_ns=frame.stamp_ns,
        mean=mean,
        covariance=covariance,
        missing=missing,
        class_index=class_index,
        row=row,
        number=(row + (numbered + 1)).astype(np.uint64),
        score=None if received.score is None else received.score[row],
        upstream=None if upstream is None else (upstream[0][row], upstream[1][row]),
        ego=ego,
    )


def tracker_of(
    header: Header, settings: TrackerSettings | None, counters: Counters, numbered: int = 0
) -> StreamTracker | None:
    """Makes the tracker of a new stream; None if that fails, which is logged and counted.

    settings  None: this process does not track
    numbered  numbers that are used already: those of new tracks come after them
    """
    if settings is None:
        return None
    fault = "stream %s is not tracked: its tracker could not be made"
    with contained(counters, log, fault, header.stream):
        model = tracker_model(header.space, len(header.classes), settings)
        return StreamTracker(Tracker(model), numbered)
    return None


@dataclass(frozen=True, eq=False, slots=True)
class TrackReading:
    """The tracks of all streams, by slice.

    names         of the S slices that have any
    counts        (3, S) tracks by status, in the order of TrackStatus, at the last frame of each
                  stream
    nis_ratio     (S,) mean NIS/J of confirmed tracks; NaN without any, as are the next two
    correlation   (S,) lag-1 correlation of the whitened innovation
    reject_ratio  (S,) share of confirmed tracks with a near detection outside the gate
    orders        frames by their order in time
    """

    names: tuple[str, ...]
    counts: IntArray
    nis_ratio: FloatArray
    correlation: FloatArray
    reject_ratio: FloatArray
    orders: Counter[Order]


def read_tracks(
    names: tuple[str, ...], streams: Iterable[tuple[StreamSlices, StreamTracker]]
) -> TrackReading:
    """Reads tracks by slice, summed over all streams of the slice.

    names  of the slices that the tracks lie in: SliceTable.whole
    """
    counts = np.zeros((len(TrackStatus), len(names)), np.int64)
    sums, orders, seen = no_innovations(len(names)), Counter[Order](), np.zeros(len(names), bool)
    for slices, tracker in streams:
        group = slices.of_class
        known = np.flatnonzero(group >= 0)
        seen[group[known]] = True
        # One by one: classes that share a slice must all be added.
        np.add.at(counts.T, group[known], tracker.counts()[:, known].T)
        sums = sums + tracker.innovations.by_group(group, len(names))
        orders.update(tracker.orders)
    there = np.flatnonzero(seen)
    return TrackReading(
        names=tuple(names[i] for i in there.tolist()),
        counts=counts[:, there],
        nis_ratio=sums.nis_ratio[there],
        correlation=sums.correlation[there],
        reject_ratio=sums.reject_ratio[there],
        orders=orders,
    )
