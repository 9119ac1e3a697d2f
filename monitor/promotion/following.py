"""An adaptive champion between two tracks: its memory goes on with every one of them, and it is
put in force anew where that makes a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from monitor.promotion.settings import PolicySettings
from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, followed

# Share of labels that a fit, too, does without: it takes the 95 % quantile of delays.
_MOST_LATE = 0.05
# Tracks that this share is of, in an exponential mean.
_LATEST = 100


@dataclass(frozen=True, slots=True)
class Follower:
    """The adaptive scaling that was put in force, and what it has become since.

    in_force   K factors on σ
    approved   the least of them that may act by itself where covariances must not become smaller
    full       detections of a track that has a full vote; a shorter one has its share, or what a
               tracker breaks off where errors are large would drive it
    late       share of tracks whose labels came too late to teach, of about a hundred latest ones
    too_late   why that is too much; '' where it is not
    """

    scaling: AdaptiveScaling
    in_force: tuple[float, ...]
    approved: tuple[float, ...]
    full: float
    late: float = 0.0
    too_late: str = ""

    @classmethod
    def of(cls, champion: AdaptiveScaling, full: float, late: float = 0.0) -> Follower:
        """The follower of what somebody has put in force."""
        return cls(champion, champion.scale, champion.scale, full, late)

    def taken(self, tracks: Sequence[WholeTrack]) -> Follower:
        """With whole tracks in its memory, but for those whose labels came too late."""
        delays_s = [max(0.0, track.delay_ns / 1e9) for track in tracks]
        in_time = [delay_s < self.scaling.time_constant_s for delay_s in delays_s]
        late = self.late
        for came in in_time:
            late += ((not came) - late) / _LATEST
        scaling = self.scaling
        if any(in_time):
            heard = list(compress(tracks, in_time))
            scaling = self._with(heard, max(compress(delays_s, in_time)))
        too_late = ""
        if late > _MOST_LATE:
            too_late = self.too_late if all(in_time) else self._reason(max(delays_s))
        return replace(self, scaling=scaling, late=late, too_late=too_late)

    def _with(self, tracks: Sequence[WholeTrack], delay_s: float) -> AdaptiveScaling:
        rows = rows_of(tracks)
        error = rows.space.error(rows.truth, rows.sent.mean)
        variance = np.diagonal(rows.sent.covariance, axis1=1, axis2=2)
        ended_s = np.array([track.ended_ns for track in tracks]) / 1e9
        nees = rows.means(np.square(error) / variance)
        votes = np.minimum(1.0, rows.counts / self.full)
        return followed(self.scaling, nees, ended_s, delay_s, votes)

    def _reason(self, delay_s: float) -> str:
        return (
            f"labels of more than one track in twenty come {self.scaling.time_constant_s:g} s late "
            f"or later, up to {delay_s:g} s: what they say would be forgotten before it could "
            "serve, and is left out. Choose a time constant that is long against the delay, bring "
            "labels earlier, or use variance-scaling"
        )

    def moved(self, policy: PolicySettings) -> AdaptiveScaling | None:
        """What is to be put in force now; None where that would change too little.

        Within the band it is what the detector sends: what is left is mostly noise.
        """
        scale = np.array(self.scaling.scale)
        low, high = policy.band
        if ((low <= scale**2) & (scale**2 <= high)).all():
            scale = np.ones_like(scale)
        if not policy.allow_shrinking:
            scale = np.maximum(scale, self.approved)
        ratio = np.square(scale / self.in_force)
        if (np.maximum(ratio, 1 / ratio) <= policy.hysteresis).all():
            return None
        return replace(self.scaling, scale=tuple(scale.tolist()))

    def acted(self, moved: AdaptiveScaling) -> Follower:
        """With that in force."""
        return replace(self, in_force=moved.scale)
