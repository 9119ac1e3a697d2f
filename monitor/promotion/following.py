"""An adaptive champion between two tracks: its memory goes on with every one of them, and it is
put in force anew where that makes a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from monitor.promotion.settings import PolicySettings
from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, LabelsTooLate, followed


@dataclass(frozen=True, slots=True)
class Follower:
    """The adaptive scaling that was put in force, and what it has become since.

    in_force   K factors on σ
    approved   the least of them that may act by itself where covariances must not become smaller
    full       detections of a track that has a full vote; a shorter one has its share, or what a
               tracker breaks off where errors are large would drive it
    too_late   why it follows no longer; '' where it does
    """

    scaling: AdaptiveScaling
    in_force: tuple[float, ...]
    approved: tuple[float, ...]
    full: float
    too_late: str = ""

    @classmethod
    def of(cls, champion: AdaptiveScaling, full: float) -> Follower:
        """The follower of what somebody has put in force."""
        return cls(champion, champion.scale, champion.scale, full)

    def taken(self, tracks: Sequence[WholeTrack]) -> Follower:
        """With whole tracks in its memory."""
        rows = rows_of(tracks)
        error = rows.space.error(rows.truth, rows.sent.mean)
        variance = np.diagonal(rows.sent.covariance, axis1=1, axis2=2)
        ended_s = np.array([track.ended_ns for track in tracks]) / 1e9
        delay_s = max(track.delay_ns for track in tracks) / 1e9
        nees, votes = rows.means(np.square(error) / variance), rows.counts / self.full
        try:
            scaling = followed(self.scaling, nees, ended_s, delay_s, np.minimum(1.0, votes))
        except LabelsTooLate as error_:
            return replace(self, too_late=str(error_))
        return replace(self, scaling=scaling, too_late="")

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
