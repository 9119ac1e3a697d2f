"""Histogram binning of the predicted σ (named by Levi et al. 2019, section 3.1): in each bin of σ
the errors say what σ should have been.

Zadrozny and Elkan's binning gives all of a bin one value. For deviations that "enforces minimal
and maximal values" (Levi et al.), takes from the tracker what σ tells within a bin, and costs 0.01
nats on calibrated boxes. Here a bin gives a factor: one variance scaling for each. It jumps at the
edges, so that of two detections with nearly equal σ the better may come out as the worse;
isotonic-std does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.deviation_cells import cells_of
from monitor.recalibration.document import Curves, check_ascending, check_lengths, curves
from monitor.recalibration.factor_curves import (
    LARGEST_DEVIATION,
    LEAST_DEVIATION,
    deviations,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Document, Estimates, Output
from monitor.recalibration.row_order import in_one_order
from monitor.recalibration.shrinkage import WIDE


@dataclass(frozen=True)
class HistogramBinning:
    """Σ' = S Σ S with S = diag(s_b), b the bin that σ lies in, s_b² its mean NEES.

    edges    K lists of B_d − 1 σ, ascending: bins are closed on the left, the outer ones open
    factors  K lists of B_d factors on σ
    """

    edges: Curves
    factors: Curves
    method: ClassVar[str] = "histogram-binning"
    output: ClassVar[Output] = Output.GAUSSIAN
    keeps_definite: ClassVar[bool] = True

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.factors)

    @cached_property
    def _bins(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        return tuple(
            (np.array(e), np.array(v)) for e, v in zip(self.edges, self.factors, strict=True)
        )

    def apply(self, estimates: Estimates) -> Estimates:
        """Every dimension by its own bin; correlations stay."""
        deviation = deviations(estimates)
        factor = np.empty_like(deviation)
        for i, (edges, factors) in enumerate(self._bins):
            factors.take(edges.searchsorted(deviation[i], side="right"), out=factor[i])
        return estimates.rescaled(factor.T)

    def parameters(self) -> Document:
        """All fields, as JSON values."""
        return {
            "edges": [list(edges) for edges in self.edges],
            "factors": [list(factors) for factors in self.factors],
        }

    @classmethod
    def from_parameters(cls, parameters: Document) -> HistogramBinning:
        """The inverse of parameters; raises InvalidRecalibrator."""
        edges = curves(parameters, "edges", LEAST_DEVIATION, LARGEST_DEVIATION)
        check_ascending("edges", edges)
        factors = curves(parameters, "factors", WIDE.lowest, WIDE.highest)
        check_lengths("factors", factors, "edges", [len(curve) + 1 for curve in edges])
        return cls(edges, factors)


def fit(rows: FitRows) -> HistogramBinning:
    """Bins of equal count, each in closed form; few rows make one bin: variance scaling.

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    rows.check()
    rows = in_one_order(rows)
    edges, factors = [], []
    columns = zip(rows.deviation.T, rows.error.T, rows.size_weight.tolist(), strict=True)
    for sigma, error, weight in columns:
        cells = cells_of(sigma, error, weight)
        edges.append(tuple(cells.start[1:].tolist()))
        factors.append(tuple(WIDE.of(np.sqrt(cells.nees)).tolist()))
    return HistogramBinning(tuple(edges), tuple(factors))
