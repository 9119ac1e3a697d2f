"""What goes back with the estimates of a frame: what these stand for, quantiles, recalibrated
class probabilities, flags. What fails is counted and left out; everything else goes out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import Examined, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray
from monitor.class_forwarding import RecalibratedClasses, failed_notice, recalibrate_classes
from monitor.config import Mode
from monitor.counters import Counters
from monitor.forwarding import Recalibrated, alike
from monitor.frames import AnswerExtras, Header, UncertainBy
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.rejection import normalised_entropy

log = logging.getLogger(__name__)

# As plain numbers: one of an enum would make 64 bits of every flag.
_ENTROPY, _DEVIATION = int(UncertainBy.ENTROPY), int(UncertainBy.DEVIATION)

Made = TypeVar("Made")
Number = TypeVar("Number", np.uint8, np.float64)


@dataclass(frozen=True, slots=True)
class ProcessedFrame:
    """A frame of N detections with its n usable estimates recalibrated.

    classes  the promoted recalibrator of class probabilities
    """

    header: Header
    examined: Examined
    recalibrated: Recalibrated
    classes: ClassSelection
    mode: Mode

    def output(self) -> npt.NDArray[np.uint8]:
        """(N,) what the estimates stand for."""
        if self.recalibrated.why is Reason.RECALIBRATOR_MISMATCH:
            return alike(self.examined.reason.size, 0)
        kept = None if self.recalibrated.whole else self.recalibrated.sound
        return self.in_frame(self.recalibrated.output(), kept, 0)

    @property
    def with_quantiles(self) -> bool:
        """Whether any are asked for and can be had."""
        recalibrated = self.recalibrated
        asked = self.header.quantile_levels and recalibrated.why is Reason.NONE
        return bool(asked and recalibrated.sound.any())

    def quantiles(self) -> FloatArray:
        """(n, K T), of which not all need be finite."""
        return self.recalibrated.quantiles(self.header.quantile_levels)

    def rejected(self, likely: FloatArray | None) -> npt.NDArray[np.uint8] | None:
        """(N,) UncertainBy; None while no rejection is in force.

        likely  (n, C) recalibrated class probabilities
        """
        by_entropy, by_deviation = self.classes.rejection, self.recalibrated.selection.rejection
        if self.mode is not Mode.APPLY or (by_entropy is None and by_deviation is None):
            return None
        sound = self.recalibrated.sound
        found = np.zeros(sound.size, np.uint8)
        if by_entropy is not None and likely is not None:
            found[by_entropy.rejects(normalised_entropy(likely))] += _ENTROPY
        if by_deviation is not None and self.recalibrated.why is Reason.NONE:
            deviation = self.recalibrated.deviation(self.header.space)
            found[by_deviation.rejects(deviation) & sound] += _DEVIATION
        return self.in_frame(found, None, 0)

    def in_frame(
        self, values: npt.NDArray[Number], kept: BoolArray | None, otherwise: float
    ) -> npt.NDArray[Number]:
        """(N, …) of the usable (n, …): those that are kept, None: all, and otherwise elsewhere."""
        n, rows = self.examined.reason.size, self.examined.batch.rows
        if rows.size == n and kept is None:
            return values
        every = np.full((n, *values.shape[1:]), otherwise, values.dtype)
        every[rows if kept is None else rows[kept]] = values if kept is None else values[kept]
        return every


def answer_extras(
    frame: ProcessedFrame, counters: Counters
) -> tuple[AnswerExtras, tuple[Notice, ...]]:
    """What goes back with the estimates, and notices where a recalibrator does not fit or fails."""

    def attempt(what: str, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except Exception:
            log.exception("a frame of stream %s is answered without %s", frame.header.stream, what)
            counters.internal_errors += 1
            return None

    batch, likely = frame.examined.batch, RecalibratedClasses()
    if frame.mode is Mode.APPLY:
        likely = recalibrate_classes(frame.classes, frame.header, batch, counters)
    notices = likely.notices
    quantiles = None
    if frame.with_quantiles:
        made = attempt("quantiles", frame.quantiles)
        sound = frame.recalibrated.sound
        finite = np.zeros(sound.size, bool)
        if made is not None:
            finite = sound & np.isfinite(made).all(axis=1)
            if finite.any():
                quantiles = frame.in_frame(made, None if finite.all() else finite, np.nan)
        failed = batch.rows[sound & ~finite]
        if failed.size:
            notices += (failed_notice("quantiles", failed),)
    probabilities = likely.probabilities
    rejected = attempt("flags", lambda: frame.rejected(probabilities))
    if rejected is not None:
        counters.count_uncertain(rejected)
    output = attempt("what its estimates stand for", frame.output)
    extras = AnswerExtras(
        output=alike(frame.examined.reason.size, 0) if output is None else output,
        quantiles=quantiles,
        class_probabilities=(
            None if probabilities is None else frame.in_frame(probabilities, None, np.nan)
        ),
        class_version=likely.version,
        rejected_by=rejected,
    )
    return extras, notices
