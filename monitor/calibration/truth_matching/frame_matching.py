"""The objects of one frame and its detections: which belong together, and which detections that
belong to none are neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space
from monitor.calibration.truth_matching.assignment import assigned
from monitor.calibration.truth_matching.distances import Distance
from monitor.calibration.truth_matching.placed import Pairs, Placed
from monitor.calibration.truth_matching.regions import IgnoreRegion
from monitor.calibration.truth_matching.within_gate import any_within, pairs_within


@dataclass(frozen=True, slots=True)
class Gate:
    """What is near enough, and what of that is nearly too far.

    of_class  (C,) for detections of each class
    near      share of the gate; a match beyond it lies near the gate
    """

    distance: Distance
    of_class: FloatArray
    near: float

    def nears(self, distance: FloatArray, of: IntArray) -> BoolArray:
        """(p,) which matches of detections of these classes lie near the gate."""
        beyond: BoolArray = distance > self.near * self.of_class[of]
        return beyond


def matches(
    objects: Placed, object_class: IntArray, detections: Placed, of: IntArray, gate: Gate
) -> Pairs:
    """The pairs that belong together, detections ascending: class by class as many as there can
    be within the gate, then those of the least sum of distances.

    object_class, of  (m,) and (n,) the detector's class of each; objects of −1 match nothing
    """
    found = []
    for one in np.intersect1d(object_class, of).tolist():
        mine, theirs = np.flatnonzero(object_class == one), np.flatnonzero(of == one)
        width = float(gate.of_class[one])
        near = pairs_within(gate.distance, objects.take(mine), detections.take(theirs), width)
        chosen = near.take(assigned(near))
        found.append(Pairs(theirs[chosen.detection], mine[chosen.object], chosen.distance))
    if not found:
        nothing = np.zeros(0, np.int64)
        return Pairs(nothing, nothing, np.zeros(0))
    pairs = Pairs(
        np.concatenate([part.detection for part in found]),
        np.concatenate([part.object for part in found]),
        np.concatenate([part.distance for part in found]),
    )
    return pairs.take(np.argsort(pairs.detection, kind="stable"))


def ignored_detections(
    objects: Placed,
    ignores: BoolArray,
    regions: Sequence[IgnoreRegion],
    detections: Placed,
    of: IntArray,
    gate: Gate,
    space: Space,
) -> BoolArray:
    """(n,) within the gate of an object that ignores their class, or inside a region that does.

    ignores     (m, C) the detector's classes that each object makes neither right nor wrong
    detections  n that belong to no object; of (n,) their classes
    """
    found = np.zeros(detections.n, bool)
    for one in np.unique(of).tolist():
        rows, which = np.flatnonzero(of == one), np.flatnonzero(ignores[:, one])
        width = float(gate.of_class[one])
        found[rows] = any_within(gate.distance, objects.take(which), detections.take(rows), width)
    for region in regions:
        found |= region.classes[of] & region.contains(detections.mean, space)
    return found
