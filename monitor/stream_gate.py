"""What is near enough on a stream: the [matching] section in the dimensions of its header."""

from __future__ import annotations

import numpy as np

from monitor.calibration.detections import Reason
from monitor.calibration.notices import Notice
from monitor.calibration.truth_matching.distances import (
    CentreDistance,
    MahalanobisDistance,
    RotatedOverlap,
    UprightOverlap,
)
from monitor.calibration.truth_matching.frame_matching import Gate
from monitor.calibration.truth_matching.settings import DistanceKind, MatchingSettings
from monitor.frames import Header


def stream_gate(config: MatchingSettings, header: Header) -> Gate | Notice:
    """The gate, or why nothing of the stream can be measured so."""
    space, names = header.space, config.box
    if config.distance in (DistanceKind.CENTRE, DistanceKind.MAHALANOBIS):
        names = tuple(name for name in config.dimensions if name in space.names)
    lacking = [name for name in names if name not in space.names]
    if lacking or not names:
        key = "box" if lacking else "dimensions"
        message = (
            f"the stream has no dimension {', '.join(lacking or config.dimensions)}: name in "
            f"[matching] {key} some of {', '.join(space.names)}."
        )
        return Notice(Reason.GROUND_TRUTH_INVALID, "objects", message)
    columns = tuple(space.names.index(name) for name in names)
    widths = np.array([config.gate_of(name) for name in header.classes])
    match config.distance:
        case DistanceKind.CENTRE:
            return Gate(CentreDistance(space, columns), widths, config.near_gate)
        case DistanceKind.MAHALANOBIS:
            return Gate(MahalanobisDistance(space, columns), widths, config.near_gate)
        case DistanceKind.BEV_IOU:
            return Gate(RotatedOverlap(columns), widths, config.near_gate)
        case DistanceKind.IMAGE_IOU:
            return Gate(UprightOverlap(columns), widths, config.near_gate)
