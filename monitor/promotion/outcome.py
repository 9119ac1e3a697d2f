"""What a recalibrator makes of estimates where nobody has vouched for it yet."""

from __future__ import annotations

from monitor.calibration.detections import Limits
from monitor.recalibration.recalibrator import Estimates, Recalibrator
from monitor.recalibration.soundness import sound_rows

# Of what is not to be judged by its size: finite and positive definite is enough.
ANY_SIZE = Limits(float("inf"), 0.0, float("inf"))


def sound_outcome(
    recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE
) -> Estimates | None:
    """What it makes; None where it fails, or where any covariance could not be forwarded.

    No method is taken at its word here: all that it makes is factorised.
    """
    try:
        made = recalibrator.apply(sent)
        return made if sound_rows(sent, made, limits, definite=False).all() else None
    except Exception:
        # Whatever goes wrong in a method is a finding about it.
        return None


def forwarded(recalibrator: Recalibrator, sent: Estimates, limits: Limits = ANY_SIZE) -> Estimates:
    """What the tracker gets from one in force: as sent wherever it fails."""
    try:
        made = recalibrator.apply(sent)
        sound = sound_rows(sent, made, limits, definite=recalibrator.keeps_definite)
    except Exception:
        return sent
    if sound.all():
        return made
    if not sound.any():
        return sent
    mean, covariance = made.mean.copy(), made.covariance.copy()
    diagonal = made.diagonal.copy()
    mean[~sound], covariance[~sound] = sent.mean[~sound], sent.covariance[~sound]
    diagonal[~sound] = sent.diagonal[~sound]
    return Estimates(mean, covariance, diagonal)
