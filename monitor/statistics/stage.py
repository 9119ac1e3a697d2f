"""Statistics of the matched detections of one slice, as values that add up.

observe() makes one from a batch; merge() adds two, exactly, in any order; merging what negated()
returns takes out what was added. A slice has two stages: what the detector sent, and what the
recalibrator made of it. No row is kept, and nothing is measured here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from monitor.frames.space import FloatArray, IntArray, Space, read_only, triangle
from monitor.statistics.bins import EXPONENT, Binning, Column, IncompatibleStatistics
from monitor.statistics.clusters import ClusterArray, ClusterMemory, clustered
from monitor.statistics.exact_sums import ExactStatistics, ExactSum, SparseSums, total
from monitor.statistics.measures import BinSums
from monitor.statistics.observations import (
    CHUNK,
    SlotSums,
    axis_degrees,
    companion_layout,
    finished,
    measure,
    sum_by_slot,
)


@dataclass(frozen=True, eq=False, slots=True)
class AxisCells(BinSums):
    """The occupied micro-bins of one axis, as floats, ascending.

    error  (B,) sum of errors, in the unit of the axis; of no meaning on the joint axis
    """

    error: FloatArray


def axis_cells(held: SparseSums, position: IntArray, binning: Binning) -> AxisCells:
    """Decodes cells as floats; position (M,) is the micro-bin of each."""
    lower, upper = binning.deviation.bounds
    unit = binning.variance_exponent[position]
    return AxisCells(
        lower=lower[position],
        upper=upper[position],
        n=held.values[:, Column.N],
        variance=held.as_float(Column.VARIANCE, unit + EXPONENT),
        squared_error=held.as_float(Column.SQUARED_ERROR, unit + EXPONENT),
        error=held.as_float(Column.ERROR, unit // 2 + EXPONENT),
        nees=held.as_float(Column.NEES, EXPONENT),
        within=held.values[:, Column.WITHIN],
    )


@dataclass(frozen=True, eq=False)
class StageStatistics(ExactStatistics):
    """Everything that is known of n matched detections.

    tables      cells and nees
    companions  the properties name and read them
    """

    space: Space
    binning: Binning

    @property
    def cells(self) -> SparseSums:
        """Micro-bins, keyed axis · bins + bin; axes 0 … K − 1 the dimensions, K the joint one."""
        return self.tables[0]

    @property
    def nees(self) -> SparseSums:
        """The histogram of NEES, keyed axis · bins + bin of Binning.nees."""
        return self.tables[1]

    def check_same(self, other: StageStatistics) -> None:
        """Raises IncompatibleStatistics unless spaces and binning are the same."""
        if self.space != other.space:
            raise IncompatibleStatistics(
                f"cannot merge statistics over {self.space.names} with {other.space.names}: "
                "the dimensions differ. Merge only slices of streams with equal headers."
            )
        self.binning.check_same(other.binning)

    def axis(self, index: int) -> AxisCells:
        """Decodes the micro-bins of dimension `index`, or of the joint axis for index = K."""
        bins = self.binning.deviation.count
        cells = self.cells.between(index * bins, (index + 1) * bins)
        return axis_cells(cells, cells.keys, self.binning)

    @property
    def joint_axis(self) -> int:
        """The index of the joint axis."""
        return self.space.k

    def histogram(self, index: int) -> IntArray:
        """(H,) how many have their NEES in each bin of Binning.nees; index as for axis()."""
        bins = self.binning.nees.count
        found = self.nees.between(index * bins, (index + 1) * bins)
        counts = np.zeros(bins, np.int64)
        counts[found.keys] = found.values[:, 0]
        return counts

    @cached_property
    def _companion(self) -> dict[str, FloatArray]:
        layout, _ = companion_layout(self.space.k, len(self.binning.tau))
        value = read_only(self.companions.value)
        return {name: value[part] for name, part in layout.items()}

    @cached_property
    def sigma(self) -> FloatArray:
        """(K,) Σ σ."""
        by_rank = self._companion["sigma"].reshape(self.space.k, -1)
        result: FloatArray = by_rank.sum(axis=1)
        return result

    @property
    def log_sigma(self) -> FloatArray:
        """(K,) Σ log σ."""
        return self._companion["log_sigma"]

    @property
    def log_determinant(self) -> float:
        """Σ log det Σ of the joint block."""
        return float(self._companion["log_determinant"][0])

    @cached_property
    def shortfall(self) -> FloatArray:
        """(K, T) Σ min(r − σ Φ⁻¹(τ), 0): with Σ r and Σ σ it gives the pinball loss."""
        k = self.space.k
        below_error = np.cumsum(self._companion["error"].reshape(k, -1), axis=1)[:, :-1]
        below_sigma = np.cumsum(self._companion["sigma"].reshape(k, -1), axis=1)[:, :-1]
        return below_error - self.binning.normal * below_sigma

    @property
    def normalised(self) -> FloatArray:
        """(K, K) Σ z zᵀ, z = r/σ."""
        return _symmetric(self._companion["normalised"], self.space.k)

    @property
    def whitened(self) -> FloatArray:
        """(K, K) Σ u uᵀ, u = L⁻¹ r, in the order of Space.order."""
        return _symmetric(self._companion["whitened"], self.space.k)

    @property
    def pairs(self) -> int:
        """Pairs of detections of one cluster."""
        return round(float(self._companion["pairs"][0]))

    @property
    def cross(self) -> FloatArray:
        """(K + 1,) Σ x_i x_j over these pairs; see clusters.design_effect."""
        return self._companion["cross"]

    @property
    def beside(self) -> FloatArray:
        """(K + 1,) Σ (x_i + x_j) over these pairs."""
        return self._companion["beside"]


def _symmetric(lower: FloatArray, k: int) -> FloatArray:
    """(K, K) from its lower triangle, row by row."""
    full = np.empty((k, k))
    rows, columns = triangle(k)
    full[rows, columns] = lower
    full[columns, rows] = lower
    return full


def no_stage_statistics(space: Space, binning: Binning) -> StageStatistics:
    """The statistics of no detections: the zero of merge."""
    return StageStatistics(
        space=space,
        binning=binning,
        n=0,
        tables=(SparseSums.zero(binning.columns), SparseSums.zero(1)),
        companions=ExactSum.zero((companion_layout(space.k, len(binning.tau))[1],), EXPONENT),
    )


def observe(
    space: Space,
    binning: Binning,
    error: FloatArray,
    covariance: FloatArray,
    cluster: ClusterArray | None = None,
    memory: ClusterMemory | None = None,
) -> StageStatistics:
    """Adds up a batch of matched detections.

    error       (N, K) truth − mean, angles wrapped: Space.error
    covariance  (N, K, K) positive definite; a row that is not, by a rounding, is left out
    cluster     (N,) of each row, cluster_id() or ALONE; in the order of time within each
    memory      of clusters that began in earlier batches, (K + 1) axes
    """
    sums = []
    memory = memory or ClusterMemory(space.k + 1)
    for start in range(0, error.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        rows = measure(space, [(error[part], covariance[part])])
        sound = rows.regular
        if not sound.all():
            rows = rows.take(sound)
        before = None
        if cluster is not None:
            x = clustered(rows.nees, axis_degrees(space))
            before = memory.before(cluster[part][sound], x)
        slot = np.zeros(rows.n, np.int64)
        sums.append(finished(sum_by_slot(space, binning, rows, slot, 1, before)))
    if not sums:
        return no_stage_statistics(space, binning)
    return next(by_slot(space, binning, together(sums)))


def together(sums: Sequence[SlotSums]) -> SlotSums:
    """Adds up sums, at least one, over the same slots."""
    return SlotSums(
        n=np.sum([part.n for part in sums], axis=0),
        cells=total([part.cells for part in sums]),
        nees=total([part.nees for part in sums]),
        companions=reduce(operator.add, (part.companions for part in sums)),
    )


def by_slot(space: Space, binning: Binning, sums: SlotSums) -> Iterator[StageStatistics]:
    """Yields the statistics of every slot."""
    bins, nees_bins = (space.k + 1) * binning.deviation.count, (space.k + 1) * binning.nees.count
    for slot, n in enumerate(sums.n.tolist()):
        low, high = sums.companions.low[slot].copy(), sums.companions.high[slot].copy()
        yield StageStatistics(
            space=space,
            binning=binning,
            n=n,
            tables=(
                sums.cells.between(slot * bins, (slot + 1) * bins),
                sums.nees.between(slot * nees_bins, (slot + 1) * nees_bins),
            ),
            companions=ExactSum(low, high, EXPONENT),
        )


@dataclass(frozen=True, slots=True)
class SliceStatistics:
    """Both stages of one slice; the very same object where nothing was changed."""

    raw: StageStatistics
    recalibrated: StageStatistics

    @property
    def is_zero(self) -> bool:
        """Tells that nothing is held at either stage."""
        return self.raw.is_zero and self.recalibrated.is_zero

    def merge(self, other: SliceStatistics) -> SliceStatistics:
        """Merges both stages. Raises IncompatibleStatistics."""
        raw = self.raw.merge(other.raw)
        if self.recalibrated is self.raw and other.recalibrated is other.raw:
            return SliceStatistics(raw, raw)
        return SliceStatistics(raw, self.recalibrated.merge(other.recalibrated))

    def negated(self) -> SliceStatistics:
        """Turns the sign of all sums: merging the result retracts what was added."""
        raw = self.raw.negated()
        same = self.recalibrated is self.raw
        return SliceStatistics(raw, raw if same else self.recalibrated.negated())


def no_statistics(space: Space, binning: Binning) -> SliceStatistics:
    """Statistics of no detections, at both stages."""
    zero = no_stage_statistics(space, binning)
    return SliceStatistics(zero, zero)
