"""What decides which detection a labelled object belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol


class DistanceKind(StrEnum):
    """How far a detection is from an object."""

    CENTRE = "centre"  # of the means, over `dimensions`; gate in the unit of the stream
    BEV_IOU = "bev-iou"  # 1 - overlap of the boxes seen from above, rotated; gate on that
    IMAGE_IOU = "image-iou"  # 1 - overlap of boxes in the image, upright; gate on that
    MAHALANOBIS = "mahalanobis"  # of the errors, over `dimensions`; gate in deviations


class MatchingSettings(Protocol):
    """Reads the [matching] section; docs/labels.md says what each key means."""

    @property
    def distance(self) -> DistanceKind: ...
    @property
    def dimensions(self) -> tuple[str, ...]: ...
    @property
    def box(self) -> tuple[str, ...]: ...
    @property
    def near_gate(self) -> float: ...
    @property
    def class_map(self) -> Mapping[str, str]: ...
    @property
    def neighbours(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def max_gap_seconds(self) -> float: ...
    @property
    def max_offset_seconds(self) -> float: ...

    def gate_of(self, name: str) -> float:
        """Returns the gate of one class, in the unit of the distance."""
        ...
