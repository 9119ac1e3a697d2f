"""How well truth agrees with Gaussians, and how much better with those of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.cholesky import add_up, factorise, log_determinant, whiten
from monitor.calibration.detections import Limits
from monitor.calibration.space import FloatArray, Space
from monitor.promotion.outcome import forwarded, outcome_of
from monitor.promotion.whole_track import TrackRows
from monitor.recalibration.recalibrator import Estimates, Recalibrator

# A truth farther off than this says no more, so that the difference of two scores is finite.
_LOWEST = -1e18


def joint_log_score(space: Space, error: FloatArray, covariance: FloatArray) -> FloatArray:
    """Log density of the error, over the joint dimensions and by their number: higher is better.

    log N(e; 0, Σ) / K = −½ (log 2π + log det(Σ)/K + eᵀΣ⁻¹e/K), K joint dimensions; angles are
    left out as in all joint measures.

    error       (n, K) truth − mean, angles wrapped
    covariance  (n, K, K)
    returns     (n,) nats per dimension; NaN where the joint block is not positive definite
    source      Gneiting & Raftery 2007, section 4.1 (LogS), a strictly proper score
    """
    joint = np.array(space.joint)
    factor = factorise(covariance[:, joint[:, None], joint])
    with np.errstate(over="ignore", invalid="ignore"):
        white = whiten(factor, error[:, joint])
        nees = add_up(white * white)
    score: FloatArray = -0.5 * (
        np.log(2 * np.pi) + (log_determinant(factor, joint.size) + nees) / joint.size
    )
    return score


@dataclass(frozen=True, eq=False, slots=True)
class Differences:
    """By how much a candidate is better than the champion.

    value    (T,) nats per dimension, mean over the rows of each track
    unsound  why the candidate could not have been forwarded on every row, and there is no value;
             '' where it could
    """

    value: FloatArray
    unsound: str = ""


def mean_differences(
    rows: TrackRows, candidate: Recalibrator, champion: Recalibrator, limits: Limits
) -> Differences:
    """Score of what each would have forwarded, candidate minus champion, by track.

    Rows on which the champion fails count as they were sent, as they did in the stream. A
    candidate that fails on any row is not sound.
    """
    outcome = outcome_of(candidate, rows.sent, limits)
    if outcome.unsound:
        return Differences(np.zeros(rows.start.size), outcome.unsound)
    served = forwarded(champion, rows.sent, limits)
    return Differences(rows.means(_score(rows, outcome.made) - _score(rows, served)))


def _score(rows: TrackRows, made: Estimates) -> FloatArray:
    error = rows.space.error(rows.truth, made.mean)
    score: FloatArray = np.fmax(joint_log_score(rows.space, error, made.covariance), _LOWEST)
    return score
