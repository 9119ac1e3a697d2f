"""The configuration: frozen settings with their defaults, checked together. deploy/sidecar.toml
lists every key; nothing here applies a setting.

When it is read again, reloadable keys are taken, and the others wait for a restart. Certificates
and tokens are read again by `security`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from monitor.drift.evidence import DriftSettings, Unit
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import (
    MOST_CLASSES,
    MOST_DIMENSIONS,
    MOST_LEVELS,
    MOST_SLICES,
    MOST_WINDOWS,
)
from monitor.frames.words import DistanceKind, LogLevel, MeasurementNoise, Mode, Objective, SliceBy
from monitor.promotion.records import (
    FitSettings,
    PolicySettings,
    PromotionMode,
    PromotionSettings,
    TrackSettings,
    TrialSettings,
)
from monitor.recalibration.mean_correction import refuses
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import AdaptiveScaling, CovarianceScaling, VarianceScaling
from monitor.recalibration.selection import CLASS_METHODS, ESTIMATING, METHODS
from monitor.statistics.bins import (
    LOWEST,
    OCTAVES,
    Binning,
    ExportEdges,
    InvalidExportEdges,
    LogBins,
)
from monitor.statistics.windows import Windows
from monitor.tracking.motion import UPRIGHT, Association, DimensionNoise, TrackerSettings
from monitor.wire.access import InvalidConfiguration as InvalidConfiguration
from monitor.wire.access import is_loopback, read_file, split_address

T = TypeVar("T")
_RELOADABLE = "reloadable"
Reloadable = Annotated[T, _RELOADABLE]  # marks keys that a reload takes while the sidecar runs


class Section(BaseModel):
    """A frozen section; refuses unknown keys, infinities, NaN and values of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true for 1, "7" for 7 and 1 for true, which pydantic would take."""
        asked = cls.model_fields[info.field_name or ""].annotation
        if asked is bool and not isinstance(value, bool):
            raise ValueError("must be true or false")
        if asked is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError("must be a whole number")
        if asked is float and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError("must be a number")
        return value

    @classmethod
    def reloadable(cls) -> tuple[str, ...]:
        """Names the keys that are marked as reloadable."""
        return tuple(key for key, each in cls.model_fields.items() if _RELOADABLE in each.metadata)


class SecurityConfig(Section):
    """Certificates and tokens, each a path of a file; empty: there is none.

    certificate + key      TLS; PEM, the certificate followed by those between it and its authority
    client_authority       PEM; clients, too, must have a certificate, of one of these authorities
    *_token_file           one bearer token a line; a call without one lacks the right
    """

    certificate: str = ""
    key: str = ""
    client_authority: str = ""
    data_token_file: str = ""  # Process, ProcessFrame, GetCalibration, WatchEvents
    truth_token_file: str = ""  # ReportGroundTruth
    admin_token_file: str = ""  # all of these, recalibrators, export and import, acknowledging
    # s; how often the files are looked at for a change.
    reload_seconds: Reloadable[PositiveFloat] = 60.0
    allow_plain_text: bool = False  # True: gRPC may listen on a network without TLS
    # True: over TLS on a network, whoever connects may administer, with neither a certificate of
    # its own nor a token.
    allow_open_administration: bool = False
    allow_plain_metrics: bool = False  # True: HTTP, which has no TLS, may listen on a network

    @model_validator(mode="after")
    def _in_pairs(self) -> Self:
        for given, missing in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, given) and not getattr(self, missing):
                raise ValueError(
                    f"{given} '{getattr(self, given)}' without {missing}: name both for TLS, or "
                    "neither for plain text"
                )
        if self.client_authority and not self.certificate:
            raise ValueError(
                f"client_authority '{self.client_authority}' without certificate and key: clients "
                "are asked for a certificate over TLS only. Name these as well"
            )
        return self

    @property
    def tls(self) -> bool:
        """True if gRPC is encrypted."""
        return bool(self.certificate)

    @property
    def token_files(self) -> dict[str, str]:
        """Paths of the token files that are named, by key."""
        keys = ("data_token_file", "truth_token_file", "admin_token_file")
        return {key: path for key in keys if (path := getattr(self, key))}


class TrackerKind(StrEnum):
    """The place of the tracker."""

    EMBEDDED = "embedded"  # the sidecar's own Kalman tracker, fed what is forwarded
    GRPC = "grpc"  # a tracker elsewhere, fed what is forwarded
    NONE = "none"


class Fallback(StrEnum):
    """The tracker while the one elsewhere is away, or leaves a frame unanswered."""

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
    """Noise of one dimension; a key that is left out is as for the other dimensions."""

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
        if found is None or not 1 <= int(found[1] or 1) <= 65535:
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
        """True if the sidecar has a tracker of its own, even one that only stands by."""
        elsewhere = self.kind is TrackerKind.GRPC and self.fallback is Fallback.EMBEDDED
        return self.kind is TrackerKind.EMBEDDED or elsewhere

    def settings(self) -> TrackerSettings:
        """Returns the settings of the sidecar's own tracker."""
        own = dict(UPRIGHT)
        own |= {name: DimensionNoise(**dict(noise)) for name, noise in self.dimensions.items()}
        return _settings_of(TrackerSettings, self, dimensions=own)


def _settings_of(kind: type[T], section: Section, **renamed: Any) -> T:
    """Makes settings of the core from the keys of a section that are named like their fields.

    renamed  values of fields with another name, which come before the keys
    """
    given = dict(section) | renamed
    names = [field.name for field in fields(cast("Any", kind))]
    return kind(**{name: given[name] for name in names if name in given})


def _stays_here(address: str) -> bool:
    """Tells if an address is surely of this machine."""
    if address.startswith("unix:"):
        return True
    host = _RESOLVED_BY.sub("", address, count=1).rpartition(":")[0]
    return is_loopback(host.removeprefix("[").removesuffix("]"))


Factor = Annotated[float, Field(gt=0)]

# By key, the methods that use it. As in fitting.FITTINGS, which is heavy to import.
USED_BY: Mapping[str, tuple[str, ...]] = {
    "objective": (VarianceScaling.method, CovarianceScaling.method),
    "time_constant_seconds": (AdaptiveScaling.method,),
}


class PromotionConfig(Section):
    """Fits of candidates, their trials on later ground truth, and their promotion."""

    # manual: fits and promotions when asked for; advise: a proven candidate raises an event and
    # waits; automatic: it is promoted.
    mode: Reloadable[PromotionMode] = PromotionMode.ADVISE
    allow_shrinking: Reloadable[bool] = False  # automatic: also smaller covariances, surer classes
    method: Reloadable[str] = "variance-scaling"  # of what is fitted, as in `fit --method`
    # Of detections without a covariance: covariance-regression, residual-covariance, or identity,
    # which fits none.
    missing_method: Reloadable[str] = "covariance-regression"
    # What is fitted to class probabilities; class-identity: nothing.
    class_method: Reloadable[str] = "temperature"
    objective: Reloadable[Objective | None] = None  # of a scaling; left out: its own
    time_constant_seconds: Reloadable[PositiveFloat | None] = None  # s, of adaptive-scaling
    # The mean error is corrected before the method, where chance does not explain it.
    correct_mean: Reloadable[bool] = False
    # Factors on the variance that are left alone.
    band: Reloadable[tuple[Factor, Factor]] = (0.5, 2.0)
    class_band: Reloadable[tuple[Factor, Factor]] = (0.8, 1.25)  # temperatures, likewise
    # A smaller change of variances, or of the temperature, is none.
    hysteresis: Reloadable[Annotated[float, Field(gt=1)]] = 1.1
    prior_tracks: Reloadable[PositiveFloat] = 3.0  # that "nothing is wrong" counts for in a fit
    # New ones of a slice before it is fitted again, and the fewest that a fit looks back on; where
    # covariances are estimated 30 at least.
    fit_tracks: Reloadable[Annotated[int, Field(ge=2)]] = 10
    fit_every_seconds: Reloadable[PositiveFloat] = 10.0  # s between two fits, at least
    # s after which a fit hangs, and is ended.
    fit_timeout_seconds: Reloadable[PositiveFloat] = 120.0
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.02  # chance of promoting what is no better
    # Nats per dimension that one track can say for a step; for class probabilities: clip × log C.
    clip: PositiveFloat = 1.0
    trial_tracks: PositiveInt = 400  # after so many without a proof a trial is over
    # Between two rollbacks of what is no worse, on average, at least.
    rollback_tracks: Annotated[float, Field(ge=100)] = 1e5
    track_idle_seconds: Annotated[float, Field(ge=0.05)] = 1.0  # s without truth that end a track
    # s of a track that count; without track ids: of a block
    track_seconds: Annotated[float, Field(ge=0.05)] = 10.0
    rows_per_track: Annotated[int, Field(ge=2, le=1024)] = 32  # kept, evenly spread
    kept_tracks: Annotated[int, Field(ge=10, le=100_000)] = 500  # of each slice, the newest
    open_tracks: Annotated[int, Field(ge=1, le=100_000)] = 4096  # at a time, over all slices

    @model_validator(mode="after")
    def _known_and_in_order(self) -> Self:
        methods = [method for method in METHODS if method != Identity.method]
        if self.method not in methods:
            raise ValueError(
                f"method '{self.method}' must be one of {', '.join(methods)}; for fits only when "
                "asked for, set mode 'manual'"
            )
        if self.class_method not in CLASS_METHODS:
            raise ValueError(
                f"class_method '{self.class_method}' must be one of {', '.join(CLASS_METHODS)}; "
                "class-identity: class probabilities are not fitted"
            )
        if self.missing_method not in (*ESTIMATING, Identity.method):
            raise ValueError(
                f"missing_method '{self.missing_method}' must be one of {', '.join(ESTIMATING)}, "
                "or identity: nothing is fitted to detections without a covariance"
            )
        for key, used_by in USED_BY.items():
            given = getattr(self, key)
            if given is not None and self.method not in used_by:
                raise ValueError(
                    f"{key} {given} means nothing to method '{self.method}': leave it out, or set "
                    f"method to {' or '.join(used_by)}"
                )
        if self.correct_mean and refuses(self.method):
            raise ValueError(f"correct_mean: {refuses(self.method)}; or set it to false")
        if self.fit_tracks > self.kept_tracks:
            raise ValueError(
                f"fit_tracks {self.fit_tracks} must be no more than kept_tracks "
                f"{self.kept_tracks}, or no slice is ever fitted: lower the one or raise the other"
            )
        for key, band in {"band": self.band, "class_band": self.class_band}.items():
            if not band[0] <= 1 <= band[1]:
                raise ValueError(f"{key} {list(band)} must have 1 between its ends")
        return self

    def settings(self) -> PromotionSettings:
        """Returns the settings of `promotion`."""
        return PromotionSettings(
            TrackSettings(
                idle_ns=int(self.track_idle_seconds * 1e9),
                longest_ns=int(self.track_seconds * 1e9),
                rows_per_track=self.rows_per_track,
                most_tracks=self.kept_tracks,
                most_open=self.open_tracks,
            ),
            _settings_of(
                FitSettings,
                self,
                time_constant_s=self.time_constant_seconds,
                tracks=self.fit_tracks,
            ),
            TrialSettings(self.alpha, self.clip, self.trial_tracks, self.rollback_tracks),
            _settings_of(PolicySettings, self),
        )


Tolerance = Annotated[float, Field(ge=1, le=1000)]
Tracks = Annotated[int, Field(ge=2, le=100_000)]

# The defaults of `drift`.
_CORE = DriftSettings()


class DriftConfig(Section):
    """Budget of false alarms, and what counts as drift."""

    watch: bool = True  # False: nothing is watched, no alarm ever comes
    # h of driving between two false alarms, over all slices together
    hours_between_false_pages: PositiveFloat = _CORE.hours_between_false_pages
    hours_between_false_tickets: PositiveFloat = _CORE.hours_between_false_tickets
    # On σ; overconfidence (underconfidence) by less is no drift.
    page_tolerance: Tolerance = _CORE.page_tolerance
    ticket_tolerance: Tolerance = _CORE.ticket_tolerance
    # On the mean, in σ; a dimension that is off by less is no drift.
    bias_tolerance: Annotated[float, Field(ge=0.1, le=3.0)] = _CORE.bias_tolerance
    # On the odds that the likeliest class is right, either way.
    class_tolerance: Tolerance = _CORE.class_tolerance
    # What counts as one observation: track-second (where tracks are known, seconds of them; and
    # detections, tempered), detection (these alone).
    unit: Unit = _CORE.unit
    # Tracks and detections of a slice that what is usual is learned from, at least; after ten times
    # as many detections tracks are waited for no longer.
    reference_tracks: Tracks = _CORE.reference_tracks
    reference_detections: Annotated[int, Field(ge=100, le=10_000_000)] = _CORE.reference_detections
    # s of driving with truth of a slice that it is learned over, at least.
    reference_seconds: NonNegativeFloat = _CORE.reference_seconds
    # Path of a reference that `calibration-monitor reference` wrote; empty: learned in each epoch.
    reference: str = ""
    # h of driving without a new alarm that end one; 0: it stays
    calm_hours: NonNegativeFloat = _CORE.calm_hours
    # That say so before there is an alarm, where tracks are known: one odd object is no drift.
    fewest_tracks: Annotated[int, Field(ge=1, le=1000)] = _CORE.fewest_tracks
    refit_on_page: Reloadable[bool] = False  # a page asks for a fit of its slice, and its trial
    # Followed at a time, over all slices.
    open_tracks: Annotated[int, Field(ge=1, le=1_000_000)] = _CORE.most_open
    # s without truth that end a track.
    track_idle_seconds: Annotated[float, Field(ge=0.05)] = _CORE.idle_seconds

    @field_validator("unit", mode="before")
    @classmethod
    def _of_today(cls, unit: object) -> object:
        if unit == "track":
            raise ValueError("whole tracks are no unit any more: use track-second.")
        return unit

    def settings(self) -> DriftSettings:
        """Returns the settings of `drift`."""
        return _settings_of(
            DriftSettings, self, most_open=self.open_tracks, idle_seconds=self.track_idle_seconds
        )


class LogFormat(StrEnum):
    """The form of a line."""

    TEXT = "text"  # for people: time, level, logger, message; tracebacks indented below it
    JSON = "json"  # for programs: one object a line


class LogConfig(Section):
    """The log on standard error. All keys may change while the sidecar runs."""

    level: Reloadable[LogLevel] = LogLevel.INFO
    format: Reloadable[LogFormat] = LogFormat.TEXT
    # Of one kind: from the same place in the program. Further ones are counted. 0: no limit.
    lines_a_minute: Reloadable[Annotated[int, Field(ge=0, le=60_000)]] = 12
    # Of one kind, at once; also the first ones of a kind that was silent for long.
    burst: Reloadable[Annotated[int, Field(ge=1, le=10_000)]] = 6


Name = Annotated[str, Field(min_length=1, max_length=64)]

# How many names `box` has, for each distance that reads it.
_BOX = {
    DistanceKind.BEV_IOU: (5, "centre, length, width and heading"),
    DistanceKind.IMAGE_IOU: (4, "left, top, right and bottom"),
}


class MatchingConfig(Section):
    """Matching of labels in the labeller's own ids with detections."""

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
        """Returns the gate of a class of the detector's."""
        return self.gates.get(name, self.gate)


class PendingConfig(Section):
    """Pending frames: how long they wait for labels, and where."""

    max_bytes: PositiveInt = 256 * 2**20  # bytes in memory; the oldest frames are dropped first
    # s; how far the watermark stays behind.
    max_disorder_seconds: Annotated[float, Field(ge=0, le=3600)] = 2.0
    # Bytes on disk; the oldest partition is dropped first; 0: in memory alone.
    disk_bytes: NonNegativeInt = 2 * 2**30
    keep_hours: PositiveFloat = 24.0  # h of event time that a partition is kept, at most
    # min of event time that are dropped together
    partition_minutes: Annotated[float, Field(ge=0.1, le=1440)] = 1.0
    # Of frames without truth of their own, one in so many goes to the disk, by its frame_id.
    keep_one_frame_in: PositiveInt = 1
    sync_frames: bool = False  # True: fsync for frames too, not for labels alone
    queue_frames: PositiveInt = 2048  # that wait for the disk; beyond it they stay in memory


Level = Annotated[float, Field(gt=0, lt=1)]


class ServerConfig(Section):
    """Addresses and limits of the transport."""

    grpc_address: str = "127.0.0.1:50051"  # host:port; port 0 takes a free one
    http_address: str = "127.0.0.1:9464"  # host:port of /metrics, /healthz, /readyz, /
    reflection: bool = False  # gRPC reflection, for grpcurl and the like
    # Bytes; above it a message is refused, the stream lives.
    max_message_bytes: PositiveInt = 4 * 2**20
    transport_message_bytes: PositiveInt = 16 * 2**20  # bytes; above it gRPC ends the stream
    max_streams: Reloadable[PositiveInt] = 64  # names of streams that are taken, until a restart
    max_calls: PositiveInt = 1024  # open at a time, streams included; further ones are refused
    max_connections: PositiveInt = 512  # at a time; each is a file descriptor
    # Of one stream; who sends more is read more slowly. 0: no limit.
    max_messages_per_second: Reloadable[NonNegativeFloat] = 0.0
    keepalive_seconds: PositiveFloat = 30.0  # s without a sign of a client before it is asked
    keepalive_timeout_seconds: PositiveFloat = 10.0  # s for its answer; then it is gone
    # s; a client that reads nothing for so long is dropped.
    write_timeout_seconds: Reloadable[PositiveFloat] = 10.0
    # s; how long SIGTERM waits for frames in work.
    grace_seconds: Reloadable[NonNegativeFloat] = 5.0
    # Above either, frames are answered and forwarded, but neither remembered nor counted.
    # s that frames wait or the loop is late; 0: never.
    shed_lag_seconds: Reloadable[NonNegativeFloat] = 0.1
    # Detections that wait for the statistics; 0: never.
    shed_rows: Reloadable[NonNegativeInt] = 1 << 18
    # s that a frame may wait on its way; older ones are passed through, uncounted. 0: any age.
    stale_seconds: Reloadable[NonNegativeFloat] = 0.0
    # s; a wall clock that is set by more begins an epoch.
    clock_step_seconds: Reloadable[PositiveFloat] = 0.5

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_message_bytes > self.transport_message_bytes:
            raise ValueError(
                f"max_message_bytes {self.max_message_bytes} is above transport_message_bytes "
                f"{self.transport_message_bytes}: nothing so large would arrive"
            )
        for key in ("grpc_address", "http_address"):
            split_address(getattr(self, key), key)
        return self


class RecalibrationConfig(Section):
    """Recalibration of the estimates."""

    mode: Reloadable[Mode] = Mode.APPLY
    recalibrator: str = ""  # path of a fitted recalibrator to promote at start; empty: identity
    class_recalibrator: str = ""  # the same of class probabilities


class StatisticsConfig(Section):
    """Statistics: their slices, micro-bins and windows.

    Replicas can be added if they agree on lowest_deviation, micro_bins_per_octave, tau, windows,
    panes, slice_by and, where slices go by range, range_edges and range_dimensions.
    """

    slice_by: tuple[SliceBy, ...] = (SliceBy.CLASS,)  # class, stream, range, or several
    # Unit of the stream; inner edges of the range buckets, ascending. Every bucket is a slice of
    # its own for each class, so that more than a few leave most of them in the overflow slice.
    range_edges: Annotated[tuple[PositiveFloat, ...], Field(max_length=16)] = (20.0, 40.0, 60.0)
    # Whose norm is the range; also the distance at which all detections are held against before.
    range_dimensions: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MOST_DIMENSIONS)
    ] = ("x", "y", "z")
    # Further ones share a counted overflow slice. Each has its series, and up to 6 MB.
    max_slices: Annotated[int, Field(ge=1, le=MOST_SLICES)] = 24
    # Confidence levels, ascending; each is a column of every micro-bin.
    tau: Annotated[tuple[Level, ...], Field(max_length=MOST_LEVELS)] = (0.5, 0.68, 0.9, 0.95, 0.99)
    bins: Annotated[int, Field(ge=1, le=512)] = 20  # reliability bins cut at read time
    # Unit of the stream; 40 octaves of micro-bins begin here.
    lowest_deviation: Annotated[float, Field(ge=2.0**-200, le=2.0**100)] = LOWEST
    micro_bins_per_octave: Annotated[int, Field(ge=4, le=256)] = 32  # of the deviation
    angles_in_joint: bool = False  # True: headings take part in joint measures
    # Of event time, each a multiple of the one before; each keeps every slice once more.
    windows: Annotated[tuple[str, ...], Field(max_length=MOST_WINDOWS)] = ("5m", "1h", "24h")
    panes: Annotated[int, Field(ge=1, le=60)] = 6  # steps in which a window moves on
    live_seconds: PositiveFloat = 60.0  # s of event time; truth later than that is in no counter
    fold_rows: Annotated[int, Field(ge=1, le=65536)] = 7680  # matched detections folded in one go

    @field_validator("tau", "range_edges")
    @classmethod
    def _ascending(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not values or list(values) != sorted(set(values)):
            raise ValueError("must be ascending, without repeats, and not empty")
        return values

    @field_validator("slice_by")
    @classmethod
    def _not_empty(cls, slice_by: tuple[SliceBy, ...]) -> tuple[SliceBy, ...]:
        if not slice_by:
            raise ValueError("must name at least one of class, stream, range")
        return slice_by

    @field_validator("windows")
    @classmethod
    def _durations(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        for text in windows:
            if not re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text):
                raise ValueError(f"'{text}' must be a duration such as 30s, 5m, 1h or 2d")
            if text.endswith("d") and int(text[:-1]) > 10_000:
                raise ValueError(f"'{text}' must be at most 10000d")
        if not windows:
            raise ValueError("must name at least one window")
        return windows

    @model_validator(mode="after")
    def _ranges_and_windows(self) -> Self:
        if SliceBy.RANGE in self.slice_by and not self.range_dimensions:
            raise ValueError(
                "range_dimensions is empty, so that slice_by range has nothing to measure: name "
                "the position, such as x, y, z, or leave range out of slice_by"
            )
        self.window_lengths()
        return self

    def window_lengths(self) -> Windows:
        """Returns the windows in nanoseconds. Raises InvalidWindows if they do not nest."""
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        return Windows(
            tuple(int(text[:-1]) * unit[text[-1]] * 10**9 for text in self.windows), self.panes
        )

    def ranges(self) -> RangeBuckets | None:
        """Returns the range buckets, if slices are told apart by range."""
        if SliceBy.RANGE not in self.slice_by:
            return None
        return RangeBuckets(self.range_edges, self.range_dimensions)

    def binning(self) -> Binning:
        """Returns the micro-bins."""
        return Binning(
            deviation=LogBins(self.lowest_deviation, self.micro_bins_per_octave, OCTAVES),
            tau=self.tau,
        )


class LimitsConfig(Section):
    """Limits of a plausible message; in the units of the stream."""

    max_dimensions: Annotated[int, Field(ge=1, le=MOST_DIMENSIONS)] = 16
    # Names of a stream; every row of class probabilities adds to each of them.
    max_classes: Annotated[int, Field(ge=1, le=MOST_CLASSES)] = 256
    max_detections: PositiveInt = 4096  # in one frame
    largest_mean: PositiveFloat = 1e8
    smallest_deviation: PositiveFloat = 1e-6
    largest_deviation: PositiveFloat = 1e5
    max_spaces: PositiveInt = 16  # different sets of dimensions, over all streams

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.smallest_deviation >= self.largest_deviation:
            raise ValueError(
                f"smallest_deviation {self.smallest_deviation:g} is not below "
                f"largest_deviation {self.largest_deviation:g}: nothing would pass"
            )
        return self


class StateConfig(Section):
    """Names the folder in which a sidecar keeps its state, and how often it writes a checkpoint."""

    # Left out: one of its name in $STATE_DIRECTORY, else in the XDG state home; empty: nothing is
    # kept.
    folder: str | None = None
    # Of the sidecar, for that folder; empty: the port of grpc_address.
    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9\-][A-Za-z0-9_.\-]{0,63})?$")] = ""
    # s between two checkpoints; more often, writing would be all the sidecar does.
    every_seconds: Reloadable[Annotated[float, Field(ge=0.1)]] = 10.0


# What the address of uploads must name: else two objects would have one name.
_PLACES = ("{vehicle}", "{epoch}", "{sequence}")


class FleetConfig(Section):
    """Statistics for a fleet, and uploads of what they have gained."""

    # Such as s3://bucket/prefix/{vehicle}/{epoch}/{sequence}.state; file, s3, gs or az; empty:
    # nothing is uploaded.
    upload: str = ""
    vehicle: Annotated[str, Field(pattern=r"^([A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,63})?$")] = ""
    every_minutes: Annotated[float, Field(gt=0, le=10080)] = 60.0  # between two uploads
    # Labelled detections of each slice that are kept beside the sums, for fits that need rows; off
    # by default: they say where things were seen.
    sample: Annotated[int, Field(ge=0, le=65536)] = 0

    @field_validator("upload")
    @classmethod
    def _an_address(cls, upload: str) -> str:
        if not upload:
            return upload
        prefix = _prefix_of(upload)
        if not re.fullmatch(r"file:///[^?#]+|(s3|gs|az)://[^/?#]+(/[^?#]*)?", prefix):
            raise ValueError(
                "must begin with file:///folder/, s3://bucket/, gs://bucket/ or az://container/, "
                "without a place in braces"
            )
        name = upload.removeprefix(prefix)
        if missing := [place for place in _PLACES if place not in name]:
            raise ValueError(f"must hold {', '.join(missing)}, or uploads would have one name")
        filled = re.sub("|".join(map(re.escape, _PLACES)), "x", name)
        if not re.fullmatch(r"(/[\w.\-=]+)+", filled, re.ASCII) or re.search("/[._]", filled):
            raise ValueError(
                "must have nothing but letters, digits and _ . - = / behind its prefix, beside "
                + ", ".join(_PLACES)
                + ", and no part that begins with . or _"
            )
        return upload

    @model_validator(mode="after")
    def _of_a_vehicle(self) -> Self:
        if self.upload and not self.vehicle:
            raise ValueError(
                f"upload = '{self.upload}' without vehicle: name the vehicle, which no other is "
                "called"
            )
        return self

    @property
    def prefix(self) -> str:
        """Returns the part of the address that all uploads share, without a slash at its end."""
        return _prefix_of(self.upload)

    def name_of(self, vehicle: str, epoch: str, sequence: int) -> str:
        """Names an upload below the prefix."""
        name = self.upload.removeprefix(self.prefix + "/")
        # Six digits, so that names are in order for a hundred years of hourly uploads.
        for place, value in zip(_PLACES, (vehicle, epoch, f"{sequence:06d}"), strict=True):
            name = name.replace(place, value)
        return name


def _prefix_of(address: str) -> str:
    return address.partition("{")[0].rpartition("/")[0]


# Keys of the version before, in whose place is [state].
_OLD_PATHS = {"snapshot": "path", "drift": "path", "promotion": "folder", "pending": "folder"}
_OLD_PERIODS = {"snapshot": "every_seconds", "drift": "every_seconds"}


def without_old_keys(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translates keys of the version before into those of [state].

    returns  the settings without them, and the old ones as "[section] key"
    """
    found = {
        name: dict(keys) if isinstance(keys, dict) else keys for name, keys in settings.items()
    }
    old: dict[str, Any] = {}
    for section, key in (*_OLD_PATHS.items(), *_OLD_PERIODS.items()):
        keys = found.get(section)
        if isinstance(keys, dict) and key in keys:
            old[f"[{section}] {key}"] = value = keys.pop(key)
            if key != "every_seconds" and not isinstance(value, str):
                raise ValueError(f"[{section}] {key} = {value!r}: must be a text")
    if found.get("snapshot") == {}:
        del found["snapshot"]
    state = found.setdefault("state", {})
    if isinstance(state, dict):
        periods = [value for key, value in old.items() if key.endswith("every_seconds")]
        if periods:
            state.setdefault("every_seconds", periods[0])
        paths = [old.get(f"[{section}] {key}") for section, key in _OLD_PATHS.items()]
        if paths == [""] * len(paths) and "folder" not in state:
            state["folder"] = ""
        elif old.get("[pending] folder") == "":
            found["pending"]["disk_bytes"] = 0
    return found, old


class MetricsConfig(Section):
    """The HTTP endpoint."""

    refresh_seconds: Reloadable[PositiveFloat] = 2.0  # s; greatest age of the text
    # Unit of the stream; inner edges of the bins over σ and σ_G that are exported as counters.
    # The same in all vehicles whose counters are to be added.
    export_edges: Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=31)] = tuple(
        2.0**octave for octave in range(-4, 5)
    )


class Config(Section):
    """All settings of the sidecar."""

    server: ServerConfig = ServerConfig()
    security: SecurityConfig = SecurityConfig()
    recalibration: RecalibrationConfig = RecalibrationConfig()
    promotion: PromotionConfig = PromotionConfig()
    drift: DriftConfig = DriftConfig()
    statistics: StatisticsConfig = StatisticsConfig()
    limits: LimitsConfig = LimitsConfig()
    pending: PendingConfig = PendingConfig()
    matching: MatchingConfig = MatchingConfig()
    tracker: TrackerConfig = TrackerConfig()
    state: StateConfig = StateConfig()
    fleet: FleetConfig = FleetConfig()
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()
    _old: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def old_keys(self) -> Mapping[str, Any]:
        """Returns the keys of the version before that were given, in whose place is [state]."""
        return self._old

    @property
    def state_name(self) -> str:
        """Names the folder of the sidecar; '' where its port is not known before it is open."""
        port = split_address(self.server.grpc_address, "grpc_address")[1]
        return self.state.name or (str(port) if port else "")

    @model_validator(mode="after")
    def _exposed_on_purpose(self) -> Self:
        """Refuses that strangers listen in or take over where no setting allows it."""
        security = self.security
        grpc_host, _ = split_address(self.server.grpc_address, "grpc_address")
        http_host, _ = split_address(self.server.http_address, "http_address")
        reachable = "which other machines can reach"
        administrators = security.client_authority or security.admin_token_file
        open_to_all = not administrators and not security.allow_open_administration
        if not is_loopback(grpc_host) and security.tls and open_to_all:
            raise ValueError(
                f"[server] grpc_address is on {grpc_host}, {reachable}, and whoever connects may "
                "promote recalibrators and import statistics. Name [security] client_authority or "
                "admin_token_file, listen on 127.0.0.1, or, where all of them may, set [security] "
                "allow_open_administration = true"
            )
        if not is_loopback(grpc_host) and not security.tls and security.token_files:
            raise ValueError(
                f"[security] {', '.join(security.token_files)}: tokens would go over the network "
                f"in plain text, since [server] grpc_address is on {grpc_host}. Name a "
                "certificate and a key, or listen on 127.0.0.1"
            )
        if not is_loopback(grpc_host) and not security.tls and not security.allow_plain_text:
            raise ValueError(
                f"[server] grpc_address is on {grpc_host}, {reachable}, without TLS. Name "
                "[security] certificate and key, listen on 127.0.0.1, or, on a network that you "
                "trust, set [security] allow_plain_text = true"
            )
        if not is_loopback(http_host) and not security.allow_plain_metrics:
            raise ValueError(
                f"[server] http_address is on {http_host}, {reachable}, and has no TLS. Listen on "
                "127.0.0.1, or, where others may read the statistics, set [security] "
                "allow_plain_metrics = true"
            )
        return self

    @model_validator(mode="after")
    def _export_edges_differ(self) -> Self:
        try:
            ExportEdges(self.metrics.export_edges, self.statistics.binning())
        except InvalidExportEdges as error:
            raise ValueError(f"[metrics.export_edges]: {error}".rstrip(".")) from None
        return self


def load(path: str | Path) -> Config:
    """Reads the settings of a TOML file; keys that it leaves out keep their default.

    Raises InvalidConfiguration, which names every offending key.
    """
    try:
        settings = tomllib.loads(read_file(path, f"the configuration {path}").decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidConfiguration(
            f"{path} is not UTF-8 text, but binary or of another encoding."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"{path} is not TOML: {error}.") from None
    return checked(settings, str(path))


def replaced(config: Config, changes: Mapping[tuple[str, str], object]) -> Config:
    """Replaces values by section and key; None leaves one as it is. Raises InvalidConfiguration."""
    settings = config.model_dump()
    for (section, key), value in changes.items():
        if value is not None:
            settings[section][key] = value
    found = checked(settings, "command line")
    found._old.update(config.old_keys)
    return found


def checked(settings: dict[str, Any], source: str) -> Config:
    """Checks settings, alone and together. Raises InvalidConfiguration, which names the source.

    settings  by section and key
    """
    try:
        settings, old = without_old_keys(settings)
        config = Config.model_validate(settings)
        config._old.update(old)
        return config
    except ValidationError as error:
        findings = "; ".join(
            f"{_where(item['loc'], item['input'], item['type'])}"
            f"{_fault(item['loc'], item['type'], item['msg']).rstrip('.')}"
            for item in error.errors()
        )
    except ValueError as error:
        findings = str(error)
    end = "" if findings.endswith("?") else "."
    raise InvalidConfiguration(
        f"{source}: {findings.rstrip('.')}{end} `calibration-monitor serve --print-config` lists "
        "every key with its unit."
    )


# What pydantic says of a type, and what says it to who writes TOML.
_OF_A_TYPE = {
    "tuple_type": 'must be a list in brackets, such as ["a", "b"]',
    "string_type": "must be a text in quotes",
    "model_type": "must be a section: a line with its name in brackets, and keys below it",
}


def _fault(location: tuple[int | str, ...], fault: str, message: str) -> str:
    """Says what is wrong with a value; of an unknown key, which one may be meant.

    fault  pydantic's name of it
    """
    if fault != "extra_forbidden":
        said = message.removeprefix("Value error, ").replace("Input should be", "must be")
        return _OF_A_TYPE.get(fault, said)
    *sections, name = map(str, location)
    section = Config.model_fields.get(sections[0]) if sections else None
    known = Config if section is None else section.annotation
    keys = list(getattr(known, "model_fields", ()))
    near = difflib.get_close_matches(name, keys, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    if not sections:
        of = [name_of for name_of, keys_of in Config() if name in type(keys_of).model_fields]
        meant = f" Is it a key of [{'] or ['.join(of)}]?" if of else meant
    return f"there is no such {'key' if sections else 'section'}.{meant}"


def _where(location: tuple[int | str, ...], value: object, fault: str) -> str:
    """Names the offending key and its value; a fault of whole sections says so in its message.

    fault  pydantic's name of it
    """
    if not location:
        return ""
    key = ".".join(str(part) for part in location)
    # A text under an unknown key may be a secret, and this goes to the log and to the status.
    harmless = isinstance(value, bool | int | float)
    hidden = isinstance(value, dict) or (fault == "extra_forbidden" and not harmless)
    return f"[{key}]: " if hidden else f"[{key}] = {value!r}: "


# By section, the keys that a reload takes. No kept number depends on one of them: bins, slices,
# windows, folders and addresses stay those of the start.
RELOADABLE: dict[str, tuple[str, ...]] = {
    section: settings.reloadable() for section, settings in Config() if settings.reloadable()
}


class Outcome(StrEnum):
    """The outcome of reading a configuration again."""

    APPLIED = "applied"  # a key has changed, and is active
    UNCHANGED = "unchanged"  # no key has changed that can be taken while the sidecar runs
    REFUSED = "refused"  # the configuration cannot be used; all is as it was


@dataclass(slots=True)
class Reloads:
    """Counts the reloads since the start.

    path     of the configuration file, as it was given; empty: there is none
    waiting  keys that wait for a restart, as of the last reload that could be used
    refused  why the last reload could not be used; empty: it could
    """

    path: str = ""
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    waiting: tuple[str, ...] = ()
    refused: str = ""

    def refuse(self, why: str) -> None:
        """Counts a reload that could not be used."""
        self.outcomes[Outcome.REFUSED] += 1
        self.refused = why

    def take(self, changed: Sequence[str], waiting: Sequence[str]) -> None:
        """Counts a reload that could be used; the keys are those of reloaded()."""
        self.outcomes[Outcome.APPLIED if changed else Outcome.UNCHANGED] += 1
        self.waiting, self.refused = tuple(waiting), ""


def reloaded(running: Config, read: Config) -> tuple[Config, list[str], list[str]]:
    """Takes the reloadable keys of a configuration that was read again.

    returns  the configuration to be active from now on; as section.key, the keys whose values are
             new and active, and those whose new values wait for a restart

    Raises InvalidConfiguration if the reloadable keys do not fit the keys that stay.
    """
    before, merged = running.model_dump(), read.model_dump()
    changed: list[str] = []
    waiting: list[str] = []
    for section, values in merged.items():
        for key, value in values.items():
            old = before[section][key]
            if value != old and key in RELOADABLE.get(section, ()):
                changed.append(f"{section}.{key}")
                continue
            values[key] = old
            if value != old:
                waiting.append(f"{section}.{key}")
    source = "read again, with what only a restart would change"
    return checked(merged, source), changed, waiting
