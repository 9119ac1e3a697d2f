"""Isotonic regression of the error's size on the predicted σ (named by Levi et al. 2019,
section 3.1): of two detections the one with the larger σ never comes out as the better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.deviation_cells import DeviationCells, cells_of
from monitor.recalibration.document import Curves, check_ascending, check_lengths, curves
from monitor.recalibration.factor_curves import (
    LARGEST_DEVIATION,
    LEAST_DEVIATION,
    deviations,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import (
    Document,
    Estimates,
    InvalidRecalibrator,
    Output,
)
from monitor.recalibration.row_order import in_one_order
from monitor.recalibration.shrinkage import WIDE

# Knots nearer than this in log σ are one: between them a slope would be noise of rounding.
_NEAREST = 1e-9


@dataclass(frozen=True)
class IsotonicStd:
    """Σ' = S Σ S with S = diag(σ'/σ), σ' a nondecreasing function of σ.

    log σ' is a straight line in log σ between knots. Beyond the outer knots the factor of the
    knot stays, so that σ' has neither a least nor a largest value: Levi et al.'s objection (b).

    deviation  K lists of J_d knots σ, ascending
    factor     K lists of J_d factors σ'/σ there
    """

    deviation: Curves
    factor: Curves
    method: ClassVar[str] = "isotonic-std"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.factor)

    @cached_property
    def _lines(self) -> tuple[_Line, ...]:
        return tuple(_line(s, f) for s, f in zip(self.deviation, self.factor, strict=True))

    def apply(self, estimates: Estimates) -> Estimates:
        """Every dimension by its own curve; correlations stay."""
        factor = np.log(deviations(estimates))
        for i, line in enumerate(self._lines):
            factor[i] = line.at(factor[i])
        return estimates.rescaled(np.exp(factor, out=factor).T)

    def parameters(self) -> Document:
        """Both fields, as JSON values."""
        return {
            "deviation": [list(knots) for knots in self.deviation],
            "factor": [list(values) for values in self.factor],
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> IsotonicStd:
        """The inverse of parameters; raises InvalidRecalibrator."""
        deviation = curves(parameters, "deviation", LEAST_DEVIATION, LARGEST_DEVIATION)
        check_ascending("deviation", deviation)
        factor = curves(parameters, "factor", WIDE.lowest, WIDE.highest)
        if not all(factor):
            raise InvalidRecalibrator("'factor' has no entry for a dimension: give at least one.")
        check_lengths("factor", factor, "deviation", [len(knots) for knots in deviation])
        for knots, factors in zip(deviation, factor, strict=True):
            for before, after in pairwise(knots):
                if after < before * (1 + _NEAREST / 2):
                    raise InvalidRecalibrator(
                        f"'deviation' holds {before!r} and {after!r}: knots so near to each other "
                        "make no slope. Leave one of them out."
                    )
            made = [sigma * f for sigma, f in zip(knots, factors, strict=True)]
            for before, after in pairwise(made):
                # Both were rounded when they were written.
                if after < before * (1 - _NEAREST):
                    raise InvalidRecalibrator(
                        f"'factor' makes σ {after!r} after {before!r} at the knots of 'deviation': "
                        "a recalibrated deviation must not fall where the predicted one rises."
                    )
        return cls(deviation, factor)


@dataclass(frozen=True, slots=True)
class _Line:
    """log factor over log σ, straight in each of J + 1 pieces that J knots part.

    knot           (J,) log σ
    origin, value  (J + 1,) a point that the piece passes through
    slope          (J + 1,)
    """

    knot: FloatArray
    origin: FloatArray
    value: FloatArray
    slope: FloatArray

    def at(self, x: FloatArray) -> FloatArray:
        """Elementwise, so that a detection comes out alike in any company."""
        piece = self.knot.searchsorted(x, side="right")
        found: FloatArray = self.value[piece] + self.slope[piece] * (x - self.origin[piece])
        return found


def _line(deviation: tuple[float, ...], factor: tuple[float, ...]) -> _Line:
    knot, value = np.log(deviation), np.log(factor)
    slope = np.zeros(knot.size + 1)
    slope[1:-1] = np.diff(value) / np.diff(knot)
    # The first piece is level, through the first knot; each other begins at its knot.
    return _Line(knot, np.append(knot[0], knot), np.append(value[0], value), slope)


def fit(rows: FitRows) -> IsotonicStd:
    """The most likely nondecreasing σ'(σ), over cells of rows with similar σ.

    Errors that are Gaussian with variance v_c, v_1 ≤ v_2 ≤ …, are likeliest where
    Σ_c n_c (log v_c + m_c / v_c) is least, m_c the mean squared error of cell c. But for a constant
    that is Σ n_c Δ(m_c, v_c) with Δ the Bregman distance of the convex −log, and every such sum is
    least at the isotonic regression of m with weights n (Robertson, Wright, Dykstra 1988, theorem
    1.5.1), which pooling adjacent violators finds. No cell is thin, so that no run of lucky rows at
    an end makes σ' ≈ 0. One cell makes variance scaling.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    rows.check()
    rows = in_one_order(rows)
    found = [
        _curve(cells_of(sigma, error, weight))
        for sigma, error, weight in zip(
            rows.deviation.T, rows.error.T, rows.size_weight.tolist(), strict=True
        )
    ]
    return IsotonicStd(tuple(d for d, _ in found), tuple(f for _, f in found))


def _curve(cells: DeviationCells) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # Half a second to import, and nothing that serves needs it.
    from scipy.optimize import isotonic_regression

    # A cell whose errors are in proportion to σ gets the right factor at the root of its mean σ².
    centre = np.sqrt(cells.variance)
    if centre.size == 1:
        # The factor is then the same for every σ, and this the likeliest: variance scaling.
        return tuple(centre.tolist()), tuple(WIDE.of(np.sqrt(cells.nees)).tolist())
    variance = isotonic_regression(cells.squared_error, weights=cells.rows).x
    apart = np.append(True, np.diff(np.log(centre)) > _NEAREST)
    factor = WIDE.of(np.sqrt(variance) / centre)
    return tuple(centre[apart].tolist()), tuple(factor[apart].tolist())
