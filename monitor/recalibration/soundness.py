"""Whether what a recalibrator made can be given to a tracker, and if not, why."""

from __future__ import annotations

import numpy as np

from monitor.calibration.cholesky import factorise, positive_definite
from monitor.calibration.detections import Limits
from monitor.calibration.space import BoolArray
from monitor.recalibration.recalibrator import Estimates


def sound_rows(sent: Estimates, made: Estimates, limits: Limits, *, definite: bool) -> BoolArray:
    """(n,) outcomes that could have been sent: finite, positive definite, of plausible deviations.

    None if they are not as many as were sent.

    limits    of the deviations; the mean may be anywhere
    definite  the recalibrator cannot but keep covariances positive definite, so that
              they need not be factorised again
    """
    n = sent.mean.shape[0]
    if made is sent:
        return np.ones(n, bool)
    if made.shapes != sent.shapes:
        return np.zeros(n, bool)
    variance = np.diagonal(made.covariance, axis1=1, axis2=2)
    # A sum is finite only if all of it is, and quicker to look at.
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(made.covariance.sum()) and np.isfinite(made.mean.sum())
    least, most = limits.smallest_deviation**2, limits.largest_deviation**2
    if (
        definite
        and finite
        and variance.min(initial=np.inf) >= least
        and variance.max(initial=0.0) <= most
    ):
        return np.ones(n, bool)
    # The factor is of the lower triangle: it does not see what is above.
    sound: BoolArray = (
        np.isfinite(made.mean).all(axis=1)
        & np.isfinite(made.covariance).all(axis=(1, 2))
        & ((variance >= least) & (variance <= most)).all(axis=1)
        & positive_definite(factorise(made.covariance))
    )
    return sound


def sent_where_unsound(sent: Estimates, made: Estimates, sound: BoolArray) -> Estimates:
    """What was made, and what was sent in the rows that are not sound, (n,)."""
    if sound.all():
        return made
    if not sound.any():
        return sent
    mean, covariance = made.mean.copy(), made.covariance.copy()
    diagonal = made.diagonal.copy()
    mean[~sound], covariance[~sound] = sent.mean[~sound], sent.covariance[~sound]
    diagonal[~sound] = sent.diagonal[~sound]
    return Estimates(mean, covariance, diagonal)


def fault_of(sent: Estimates, made: Estimates, limits: Limits) -> str:
    """What is wrong with what was made, to be read after the name of a method; '' where nothing is.

    No method is taken at its word: all covariances are factorised.
    """
    sound = sound_rows(sent, made, limits, definite=False)
    if sound.all():
        return ""
    if made.shapes != sent.shapes:
        return f"makes arrays of the shapes {made.shapes}, and {sent.shapes} were sent"
    variance = np.diagonal(made.covariance, axis1=1, axis2=2)
    least, most = limits.smallest_deviation**2, limits.largest_deviation**2
    faults = (
        (~np.isfinite(made.mean).all(axis=1), "means that are not finite"),
        (~np.isfinite(made.covariance).all(axis=(1, 2)), "covariances that are not finite"),
        (
            (variance > most).any(axis=1),
            f"deviations beyond [limits] largest_deviation = {limits.largest_deviation:g}",
        ),
        (
            ((variance > 0) & (variance < least)).any(axis=1),
            f"deviations below [limits] smallest_deviation = {limits.smallest_deviation:g}",
        ),
        (~sound, "covariances that are not positive definite"),
    )
    rows, what = next(fault for fault in faults if fault[0].any())
    return f"makes {what}, of {np.count_nonzero(rows)} of {sound.size} detections"
