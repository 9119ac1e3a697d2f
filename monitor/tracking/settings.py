"""How a tracker behaves. Units are those of the stream: m for a lidar, px for a camera."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Association(StrEnum):
    """What decides which detection belongs to which track."""

    OWN = "own"  # our gates and assignment
    UPSTREAM = "upstream"  # the detection's upstream_track_id; those without one: ours


class MeasurementNoise(StrEnum):
    """The R of a detection."""

    DETECTION = "detection"  # the covariance that is forwarded
    UNIT = "unit"  # the identity, as trackers use that are left at their defaults


@dataclass(frozen=True, slots=True)
class DimensionNoise:
    """What differs for one dimension; None leaves the general setting."""

    density: float | None = None
    initial_speed: float | None = None
    missing_deviation: float | None = None


# What stands on the ground hardly moves up or down.
UPRIGHT: Mapping[str, DimensionNoise] = MappingProxyType(
    {"z": DimensionNoise(density=0.2, initial_speed=1.0)}
)


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Every choice of a tracker.

    acceleration_density  unit²/s³, spectral density of the white acceleration that
                          drives dimensions with a velocity
    walk_density          unit²/s, of the random walk of all other lengths
    turn_density          rad²/s, of the random walk of angles
    initial_speed         unit/s, standard deviation of a velocity that is not yet known
    missing_deviation     unit or rad, standard deviation where a covariance is missing
    gate_level            probability that a true match lies in the gate, if S is right
    max_distance          unit; detections farther from a track in any of the first two
                          lengths are never its own, unless an upstream id says so
    birth_score           detections below it begin no track; those without a score do
    confirm_detections    how many confirm a track
    tentative_misses      frames without a detection that end a track before that
    coast_frames          frames without a detection that it outlives after that
    coast_seconds         s without a detection that any track outlives
    half_life_seconds     s of event time; how fast innovation statistics forget
    """

    velocity_dimensions: tuple[str, ...] = ("x", "y", "z")
    heading_dimension: str = "yaw"
    acceleration_density: float = 1.0
    walk_density: float = 0.01
    turn_density: float = 0.1
    initial_speed: float = 8.0
    missing_deviation: float = 1.0
    dimensions: Mapping[str, DimensionNoise] = field(default_factory=lambda: UPRIGHT)
    measurement_noise: MeasurementNoise = MeasurementNoise.DETECTION
    inflate_for_correlation: bool = False
    association: Association = Association.OWN
    gate_level: float = 0.999
    max_distance: float = 1e9
    birth_score: float = -1e9
    confirm_detections: int = 3
    tentative_misses: int = 1
    coast_frames: int = 5
    coast_seconds: float = 1.0
    max_tracks: int = 1000
    half_life_seconds: float = 60.0
