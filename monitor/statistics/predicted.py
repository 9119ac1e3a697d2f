"""Statistics of all detections of one slice, labelled or not: how certain the detector says it is.

Deviation and entropy need no truth, so they show at once that a detector meets what it does not
know (Laves et al. 2019, section 4.3). Counted as sent only, since a recalibrator knows no more of
the unknown than the detector. Immutable values that add up in any order; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from monitor.frames.frame import PredictedRows
from monitor.frames.space import FloatArray, IntArray
from monitor.statistics.bins import LOWEST, OCTAVES, LogBins, digest
from monitor.statistics.class_statistics import entropy_of_columns, entropy_parts
from monitor.statistics.exact_sums import ExactStatistics, ExactSum, SparseSums, carry, split

# Half as fine as the micro-bins of errors: a quantile is at most 4.4 % from its place.
DEVIATIONS = LogBins(LOWEST, 16, OCTAVES)
# Of entropies over log C up to 1, which has the last bin to itself.
ENTROPIES = LogBins(LOWEST, 64, 20)

# The sums without bins: σ_G, entropy, detections with several opinions, and of these the parts of
# the entropy.
PREDICTED_SUMS = ("deviation", "entropy", "opinions", "aleatoric", "epistemic")

# The unit of the sums: 2^-40 (9e-13) of the stream's unit, or of log C.
_EXPONENT = -40
_SCALE = 2.0**-_EXPONENT

# Rows summed in one go, about a millisecond: a float64 holds the sum of so many low limbs exactly.
CHUNK = 4096

PREDICTED_HASH = digest((DEVIATIONS.edges, ENTROPIES.edges), str(_EXPONENT))


@dataclass(frozen=True, eq=False)
class PredictedStatistics(ExactStatistics):
    """Everything that is known of n predicted Gaussians, some with class probabilities.

    tables      detections by bin of DEVIATIONS, and those with class probabilities by bin of
                ENTROPIES
    companions  (5,) PREDICTED_SUMS
    """

    def check_same(self, other: PredictedStatistics) -> None:
        """Accepts all others: the bins are the same everywhere."""

    @property
    def sums(self) -> dict[str, float]:
        """The sums of PREDICTED_SUMS, by name."""
        return dict(zip(PREDICTED_SUMS, self.companions.value.tolist(), strict=True))

    @property
    def deviations(self) -> IntArray:
        """(H,) detections by bin of DEVIATIONS."""
        return _dense(self.tables[0], DEVIATIONS.count)

    @property
    def entropies(self) -> IntArray:
        """(E,) detections with class probabilities by bin of ENTROPIES."""
        return _dense(self.tables[1], ENTROPIES.count)


def _dense(table: SparseSums, bins: int) -> IntArray:
    counts = np.zeros(bins, np.int64)
    counts[table.keys] = table.values[:, 0]
    return counts


def no_predicted() -> PredictedStatistics:
    """The statistics of no detections: the zero of merge."""
    none = SparseSums.zero(1)
    return PredictedStatistics(0, (none, none), ExactSum.zero((len(PREDICTED_SUMS),), _EXPONENT))


def predicted_rows(
    slices: IntArray,
    roots: FloatArray,
    opinions: FloatArray | None = None,
    stamp_ns: int | None = None,
) -> PredictedRows:
    """Works out deviation and entropy of the n detections of a frame.

    slices    (n,)
    roots     (n, J) whose product is the root of det(Σ) of the joint block: FrameBatch.roots
    opinions  (n, M, C) in [0, 1], rows of NaN for none; C at least 2
    """
    columns = roots.T
    # A product of eight stays within the range of a float, and has one logarithm.
    parts = (
        np.log(reduce(np.multiply, columns[start : start + 8]))
        for start in range(0, columns.shape[0], 8)
    )
    deviation = np.exp(reduce(np.add, parts) / columns.shape[0])
    if opinions is None:
        return PredictedRows(slices, deviation, stamp_ns=stamp_ns)
    # (M, C, n): what belongs to one class lies side by side.
    each = np.ascontiguousarray(opinions.transpose(1, 2, 0))
    if each.shape[0] == 1:
        return PredictedRows(slices, deviation, entropy_of_columns(each[0]), stamp_ns=stamp_ns)
    aleatoric, epistemic = entropy_parts(each)
    return PredictedRows(slices, deviation, aleatoric + epistemic, aleatoric, epistemic, stamp_ns)


@dataclass(slots=True)
class PredictedSums:
    """Sums of G slots while rows are added; dense, since few bins stay empty.

    n           (G,)
    deviations, entropies
                (G, H) and (G, E) detections by bin
    _limbs      low and high limbs of PREDICTED_SUMS, each (5, G)
    """

    n: IntArray
    deviations: IntArray
    entropies: IntArray
    _limbs: tuple[IntArray, IntArray]

    @classmethod
    def of_none(cls, slots: int) -> PredictedSums:
        """Returns the sums of no rows."""
        low, high, deviations, entropies = (
            np.zeros(shape, np.int64)
            for shape in (
                *((len(PREDICTED_SUMS), slots),) * 2,
                *((slots, DEVIATIONS.count), (slots, ENTROPIES.count)),
            )
        )
        return cls(np.zeros(slots, np.int64), deviations, entropies, (low, high))

    def add(self, frames: Sequence[PredictedRows], slot: IntArray) -> None:
        """Adds the rows of frames, at most CHUNK.

        slot  (N,) of each row, in 0 … G − 1
        """
        assert slot.size <= CHUNK
        if not slot.size:
            return
        self.n += np.bincount(slot, minlength=self.n.size)
        deviation = np.concatenate([rows.deviation for rows in frames])
        _count(self.deviations, slot, DEVIATIONS.index(deviation))
        self._sum(0, slot, deviation)
        rows, entropy = _given([rows.entropy for rows in frames], slot)
        if rows.size:
            _count(self.entropies, rows, ENTROPIES.index(entropy))
            self._sum(1, rows, entropy)
        rows, aleatoric = _given([rows.aleatoric for rows in frames], slot)
        if rows.size:
            _, epistemic = _given([rows.epistemic for rows in frames], slot)
            for i, values in enumerate((np.ones(rows.size), aleatoric, epistemic), start=2):
                self._sum(i, rows, values)

    def _sum(self, column: int, slot: IntArray, values: FloatArray) -> None:
        units = np.rint(values * _SCALE)
        # Entropies are at most 2^40 units, and are summed as they are.
        parts = (units,) if column or units.max() <= _SCALE else split(units)
        for limb, part in zip(self._limbs, parts, strict=False):
            limb[column] += np.bincount(slot, part, self.n.size).astype(np.int64)

    def by_slot(self) -> Iterator[PredictedStatistics]:
        """Yields the statistics of every slot."""
        low, high = carry(*self._limbs)
        for i, n in enumerate(self.n.tolist()):
            tables = _table(self.deviations[i]), _table(self.entropies[i])
            sums = ExactSum(low[:, i].copy(), high[:, i].copy(), _EXPONENT)
            yield PredictedStatistics(n, tables, sums)


def observe_predicted(rows: PredictedRows) -> PredictedStatistics:
    """Adds up rows, at most CHUNK, whatever their slices are."""
    sums = PredictedSums.of_none(1)
    sums.add([rows], np.zeros(rows.n, np.int64))
    return next(sums.by_slot())


def _given(columns: Sequence[FloatArray | None], slot: IntArray) -> tuple[IntArray, FloatArray]:
    """Joins a column of all frames; returns the slots of its rows, and their values, no NaN.

    columns  None of a frame without; then all are
    """
    if any(column is None for column in columns):
        return slot[:0], np.zeros(0)
    values = np.concatenate([column for column in columns if column is not None])
    given = ~np.isnan(values)
    return (slot, values) if given.all() else (slot[given], values[given])


def _count(counts: IntArray, slot: IntArray, position: IntArray) -> None:
    slots, bins = counts.shape
    counts += np.bincount(slot * bins + position, minlength=counts.size).reshape(slots, bins)


def _table(counts: IntArray) -> SparseSums:
    keys = np.flatnonzero(counts)
    return SparseSums(keys, counts[keys, None], keys[:0], keys[:0])
