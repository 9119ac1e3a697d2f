"""What is known of one object: the unit in which recalibrators are fitted and tried, since the
errors of one object over successive frames are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.recalibration.recalibrator import Estimates


@dataclass(frozen=True, eq=False, slots=True)
class WholeTrack:
    """The labelled detections of one object in one slice, thinned evenly where there are many.

    slice     index
    sent      as they came, (n ≥ 1, …)
    truth     (n, K)
    stamp_ns  (n,) ascending
    delay_ns  how late the truth of a detection came, at most
    source    whose time it is
    """

    space: Space
    slice: int
    sent: Estimates
    truth: FloatArray
    stamp_ns: IntArray
    delay_ns: int
    source: int = 0

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.stamp_ns.size)

    @property
    def ended_ns(self) -> int:
        """Event time of the last of them."""
        return int(self.stamp_ns[-1])

    def since(self, stamp_ns: int | None) -> WholeTrack | None:
        """What is later than that; None where nothing is. All of it, where no time is given."""
        if stamp_ns is None:
            return self
        first = int(np.searchsorted(self.stamp_ns, stamp_ns, side="right"))
        if first == 0:
            return self
        if first == self.n:
            return None
        later = slice(first, None)
        return WholeTrack(
            self.space,
            self.slice,
            self.sent.take(later),
            self.truth[later],
            self.stamp_ns[later],
            self.delay_ns,
            self.source,
        )


@dataclass(frozen=True, eq=False, slots=True)
class TrackRows:
    """T ≥ 1 tracks of one space as rows.

    sent, truth  (n, …), (n, K): track after track
    start        (T,) where each begins
    """

    space: Space
    sent: Estimates
    truth: FloatArray
    start: IntArray

    @property
    def counts(self) -> IntArray:
        """(T,) rows of each track."""
        return np.diff(np.append(self.start, self.truth.shape[0]))

    def means(self, rows: FloatArray) -> FloatArray:
        """Mean over each track of something of its rows; (n, …) in, (T, …) out."""
        total = np.add.reduceat(rows, self.start, axis=0)
        means: FloatArray = total / self.counts.reshape(-1, *([1] * (rows.ndim - 1)))
        return means


def rows_of(tracks: Sequence[WholeTrack]) -> TrackRows:
    """The rows of at least one track, all of one space."""
    counts = np.array([track.n for track in tracks])
    sent = Estimates(
        np.concatenate([track.sent.mean for track in tracks]),
        np.concatenate([track.sent.covariance for track in tracks]),
        np.concatenate([track.sent.diagonal for track in tracks]),
    )
    truth = np.concatenate([track.truth for track in tracks])
    return TrackRows(tracks[0].space, sent, truth, np.cumsum(counts) - counts)
