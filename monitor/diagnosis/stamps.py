"""What the stamps of one stream tell of its clock, and which mistake makes such stamps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.diagnosis.observation import SECOND_NS, SILENT_SECONDS
from monitor.diagnosis.words import duration
from monitor.status import StreamStatus

# What is captured cannot have come already; a clock that is off by this is told.
AHEAD_SECONDS = 1.0
# Detector and sidecar are neighbours: later than this is no way from one to the other.
BEHIND_SECONDS = 10.0
# A stamp in another unit is known by this: in the right one, it would be so near to now.
_NEAR_SECONDS = 86400.0
# Below this many ns after 1970 (March 1973) a stamp counts from the start of something else.
_SINCE_1970 = 10**17
_UNITS = (("microseconds", 10**3), ("milliseconds", 10**6), ("seconds", 10**9))
_GPS_BEGAN = 315_964_800
# Seconds that clocks of other scales are ahead of UTC by: leap seconds, as of 2017.
_SCALES = ((18.0, "GPS time"), (37.0, "TAI, as PTP hands it out"))
_SCALE_TOLERANCE = 0.5
# A clock that shows local time is off by whole half hours.
_HALF_HOUR, _ZONE_TOLERANCE, _MOST_ZONE = 1800.0, 5.0, 14 * 3600.0
# Stamps of now may be whole seconds: these are the same for as long as that.
_COARSE_SECONDS = 1.5


class Kind(StrEnum):
    """What the stamps of a stream are."""

    NONE = "none"  # its frames have none
    STOPPED = "stopped"  # the latest frames have none, earlier ones had
    SANE = "sane"  # of the wall clock
    UNIT = "unit"  # not in nanoseconds
    OTHER_ZERO = "other_zero"  # not counted from 1970
    OFF = "off"  # of a wall clock that is wrong
    FROZEN = "frozen"  # one and the same of all frames


@dataclass(frozen=True, slots=True)
class Stamps:
    """Of one stream.

    lag_s  wall clock at the arrival, minus the stamp
    hint   which mistake would make them; '' where none comes to mind
    """

    stream: str
    kind: Kind
    lag_s: float = 0.0
    hint: str = ""

    @property
    def way(self) -> str:
        """2 h behind, or 37 s ahead of."""
        return f"{duration(self.lag_s)} {'behind' if self.lag_s >= 0 else 'ahead of'}"


def stamps_of(stream: StreamStatus, before: StreamStatus | None = None) -> Stamps:
    """Of a stream that has sent frames; before: as it was at an earlier look of the same run."""
    found = _latest(stream)
    if before is None or found.kind not in (Kind.SANE, Kind.OTHER_ZERO, Kind.OFF):
        return found
    if stream.frames <= before.frames or stream.stamp_ns != before.stamp_ns:
        return found
    passed = (stream.stamped_received_ns or 0) - (before.stamped_received_ns or 0)
    if passed > (_COARSE_SECONDS * SECOND_NS if found.kind is Kind.SANE else 0):
        return Stamps(stream.stream, Kind.FROZEN, found.lag_s)
    return found


def _latest(stream: StreamStatus) -> Stamps:
    """By its last stamp alone."""
    if stream.stamp_ns is None or stream.stamped_received_ns is None:
        return Stamps(stream.stream, Kind.NONE)
    came, stamp = stream.stamped_received_ns, stream.stamp_ns
    lag = (came - stamp) / SECOND_NS
    if stream.received_ns is not None and stream.received_ns - came > SILENT_SECONDS * SECOND_NS:
        return Stamps(stream.stream, Kind.STOPPED, (stream.received_ns - came) / SECOND_NS)
    if -AHEAD_SECONDS <= lag <= BEHIND_SECONDS:
        return Stamps(stream.stream, Kind.SANE, lag)
    unit = _unit(stamp, came)
    if unit:
        return Stamps(stream.stream, Kind.UNIT, lag, unit)
    if abs(lag - (_GPS_BEGAN - 18)) < _NEAR_SECONDS:
        return Stamps(stream.stream, Kind.OFF, lag, "they count from 1980, as GPS does")
    if abs(stamp) < _SINCE_1970:
        return Stamps(stream.stream, Kind.OTHER_ZERO, lag)
    return Stamps(stream.stream, Kind.OFF, lag, _offset(lag))


def _unit(stamp: int, came: int) -> str:
    return next(
        (name for name, ns in _UNITS if abs(came - stamp * ns) < _NEAR_SECONDS * SECOND_NS), ""
    )


def _offset(lag: float) -> str:
    """Of stamps that are of nearly the right time."""
    for ahead, scale in _SCALES:
        if abs(lag + ahead) < _SCALE_TOLERANCE:
            return f"{ahead:.0f} s ahead of UTC is {scale}"
    halves = round(lag / _HALF_HOUR)
    near_zone = abs(lag - halves * _HALF_HOUR) < _ZONE_TOLERANCE
    if halves and near_zone and abs(lag) <= _MOST_ZONE + _ZONE_TOLERANCE:
        return "whole half hours look like local time in place of UTC"
    return ""
