"""Labelled objects to hold tracks against: where they are, and how fast they go."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from monitor.calibration.space import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Labels:
    """M labels of the objects of one class in one sequence, in any order.

    frame     (M,) number of the frame
    id        (M,) the same object throughout the sequence; once in a frame
    time_s    (M,) s, of the frame
    position  (M, K) in the dimensions of the detections, in the sensor's axes at that time
    """

    frame: IntArray
    id: IntArray
    time_s: FloatArray
    position: FloatArray

    @property
    def m(self) -> int:
        """Number of labels."""
        return int(self.frame.size)

    def of(self, rows: IntArray) -> Labels:
        """Some of them."""
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))

    def in_order(self) -> Labels:
        """By frame, then by object."""
        return self.of(np.lexsort((self.id, self.frame)))


def label_velocity(labels: Labels) -> FloatArray:
    """How fast each object moves in the sensor's axes, unit/s.

    The central difference (p[f+1] − p[f−1]) / (t[f+1] − t[f−1]) in frames f.

    returns  (M, K); NaN where the object is not labelled in both neighbouring frames
    """
    velocity = np.full(labels.position.shape, np.nan)
    order = np.lexsort((labels.frame, labels.id))
    before, here, after = order[:-2], order[1:-1], order[2:]
    both = np.ones(here.size, bool)
    for neighbour, offset in ((before, -1), (after, 1)):
        both &= labels.id[neighbour] == labels.id[here]
        both &= labels.frame[neighbour] == labels.frame[here] + offset
    seconds = labels.time_s[after] - labels.time_s[before]
    both &= seconds > 0
    before, here, after, seconds = before[both], here[both], after[both], seconds[both]
    velocity[here] = (labels.position[after] - labels.position[before]) / seconds[:, None]
    return velocity
