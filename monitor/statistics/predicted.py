"""Statistics of all detections of one slice, labelled or not: how certain the detector says it is.

Deviation and entropy need no truth, so they show at once that a detector meets what it does not
know (Laves et al. 2019, section 4.3). Counted as sent only, since a recalibrator knows no more of
the unknown than the detector; and by distance, since what is far away is known less exactly in any
scene. Immutable values that add up in any order; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from monitor.frames.frame import PredictedRows
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.statistics.bins import LOWEST, OCTAVES, LogBins, digest
from monitor.statistics.class_statistics import entropy_of_columns, entropy_parts
from monitor.statistics.exact_sums import ExactStatistics, ExactSum, SparseSums, carry, split

# Half as fine as the micro-bins of errors: a quantile is at most 4.4 % from its place.
DEVIATIONS = LogBins(LOWEST, 16, OCTAVES)
# Of entropies over log C up to 1, which has the last bin to itself.
ENTROPIES = LogBins(LOWEST, 64, 20)

# Edges of the distance, half an octave apart: from 1 to 1024, in the unit of the stream.
_DISTANCES = tuple(2.0 ** (i / 2) for i in range(21))
# Ranges that detections are counted by: no position, then the buckets between these edges.
RANGES = len(_DISTANCES) + 2

# The sums without bins: σ_G, entropy, detections with several opinions, and of these the parts of
# the entropy.
PREDICTED_SUMS = ("deviation", "entropy", "opinions", "aleatoric", "epistemic")

# The unit of the sums: 2^-40 (9e-13) of the stream's unit, or of log C.
_EXPONENT = -40
_SCALE = 2.0**-_EXPONENT

# Rows summed in one go, about a millisecond, and their probabilities: fewer rows where these are
# many. A float64 holds the sum of so many low limbs exactly.
CHUNK, CHUNK_PROBABILITIES = 4096, 32768

PREDICTED_HASH = digest((DEVIATIONS.edges, ENTROPIES.edges, np.array(_DISTANCES)), str(_EXPONENT))


def ranges_of(space: Space, mean: FloatArray, dimensions: tuple[str, ...]) -> IntArray:
    """Finds the range, 0 … RANGES − 1, of each mean (n, K); 0 in a space without a position.

    dimensions  names that make up the position
    """
    buckets = RangeBuckets(_DISTANCES, dimensions)
    return buckets.of(space, mean) + buckets.measures(space)


@dataclass(frozen=True, eq=False)
class PredictedStatistics(ExactStatistics):
    """Everything that is known of n predicted Gaussians, some with class probabilities.

    tables      detections by range and bin of DEVIATIONS, and those with class probabilities by
                range and bin of ENTROPIES
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
        """(RANGES, H) detections by bin of DEVIATIONS."""
        return _dense(self.tables[0], DEVIATIONS.count)

    @property
    def entropies(self) -> IntArray:
        """(RANGES, E) detections with class probabilities by bin of ENTROPIES."""
        return _dense(self.tables[1], ENTROPIES.count)


def _dense(table: SparseSums, bins: int) -> IntArray:
    counts = np.zeros(RANGES * bins, np.int64)
    counts[table.keys] = table.values[:, 0]
    return counts.reshape(RANGES, bins)


def no_predicted() -> PredictedStatistics:
    """The statistics of no detections: the zero of merge."""
    none = SparseSums.zero(1)
    return PredictedStatistics(0, (none, none), ExactSum.zero((len(PREDICTED_SUMS),), _EXPONENT))


class Certainty(NamedTuple):
    """How certain n detections are said to be; a column is None where nothing came for it.

    deviation  (n,) σ_G = det(Σ)^(1/2K) of the joint block
    entropy    (n,) over log C, NaN without class probabilities
    aleatoric, epistemic
               (n,) its parts, likewise, of several opinions
    """

    deviation: FloatArray
    entropy: FloatArray | None = None
    aleatoric: FloatArray | None = None
    epistemic: FloatArray | None = None


def certainty(roots: FloatArray, opinions: FloatArray | None) -> Certainty:
    """Works out deviation and entropy of n detections; fields as in PredictedRows."""
    columns = roots.T
    # A product of eight stays within the range of a float, and has one logarithm.
    parts = (
        np.log(reduce(np.multiply, columns[start : start + 8]))
        for start in range(0, columns.shape[0], 8)
    )
    deviation = np.exp(reduce(np.add, parts) / columns.shape[0])
    if opinions is None:
        return Certainty(deviation)
    # (M, C, n): what belongs to one class lies side by side.
    each = np.ascontiguousarray(opinions.transpose(1, 2, 0))
    if each.shape[0] == 1:
        return Certainty(deviation, entropy_of_columns(each[0]))
    aleatoric, epistemic = entropy_parts(each)
    return Certainty(deviation, aleatoric + epistemic, aleatoric, epistemic)


# Cells, ascending, and how many rows are in each; a cell is (slot, range, bin).
_Cells = tuple[IntArray, IntArray]


@dataclass(slots=True)
class PredictedSums:
    """Sums of G slots while rows are added.

    n        (G,)
    _limbs   low and high limbs of PREDICTED_SUMS, each (5, G)
    _counts  of deviations and of entropies, for each time that rows were added: the cells that
             hold any, ascending, and how many
    """

    n: IntArray
    _limbs: tuple[IntArray, IntArray]
    _counts: tuple[list[_Cells], list[_Cells]]

    @classmethod
    def of_none(cls, slots: int) -> PredictedSums:
        """Returns the sums of no rows."""
        shape = len(PREDICTED_SUMS), slots
        limbs = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        return cls(np.zeros(slots, np.int64), limbs, ([], []))

    def add(self, frames: Sequence[PredictedRows], slot: IntArray, ranges: IntArray) -> None:
        """Adds the rows of frames of one kind, at most CHUNK.

        slot    (N,) of each row, in 0 … G − 1
        ranges  (N,) of each row, ranges_of
        """
        assert slot.size <= CHUNK
        if not slot.size:
            return
        given = [rows.opinions for rows in frames if rows.opinions is not None]
        roots = np.concatenate([rows.roots for rows in frames])
        found = certainty(roots, np.concatenate(given) if given else None)
        self.n += np.bincount(slot, minlength=self.n.size)
        place = slot * RANGES + ranges
        self._count(0, place, DEVIATIONS, found.deviation)
        self._sum(0, slot, found.deviation)
        if found.entropy is None:
            return
        known = ~np.isnan(found.entropy)
        slot, entropy = slot[known], found.entropy[known]
        if slot.size:
            self._count(1, place[known], ENTROPIES, entropy)
            self._sum(1, slot, entropy)
        if slot.size and found.aleatoric is not None and found.epistemic is not None:
            parts = np.ones(slot.size), found.aleatoric[known], found.epistemic[known]
            for column, values in enumerate(parts, start=2):
                self._sum(column, slot, values)

    def _count(self, table: int, place: IntArray, bins: LogBins, values: FloatArray) -> None:
        cells = place * bins.count + bins.index(values)
        self._counts[table].append(np.unique(cells, return_counts=True))

    def _sum(self, column: int, slot: IntArray, values: FloatArray) -> None:
        units = np.rint(values * _SCALE)
        # Entropies are at most 2^40 units, and are summed as they are.
        parts = (units,) if column or units.max() <= _SCALE else split(units)
        for limb, part in zip(self._limbs, parts, strict=False):
            limb[column] += np.bincount(slot, part, self.n.size).astype(np.int64)

    def by_slot(self) -> Iterator[PredictedStatistics]:
        """Yields the statistics of every slot."""
        low, high = carry(*self._limbs)
        sizes = RANGES * DEVIATIONS.count, RANGES * ENTROPIES.count
        tables = tuple(map(_table, self._counts))
        for i, n in enumerate(self.n.tolist()):
            own = (
                table.between(i * size, (i + 1) * size)
                for table, size in zip(tables, sizes, strict=True)
            )
            sums = ExactSum(low[:, i].copy(), high[:, i].copy(), _EXPONENT)
            yield PredictedStatistics(n, tuple(own), sums)


def _table(found: Sequence[_Cells]) -> SparseSums:
    """Adds up the counts of cells."""
    if not found:
        return SparseSums.zero(1)
    keys, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    keys = keys[first]
    return SparseSums(keys, np.add.reduceat(counts, first)[:, None], keys[:0], keys[:0])
