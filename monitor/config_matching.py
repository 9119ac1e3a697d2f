"""Which detection a labelled object belongs to."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from monitor.calibration.truth_matching.settings import DistanceKind
from monitor.config_section import Section

Name = Annotated[str, Field(min_length=1, max_length=64)]


# How many names `box` has, for each distance that reads it.
_BOX = {
    DistanceKind.BEV_IOU: (5, "centre, length, width and heading"),
    DistanceKind.IMAGE_IOU: (4, "left, top, right and bottom"),
}


class MatchingConfig(Section):
    """How labels in the labeller's own space of ids find their detections."""

    distance: DistanceKind = DistanceKind.CENTRE
    gate: PositiveFloat = 2.0  # beyond it nothing matches; unit: see distance
    gates: dict[Name, PositiveFloat] = Field(default_factory=dict)  # of single classes
    # Of the centre and Mahalanobis distances; those of them that a stream has.
    dimensions: tuple[Name, ...] = ("x", "y")
    # Names of centre, length, width and heading for bev-iou; of left, top, right, bottom for
    # image-iou.
    box: Annotated[tuple[Name, ...], Field(max_length=5)] = ("x", "y", "l", "w", "yaw")
    near_gate: Annotated[float, Field(gt=0, le=1)] = 0.8  # of the gate; beyond it a match is near
    # The labeller's name of a class and ours; names that are the same need no entry.
    class_map: dict[Name, Name] = Field(default_factory=dict)
    # Of ours: classes of the labeller that look like it. Detections near them are ignored.
    neighbours: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    # s between two samples of a track that are interpolated, at most.
    max_gap_seconds: PositiveFloat = 1.0
    # s from the frame's time to the nearest sample that is taken as it is.
    max_offset_seconds: NonNegativeFloat = 0.025

    @model_validator(mode="after")
    def _fits_the_distance(self) -> Self:
        if self.distance not in _BOX:
            if not self.dimensions or len(set(self.dimensions)) < len(self.dimensions):
                raise ValueError(
                    f"dimensions {list(self.dimensions)}: name at least one, each once, of those "
                    f"that {self.distance} is taken over"
                )
            return self
        count, meaning = _BOX[self.distance]
        if len(self.box) != count or len(set(self.box)) < count:
            raise ValueError(
                f"box {list(self.box)} with distance {self.distance}: name {count} different "
                f"dimensions, {meaning}"
            )
        for name, gate in (("gate", self.gate), *self.gates.items()):
            if gate >= 1:
                raise ValueError(
                    f"{name} {gate:g} with distance {self.distance}: it is 1 - overlap, so that 1 "
                    "is boxes that do not touch; set it below 1, such as 0.5"
                )
        return self

    def gate_of(self, name: str) -> float:
        """Of a class of the detector's."""
        return self.gates.get(name, self.gate)
