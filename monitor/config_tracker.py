"""Who tracks: the sidecar's own tracker and how, one elsewhere that is fed over gRPC, or nobody."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from monitor.config_section import Section
from monitor.config_security import is_loopback
from monitor.tracking.settings import (
    UPRIGHT,
    Association,
    DimensionNoise,
    MeasurementNoise,
    TrackerSettings,
)


class TrackerKind(StrEnum):
    """Who tracks."""

    EMBEDDED = "embedded"  # the sidecar's own Kalman tracker, fed what is forwarded
    GRPC = "grpc"  # a tracker elsewhere, fed what is forwarded
    NONE = "none"  # nobody here


class Fallback(StrEnum):
    """Who tracks while the tracker elsewhere is away, or leaves a frame unanswered."""

    EMBEDDED = "embedded"
    NONE = "none"


# Beyond these, covariances of tracks leave what can be computed with.
Density = Annotated[float, Field(gt=0, le=1e8)]
Deviation = Annotated[float, Field(gt=0, le=1e5)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]

# host:port, or the path of a socket; what else gRPC resolves may be written before it.
_ADDRESS = re.compile(r"unix:\S+|\S*[^\s:/]:(\d{1,5})")
_RESOLVED_BY = re.compile(r"dns:(///)?|ipv4:|ipv6:")


class DimensionNoiseConfig(Section):
    """What differs for one dimension; what is left out is as for the others."""

    density: Density | None = None  # unit²/s³ with a velocity, unit²/s without
    initial_speed: Deviation | None = None  # unit/s
    missing_deviation: Deviation | None = None  # unit


class TrackerConfig(Section):
    """The tracker; in the units of the stream."""

    kind: TrackerKind = TrackerKind.NONE
    # Of a tracker elsewhere, kind = grpc: host:port, or unix:path.
    address: str = "127.0.0.1:50052"
    certificate_authority: str = ""  # path, PEM: its TLS certificate is of this one; empty: no TLS
    allow_plain_text: bool = False  # True: frames may go over a network without TLS
    # s that a frame waits for the tracker, and an answer that is to have tracks for them.
    timeout_seconds: Annotated[float, Field(gt=0, le=10)] = 0.02
    # Frames of all streams that wait to be sent; beyond it the oldest is left out.
    queue_frames: Annotated[PositiveInt, Field(le=4096)] = 32
    # s between two attempts to reach it, at most.
    backoff_seconds: Annotated[float, Field(ge=0.2, le=60)] = 2.0
    fallback: Fallback = Fallback.NONE  # embedded: the sidecar's own while it is away; none
    association: Association = Association.OWN  # own, or upstream: by upstream_track_id
    measurement_noise: MeasurementNoise = MeasurementNoise.DETECTION  # R: detection, or unit
    inflate_for_correlation: bool = False  # R times (1 + ρ)/(1 − ρ), ρ of the innovations
    velocity_dimensions: tuple[str, ...] = ("x", "y", "z")  # none of them there: all lengths
    heading_dimension: str = "yaw"  # may be off by π, and turns with the sensor
    acceleration_density: Density = 1.0  # unit²/s³, white acceleration
    walk_density: Density = 0.01  # unit²/s, random walk of other lengths
    turn_density: Density = 0.1  # rad²/s, random walk of angles
    initial_speed: Deviation = 8.0  # unit/s, deviation of a velocity not yet known
    missing_deviation: Deviation = 1.0  # unit or rad, where a covariance is missing
    dimensions: dict[str, DimensionNoiseConfig] = Field(
        default_factory=lambda: {
            name: DimensionNoiseConfig(**asdict(noise)) for name, noise in UPRIGHT.items()
        }
    )  # what differs for single dimensions; those not named keep their default
    gate_level: Annotated[float, Field(gt=0, lt=1)] = 0.999  # share of true matches in the gate
    max_distance: PositiveFloat = 1e9  # unit; beyond it no match of our own making
    birth_score: float = -1e9  # detections with a lower score begin no track
    confirm_detections: PositiveInt = 3  # that make a track confirmed
    tentative_misses: PositiveInt = 1  # frames without a detection that end it before that
    coast_frames: Annotated[int, Field(ge=0)] = 5  # frames without one that it outlives after that
    coast_seconds: Seconds = 1.0  # s without a detection that any track outlives
    # Of a stream; no births beyond, and no answer with more of a tracker elsewhere. Nine states
    # are kept, 8 S² bytes a track each.
    max_tracks: Annotated[int, Field(ge=1, le=4096)] = 1000
    half_life_seconds: Seconds = 60.0  # s of event time; memory of innovation statistics

    @field_validator("address")
    @classmethod
    def _reachable(cls, address: str) -> str:
        found = _ADDRESS.fullmatch(address)
        if found is None or int(found[1] or 1) not in range(1, 65536):
            raise ValueError("must be host:port, such as 127.0.0.1:50052, or unix:path")
        return address

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if self.kind is not TrackerKind.GRPC or self.certificate_authority or self.allow_plain_text:
            return self
        if not _stays_here(self.address):
            raise ValueError(
                f"address '{self.address}': frames would go over the network in plain text, and "
                "tracks be believed from whoever answers. Name certificate_authority, or, on a "
                "network that you trust, set allow_plain_text = true"
            )
        return self

    @property
    def tracks_here(self) -> bool:
        """Whether the sidecar has a tracker of its own, be it one that stands by."""
        elsewhere = self.kind is TrackerKind.GRPC and self.fallback is Fallback.EMBEDDED
        return self.kind is TrackerKind.EMBEDDED or elsewhere

    def settings(self) -> TrackerSettings:
        """As the sidecar's own tracker takes them."""
        own = dict(UPRIGHT)
        own |= {name: DimensionNoise(**dict(noise)) for name, noise in self.dimensions.items()}
        known = {field.name for field in fields(TrackerSettings)}
        chosen = {name: value for name, value in dict(self).items() if name in known}
        return TrackerSettings(**(chosen | {"dimensions": own}))


def _stays_here(address: str) -> bool:
    """Whether what is sent there leaves this machine by no network; in doubt it does."""
    if address.startswith("unix:"):
        return True
    host = _RESOLVED_BY.sub("", address, count=1).rpartition(":")[0]
    return is_loopback(host.removeprefix("[").removesuffix("]"))
