"""Reads measures off the statistics of slices.

Reliability bins (of equal count, of equal width, or between frozen edges) are put together from
whole micro-bins; the measures themselves live in measures.py. Many slices are read in short
steps, so that the caller can let frames pass in between; slices whose statistics did not change
are not read again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray, Space, read_only
from monitor.statistics import measures
from monitor.statistics.bins import SQUARED_ERRORS, LogBins, chi_square
from monitor.statistics.class_evaluation import ClassEvaluation, read_classes
from monitor.statistics.clusters import LARGEST, design_effect
from monitor.statistics.exact_engine import EQUAL_COUNT, BinCut
from monitor.statistics.measures import (
    DimensionMeasures,
    Evaluation,
    JointMeasures,
    ReliabilityBins,
)
from monitor.statistics.observations import finished, joint_unit
from monitor.statistics.predicted import DEVIATIONS, ENTROPIES, PredictedStatistics
from monitor.statistics.sparsification import ErrorRanking, Ranked
from monitor.statistics.state import (
    AxisCells,
    ClassStages,
    SliceStatistics,
    StageStatistics,
    axis_cells,
    no_stage_statistics,
)
from monitor.statistics.verdicts import mean_interval_of_sums

# Names of the stages.
RAW = "raw"
RECALIBRATED = "recalibrated"
_HALF_LOG_TAU = 0.5 * math.log(math.tau)

# Mean NEES above which so many squares are cut at LARGEST that they do not show how alike they are.
_MOSTLY_CUT = LARGEST / 4


@dataclass(frozen=True, eq=False, slots=True)
class OccupiedCells:
    """The micro-bins of all axes that hold rows, one axis after the other.

    number  (M,) the axis of each
    start   (A + 1,) where each axis begins, and the end
    """

    cells: AxisCells
    number: IntArray
    start: IntArray

    @classmethod
    def of(cls, statistics: StageStatistics) -> OccupiedCells:
        """Decodes every axis of the statistics, the joint one last."""
        held, binning = statistics.cells, statistics.binning
        axis, position = np.divmod(held.keys, binning.deviation.count)
        cells = axis_cells(held, position, binning)
        # From some micro-bins more may have been retracted than came. What that leaves in the
        # others need be no sum of squares, and is cut at 0: in a copy, since these are views.
        kept = (cells.n > 0) & (cells.variance > 0)
        cut = cells.squared_error, cells.nees, cells.within
        if not kept.all() or min(column.min(initial=0) for column in cut) < 0:
            cells, axis = cells.take(kept), axis[kept]
            for column in (cells.squared_error, cells.nees, cells.within):
                np.maximum(column, 0, out=column)
        return cls(cells, axis, np.searchsorted(axis, np.arange(statistics.space.k + 2)))

    def axis(self, i: int) -> AxisCells:
        """Selects the micro-bins of one axis."""
        return self.cells.take(slice(self.start[i], self.start[i + 1]))

    def totals(self, values: FloatArray) -> FloatArray:
        """Adds up a column of the cells over each axis, (A,)."""
        sums = np.bincount(self.number, values, self.start.size - 1)
        return sums.astype(np.float64, copy=False)


def cut_axes(held: OccupiedCells, cut: BinCut) -> list[tuple[ReliabilityBins, ReliabilityBins]]:
    """Cuts each axis into the bins of ENCE and QCE over σ (or σ_G), and those of UCE.

    Each micro-bin lies at its root mean square.
    """
    found = [(one, one) for one in cut_equal_count(held, cut.count)]
    if cut.kind == "equal-count":
        return found
    for i in np.unique(held.number).tolist():
        cells = held.axis(i)
        found[i] = cut.between_edges(i, cells, np.sqrt(cells.variance / cells.n))
    return found


def cut_equal_count(held: OccupiedCells, bins: int) -> list[ReliabilityBins]:
    """Cuts each axis into bins of nearly equal count, of whole micro-bins.

    A cut falls on the edge of a micro-bin nearest to its share of the rows, so
    that the cuts of merged replicas are those of one that saw everything. Fewer
    than `bins` remain where one micro-bin holds several shares.

    source   Levi et al. 2019, section 3
    """
    cells, begin, end = held.cells, held.start[:-1, None], held.start[1:, None]
    cumulative = np.concatenate(([0], np.cumsum(cells.n)))
    rows = cumulative[held.start]
    # The axes lie one after the other, so that the shares of all of them ascend.
    share = rows[:-1, None] + np.diff(rows)[:, None] * np.arange(bins) / bins
    # cumulative[j] rows lie before micro-bin j: a cut there, or at the one before.
    after = np.searchsorted(cumulative, share)
    before = np.maximum(after - 1, begin)
    nearer = share - cumulative[before] < cumulative[after] - share
    starts = np.where(nearer, before, after)
    starts[:, 0] = held.start[:-1]
    fresh = starts < end
    fresh[:, 1:] &= starts[:, 1:] != starts[:, :-1]
    sizes = fresh.sum(axis=1)
    return _grouped(cells, starts[fresh], np.concatenate(([0], np.cumsum(sizes))))


def _grouped(cells: AxisCells, starts: IntArray, first: IntArray) -> list[ReliabilityBins]:
    """Adds up the cells from each start to the next; the bins of axis i begin at first[i]."""
    columns: tuple[Any, ...] = (
        cells.lower[starts],
        cells.upper[np.append(starts, cells.n.size)[1:] - 1],
        np.add.reduceat(cells.n, starts),
        np.add.reduceat(cells.variance, starts),
        np.add.reduceat(cells.squared_error, starts),
        np.add.reduceat(cells.nees, starts),
        np.add.reduceat(cells.within, starts, axis=0),
    )
    return [
        ReliabilityBins(*(column[a:b] for column in columns)) for a, b in pairwise(first.tolist())
    ]


def read(statistics: StageStatistics, cut: BinCut = EQUAL_COUNT) -> Evaluation:
    """Reads all measures."""
    return finished(read_in_steps(statistics, cut))


def read_in_steps(statistics: StageStatistics, cut: BinCut) -> Generator[None, None, Evaluation]:
    """Reads as read() does, in short steps, for a caller with other things to do in between."""
    if statistics.n <= 0:
        # Statistics that more was retracted from than came hold no rows.
        statistics = no_stage_statistics(statistics.space, statistics.binning)
    n, space, binning = statistics.n, statistics.space, statistics.binning
    k, tau, per_row = len(space.joint), binning.tau_array, 1.0 / n if n else math.nan
    held = OccupiedCells.of(statistics)
    median, kurtosis, effect = _of_histograms(statistics)
    yield
    bins = cut_axes(held, cut)
    yield
    nees = held.totals(held.cells.nees) * per_row
    within = np.stack([held.totals(one) for one in held.cells.within.T], axis=1) * per_row
    variance, error = held.totals(held.cells.variance), held.totals(held.cells.error)
    squared_error = held.totals(held.cells.squared_error) * per_row
    known = _squares_known(statistics)
    together = known[-1] and joint_unit(space) is not None
    sigma, ratio = statistics.sigma, median[:-1] / chi_square((0.5,), 1)
    crps = statistics.companion["crps"]
    nll = _HALF_LOG_TAU + statistics.companion["log_sigma"] * per_row + 0.5 * nees[:-1]
    # τ Σ a − Σ min(a, 0) with a = r − σ Φ⁻¹(τ): the one-sided pinball loss.
    distance = error[:-1, None] - binning.normal * sigma[:, None]
    pinball = (tau * distance - statistics.shortfall) * per_row
    dimensions = {
        name: DimensionMeasures(
            **measures.binned_measures(
                bins[i], cut.fewest_rows, tau, n, float(kurtosis[i]), effect[i]
            ),
            nll=float(nll[i]),
            c_v=_coefficient_of_variation(n, float(sigma[i]), float(variance[i])),
            nees_mean=float(nees[i]),
            nees_median_ratio=float(ratio[i]),
            mean_sigma=float(sigma[i]) * per_row,
            mean_variance=float(variance[i]) * per_row,
            mean_squared_error=float(squared_error[i]),
            bias=float(error[i]) * per_row,
            bias_interval=mean_interval_of_sums(
                n,
                float(error[i]) * per_row,
                float(squared_error[i]),
                effect[i] if nees[i] < _MOSTLY_CUT else math.inf,
                statistics.pairs,
            ),
            crps=float(crps[i]) * per_row if known[i] else math.nan,
            pinball_by_tau=pinball[i],
            coverage_by_tau=within[i],
            coverage_one_sided_by_tau=None,
            ranking=ErrorRanking(partial(_ranked, statistics, i) if known[i] else None),
        )
        for i, name in enumerate(space.names)
    }
    yield
    joint_bins = replace(bins[-1][0], squared_error=np.zeros(bins[-1][0].n.size))
    joint = JointMeasures(
        k=k,
        n=n,
        n_eff=n / effect[-1] if n else math.nan,
        nll=k * _HALF_LOG_TAU + 0.5 * (statistics.log_determinant * per_row + float(nees[-1])),
        nees_mean=float(nees[-1]),
        nees_median_ratio=float(median[-1] / chi_square((0.5,), k)[0]),
        tau=tau,
        qce_by_tau=measures.qce_by_tau(joint_bins.with_rows(cut.fewest_rows), tau),
        coverage_by_tau=within[-1],
        deviation=_deviation(held.axis(statistics.space.k)),
        bins=joint_bins,
        ranking=ErrorRanking(partial(_ranked, statistics, space.k) if together else None),
    )
    return Evaluation(rows=n, tau=tau, dimensions=dimensions, joint=joint)


def _ranked(statistics: StageStatistics, i: int) -> Ranked:
    """Ranks the rows of axis i, whose squares are known.

    Rows of a micro-bin are ties by σ, rows of a bin of squared errors by these. Such a bin counts
    with its middle, times what makes the sum of all of them that of the micro-bins.
    """
    bins = SQUARED_ERRORS
    cells = OccupiedCells.of(statistics).axis(i)
    counts = statistics.squares.between(i * bins.count, (i + 1) * bins.count)
    kept = counts.values[:, 0] > 0
    n = counts.values[kept, 0]
    squares = n * bins.centre[counts.keys[kept]]
    if n.size:
        squares *= cells.squared_error.sum() / squares.sum()
    error = np.append(cells.squared_error, squares)[:, None]
    by = np.repeat([0, 1], (cells.n.size, n.size))
    return Ranked(2, by, np.append(cells.n, n), error, np.zeros_like(error))


def _squares_known(statistics: StageStatistics) -> BoolArray:
    """(K + 1,) whether every row of an axis has brought its squares, and its CRPS with them."""
    axis, counts = statistics.squares.keys // SQUARED_ERRORS.count, statistics.squares.values[:, 0]
    known: BoolArray = np.bincount(axis, counts, statistics.space.k + 1) == statistics.n
    return known


def _of_histograms(statistics: StageStatistics) -> tuple[FloatArray, FloatArray, list[float]]:
    """Reads the median of NEES, the kurtosis of z and the design effect of each axis, (K + 1,)."""
    axes, bins = statistics.space.k + 1, statistics.binning.nees
    counts = np.zeros((axes, bins.count), np.int64)
    # Below 0 where more was retracted than came.
    counts.ravel()[statistics.nees.keys] = np.maximum(statistics.nees.values[:, 0], 0)
    n = counts.sum(axis=1)
    centre, capped = _centres(bins, axes - 1, len(statistics.space.joint))
    weighted = counts * capped
    mean, square = weighted.sum(axis=1) / np.maximum(n, 1), (weighted * capped).sum(axis=1)
    sums = statistics.companion
    columns = (n, mean, square, sums["cross"], sums["beside"])
    effect = [
        design_effect(rows, m, q, statistics.pairs, cross, beside)
        for rows, m, q, cross, beside in zip(*(column.tolist() for column in columns), strict=True)
    ]
    kurtosis = measures.kurtosis(n, counts @ centre, counts @ (centre * centre))
    return quantiles_of_histograms(bins, counts, 0.5), kurtosis, effect


@cache
def _centres(bins: LogBins, axes: int, k: int) -> tuple[FloatArray, FloatArray]:
    """Geometric centres (H,) of the bins of NEES, and their x in clusters.py, (axes + 1, H).

    The last row of x is the joint one of k dimensions.
    """
    lower, upper = bins.bounds
    lower, upper = lower.copy(), upper.copy()
    lower[0], upper[-1] = upper[0] / 2, lower[-1]
    centre = np.sqrt(lower * upper)
    freedom = np.append(np.ones(axes), k)
    capped: FloatArray = np.minimum(centre / freedom[:, None], LARGEST)
    return read_only(centre), read_only(capped)


def quantile_of_histogram(bins: LogBins, counts: IntArray, level: float) -> float:
    """Quantile of one histogram (H,); see quantiles_of_histograms."""
    return float(quantiles_of_histograms(bins, counts[None], level)[0])


def quantiles_of_histograms(bins: LogBins, counts: IntArray, level: float) -> FloatArray:
    """Quantile of each histogram (A, H), interpolated in the logarithm within its bin; (A,).

    Off by at most one bin's ratio, 2^(1/per_octave). NaN without counts.
    """
    cumulative = np.cumsum(counts, axis=1)
    rank = level * cumulative[:, -1]
    i = (cumulative < rank[:, None]).sum(axis=1)
    # The outer bins have one finite edge, which is all that is known of what they hold.
    inner = np.clip(i, 1, counts.shape[1] - 2)
    here = np.arange(i.size)
    lower, upper = bins.bounds
    low, high = lower[inner], upper[inner]
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = (rank - cumulative[here, inner - 1]) / counts[here, inner]
        found: FloatArray = low * (high / low) ** inside
    found = np.where(i < inner, low, np.where(i > inner, high, found))
    found[cumulative[:, -1] == 0] = math.nan
    return found


def _coefficient_of_variation(n: int, sigma: float, variance: float) -> float:
    """c_v of σ, sample standard deviation over mean (Levi et al. 2019, eq. 9)."""
    if n < 2 or not sigma > 0:
        return math.nan
    mean = sigma / n
    return float(np.sqrt(max(variance - n * mean * mean, 0.0) / (n - 1)) / mean)


def _deviation(cells: AxisCells) -> tuple[float, float, float]:
    """Lowest, highest and mean σ_G, each micro-bin taken at its root mean square."""
    if cells.n.size == 0:
        return math.nan, math.nan, math.nan
    centre = np.sqrt(cells.variance / cells.n)
    return float(centre.min()), float(centre.max()), float(np.average(centre, weights=cells.n))


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The measures of one slice by stage."""

    name: str
    space: Space
    raw: Evaluation
    recalibrated: Evaluation

    @property
    def assumed(self) -> bool:
        """Tells whether σ is assumed: no covariance came, and none was estimated."""
        return is_assumed(self.space, self.raw, self.recalibrated)

    @property
    def stages(self) -> tuple[tuple[str, Evaluation], ...]:
        """Both stages, with their names."""
        return ((RAW, self.raw), (RECALIBRATED, self.recalibrated))


def is_assumed(space: Space, raw: Evaluation, recalibrated: Evaluation) -> bool:
    """Tells whether σ is assumed at both stages: no covariance came, and none was estimated."""
    return space.assumed and (
        recalibrated is raw
        or not raw.rows
        or all(
            recalibrated.dimensions[name].mean_variance == one.mean_variance
            for name, one in raw.dimensions.items()
        )
    )


@dataclass(frozen=True, slots=True)
class WindowReading:
    """The measures of one slice over one window of event time, such as `5m`."""

    window: str
    reading: SliceReading


@dataclass(frozen=True, slots=True)
class ClassReading:
    """The measures of the class probabilities of one slice by stage."""

    name: str
    raw: ClassEvaluation
    recalibrated: ClassEvaluation
    class_names: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[tuple[str, ClassEvaluation], ...]:
        """Both stages, with their names."""
        return ((RAW, self.raw), (RECALIBRATED, self.recalibrated))

    @property
    def shown(self) -> dict[str, ClassEvaluation]:
        """The stages by name; one of them where nothing was changed."""
        return {RAW: self.raw} if self.recalibrated is self.raw else dict(self.stages)


def read_class_slice(
    name: str, held: ClassStages, class_names: tuple[str, ...] = ()
) -> ClassReading:
    """Reads both stages of a slice, the very same object where nothing was changed.

    Of recalibrated opinions only the mean is kept: the parts of its entropy are not known.
    """
    raw = recalibrated = read_classes(held.raw)
    if held.recalibrated is not held.raw:
        recalibrated = read_classes(held.recalibrated)
        if recalibrated.opinions != raw.opinions:
            recalibrated = replace(recalibrated, opinions=0, aleatoric=math.nan, epistemic=math.nan)
    return ClassReading(name, raw, recalibrated, class_names)


@dataclass(slots=True)
class ReadingCache:
    """Reads slices, and keeps the last reading of each with the statistics it was made from."""

    cut: BinCut
    _last: dict[str, tuple[SliceStatistics, SliceReading]] = field(default_factory=dict)

    def read(
        self, statistics: tuple[tuple[str, SliceStatistics], ...]
    ) -> Generator[None, None, tuple[SliceReading, ...]]:
        """Reads slices in many short steps; returns the readings in the given order."""
        readings = []
        for name, current in statistics:
            known = self._last.get(name)
            if known is None or known[0] is not current:
                raw = yield from read_in_steps(current.raw, self.cut)
                second = raw
                if current.recalibrated is not current.raw:
                    second = yield from read_in_steps(current.recalibrated, self.cut)
                known = (current, SliceReading(name, current.raw.space, raw, second))
                self._last[name] = known
            readings.append(known[1])
        return tuple(readings)


@dataclass(slots=True)
class ClassReadingCache:
    """Reads class slices, and keeps the last reading of each with its statistics."""

    _last: dict[str, tuple[ClassStages, ClassReading]] = field(default_factory=dict)

    def read(
        self, statistics: Iterable[tuple[str, tuple[str, ...], ClassStages]]
    ) -> Generator[None, None, tuple[ClassReading, ...]]:
        """Reads one slice a step; returns the readings in the given order."""
        readings = []
        for name, class_names, current in statistics:
            known = self._last.get(name)
            if known is None or known[0] is not current:
                known = current, read_class_slice(name, current, class_names)
                self._last[name] = known
                yield
            readings.append(known[1])
        return tuple(readings)


@dataclass(frozen=True, slots=True)
class PredictedReading:
    """How certain the detector says it is: all detections of one slice, labelled or not, as sent.

    n, classified, opinions  detections with a covariance; of these, those with class
                             probabilities, and with several opinions
    deviation_*              σ_G of the joint block, in the unit of the stream
    entropy_*                over log C
    *_above_before           share above the 95 % quantile of the time before; 0.05: as before
    aleatoric, epistemic     mean parts of the entropy of those with several opinions (Wolf et al.
                             2024, eq. 10)

    NaN where nothing is known.
    """

    slice: str
    n: int
    deviation_mean: float
    deviation_q50: float
    deviation_q95: float
    deviation_above_before: float
    classified: int
    entropy_mean: float
    entropy_q50: float
    entropy_q95: float
    entropy_above_before: float
    opinions: int
    aleatoric: float
    epistemic: float


# The quantile of the time before that a window is held against, and the fewest detections of then.
_HIGH, _FEWEST_BEFORE = 0.95, 100


def read_predicted(
    name: str, statistics: PredictedStatistics, before: PredictedStatistics
) -> PredictedReading:
    """Reads deviation and entropy, and how much of them lies above what was before.

    before  those of the time before; negative counts, left by a jump of time, are none
    """
    sums = statistics.sums
    deviations, entropies = statistics.deviations.sum(axis=0), statistics.entropies.sum(axis=0)
    classified, opinions = int(entropies.sum()), round(sums["opinions"])

    def mean(of: str, n: int) -> float:
        return sums[of] / n if n else math.nan

    return PredictedReading(
        slice=name,
        n=statistics.n,
        deviation_mean=mean("deviation", statistics.n),
        deviation_q50=quantile_of_histogram(DEVIATIONS, deviations, 0.5),
        deviation_q95=quantile_of_histogram(DEVIATIONS, deviations, 0.95),
        deviation_above_before=share_above(statistics.deviations[1:], before.deviations[1:], _HIGH),
        classified=classified,
        entropy_mean=mean("entropy", classified),
        entropy_q50=quantile_of_histogram(ENTROPIES, entropies, 0.5),
        entropy_q95=quantile_of_histogram(ENTROPIES, entropies, 0.95),
        entropy_above_before=share_above(statistics.entropies, before.entropies, _HIGH),
        opinions=opinions,
        aleatoric=mean("aleatoric", opinions),
        epistemic=mean("epistemic", opinions),
    )


def share_above(counts: IntArray, before: IntArray, level: float) -> float:
    """Computes the share of histograms (R, H) above a quantile of others on the same bins.

    Each range is held against itself, so that other ranges are no news. Left out are ranges of
    which fewer than 100 came before, or fewer than now. All are taken to be even within a bin, so
    that equal histograms have 1 − level above it, however wide the bins are.

    returns  NaN where more than half is left out
    """
    n, before = counts.sum(axis=1), np.maximum(before, 0)
    cumulative = np.cumsum(before, axis=1)
    known = (n > 0) & (cumulative[:, -1] >= np.maximum(n, _FEWEST_BEFORE))
    if not (compared := int(n[known].sum())) or 2 * compared < n.sum():
        return math.nan
    counts, before, cumulative = counts[known], before[known], cumulative[known]
    rank = level * cumulative[:, -1]
    at = (cumulative < rank[:, None]).sum(axis=1)
    here = np.arange(at.size), at
    beyond = (cumulative[here] - rank) / before[here]
    above = n[known] - np.cumsum(counts, axis=1)[here] + beyond * counts[here]
    return float(above.sum()) / compared
