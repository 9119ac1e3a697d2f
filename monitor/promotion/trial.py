"""A candidate beside the champion: what the tracks after its fit say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from monitor.calibration.cholesky import factorise, log_determinant, positive_definite
from monitor.calibration.detections import Limits
from monitor.calibration.space import FloatArray
from monitor.promotion.betting import Bets, Clip, full_say, log10_threshold
from monitor.promotion.log_score import mean_differences
from monitor.promotion.outcome import Outcomes, forwarded
from monitor.promotion.records import Evidence
from monitor.promotion.settings import TrialSettings
from monitor.promotion.whole_track import TrackRows, WholeTrack, rows_of
from monitor.recalibration.recalibrator import Recalibrator


class Verdict(StrEnum):
    """What can be said of a candidate."""

    RUNNING = "running"  # nothing yet
    BETTER = "better"
    WORSE = "worse"
    OVER = "over"  # nothing, and its time is over
    UNSOUND = "unsound"  # it has failed, or made what cannot be forwarded


@dataclass(frozen=True, slots=True)
class Trial:
    """Of one slice.

    number    which of the trials since the last promotion, from 1
    clip      how much a track can say
    unsound   why what it made could not have been forwarded; '' where all of it could
    """

    slice: str
    recalibrator: Recalibrator
    number: int
    clip: Clip
    bets: Bets = field(default_factory=Bets)
    unsound: str = ""

    def taken(self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits) -> Trial:
        """With more tracks of the slice, all of one space, each of which is taken once.

        tracks  what came after those it was fitted on
        """
        if not tracks:
            return self
        rows = rows_of(tracks)
        differences = mean_differences(rows, self.recalibrator, champion, limits)
        if differences.unsound:
            return replace(self, unsound=differences.unsound)
        said = self.clip.said(differences.value, rows.counts)
        return replace(self, bets=self.bets.taken(said, self.clip))

    def verdict(self, settings: TrialSettings) -> Verdict:
        """As things stand."""
        if self.unsound:
            return Verdict.UNSOUND
        threshold = log10_threshold(settings.alpha, self.number)
        if self.bets.log10_better >= threshold:
            return Verdict.BETTER
        if self.bets.log10_worse >= threshold:
            return Verdict.WORSE
        return Verdict.OVER if self.bets.tracks >= settings.tracks else Verdict.RUNNING

    def evidence(self, settings: TrialSettings) -> Evidence:
        """In numbers."""
        return Evidence(
            self.bets.tracks,
            self.bets.gain,
            self.bets.log10_better,
            self.bets.log10_worse,
            log10_threshold(settings.alpha, self.number),
        )


# The share by which a covariance may be smaller than another and still count as no smaller.
_ROUNDING = 1e-9
# nats: nobody stakes on less, so that who changes next to nothing is not divided by nothing.
_LEAST = 1e-3


def clip_of(
    candidate: Recalibrator,
    champion: Recalibrator,
    rows: TrackRows,
    most: float,
    outcomes: Outcomes | None = None,
) -> Clip:
    """How much a track can say of a candidate, by what it does to covariances alone.

    D = −½ log(det Σ'/det Σ)/K + ½ eᵀ(Σ⁻¹ − Σ'⁻¹)e/K. Where Σ' ⪰ Σ on all rows and the means are
    equal, the second term is not negative: a candidate that inflates loses no more than ½ log of
    the geometric mean of the factors on the variance, whatever the truth. So wealth can be staked
    on it as a whole, and proof comes several times sooner. The mirror image holds for the gain of
    one that shrinks; what it can lose knows no bound but B. To clip its loss nearer, in proportion
    to the factor, would favour it: under heavy tails most tracks speak for smaller covariances,
    and the few against would be cut.

    rows      of some tracks, of which only what was sent is looked at
    most      B
    outcomes  what the two have made of the rows, where that is known already
    """
    made, served = outcomes or (forwarded(candidate, rows.sent), forwarded(champion, rows.sent))
    joint, full = np.array(rows.space.joint), full_say(rows.counts)
    if not np.array_equal(made.mean[:, joint], served.mean[:, joint]):
        return Clip(most, most, most, full)
    ours = made.covariance[:, joint[:, None], joint]
    theirs = served.covariance[:, joint[:, None], joint]
    growth = 0.5 * (_log_volume(ours) - _log_volume(theirs)) / joint.size
    loss = float(growth.max()) if _nowhere_smaller(ours, theirs) else most
    gain = float(-growth.min()) if _nowhere_smaller(theirs, ours) else most
    return Clip(most, min(most, max(loss, _LEAST)), min(most, max(gain, _LEAST)), full)


def _log_volume(covariance: FloatArray) -> FloatArray:
    return log_determinant(factorise(covariance), covariance.shape[1])


def _nowhere_smaller(one: FloatArray, other: FloatArray) -> bool:
    """Whether one ⪰ other on every row, in every direction; (n, K, K) both."""
    return bool(positive_definite(factorise(one - (1 - _ROUNDING) * other)).all())
