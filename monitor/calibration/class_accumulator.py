"""Matched class probabilities of all slices by pane: how a fold brings rows into the statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from monitor.calibration.cholesky import add_up
from monitor.calibration.class_binning import ClassBinning
from monitor.calibration.class_matched import MatchedClasses
from monitor.calibration.class_statistics import (
    ClassStatistics,
    no_class_statistics,
    observe_classes,
)
from monitor.calibration.pane_accumulator import PaneAccumulator, PaneChanges
from monitor.calibration.windows import PaneKey, Windows

# What is looked at in a step, about a millisecond: probabilities, and rows where they are few.
CHUNK_VALUES = 8192
CHUNK_ROWS = 512


class ClassAccumulator(PaneAccumulator[MatchedClasses, ClassStatistics]):
    """Of the class statistics."""

    def __init__(self, binning: ClassBinning, windows: Windows, fold_rows: int) -> None:
        super().__init__(windows, fold_rows)
        self.binning = binning

    def _fold(self, waiting: list[MatchedClasses]) -> Iterator[None]:
        """A chunk in a step."""
        by_place: dict[tuple[int, PaneKey, int, bool], list[MatchedClasses]] = {}
        for rows in waiting:
            key = self.windows.place(rows.stamp_ns, self.clock_ns)
            kind = (rows.index, key, rows.opinions.shape[1], rows.retracts)
            by_place.setdefault(kind, []).append(rows)
        changes = PaneChanges(self)
        for (index, key, _, retracts), group in by_place.items():
            found: ClassStatistics | None = None
            for chunk in _chunks(group):
                more = self._observed(chunk)
                found = more if found is None else found.merge(more)
                yield
            assert found is not None
            if retracts:
                classes = group[0].opinions.shape[2]
                found = no_class_statistics(self.binning, classes).retract(found)
            changes.put(index, key, found)
            yield
        self.take(changes)

    def _observed(self, chunk: Sequence[MatchedClasses]) -> ClassStatistics:
        opinions = np.concatenate([rows.opinions for rows in chunk])
        label = np.concatenate([rows.label for rows in chunk])
        count = opinions.shape[1]
        if count == 1:
            return observe_classes(self.binning, opinions[:, 0], label)
        mean = add_up(opinions.transpose(1, 0, 2)) / count
        return observe_classes(self.binning, mean, label, opinions)


def _chunks(group: Sequence[MatchedClasses]) -> Iterator[list[MatchedClasses]]:
    """Frames of one M and C put together, and cut where they are larger than a chunk."""
    _, opinions, classes = group[0].opinions.shape
    most = max(1, min(CHUNK_ROWS, CHUNK_VALUES // (opinions * classes)))
    gathered: list[MatchedClasses] = []
    n = 0
    for frame in group:
        for start in range(0, frame.n, most):
            piece = frame if frame.n <= most else frame.cut(slice(start, start + most))
            if n + piece.n > most:
                yield gathered
                gathered, n = [], 0
            gathered.append(piece)
            n += piece.n
    yield gathered
