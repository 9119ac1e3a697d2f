"""Headings that flip: a detector that takes the back of a car for its front is off by π.

Such a heading is read modulo π, and each track keeps a belief of which end is the front.
"""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import DimensionKind, FloatArray, Space

# What a vote still counts one detection later: about ten of them are remembered.
_MEMORY = 0.9


def flipping(space: Space, heading: str) -> int | None:
    """Position of the dimension that may be off by π: the named one, if it has a sign at all."""
    for i, dimension in enumerate(space.dimensions):
        if dimension.name == heading and dimension.kind is DimensionKind.ANGLE:
            return i
    return None


def fold(innovation: FloatArray, votes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Innovations of the heading as those of an axis, and the votes on which end is the front.

    innovation  (m,) wrapped into [−π, π)
    votes       (m,) how much more the front was seen as the front; 1 when a track is born
    returns     (m,) innovations within ±π/2; (m,) votes with this frame's: where they have
                fallen below 0, the track's heading is to be turned
    """
    opposite = np.abs(innovation) > np.pi / 2
    folded = np.where(opposite, innovation - np.copysign(np.pi, innovation), innovation)
    return folded, _MEMORY * votes + np.where(opposite, -1.0, 1.0)
