"""Labels of many objects, matched before their report and anywhere: not while frames wait."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from monitor.calibration.detections import Limits
from monitor.calibration.space import BoolArray
from monitor.config_matching import MatchingConfig
from monitor.frames import ReceivedObjects, ReceivedTruth
from monitor.label_matching import LabelsMatched, matched_labels
from monitor.label_records import resolved_before
from monitor.ledger import Kept
from monitor.pending import PendingFrame
from monitor.placed_frames import Places
from monitor.stored_frame import StoredFrame

# Pairs of an object and a detection, and values of the objects' covariances, that are too many to
# be gone through between two frames: some milliseconds.
HEAVY = 40_000


@dataclass(slots=True)
class Ahead:
    """Labels of a frame matched ahead of their report.

    frame            a copy: what the loop does to its own meanwhile does not reach it
    resolved, again  as matched_labels has them
    work             does it; the result is `matched`
    """

    frame: PendingFrame
    resolved: BoolArray
    again: bool
    work: Callable[[], LabelsMatched]
    matched: LabelsMatched | None = None

    def run(self) -> None:
        """Do it: on any thread, once."""
        self.matched = self.work()

    def still(self, frame: PendingFrame, resolved: BoolArray, again: bool) -> LabelsMatched | None:
        """What came of it, if matching the frame now would come to the same."""
        ours = self.frame
        same = (
            abs(frame.sequence) == abs(ours.sequence)
            and frame.stored.stamp_ns == ours.stored.stamp_ns
            and frame.released == ours.released
            and again == self.again
            and np.array_equal(resolved, self.resolved)
        )
        return self.matched if same else None


def ahead_of(
    labels: ReceivedTruth,
    frame: PendingFrame | None,
    found: Kept | None,
    places: Places,
    config: MatchingConfig,
    limits: Limits,
) -> Ahead | None:
    """What is to be done ahead of a report; None where it is light, or the frame is not at hand.

    frame  in memory, with all that the labels ask for
    found  what the disk has of it, where that was looked for
    """
    objects = labels.foreign
    if objects is None:
        return None
    if frame is not None:
        if _work(objects, frame.stored) < HEAVY:
            return None
        frame = copy(frame)
    elif found is not None and _work(objects, found.entry.frame) >= HEAVY:
        frame = places.as_told(found)
    else:
        return None
    resolved, again = resolved_before(labels, frame)
    work = partial(matched_labels, labels, frame, resolved, config, limits, again=again)
    return Ahead(frame, resolved, again, work)


def _work(objects: ReceivedObjects, frame: StoredFrame) -> int:
    """What HEAVY is held against."""
    unsure = int(np.count_nonzero(objects.covariance_length))
    return objects.n * frame.n + unsure * frame.header.space.k**2
