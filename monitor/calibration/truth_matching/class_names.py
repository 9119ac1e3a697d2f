"""The labeller's classes and the detector's: which of them are the same, and which look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import BoolArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class ClassTable:
    """L classes of the labeller, C of the detector.

    own     (L,) the detector's class; −1 where it has none
    beside  (L, C) whether the labeller's class looks like the detector's, and is another
    """

    own: IntArray
    beside: BoolArray


def class_table(
    labelled: Sequence[str],
    detected: Sequence[str],
    class_map: Mapping[str, str],
    neighbours: Mapping[str, Sequence[str]],
) -> ClassTable:
    """Look up names.

    labelled    the labeller's
    detected    the detector's
    class_map   the labeller's name and the detector's, where they differ
    neighbours  the detector's name, and names of the labeller that look like it
    """
    place = {name: i for i, name in enumerate(detected)}
    own = np.array([place.get(class_map.get(name, name), -1) for name in labelled], np.int64)
    alike = {name: frozenset(neighbours.get(name, ())) for name in detected}
    beside = np.array(
        [[name in alike[other] for other in detected] for name in labelled], bool
    ).reshape(len(labelled), len(detected))
    same = np.flatnonzero(own >= 0)
    beside[same, own[same]] = False
    return ClassTable(own, beside)
