"""Frozen settings with their defaults. deploy/sidecar.toml lists every one of them."""

from __future__ import annotations

import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from monitor.calibration.binning import LOWEST, OCTAVES, Binning, LogBins
from monitor.calibration.export_bins import ExportEdges, InvalidExportEdges
from monitor.calibration.limits import (
    MOST_CLASSES,
    MOST_DIMENSIONS,
    MOST_LEVELS,
    MOST_SLICES,
    MOST_WINDOWS,
)
from monitor.calibration.slices import RangeBuckets, SliceBy
from monitor.calibration.windows import Windows
from monitor.config_drift import DriftConfig
from monitor.config_log import LogConfig
from monitor.config_matching import MatchingConfig
from monitor.config_pending import PendingConfig
from monitor.config_promotion import PromotionConfig
from monitor.config_section import Section
from monitor.config_security import SecurityConfig, check_exposure
from monitor.config_tracker import TrackerConfig as TrackerConfig
from monitor.config_tracker import TrackerKind as TrackerKind

# Bytes; deploy/sidecar.toml has 16,000.
LARGEST_FILE = 1 << 20

Level = Annotated[float, Field(gt=0, lt=1)]


class InvalidConfiguration(ValueError):
    """A configuration file cannot be used; the message names key, value and remedy."""


class Mode(StrEnum):
    """What is forwarded."""

    APPLY = "apply"  # what the promoted recalibrator makes of the estimate
    OBSERVE = "observe"  # the raw estimate, with the recalibrated one beside it


class ServerConfig(Section):
    """Addresses and limits of the transport."""

    grpc_address: str = "127.0.0.1:50051"  # host:port; port 0 takes a free one
    http_address: str = "127.0.0.1:9464"  # host:port of /metrics, /healthz, /readyz, /
    reflection: bool = False  # gRPC reflection, for grpcurl and the like
    max_message_bytes: PositiveInt = (
        4 * 2**20
    )  # bytes; above it a message is refused, the stream lives
    transport_message_bytes: PositiveInt = 16 * 2**20  # bytes; above it gRPC ends the stream
    max_streams: PositiveInt = 64  # names of streams that are taken, until a restart
    max_calls: PositiveInt = 1024  # open at a time, streams included; further ones are refused
    max_connections: PositiveInt = 512  # at a time; each is a file descriptor
    # Of one stream; who sends more is read more slowly. 0: no limit.
    max_messages_per_second: NonNegativeFloat = 0.0
    keepalive_seconds: PositiveFloat = 30.0  # s without a sign of a client before it is asked
    keepalive_timeout_seconds: PositiveFloat = 10.0  # s for its answer; then it is gone
    write_timeout_seconds: PositiveFloat = (
        10.0  # s; a client that reads nothing for so long is dropped
    )
    grace_seconds: NonNegativeFloat = 5.0  # s; how long SIGTERM waits for frames in work
    # Above either, frames are answered and forwarded, but neither remembered nor counted.
    shed_lag_seconds: NonNegativeFloat = 0.1  # s that frames wait or the loop is late; 0: never
    shed_rows: NonNegativeInt = 1 << 18  # detections that wait for the statistics; 0: never
    # s that a frame may wait on its way; older ones are passed through, uncounted. 0: any age.
    stale_seconds: NonNegativeFloat = 0.0
    clock_step_seconds: PositiveFloat = 0.5  # s; a wall clock that is set by more begins an epoch

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


def split_address(address: str, key: str) -> tuple[str, int]:
    """host and port of 'host:port'. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{key} '{address}' must be host:port, such as 127.0.0.1:50051")
    return host.strip("[]"), int(port)


class RecalibrationConfig(Section):
    """What is done to the estimates."""

    mode: Mode = Mode.APPLY
    recalibrator: str = ""  # path of a fitted recalibrator to promote at start; empty: identity
    class_recalibrator: str = ""  # the same of class probabilities


class StatisticsConfig(Section):
    """What is counted, and how finely.

    Replicas can be added if they agree on lowest_deviation, micro_bins_per_octave, tau, windows,
    panes, slice_by and, where slices go by range, range_edges and range_dimensions.
    """

    slice_by: tuple[SliceBy, ...] = (SliceBy.CLASS,)  # class, stream, range, or several
    # Unit of the stream; inner edges of the range buckets, ascending. Every bucket is a slice of
    # its own for each class, so that more than a few leave most of them in the overflow slice.
    range_edges: Annotated[tuple[PositiveFloat, ...], Field(max_length=16)] = (20.0, 40.0, 60.0)
    # Whose norm is the range.
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
    def _ranges_of_something(self) -> Self:
        if SliceBy.RANGE in self.slice_by and not self.range_dimensions:
            raise ValueError(
                "range_dimensions is empty, so that slice_by range has nothing to measure: name "
                "the position, such as x, y, z, or leave range out of slice_by"
            )
        return self

    @model_validator(mode="after")
    def _windows_nest(self) -> Self:
        self.window_lengths()
        return self

    def window_lengths(self) -> Windows:
        """The windows in nanoseconds. Raises InvalidWindows where they do not nest."""
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        return Windows(
            tuple(int(text[:-1]) * unit[text[-1]] * 10**9 for text in self.windows), self.panes
        )

    def ranges(self) -> RangeBuckets | None:
        """The range buckets, where they tell slices apart."""
        if SliceBy.RANGE not in self.slice_by:
            return None
        return RangeBuckets(self.range_edges, self.range_dimensions)

    def binning(self) -> Binning:
        """The micro-bins."""
        return Binning(
            deviation=LogBins(self.lowest_deviation, self.micro_bins_per_octave, OCTAVES),
            tau=self.tau,
        )


class LimitsConfig(Section):
    """What a plausible message looks like; in the units of the stream."""

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


class SnapshotConfig(Section):
    """The statistics on disk, so that a restart begins where the last run ended."""

    path: str = "calibration-monitor.state"  # in the working directory; empty: none
    # s between two of them; more often, writing would be all the sidecar does.
    every_seconds: Annotated[float, Field(ge=0.1)] = 10.0


class MetricsConfig(Section):
    """The HTTP endpoint."""

    refresh_seconds: PositiveFloat = 2.0  # s; age of the prepared text
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
    snapshot: SnapshotConfig = SnapshotConfig()
    metrics: MetricsConfig = MetricsConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _exposed_on_purpose(self) -> Self:
        grpc_host, _ = split_address(self.server.grpc_address, "grpc_address")
        http_host, _ = split_address(self.server.http_address, "http_address")
        check_exposure(self.security, grpc_host, http_host)
        return self

    @model_validator(mode="after")
    def _paths_differ(self) -> Self:
        kept = {
            "[snapshot] path": self.snapshot.path,
            "[drift] path": self.drift.path,
            "[promotion] folder": self.promotion.folder,
            "[pending] folder": self.pending.folder,
        }
        names: dict[Path, str] = {}
        for key, value in kept.items():
            path = Path(value).absolute()
            if value and path in names:
                raise ValueError(f"{names[path]} and {key} are both '{value}': each needs its own")
            if value:
                names[path] = key
        return self

    @model_validator(mode="after")
    def _export_edges_differ(self) -> Self:
        try:
            ExportEdges(self.metrics.export_edges, self.statistics.binning())
        except InvalidExportEdges as error:
            raise ValueError(f"[metrics.export_edges]: {error}".rstrip(".")) from None
        return self


def load(path: str | Path) -> Config:
    """The settings of a TOML file; what it leaves out keeps its default.

    Raises InvalidConfiguration, which names every offending key.
    """
    try:
        if not Path(path).is_file() and Path(path).exists():
            raise InvalidConfiguration(f"the configuration {path} is no regular file: name one.")
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InvalidConfiguration(
                f"the configuration {path} has more than {LARGEST_FILE} bytes: name another file."
            )
        text = data.decode("utf-8")
    except OSError as error:
        raise InvalidConfiguration(
            f"cannot read the configuration {path}: {error.strerror}. Check the path."
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f"{path} is not UTF-8 text: {error}.") from None
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"{path} is not TOML: {error}.") from None
    return checked(settings, str(path))


def with_addresses(config: Config, grpc_address: str | None, http_address: str | None) -> Config:
    """The settings with other addresses, where they are given. Raises InvalidConfiguration."""
    settings = config.model_dump()
    if grpc_address is not None:
        settings["server"]["grpc_address"] = grpc_address
    if http_address is not None:
        settings["server"]["http_address"] = http_address
    return checked(settings, "command line")


def checked(settings: dict[str, Any], source: str) -> Config:
    """The settings, if they can be used together. Raises InvalidConfiguration, which names source.

    settings  by section and key
    """
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        findings = "; ".join(
            f"{_where(item['loc'], item['input'], item['type'])}{item['msg']}"
            for item in error.errors()
        )
        raise InvalidConfiguration(
            f"{source}: {findings}. See deploy/sidecar.toml for every key and its unit."
        ) from None


def _where(location: tuple[int | str, ...], value: object, fault: str) -> str:
    """The offending key and its value; what concerns whole sections says so in its message.

    fault  as pydantic calls it
    """
    if not location:
        return ""
    key = ".".join(str(part) for part in location)
    # A text under a key that there is not may be anything, a secret too; this goes to the log and
    # to whoever asks for the status.
    harmless = isinstance(value, bool | int | float)
    hidden = isinstance(value, dict) or (fault == "extra_forbidden" and not harmless)
    return f"[{key}]: " if hidden else f"[{key}] = {value!r}: "
