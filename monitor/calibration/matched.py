"""Matched detections on their way into the statistics: rows wait here until there are
enough of them to be folded in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
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


_DONE = object()


@dataclass(slots=True)
class SliceAccumulator:
    """Statistics by slice, and the rows that are not in them yet."""

    binning: Binning
    fold_rows: int
    statistics: dict[int, SliceStatistics] = field(default_factory=dict)
    _waiting: list[MatchedRows] = field(default_factory=list)
    _rows: int = 0
    _folding: Iterator[None] | None = None
    _folds: int = 0

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

    @property
    def unfinished(self) -> bool:
        """Whether any row is not yet in the statistics."""
        return self._folding is not None or bool(self._waiting)

    def fold(self) -> None:
        """Bring all waiting rows into the statistics."""
        while self.unfinished:
            self.step()

    def fold_some(self) -> None:
        """One short step towards that, if it is due or begun: frames pass between the steps."""
        if self._folding is not None or self.due:
            self.step()

    def step(self) -> None:
        """One slice at one stage."""
        if self._folding is None:
            waiting, self._waiting, self._rows = self._waiting, [], 0
            self._folding = self._fold(waiting)
        if next(self._folding, _DONE) is _DONE:
            self._folding = None
            self._folds += 1

    def steps(self) -> Iterator[None]:
        """Steps until all that waits now is in the statistics; what comes meanwhile may wait.

        Bounded, however fast rows arrive: a fold that never catches up would never end.
        """
        last = self._folds + (self._folding is not None) + bool(self._waiting)
        while self._folds < last:
            self.step()
            yield

    def _fold(self, waiting: list[MatchedRows]) -> Iterator[None]:
        """One slice at one stage a step; all slices change together, at the end."""
        folded: dict[int, SliceStatistics] = {}
        by_kind: dict[tuple[Space, bool], list[MatchedRows]] = {}
        for rows in waiting:
            by_kind.setdefault((rows.space, rows.unchanged), []).append(rows)
        for (space, unchanged), group in by_kind.items():
            slices = np.concatenate([rows.slices for rows in group])
            for i in np.unique(slices).tolist():
                here = np.flatnonzero(slices == i)
                first = second = self._observe(
                    space, here, [(rows.error, rows.covariance) for rows in group]
                )
                if not unchanged:
                    yield
                    second = self._observe(
                        space,
                        here,
                        [(rows.recalibrated_error, rows.recalibrated_covariance) for rows in group],
                    )
                known = folded.get(i) or self.statistics.get(i)
                known = known or no_statistics(space, self.binning)
                folded[i] = known.merge(SliceStatistics(first, second))
                yield
        self.statistics.update(folded)

    def _observe(
        self, space: Space, rows: IntArray, parts: list[tuple[FloatArray, FloatArray]]
    ) -> StageStatistics:
        error = np.concatenate([error for error, _ in parts])[rows]
        covariance = np.concatenate([covariance for _, covariance in parts])[rows]
        return observe(space, self.binning, error, covariance)
