"""Detections of one frame with their truth, as the detector sent them."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.calibration.matched import TrackIds
from monitor.calibration.space import FloatArray, IntArray, Space
from monitor.recalibration.recalibrator import Estimates


@dataclass(frozen=True, eq=False, slots=True)
class LabelledRows:
    """n ≥ 1 detections of one frame, from which recalibrators are fitted and by which they are
    tried.

    slices    (n,) slice index
    sent      as they came, (n, …)
    truth     (n, K) finite
    stamp_ns  event time of the frame
    delay_ns  how much later than the frame its truth came, in the time of its stream; ≥ 0
    tracks    of each detection in its source; None where nobody tracks
    source    tells apart where tracks have their numbers from
    """

    space: Space
    slices: IntArray
    sent: Estimates
    truth: FloatArray
    stamp_ns: int
    delay_ns: int
    tracks: TrackIds | None
    source: int

    @property
    def n(self) -> int:
        """How many."""
        return int(self.slices.size)
