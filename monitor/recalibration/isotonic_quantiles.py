"""Isotonic regression on quantiles (Kuleshov et al. 2018; the reference in Küppers et al. 2022).

Kuleshov's R maps the probability that the detector gives the truth, u = F(y), to the share of
truths that got as little: R ∘ F is the recalibrated distribution. What R is fitted to, the ranks of
u, rises by itself, so that isotonic regression gives back the empirical distribution, step by step
(Levi et al. 2019, section 2). In z-space, where F is Φ, the same map is R(Φ(z)) = Φ(Q⁻¹(z)): the
quantile of u at p is the quantile of the normalised errors z at p. Straight pieces of Q in place of
steps have a density, and Gaussian tails beyond the outer knots one that is nowhere 0.

The map is the same for every detection, in units of its σ. Hence no move of the origin changes it,
and mean and variance are two constants a dimension; moments taken over a grid of y, as others do,
grow with the distance from the origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import check_ascending, check_lengths, curves, numbers
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.quantile_fit import fit_map
from monitor.recalibration.quantile_map import (
    LARGEST_SLOPE,
    LEAST_SLOPE,
    QuantileMap,
    QuantileMarginals,
)
from monitor.recalibration.recalibrator import (
    Document,
    Estimates,
    InvalidRecalibrator,
    Output,
)
from monitor.recalibration.row_order import in_one_order

# An error of a million σ is a mismatch; more of it would only spoil the arithmetic.
LARGEST_ERROR = 1e6
# Of the normal distribution there is nothing beyond; and knots of a fit are not nearer.
_LARGEST_NORMAL, _NEAREST_NORMAL = 10.0, 1e-3


@dataclass(frozen=True)
class IsotonicQuantiles:
    """The truth lies at mean + σ Q(ζ), ζ ~ N(0, 1), with its own Q for each dimension.

    Forwarded are mean + σ E[Q] and S Σ S with S = sqrt(Var[Q]): moments, about the mean. On
    errors without a variance they rest on the largest of the fit, and a quantile is better to
    rely on. Correlations are those that were sent.

    maps  K of them
    """

    maps: tuple[QuantileMap, ...]
    method: ClassVar[str] = "isotonic-quantiles"
    output: ClassVar[Output] = Output.MOMENTS
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.maps)

    @cached_property
    def shift(self) -> FloatArray:
        """(K,) E[Q]: how far the mean is moved, in σ."""
        return np.array([one.moments[0] for one in self.maps])

    @cached_property
    def scale(self) -> FloatArray:
        """(K,) factor on σ: the root of Var[Q]."""
        return np.sqrt([one.moments[1] for one in self.maps])

    def apply(self, estimates: Estimates) -> Estimates:
        """Mean and covariance of the recalibrated distributions."""
        mean = estimates.mean + estimates.deviation * self.shift
        return Estimates(mean, estimates.rescaled(self.scale).covariance, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> QuantileMarginals:
        """The recalibrated distributions themselves."""
        return QuantileMarginals(estimates.mean, estimates.deviation, self.maps)

    def parameters(self) -> Document:
        """The knots and the slopes beyond them, as JSON values."""
        return {
            "normal": [list(one.normal) for one in self.maps],
            "error": [list(one.error) for one in self.maps],
            "below": [one.below for one in self.maps],
            "above": [one.above for one in self.maps],
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> IsotonicQuantiles:
        """The inverse of parameters; raises InvalidRecalibrator."""
        normal = curves(parameters, "normal", -_LARGEST_NORMAL, _LARGEST_NORMAL)
        if not all(normal):
            raise InvalidRecalibrator("'normal' has no entry for a dimension: give at least one.")
        # The guard against ties raises knots a little above the largest error.
        error = curves(parameters, "error", -2 * LARGEST_ERROR, 2 * LARGEST_ERROR)
        check_ascending("normal", normal)
        check_lengths("error", error, "normal", [len(knots) for knots in normal])
        check_ascending("error", error)
        below, above = (
            numbers(parameters, name, len(normal), LEAST_SLOPE, LARGEST_SLOPE)
            for name in ("below", "above")
        )
        maps = tuple(map(QuantileMap, normal, error, below, above))
        for one in maps:
            _check_pieces(one)
        return cls(maps)


def fit(rows: FitRows) -> IsotonicQuantiles:
    """One map for each dimension, of as many pieces as its errors bear out.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    rows.check()
    rows = in_one_order(rows)
    error = np.clip(rows.error / rows.deviation, -LARGEST_ERROR, LARGEST_ERROR)
    worth = (rows.n * rows.location_weight).tolist()
    return IsotonicQuantiles(tuple(map(fit_map, error.T, worth)))


def _check_pieces(one: QuantileMap) -> None:
    """Raises InvalidRecalibrator where knots make no slope to reckon with."""
    for before, after in pairwise(one.normal):
        if after - before < _NEAREST_NORMAL:
            raise InvalidRecalibrator(
                f"'normal' holds {before!r} and {after!r}: knots must be {_NEAREST_NORMAL} apart. "
                "Leave one of them out."
            )
    # Knots are rounded, so that a fit may be short of the least by as much.
    if one.slopes.min() < LEAST_SLOPE / 2:
        raise InvalidRecalibrator(
            f"'error' rises by {one.slopes.min():g} per unit of 'normal' between two knots: "
            f"it must rise by {LEAST_SLOPE} at the least, or the density has no bounds."
        )
