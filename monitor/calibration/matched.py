"""Matched detections on their way into the statistics: rows wait here until there are
enough of them to be folded in one go.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.binning import Binning
from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.calibration.statistics import StageStatistics, nothing, observe


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """n detections with their truth, at both stages.

    slices                (n,) slice index
    error, covariance     (n, K), (n, K, K) as the detector sent them
    recalibrated_error, recalibrated_covariance
                          as the promoted recalibrator made them; the very same
                          objects where it changed nothing
    """

    space: Space
    slices: IntArray
    error: FloatArray
    covariance: FloatArray
    recalibrated_error: FloatArray
    recalibrated_covariance: FloatArray

    @property
    def unchanged(self) -> bool:
        """Whether both stages are the same."""
        return (
            self.recalibrated_error is self.error
            and self.recalibrated_covariance is self.covariance
        )


@dataclass(frozen=True, slots=True)
class SliceStatistics:
    """The two stages of one slice."""

    raw: StageStatistics
    recalibrated: StageStatistics

    def merge(self, other: SliceStatistics) -> SliceStatistics:
        """Both stages merged. Raises IncompatibleStatistics."""
        if self.recalibrated is self.raw and other.recalibrated is other.raw:
            raw = self.raw.merge(other.raw)
            return SliceStatistics(raw, raw)
        return SliceStatistics(
            self.raw.merge(other.raw), self.recalibrated.merge(other.recalibrated)
        )


def no_statistics(space: Space, binning: Binning) -> SliceStatistics:
    """Of no detections."""
    zero = nothing(space, binning)
    return SliceStatistics(zero, zero)


@dataclass(slots=True)
class SliceAccumulator:
    """Statistics by slice, and the rows that are not in them yet."""

    binning: Binning
    fold_rows: int
    statistics: dict[int, SliceStatistics] = field(default_factory=dict)
    _waiting: list[MatchedRows] = field(default_factory=list)
    _rows: int = 0

    def add(self, rows: MatchedRows) -> None:
        """Take in rows; cheap."""
        if rows.slices.size:
            self._waiting.append(rows)
            self._rows += rows.slices.size

    @property
    def due(self) -> bool:
        """Whether enough rows wait for a fold to be worth while."""
        return self._rows >= self.fold_rows

    @property
    def waiting(self) -> int:
        """Rows not yet folded."""
        return self._rows

    def fold(self) -> None:
        """Bring all waiting rows into the statistics."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        by_kind: dict[tuple[Space, bool], list[MatchedRows]] = {}
        for rows in waiting:
            by_kind.setdefault((rows.space, rows.unchanged), []).append(rows)
        for (space, unchanged), group in by_kind.items():
            self._fold_kind(space, unchanged, group)

    def _fold_kind(self, space: Space, unchanged: bool, group: list[MatchedRows]) -> None:
        slices = np.concatenate([rows.slices for rows in group])
        raw = (
            np.concatenate([rows.error for rows in group]),
            np.concatenate([rows.covariance for rows in group]),
        )
        recalibrated = (
            raw
            if unchanged
            else (
                np.concatenate([rows.recalibrated_error for rows in group]),
                np.concatenate([rows.recalibrated_covariance for rows in group]),
            )
        )
        for i in np.unique(slices).tolist():
            here = np.flatnonzero(slices == i)
            first = observe(space, self.binning, raw[0][here], raw[1][here])
            second = (
                first
                if unchanged
                else observe(space, self.binning, recalibrated[0][here], recalibrated[1][here])
            )
            known = self.statistics.get(i) or no_statistics(space, self.binning)
            self.statistics[i] = known.merge(SliceStatistics(first, second))
