"""Reads measures off statistics: cuts reliability bins from micro-bins and
undoes the companion sums. The measures themselves live in measures.py.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from monitor.calibration.binning import LogBins, chi_square
from monitor.calibration.evaluation import DimensionMeasures, Evaluation, JointMeasures
from monitor.calibration.measures import (
    ReliabilityBins,
    ence,
    ence_noise_floor,
    qce_by_tau,
    uce,
)
from monitor.calibration.space import IntArray
from monitor.calibration.statistics import AxisCells, StageStatistics
from monitor.calibration.steps import finished

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class WidthRange:
    """Bins of equal width over [lower, upper] in σ; None: from the lowest to the highest seen."""

    ends: tuple[float, float] | None = None


def cut_equal_count(cells: AxisCells, bins: int) -> ReliabilityBins:
    """Bins of nearly equal count, each of whole micro-bins (Levi et al. 2019, section 4).

    A cut falls on the edge of a micro-bin nearest to its share of the rows, so
    that the cuts of merged replicas are those of one that saw everything. Fewer
    than `bins` remain where one micro-bin holds several shares.
    """
    cumulative = np.cumsum(cells.n)
    if cumulative.size == 0:
        return _group(cells, np.zeros(0, np.int64))
    share = cumulative[-1] * np.arange(1, bins) / bins
    after = np.searchsorted(cumulative, share)
    before = np.maximum(after - 1, 0)
    nearer = np.where(share - cumulative[before] < cumulative[after] - share, before, after)
    starts = np.unique(np.append(0, nearer + 1))
    return _group(cells, starts[starts < cumulative.size])


def cut_equal_width(
    cells: AxisCells, bins: int, lower: float, upper: float, *, squared: bool = False
) -> ReliabilityBins:
    """Bins of equal width over [lower, upper], each of the micro-bins whose centre is inside.

    squared  the range and the widths are on σ², as UCE has it
    """
    centre = np.sqrt(cells.variance / np.maximum(cells.n, 1))
    axis = centre * centre if squared else centre
    edges = np.linspace(lower, upper, bins + 1)
    index = np.searchsorted(edges, axis, side="right") - 1
    index[axis == upper] = bins - 1
    inside = np.flatnonzero((index >= 0) & (index < bins))
    kept = AxisCells(*(getattr(cells, name)[inside] for name in AxisCells.__dataclass_fields__))
    starts = np.flatnonzero(np.diff(index[inside], prepend=-1))
    return _group(kept, starts)


def _group(cells: AxisCells, starts: IntArray) -> ReliabilityBins:
    if starts.size == 0:
        none = np.zeros(0)
        return ReliabilityBins(none, none, cells.n[:0], none, none, none, cells.within[:0])
    ends = np.append(starts[1:], cells.n.size) - 1
    return ReliabilityBins(
        lower=cells.lower[starts],
        upper=cells.upper[ends],
        n=np.add.reduceat(cells.n, starts),
        variance=np.add.reduceat(cells.variance, starts),
        squared_error=np.add.reduceat(cells.squared_error, starts),
        nees=np.add.reduceat(cells.nees, starts),
        within=np.add.reduceat(cells.within, starts, axis=0),
    )


def quantile_of_histogram(bins: LogBins, counts: IntArray, level: float) -> float:
    """Quantile of binned values, interpolated in the logarithm within its bin.

    Off by at most one bin's ratio, 2^(1/per_octave). NaN without counts.
    """
    total = counts.sum()
    if total == 0:
        return NAN
    cumulative = np.cumsum(counts)
    i = int(np.searchsorted(cumulative, level * total))
    lower, upper = bins.bounds
    if i == 0:
        return float(upper[0])
    if i >= counts.size - 1:
        return float(lower[-1])
    inside = (level * total - cumulative[i - 1]) / counts[i]
    return float(lower[i] * (upper[i] / lower[i]) ** inside)


def read(statistics: StageStatistics, bins: int, width: WidthRange | None = None) -> Evaluation:
    """All measures, from `bins` bins on every axis: of equal count, or of equal width."""
    return finished(read_in_steps(statistics, bins, width))


def read_in_steps(
    statistics: StageStatistics, bins: int, width: WidthRange | None = None
) -> Generator[None, None, Evaluation]:
    """The same, one axis a step, for a caller with other things to do in between."""
    dimensions = {}
    for i, name in enumerate(statistics.space.names):
        dimensions[name] = _dimension(statistics, i, bins, width)
        yield
    return Evaluation(
        rows=statistics.n,
        without_truth=0,
        refused=0,
        tau=statistics.binning.tau_array,
        dimensions=dimensions,
        joint=_joint(statistics, bins, width),
    )


def _cut(
    cells: AxisCells, bins: int, width: WidthRange | None, *, squared: bool = False
) -> ReliabilityBins:
    if width is None:
        return cut_equal_count(cells, bins)
    if cells.n.size == 0:
        return cut_equal_count(cells, bins)
    centre = np.sqrt(cells.variance / cells.n)
    lower, upper = width.ends or (float(centre[0]), float(centre[-1]))
    if squared:
        lower, upper = lower * lower, upper * upper
    return cut_equal_width(cells, bins, lower, upper, squared=squared)


def _dimension(
    statistics: StageStatistics, i: int, count: int, width: WidthRange | None
) -> DimensionMeasures:
    n, tau = statistics.n, statistics.binning.tau_array
    cells = statistics.axis(i)
    bins = _cut(cells, count, width)
    uce_bins = bins if width is None else _cut(cells, count, width, squared=True)
    per_row = 1.0 / n if n else NAN
    nees = float(cells.nees.sum()) * per_row
    error = float(cells.error.sum())
    sigma, log_sigma = float(statistics.sigma[i]), float(statistics.log_sigma[i])
    # τ Σ a − Σ min(a, 0) with a = r − σ Φ⁻¹(τ): the one-sided pinball loss.
    pinball = tau * (error - ndtri(tau) * sigma) - statistics.shortfall[i]
    return DimensionMeasures(
        ence=ence(bins),
        ence_noise_floor=ence_noise_floor(bins),
        uce=uce(uce_bins, n),
        nll=0.5 * float(np.log(2 * np.pi)) + log_sigma * per_row + 0.5 * nees,
        c_v=_coefficient_of_variation(n, sigma, float(cells.variance.sum())),
        nees_mean=nees,
        qce_by_tau=qce_by_tau(bins, tau),
        pinball_by_tau=pinball * per_row,
        picp_by_tau=cells.within.sum(axis=0) * per_row,
        std_scaling=float(np.sqrt(nees)),
        bias=error * per_row,
        bins=bins,
    )


def _coefficient_of_variation(n: int, sigma: float, variance: float) -> float:
    """c_v of σ, sample standard deviation over mean (Levi et al. 2019, eq. 9)."""
    if n < 2:
        return NAN
    mean = sigma / n
    return float(np.sqrt(max(variance - n * mean * mean, 0.0) / (n - 1)) / mean)


def _joint(statistics: StageStatistics, count: int, width: WidthRange | None) -> JointMeasures:
    n, tau, k = statistics.n, statistics.binning.tau_array, len(statistics.space.joint)
    cells = statistics.axis(statistics.joint_axis)
    bins = _cut(cells, count, width)
    per_row = 1.0 / n if n else NAN
    nees = float(cells.nees.sum()) * per_row
    histogram = statistics.nees_histogram[statistics.joint_axis]
    median = quantile_of_histogram(statistics.binning.nees, histogram, 0.5)
    return JointMeasures(
        k=k,
        nll=0.5 * (k * float(np.log(2 * np.pi)) + statistics.log_determinant * per_row + nees),
        nees_mean=nees,
        nees_median_ratio=median / float(chi_square((0.5,), k)[0]),
        qce_by_tau=qce_by_tau(bins, tau),
        coverage_by_tau=cells.within.sum(axis=0) * per_row,
        tau=tau,
        bins=bins,
    )
