"""Opinions on classes with their truth, as the recalibrators of class probabilities are fitted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.calibration.clusters import design_effect_of_rows
from monitor.calibration.space import FloatArray, IntArray
from monitor.recalibration.classes.class_likelihood import averaged_loss
from monitor.recalibration.classes.class_recalibrator import LEAST
from monitor.recalibration.classes.class_softmax import as_columns
from monitor.recalibration.recalibrator import UnfitData

# How far log-probabilities may lie outside their range.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ClassRows:
    """n usable detections with their true classes.

    log_probabilities  (n, M, C) of M opinions, from from_logits or from_probabilities
    label              (n,) true class, in 0 … C − 1
    track              (n,) number of the object each is of, −1 where it is of none; None where
                       no row is of any. Rows of one object are alike, so that they are worth
                       less than as many objects, and are never on both sides of a validation
    """

    log_probabilities: FloatArray
    label: IntArray
    track: IntArray | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.log_probabilities.shape[0])

    @property
    def opinions(self) -> int:
        """M."""
        return int(self.log_probabilities.shape[1])

    @property
    def classes(self) -> int:
        """C."""
        return int(self.log_probabilities.shape[2])

    @cached_property
    def columns(self) -> FloatArray:
        """(C, n · M) log-probabilities, the opinions of a row side by side."""
        return as_columns(self.log_probabilities)

    @cached_property
    def tracks(self) -> int:
        """Objects; a row without a track is one of its own."""
        if self.track is None:
            return self.n
        alone = int(np.count_nonzero(self.track < 0))
        return alone + int(np.unique(self.track[self.track >= 0]).size)

    @cached_property
    def weight(self) -> float:
        """What a row is worth, in (0, 1]: 1 over the design effect of its cross-entropy."""
        if self.n == 0 or self.track is None or np.all(self.track < 0):
            return 1.0
        loss = averaged_loss(self.columns, self.label).value
        effect = design_effect_of_rows(loss[:, None], np.ones(1), self.track)
        return float(1 / effect[0])

    def take(self, rows: IntArray) -> ClassRows:
        """Some of them."""
        track = None if self.track is None else self.track[rows]
        return ClassRows(self.log_probabilities[rows], self.label[rows], track)

    def ordered(self) -> ClassRows:
        """The same rows in an order that does not depend on the one they came in.

        By the bytes of all their values: rows that are equal in these are equal, and sums over
        them then round alike.
        """
        parts = [self.label[:, None].astype(np.float64)]
        if self.track is not None:
            parts.append(self.track[:, None].astype(np.float64))
        values = np.hstack([*parts, self.log_probabilities.reshape(self.n, -1)])
        as_bytes = np.ascontiguousarray(values).view(np.dtype((np.void, values[0].nbytes)))
        return self.take(np.argsort(as_bytes.ravel(), kind="stable"))

    def fold(self, folds: int) -> IntArray:
        """(n,) 0 … folds − 1: which part of an inner validation each row is in.

        Drawn, with a fixed seed, for a track or a row without one. Not dealt out evenly over the
        classes: parts that share their class frequencies share what these owe to chance, and a
        bias of a class would be confirmed by it.
        """
        unit = np.arange(self.n)
        if self.track is not None:
            tracked = self.track >= 0
            distinct, number = np.unique(self.track[tracked], return_inverse=True)
            unit[tracked] = number
            unit[~tracked] = distinct.size + np.arange(self.n - number.size)
        units = int(unit.max(initial=-1)) + 1
        return np.random.default_rng(0).permutation(units)[unit] % folds

    def check(self) -> None:
        """Raises UnfitData without rows, and where shapes, labels or values make no sense."""
        if self.log_probabilities.ndim != 3 or self.n == 0 or self.opinions == 0:
            raise UnfitData(
                f"cannot fit on log-probabilities of shape {self.log_probabilities.shape}: give "
                "(n, M, C) with at least one row that has a true class, and one opinion."
            )
        if self.classes < 2:
            raise UnfitData("cannot fit on 1 class: a binary classifier has two.")
        for name, array in (("label", self.label), ("track", self.track)):
            if array is not None and array.shape != (self.n,):
                raise UnfitData(f"'{name}' has shape {array.shape}: give one for each of {self.n}.")
        if self.label.min() < 0 or self.label.max() >= self.classes:
            raise UnfitData(
                f"labels are {self.label.min()} to {self.label.max()}: leave out rows whose true "
                f"class is none of 0 to {self.classes - 1}."
            )
        lowest, highest = np.log(LEAST) - _ROUNDING, _ROUNDING
        # NaN fails the comparison.
        within = (self.log_probabilities >= lowest) & (self.log_probabilities <= highest)
        if not within.all():
            unusable = np.count_nonzero(~within.all(axis=(1, 2)))
            raise UnfitData(
                f"{unusable} of {self.n} rows have log-probabilities that are not from "
                f"{lowest:.1f} to 0: leave NaN out, and take from_logits or from_probabilities."
            )

    def check_several_classes(self) -> None:
        """Raises UnfitData where all rows are of one class: there is nothing to tell apart."""
        first = int(self.label[0])
        if np.all(self.label == first):
            raise UnfitData(
                f"all {self.n} rows are of class {first}: parameters of single classes need rows "
                "of others. Use temperature, or more data."
            )
