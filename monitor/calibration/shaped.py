"""Measures under distributions that are no Gaussians, beside those of the Gaussians that are
forwarded of them. Likelihood, coverage and quantiles are the distribution's own; what asks for
a variance, and what a tracker sees of a detection, stays with the forwarded Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.evaluation import DimensionMeasures, JointMeasures
from monitor.calibration.marginals import Marginals
from monitor.calibration.space import BoolArray, FloatArray, IntArray

# Rows looked at together: their quantiles at 60 levels and 8 dimensions are 16 MB.
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Shaped:
    """The distributions of N rows.

    value         (N, K) truths next to the means that the distributions were made of
    marginals     the distributions of some rows, by their numbers
    has_variance  False where they have none, so that ENCE and UCE are not defined
    """

    value: FloatArray
    marginals: Callable[[IntArray], Marginals]
    has_variance: bool


@dataclass(frozen=True, slots=True)
class OwnMeasures:
    """What n rows are measured to be under their own distributions, at T levels τ.

    within        (n, K, T) whether the central τ interval holds the truth: |2 F(y) − 1| ≤ τ
    nll           (K,) mean negative log-density, in nats
    pinball       (K, T) mean loss at the τ quantile, in the unit
    one_sided     (K, T) share with F(y) ≤ τ
    width         (K, T) mean width of the central τ interval, in the unit
    has_variance  as in Shaped
    """

    within: BoolArray
    nll: FloatArray
    pinball: FloatArray
    one_sided: FloatArray
    width: FloatArray
    has_variance: bool


def own_measures(shaped: Shaped, rows: IntArray, tau: FloatArray) -> OwnMeasures:
    """Of some rows, at least one; for a Gaussian the same as its closed forms to rounding.

    The central interval of τ ends at the quantiles of (1 − τ)/2 and (1 + τ)/2, so that the
    test on F is the one on NEES (Küppers et al. 2022, eq. 11) where F is Gaussian.
    """
    levels, place = np.unique([tau, (1 - tau) / 2, (1 + tau) / 2], return_inverse=True)
    at, lower, upper = place.reshape(3, tau.size)
    n, k = rows.size, shaped.value.shape[1]
    within = np.empty((n, k, tau.size), bool)
    nll, sums = np.zeros(k), np.zeros((3, k, tau.size))
    for start in range(0, n, _CHUNK):
        part = slice(start, start + _CHUNK)
        value, marginals = shaped.value[rows[part]], shaped.marginals(rows[part])
        nll -= marginals.log_density(value).sum(axis=0)
        cumulative = marginals.cumulative(value)[:, :, None]
        quantiles = marginals.quantiles(levels).transpose(1, 2, 0)
        # Pinball loss ρ_τ(d) = max(τ d, (τ − 1) d), d = truth − quantile.
        d = value[:, :, None] - quantiles[:, :, at]
        within[part] = np.abs(2 * cumulative - 1) <= tau
        sums[0] += np.maximum(tau * d, (tau - 1) * d).sum(axis=0)
        sums[1] += np.count_nonzero(cumulative <= tau, axis=0)
        sums[2] += (quantiles[:, :, upper] - quantiles[:, :, lower]).sum(axis=0)
    pinball, one_sided, width = sums / n
    return OwnMeasures(within, nll / n, pinball, one_sided, width, shaped.has_variance)


def own_dimension(forwarded: DimensionMeasures, own: OwnMeasures, i: int) -> DimensionMeasures:
    """The measures of a dimension, the distribution's own in place of the Gaussian's.

    forwarded  of the Gaussian, but with `within` of the distribution in its bins, so that QCE
               and coverage are the distribution's already
    """
    found = replace(
        forwarded,
        nll=float(own.nll[i]),
        pinball_by_tau=own.pinball[i],
        coverage_one_sided_by_tau=own.one_sided[i],
        interval_width_by_tau=own.width[i],
    )
    if own.has_variance:
        return found
    undefined = float("nan")
    return replace(
        found,
        ence=undefined,
        ence_noise_floor=undefined,
        ence_noise_floor_gaussian=undefined,
        uce=undefined,
    )


def own_joint(forwarded: JointMeasures, own: OwnMeasures, joint: tuple[int, ...]) -> JointMeasures:
    """The joint measures: the dimensions' distributions taken as independent.

    Which region of several dimensions holds τ is not defined for them (Küppers et al. 2022
    give it for Gaussians), so that there is neither coverage nor QCE; NEES is the Gaussian's.

    joint  positions of the joint dimensions
    """
    undefined = np.full_like(forwarded.tau, np.nan)
    return replace(
        forwarded,
        nll=float(own.nll[list(joint)].sum()),
        qce_by_tau=undefined,
        coverage_by_tau=undefined,
    )
