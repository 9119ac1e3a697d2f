"""A candidate beside the champion: what the tracks after its fit say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from monitor.calibration.detections import Limits
from monitor.calibration.space import FloatArray
from monitor.promotion.betting import Bets, Clip, full_say, log10_threshold
from monitor.promotion.log_score import mean_differences
from monitor.promotion.records import Evidence
from monitor.promotion.settings import TrialSettings
from monitor.promotion.whole_track import TrackRows, WholeTrack, rows_of
from monitor.recalibration.histogram_binning import HistogramBinning
from monitor.recalibration.identity import Identity
from monitor.recalibration.isotonic_std import IsotonicStd
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.variance_scaling import VarianceScaling


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
        bets = self.bets.taken(differences.value, rows.counts, self.clip)
        return replace(self, bets=bets)

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
# Of correlation matrices, the largest condition number that is reckoned with: two dimensions that
# correlate by 0.98, say.
_CONDITION = 100.0


def clip_of(candidate: Recalibrator, champion: Recalibrator, rows: TrackRows, most: float) -> Clip:
    """Bounds how much a track can say of a candidate, by the parameters of the two recalibrators.

    D = −½ log(det Σ'/det Σ)/K + ½ eᵀ(Σ⁻¹ − Σ'⁻¹)e/K. Where Σ' ⪰ Σ for every input and the means
    are equal, the second term is not negative: a candidate that inflates loses no more than ½ log
    of the geometric mean of its largest factors on the variance, whatever the truth. So wealth can
    be staked on it as a whole, and proof comes several times sooner. The mirror image holds for the
    gain of a candidate that shrinks, whose loss has no bound. Factors are not read off the rows,
    since later rows may get larger ones.

    Σ' = S Σ S ⪰ Σ asks for more than s ≥ 1 where dimensions correlate: ‖R^½ S⁻¹ R^−½‖ ≤ 1 for the
    correlation matrix R. Where all 1/s lie within a ± b, the norm is at most a + b √κ(R).

    rows  of some tracks, which say how long a full one is, and whether correlations are sent
    most  B
    """
    full, ours = full_say(rows.counts), _scales(candidate, rows.space.k)
    theirs = _scales(champion, rows.space.k)
    if ours is None or theirs is None:
        return Clip(most, most, most, full)
    joint = list(rows.space.joint)
    lowest, highest = (ours[0] / theirs[1])[joint], (ours[1] / theirs[0])[joint]
    correlated = not rows.sent.diagonal.all()
    loss = float(np.log(highest).mean()) if _grows(lowest, highest, correlated) else most
    gain = -float(np.log(lowest).mean()) if _grows(1 / highest, 1 / lowest, correlated) else most
    return Clip(most, min(most, max(loss, _LEAST)), min(most, max(gain, _LEAST)), full)


def _scales(recalibrator: Recalibrator, k: int) -> tuple[FloatArray, FloatArray] | None:
    """Finds the least and the largest factor on σ of each of K dimensions; None: not known."""
    if recalibrator.k not in (None, k):
        return None
    match recalibrator:
        case Identity():
            return np.ones(k), np.ones(k)
        case VarianceScaling(scale=scale):
            return np.array(scale), np.array(scale)
        case HistogramBinning(factors=curves) | IsotonicStd(factor=curves):
            lowest, highest = (np.array([of(curve) for curve in curves]) for of in (min, max))
            return lowest, highest
        case _:
            return None


def _grows(lowest: FloatArray, highest: FloatArray, correlated: bool) -> bool:
    """Says whether S Σ S ⪰ Σ for every diagonal S with lowest ≤ s ≤ highest, (K,) both."""
    least, most = 1 / highest.max(), 1 / lowest.min()
    root = np.sqrt(_CONDITION) if correlated else 1.0
    norm = (most + least) / 2 + (most - least) / 2 * root
    return bool(norm <= 1 + _ROUNDING)
