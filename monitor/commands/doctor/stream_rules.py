"""Rules on the streams of frames: that they come, that their stamps agree with the clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from monitor.commands.doctor.look import SECOND_NS, SILENT_SECONDS, Observation
from monitor.commands.doctor.rules import (
    REMARK,
    WRONG,
    Area,
    Found,
    Rule,
    be,
    count,
    counted,
    duration,
    lately,
    names,
    number,
    shares,
)
from monitor.commands.doctor.sidecar_rules import HEADERS
from monitor.frames.status import StreamStatus

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

# Two clocks that are farther apart are not both right.
APART_SECONDS = 1.0

# Of [server] max_streams, from which on it is told.
_NEARLY_ALL = 0.8

# A stream that is silent for longer, while others send, may be meant to be gone.
GONE_SECONDS = 3600.0

# ---- streams


def refused_whole(seen: Observation) -> Found:
    """Finds that messages come, and none of them is taken."""
    if found := _refused_whole(seen):
        total = sum(found.values())
        what = f"messages come, and are refused as a whole: {count(total, 'message')}"
        yield WRONG, f"{what} while doctor looked ({shares(found, total)})"


def _refused_whole(seen: Observation) -> dict[str, float]:
    """Messages by reason, between the looks; none where a frame was taken: then some of these
    may be detections of it.
    """
    if seen.fresh or not seen.refreshed or seen.increase("frames_total") > 0:
        return {}
    found = seen.increases("rejected_total", "reason")
    return {reason: n for reason, n in found.items() if n > 0}


def no_frames(seen: Observation) -> Found:
    """Finds that no client sends; without the status, that no frame was counted."""
    if seen.fresh or _refused_whole(seen):
        return
    if seen.last.status is None:
        if seen.last.samples is not None and seen.refreshed and not seen.frames_come:
            yield WRONG, "no frame was counted while doctor looked"
    elif any(each.frames for each in seen.streams):
        shortest = min(seen.silence_s(each) for each in seen.streams)
        yield WRONG, f"no frames have come for {duration(shortest)}, of no stream"
    else:
        what = f"nobody sends frames: none has come since the start {duration(seen.up_s)} ago"
        if opened := len(seen.streams):
            what += f"; {count(opened, 'stream')} {be(opened)} open, and empty"
        # Nothing was ever taken: perhaps because nothing could be.
        ever = seen.now.by("rejected_total", "reason")
        if (total := sum(n for n in ever.values() if n > 0)) > 0:
            came = count(total, "message")
            what += f"; {came} came and had to be refused ({shares(ever, total)})"
        yield WRONG, what


def silent(seen: Observation) -> Found:
    """Finds streams that are silent while others send."""
    silences = {each.stream: seen.silence_s(each) for each in seen.streams if seen.fresh}
    late = {name: each for name, each in sorted(silences.items()) if each >= SILENT_SECONDS}
    for severity, long_gone in ((WRONG, False), (REMARK, True)):
        found = [
            f"{name} for {duration(each)}" if math.isfinite(each) else f"{name} since the start"
            for name, each in late.items()
            if (GONE_SECONDS < each < math.inf) is long_gone
        ]
        if found:
            yield severity, f"silent while others send: {names(found)}"


def many(seen: Observation) -> Found:
    """Finds that all names of streams, or nearly all, are taken."""
    here, most = len(seen.streams), seen.limits.streams
    what = f"{here} of at most {most} names of streams are taken"
    severity, refused, when = lately(seen, "rejected_total", "reason", HEADERS)
    if here >= most and refused and severity is WRONG:
        came = count(sum(refused.values()), "message")
        yield WRONG, f"{what}, and {came} without a header that is accepted came {when}"
    elif here >= _NEARLY_ALL * most:
        yield REMARK, what


def dropped(seen: Observation) -> Found:
    """Finds streams that were ended."""
    text = "{} ended because the client read no answers"
    yield from counted(seen, "streams_dropped_total", text, "stream", ever=None)


def rates(seen: Observation) -> str:
    """Says how many streams there are, and what comes; '' where that is not known."""
    if seen.last.status is None:
        streams = count(seen.now.value("streams"), "stream")
        return f"{streams}, frames come" if seen.frames_come and seen.refreshed else ""
    text, before = count(len(seen.streams), "stream"), seen.before
    if not (seen.seconds > 0 and before):
        return text
    pairs = [(now, before.get(now.stream, StreamStatus(now.stream))) for now in seen.streams]
    frames = sum(now.frames - first.frames for now, first in pairs) / seen.seconds
    detections = sum(now.detections - first.detections for now, first in pairs) / seen.seconds
    return f"{text}, {number(frames)} frames/s, {number(detections)} detections/s"


# ---- the clock


class Kind(StrEnum):
    """Kinds of stamps that a stream may send."""

    NONE = "none"  # its frames have none
    STOPPED = "stopped"  # the latest frames have none, earlier ones had
    SANE = "sane"  # of the wall clock
    UNIT = "unit"  # not in nanoseconds
    OTHER_ZERO = "other_zero"  # not counted from 1970
    OFF = "off"  # of a wall clock that is wrong
    FROZEN = "frozen"  # one and the same of all frames


@dataclass(frozen=True, slots=True)
class Stamps:
    """Stamps of one stream.

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


def clocks(seen: Observation) -> list[Stamps]:
    """Judges the stamps of all streams that send."""
    return [stamps_of(each, seen.before.get(each.stream)) for each in seen.fresh]


def stamps_of(stream: StreamStatus, before: StreamStatus | None = None) -> Stamps:
    """Judges the stamps of a stream that has sent frames.

    before  the stream as it was at an earlier look of the same run
    """
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
    for unit, ns in _UNITS:
        if abs(came - stamp * ns) < _NEAR_SECONDS * SECOND_NS:
            return Stamps(stream.stream, Kind.UNIT, lag, unit)
    if abs(lag - (_GPS_BEGAN - 18)) < _NEAR_SECONDS:
        return Stamps(stream.stream, Kind.OFF, lag, "they count from 1980, as GPS does")
    if abs(stamp) < _SINCE_1970:
        return Stamps(stream.stream, Kind.OTHER_ZERO, lag)
    return Stamps(stream.stream, Kind.OFF, lag, _offset(lag))


def _offset(lag: float) -> str:
    """Names the mistake behind stamps that are of nearly the right time."""
    for ahead, scale in _SCALES:
        if abs(lag + ahead) < _SCALE_TOLERANCE:
            return f"{ahead:.0f} s ahead of UTC is {scale}"
    halves = round(lag / _HALF_HOUR)
    near_zone = abs(lag - halves * _HALF_HOUR) < _ZONE_TOLERANCE
    if halves and near_zone and abs(lag) <= _MOST_ZONE + _ZONE_TOLERANCE:
        return "whole half hours look like local time in place of UTC"
    return ""


def _of(found: Sequence[Stamps]) -> str:
    return f"stream{'' if len(found) == 1 else 's'} {names([each.stream for each in found])}"


def _ways(found: Sequence[Stamps]) -> str:
    """front 2 h behind and rear 37 s ahead of the wall clock."""
    return f"{names([f'{each.stream} {each.way}' for each in found])} the wall clock"


def _agree(found: Sequence[Stamps]) -> bool:
    lags = [each.lag_s for each in found]
    return max(lags) - min(lags) <= APART_SECONDS


def of_kind(anchor: str, kind: Kind, text: str) -> Rule:
    """Makes the rule of stamps of this kind; text has {lag} for the longest lag."""

    def check(seen: Observation) -> Found:
        if found := [each for each in clocks(seen) if each.kind is kind]:
            lag = duration(max(each.lag_s for each in found))
            yield WRONG, f"{_of(found)}: {text.format(lag=lag)}"

    return Rule(anchor, check, "status")


def other_unit(seen: Observation) -> Found:
    """Finds stamps that are not in nanoseconds."""
    found = [each for each in clocks(seen) if each.kind is Kind.UNIT]
    for unit in dict.fromkeys(each.hint for each in found):
        what = _of([each for each in found if each.hint == unit])
        yield WRONG, f"{what}: stamps are not in nanoseconds: in {unit} they would be of now"


def off(seen: Observation) -> Found:
    """Finds stamps of a wall clock that is wrong."""
    if found := [each for each in clocks(seen) if each.kind is Kind.OFF]:
        hints = list(dict.fromkeys(each.hint for each in found if each.hint))
        yield WRONG, f"stamps are not of now: {_ways(found)}{f' ({names(hints)})' if hints else ''}"


def other_zero(seen: Observation) -> Found:
    """Finds stamps that count from the start of something, which may be meant."""
    moving = [each for each in clocks(seen) if each.kind is not Kind.FROZEN]
    if found := [each for each in moving if each.kind is Kind.OTHER_ZERO]:
        what = f"{_of(found)}: stamps count from the start of something, not from 1970"
        if len(found) == len(moving) and _agree(found):
            yield REMARK, f"{what}, as CLOCK_MONOTONIC does, or a recording that is played"
        else:
            yield WRONG, f"{what}, and those of the streams do not agree with each other"


def apart(seen: Observation) -> Found:
    """Finds streams of the wall clock that do not agree: each alone could be right."""
    found = [each for each in clocks(seen) if each.kind is Kind.SANE]
    found.sort(key=lambda each: each.lag_s)
    if len(found) < 2 or _agree(found):
        return
    median = found[len(found) // 2].lag_s if len(found) > 2 else found[0].lag_s
    others = [each for each in found if abs(each.lag_s - median) > APART_SECONDS]
    what = f"the streams do not agree what time it is: {_ways(others)}"
    yield WRONG, f"{what}, the others {duration(median)}"


def ours(seen: Observation) -> Found:
    """Finds that the clock of the sidecar is not ours, as exactly as the way there allows."""
    now_ns = seen.last.status.now_ns if seen.last.status is not None else 0
    lead = (now_ns - seen.last.clock_ns) / SECOND_NS
    if abs(lead) > APART_SECONDS + seen.last.round_trip_s / 2:
        way = "ahead of" if lead > 0 else "behind"
        yield WRONG, f"the clock of the sidecar is {duration(lead)} {way} the one here"


def set_clock(seen: Observation) -> Found:
    """Finds that the clock of the sidecar was set."""
    text = "the wall clock of the sidecar was set {}"
    yield from counted(seen, "clock_steps_total", text, "time")


def jumps(seen: Observation) -> Found:
    """Finds that event time jumped."""
    text = "event time began anew or jumped ahead {}"
    yield from counted(seen, "event_time_jumps_total", text, "time", now=REMARK)


def agreeing(seen: Observation) -> str:
    """Says how late the stamps are at most; '' where nothing sends."""
    found = clocks(seen)
    latest = max(found, key=lambda each: abs(each.lag_s), default=None)
    return f"stamps are up to {latest.way} the wall clock" if latest else ""


GOOD = {Area.STREAMS: rates, Area.CLOCK: agreeing}

# ---- the table

_FROZEN = (
    "stamps do not move: frames came while doctor looked, and all of them have the stamp of before"
)
_STOPPED = "frames have come without a capture stamp for {lag}; before, they had one"

RULES = {
    Area.STREAMS: (
        Rule("messages-that-are-refused", refused_whole, ""),
        Rule("no-frames", no_frames, ""),
        Rule("a-stream-that-is-silent", silent, "status"),
        Rule("too-many-streams", many, "status"),
        Rule("a-client-that-does-not-read", dropped),
    ),
    Area.CLOCK: (
        of_kind("stamps-that-do-not-move", Kind.FROZEN, _FROZEN),
        of_kind("frames-without-a-stamp", Kind.NONE, "frames come without a capture stamp"),
        of_kind("frames-without-a-stamp", Kind.STOPPED, _STOPPED),
        Rule("stamps-in-another-unit", other_unit, "status"),
        Rule("a-clock-that-is-wrong", off, "status"),
        Rule("stamps-that-count-from-a-start", other_zero, "status"),
        Rule("a-clock-that-is-wrong", apart, "status"),
        Rule("two-machines-with-two-times", ours, "status"),
        Rule("a-clock-that-is-set", set_clock),
        Rule("a-clock-that-is-set", jumps),
    ),
}
