"""What recalibrators do to the variance of each dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.promotion.outcome import forwarded
from monitor.promotion.records import Factor
from monitor.recalibration.recalibrator import Estimates, Recalibrator

# Quantiles over rows: a few odd detections do not make a factor.
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, eq=False, slots=True)
class Ratios:
    """The variance one recalibrator makes over that of another, in each dimension, (K,).

    lowest, highest  5 % and 95 % quantiles over rows
    typical          geometric mean
    """

    lowest: FloatArray
    typical: FloatArray
    highest: FloatArray


def ratios(candidate: Recalibrator, champion: Recalibrator, estimates: Estimates) -> Ratios:
    """Of the candidate's variance over the champion's, on n ≥ 1 estimates as sent.

    Rows on which either fails count as sent.
    """
    return ratios_made(forwarded(candidate, estimates), forwarded(champion, estimates))


def ratios_made(made: Estimates, served: Estimates) -> Ratios:
    """Of the variances of n ≥ 1 estimates over those of others, row by row."""
    logarithm = 2 * (np.log(made.deviation) - np.log(served.deviation))
    lowest, highest = np.quantile(logarithm, (_LOW, _HIGH), axis=0)
    return Ratios(np.exp(lowest), np.exp(logarithm.mean(axis=0)), np.exp(highest))


def factors(
    recalibrator: Recalibrator, estimates: Estimates, names: tuple[str, ...]
) -> tuple[Factor, ...]:
    """What it makes of variances over what was sent, by dimension; n ≥ 1 estimates."""
    return factors_made(forwarded(recalibrator, estimates), estimates, names)


def factors_made(made: Estimates, sent: Estimates, names: tuple[str, ...]) -> tuple[Factor, ...]:
    """What was made of variances over what was sent, by dimension; n ≥ 1 estimates."""
    found = ratios_made(made, sent)
    columns = zip(
        names, found.lowest.tolist(), found.typical.tolist(), found.highest.tolist(), strict=True
    )
    return tuple(
        Factor(name, lowest, typical, highest) for name, lowest, typical, highest in columns
    )
