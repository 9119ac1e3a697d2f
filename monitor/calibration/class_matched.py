"""Class probabilities of the detections of one frame on their way into the statistics: as they
wait for a true class, and with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.space import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Opinions:
    """Of those detections of a frame that have any.

    index   of the class slice; None where there was no room for one
    rows    (m,) their positions in the batch, ascending
    values  (m, M, C), M opinions on at least two classes
    """

    index: int | None
    rows: IntArray
    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.rows.nbytes + self.values.nbytes

    def of(self, rows: IntArray) -> BoolArray:
        """(n,) which rows of the batch have some."""
        place = np.searchsorted(self.rows, rows)
        found: BoolArray = place < self.rows.size
        found[found] = self.rows[place[found]] == rows[found]
        return found

    def without(self, resolved: BoolArray) -> Opinions | None:
        """Those of detections (n,) that are not resolved; None if no such has any."""
        waiting = ~resolved[self.rows]
        if waiting.all():
            return self
        if not waiting.any():
            return None
        return Opinions(self.index, self.rows[waiting], self.values[waiting])

    def matched(
        self, rows: IntArray, true_class: IntArray, stamp_ns: int | None
    ) -> MatchedClasses | None:
        """Rows of the batch, all of which have opinions, with their true class (n,).

        returns  None where there is no slice to count them in
        """
        if self.index is None:
            return None
        place = np.searchsorted(self.rows, rows)
        return MatchedClasses(self.index, self.values[place], true_class, stamp_ns)


def opinions_of(probabilities: FloatArray, index: int | None) -> Opinions:
    """Of a batch (n, M, C) with rows of NaN, in as few bytes as hold them."""
    rows = np.flatnonzero(~np.isnan(probabilities[:, 0, 0]))
    values = probabilities if rows.size == probabilities.shape[0] else probabilities[rows]
    return Opinions(index, rows, values)


@dataclass(frozen=True, eq=False, slots=True)
class MatchedClasses:
    """n detections of one frame with their class probabilities and their true class.

    index     of the class slice
    opinions  (n, M, C)
    label     (n,) in 0 … C − 1
    stamp_ns  event time of the frame; None where unknown
    retracts  whether they were counted before, and are taken back
    """

    index: int
    opinions: FloatArray
    label: IntArray
    stamp_ns: int | None = None
    retracts: bool = False

    @property
    def n(self) -> int:
        """How many."""
        return int(self.label.size)

    def cut(self, part: slice) -> MatchedClasses:
        """Some of them."""
        return replace(self, opinions=self.opinions[part], label=self.label[part])

    def unstamped(self) -> MatchedClasses:
        """The same, of no known time."""
        return replace(self, stamp_ns=None)
