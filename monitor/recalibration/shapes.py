"""The distribution that a recalibrator itself gives each dimension, Gaussian or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from monitor.calibration.marginals import Marginals, NormalMarginals
from monitor.calibration.space import FloatArray, IntArray
from monitor.recalibration.recalibrator import (
    Estimates,
    Output,
    Recalibrator,
    ShapedRecalibrator,
)
from monitor.recalibration.routing import Shares


def marginals_of(recalibrator: Recalibrator, estimates: Estimates) -> Marginals:
    """What it says of each detection and dimension, whatever Gaussian apply forwards of it."""
    if recalibrator.output is not Output.GAUSSIAN:
        return cast("ShapedRecalibrator", recalibrator).marginals(estimates)
    made = recalibrator.apply(estimates)
    return NormalMarginals(made.mean, made.deviation)


def shared_marginals(estimates: Estimates, shares: Shares) -> Marginals:
    """The same of several recalibrators, each for the rows that it serves."""
    if shares.order is None:
        return marginals_of(shares.shares[0].recalibrator, estimates)
    sent = shares.sorted(estimates)
    return _Shared(
        shares.order,
        tuple(
            (share.part, marginals_of(share.recalibrator, sent.take(share.part)))
            for share in shares.shares
        ),
    )


@dataclass(frozen=True, slots=True)
class _Shared:
    """Distributions of different shapes side by side.

    order  (n,) row numbers, those of one recalibrator side by side
    parts  which of them, in that order, and their distributions
    """

    order: IntArray
    parts: tuple[tuple[slice, Marginals], ...]

    def log_density(self, value: FloatArray) -> FloatArray:
        return self._each(value, lambda marginals, part: marginals.log_density(part))

    def cumulative(self, value: FloatArray) -> FloatArray:
        return self._each(value, lambda marginals, part: marginals.cumulative(part))

    def quantiles(self, tau: FloatArray) -> FloatArray:
        found = [marginals.quantiles(tau) for _, marginals in self.parts]
        values = np.empty((tau.size, self.order.size, found[0].shape[2]))
        values[:, self.order] = np.concatenate(found, axis=1)
        return values

    def _each(
        self, value: FloatArray, ask: Callable[[Marginals, FloatArray], FloatArray]
    ) -> FloatArray:
        ordered = value[self.order]
        found = np.empty_like(value)
        found[self.order] = np.concatenate(
            [ask(marginals, ordered[part]) for part, marginals in self.parts]
        )
        return found
