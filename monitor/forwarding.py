"""What the promoted recalibrator makes of the usable detections of a frame, and what that
stands for. What else goes out with them is in answer_extras.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import Examined, Limits, Reason
from monitor.calibration.marginals import Marginals, NormalMarginals
from monitor.calibration.row_bins import generalised_deviation
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space
from monitor.config import Mode
from monitor.counters import Counters
from monitor.recalibration.recalibrator import Estimates, Output
from monitor.recalibration.selection import Chain, Selection
from monitor.recalibrators import applied

# As on the wire, where 0 says that nothing was recalibrated.
OUTPUT_NUMBER = {Output.GAUSSIAN: 1, Output.MOMENTS: 2, Output.SURROGATE: 3}


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """What a selection made of the n usable detections of a frame.

    slices  (n,) index into chains
    made    estimates; the very ones that were sent where nothing was changed
    sound   (n,) of which it could make something
    whole   whether that is all of them
    why     the reason that goes with these
    """

    selection: Selection
    sent: Estimates
    slices: IntArray
    chains: Sequence[Chain]
    made: Estimates
    sound: BoolArray
    whole: bool
    why: Reason

    @property
    def acted(self) -> Selection | None:
        """The selection, where it could be applied to any.

        What failed the whole frame is not tried again on some rows of it, when truth arrives.
        """
        if self.why is Reason.RECALIBRATOR_MISMATCH:
            return None
        return self.selection if self.whole or self.sound.any() else None

    @property
    def forwarded(self) -> Estimates:
        """What goes on to the tracker."""
        return self.made if self.why is Reason.NONE else self.sent

    def marked(self, examined: Examined) -> Examined:
        """With the reasons that come of it."""
        if self.why is Reason.NONE and self.whole:
            return examined
        rows, reason = examined.batch.rows, examined.reason.copy()
        reason[rows] = self.why
        reason[rows[~self.sound]] = Reason.RECALIBRATOR_FAILED
        return replace(examined, reason=reason, clean=False)

    def sound_of(self, rows: IntArray) -> tuple[IntArray, Estimates]:
        """The sound ones of rows (n,), and what was made of them."""
        if self.whole:
            return rows, self.made
        kept = np.flatnonzero(self.sound)
        return rows[kept], self.made.take(kept)

    def output(self) -> npt.NDArray[np.uint8]:
        """(n,) OUTPUT_NUMBER of the recalibrator that serves each."""
        outputs, n = self.selection.outputs, self.slices.size
        if len(outputs) == 1 or n == 0:
            return alike(n, OUTPUT_NUMBER[next(iter(outputs))])
        shares = self.selection.shares(self.slices, self.chains)
        order = np.arange(n) if shares.order is None else shares.order
        found = np.empty(n, np.uint8)
        for share in shares.shares:
            found[order[share.part]] = OUTPUT_NUMBER[share.recalibrator.output]
        return found

    def quantiles(self, levels: tuple[float, ...]) -> FloatArray:
        """(n ≥ 1, K T) at T levels, dimension by dimension, of the methods' own distributions."""
        n, k = self.sent.mean.shape
        values = self._marginals().quantiles(np.array(levels))
        return values.transpose(1, 2, 0).reshape(n, k * len(levels))

    def deviation(self, space: Space) -> FloatArray:
        """(n,) σ_G = det(Σ)^(1/2K) of the recalibrated joint block."""
        return generalised_deviation(space, self.made.covariance, self.made.diagonal)

    def _marginals(self) -> Marginals:
        if self.selection.outputs != {Output.GAUSSIAN}:
            return self.selection.marginals(self.sent, self.slices, self.chains)
        # What the Gaussian methods would make is here already.
        variance = np.diagonal(self.made.covariance, axis1=1, axis2=2)
        return NormalMarginals(self.made.mean, np.sqrt(variance))


@lru_cache(maxsize=256)
def alike(n: int, number: int) -> npt.NDArray[np.uint8]:
    """(n,) of one number, read-only and shared: so are most frames."""
    array = np.full(n, number, np.uint8)
    array.setflags(write=False)
    return array


def recalibrate(
    selection: Selection,
    space: Space,
    sent: Estimates,
    slices: IntArray,
    chains: Sequence[Chain],
    mode: Mode,
    limits: Limits,
    counters: Counters,
) -> Recalibrated:
    """What a selection makes of the usable detections of a frame; where it fails, what was sent."""
    why = Reason.OBSERVE_MODE if mode is Mode.OBSERVE else Reason.NONE
    if selection.fits(space):
        made, sound = applied(selection, sent, slices, chains, limits, counters)
    else:
        made, sound, why = sent, np.ones(slices.size, bool), Reason.RECALIBRATOR_MISMATCH
    return Recalibrated(selection, sent, slices, chains, made, sound, bool(sound.all()), why)
