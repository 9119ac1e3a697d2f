"""What goes back beside the estimates of a frame: what these stand for, quantiles, recalibrated
class probabilities, flags. What fails is counted and left out; everything else goes out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.calibration.cholesky import add_up
from monitor.calibration.detections import Examined, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray
from monitor.config import Mode
from monitor.counters import Counters
from monitor.forwarding import Recalibrated, alike
from monitor.frames import Beside, Header
from monitor.recalibration.classes.class_recalibrator import from_probabilities
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.rejection import RejectedBy, normalised_entropy
from monitor.recalibrators import in_use

log = logging.getLogger(__name__)

# As on the wire, where 0 is neither and the sum is both.
REJECTED_NUMBER = {RejectedBy.ENTROPY: 1, RejectedBy.DEVIATION: 2}

Made = TypeVar("Made")
Number = TypeVar("Number", np.uint8, np.float64)


@dataclass(frozen=True, slots=True)
class Processed:
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

    def quantiles(self) -> FloatArray | None:
        """(N, K T), NaN where none go out; None where none are asked for."""
        levels, recalibrated = self.header.quantile_levels, self.recalibrated
        if not levels or recalibrated.why is not Reason.NONE or not recalibrated.sound.any():
            return None
        found = recalibrated.quantiles(levels)
        kept = recalibrated.sound & np.isfinite(found).all(axis=1)
        return self.in_frame(found, kept, np.nan)

    @property
    def opinions(self) -> FloatArray | None:
        """(n, M, C) class probabilities to be recalibrated; None where none are."""
        opinions = self.examined.batch.probabilities
        # Of a single class nothing can be said wrong.
        if opinions is None or opinions.shape[2] < 2 or self.mode is not Mode.APPLY:
            return None
        return opinions if in_use(self.classes) else None

    @property
    def other_classes(self) -> bool:
        """Whether there are class probabilities, but of others than the recalibrator is for."""
        return self.opinions is not None and not self.classes.fits(self.header.classes)

    def class_probabilities(self) -> FloatArray | None:
        """(n, C) recalibrated, NaN of those that have none; None where that is so for all."""
        opinions = self.opinions
        if opinions is None or self.other_classes:
            return None
        return mean_probabilities(self.classes, opinions)

    def rejected(self, likely: FloatArray | None) -> npt.NDArray[np.uint8] | None:
        """(N,) by what each is too uncertain; None where nobody asked.

        likely  class_probabilities
        """
        by_entropy, by_deviation = self.classes.rejection, self.recalibrated.selection.rejection
        if by_entropy is None and by_deviation is None:
            return None
        sound = self.recalibrated.sound
        found = np.zeros(sound.size, np.uint8)
        if by_entropy is not None and likely is not None:
            rejects = by_entropy.rejects(normalised_entropy(likely))
            found[rejects] += REJECTED_NUMBER[RejectedBy.ENTROPY]
        if by_deviation is not None and self.recalibrated.why is Reason.NONE:
            deviation = self.recalibrated.deviation(self.header.space)
            rejects = by_deviation.rejects(deviation) & sound
            found[rejects] += REJECTED_NUMBER[RejectedBy.DEVIATION]
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


def mean_probabilities(classes: ClassSelection, opinions: FloatArray) -> FloatArray:
    """(n, C) mean of what each opinion is recalibrated to; NaN where that is not finite.

    opinions  (n, M, C), NaN where a detection has none
    source    Laves et al. 2019, eq. 25
    """
    found = np.full((opinions.shape[0], opinions.shape[2]), np.nan)
    rows = np.flatnonzero(~np.isnan(opinions[:, 0, 0]))
    made = classes.apply(from_probabilities(opinions[rows]))
    if made.shape != (rows.size, *opinions.shape[1:]):
        raise ValueError(f"{classes.version} made {made.shape} of {opinions[rows].shape}")
    mean = add_up(made.transpose(1, 0, 2)) / opinions.shape[1]
    finite = np.isfinite(mean).all(axis=1)
    found[rows[finite]] = mean[finite]
    return found


def said_beside(frame: Processed, counters: Counters) -> tuple[Beside, tuple[Notice, ...]]:
    """What goes back beside the estimates, and a notice where a recalibrator does not fit."""

    def attempt(what: str, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except Exception:
            log.exception("a frame of stream %s is answered without %s", frame.header.stream, what)
            counters.internal_errors += 1
            return None

    output = attempt("what its estimates stand for", frame.output)
    likely = attempt("class probabilities", frame.class_probabilities)
    rejected = attempt("flags", lambda: frame.rejected(likely))
    if rejected is not None:
        counters.uncertain += np.bincount(rejected, minlength=counters.uncertain.size)
    there = None if likely is None else ~np.isnan(likely[:, 0])
    beside = Beside(
        output=alike(frame.examined.reason.size, 0) if output is None else output,
        quantiles=attempt("quantiles", frame.quantiles),
        class_probabilities=(
            None if likely is None or there is None else frame.in_frame(likely, there, np.nan)
        ),
        class_version=frame.classes.version if there is not None and there.any() else "",
        rejected_by=rejected,
    )
    return beside, (_other_classes(frame.header.classes),) if frame.other_classes else ()


def _other_classes(names: tuple[str, ...]) -> Notice:
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return Notice(
        Reason.RECALIBRATOR_MISMATCH,
        "class_names",
        f"{shown}: the promoted recalibrator of class probabilities was fitted on others; "
        "promote one that was fitted on these.",
    )
