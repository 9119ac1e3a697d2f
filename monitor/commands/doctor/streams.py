"""Checks the streams of frames: that they come, that their stamps agree with the clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.load import header_refusals
from monitor.commands.doctor.observation import SECOND_NS, SILENT_SECONDS, Observation, rose
from monitor.commands.doctor.words import be, count, duration, names, number, shares
from monitor.frames.status import Status, StreamStatus

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

_WHY = (
    "Windows, tracks and labels by time go by capture stamps, and one clock among several that is "
    "off is not believed: its frames count since the start only."
)

_NO_EVENT_TIME = "they are in no window, are not tracked, and teach no recalibrator."
_DOCS = "docs/degradation.md#the-wall-clock"

# Of [server] max_streams, from which on it is told.
_NEARLY_ALL = 0.8

# A stream that is silent for longer, while others send, may be meant to be gone.
GONE_SECONDS = 3600.0

_SENSOR_GONE = (
    "that sensor is not corrected, and its measures stand still.",
    "is the sensor or its detector down? Where it is meant to be gone: its name is known, and told "
    "of here, until the sidecar starts anew.",
)


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


@about(Area.STREAMS)
def streams(seen: Observation) -> Iterator[Told]:
    """Judges by the status, or where it was not seen, by what was counted."""
    status = seen.last.status
    if status is None:
        yield from _counted(seen)
        return
    found = [*_silent(seen, status), *_many(seen, status)]
    yield from found or [well(_rates(seen, status))]


def _rates(seen: Observation, status: Status) -> str:
    seconds = seen.last.at_s - seen.first.at_s
    text = f"{count(len(status.streams), 'stream')}"
    if seconds <= 0 or seen.first.status is None or seen.started_anew:
        return text
    before = [seen.before.get(each.stream, StreamStatus(each.stream)) for each in status.streams]
    pairs = list(zip(status.streams, before, strict=True))
    frames = sum(now.frames - first.frames for now, first in pairs) / seconds
    detections = sum(now.detections - first.detections for now, first in pairs) / seconds
    return f"{text}, {number(frames)} frames/s, {number(detections)} detections/s"


def _silent(seen: Observation, status: Status) -> Iterator[Told]:
    why = "nothing is corrected, measured or watched."
    remedy = (
        "is the detector running, and does it send to this address? Its own log and "
        "`MonitorClient.counters.raw` say what it hears from here. docs/degradation.md"
    )
    silences = {each.stream: seen.silence_s(each) for each in status.streams}
    if min(silences.values(), default=math.inf) >= SILENT_SECONDS and _refused_whole(seen):
        yield _all_refused(seen)
        return
    if not any(each.frames for each in status.streams):
        remedy = f"{_given_up(seen)}{remedy}"
        opened = (
            f"; {count(len(status.streams), 'stream')} {be(len(status.streams))} open, and empty"
        )
        yield wrong(
            f"nobody sends frames: none has come since the start {duration(seen.up_s)} ago"
            f"{opened if status.streams else ''}",
            why,
            remedy,
        )
        return
    shortest = min(silences.values())
    if shortest >= SILENT_SECONDS:
        yield wrong(f"no frames have come for {duration(shortest)}, of no stream", why, remedy)
        return
    silent = {name: each for name, each in silences.items() if each >= SILENT_SECONDS}
    gone = {name: each for name, each in silent.items() if GONE_SECONDS < each < math.inf}
    lately = {name: each for name, each in silent.items() if name not in gone}
    if lately:
        yield wrong(_silence(lately), *_SENSOR_GONE)
    if gone:
        yield remark(_silence(gone), *_SENSOR_GONE)


def _silence(silent: Mapping[str, float]) -> str:
    texts = [
        f"{name} for {duration(each)}" if math.isfinite(each) else f"{name} since the start"
        for name, each in sorted(silent.items())
    ]
    of = "a stream is" if len(silent) == 1 else f"{len(silent)} streams are"
    return f"{of} silent while others send: {names(texts)}"


def _refused_whole(seen: Observation) -> dict[str, float]:
    """Messages by reason, between the looks; none where a frame was taken: then some of these
    may be detections of it.
    """
    change = seen.change
    if rose(change.increase("frames_total")):
        return {}
    found = change.increases("rejected_total", "reason")
    return {reason: n for reason, n in found.items() if n > 0}


def _all_refused(seen: Observation) -> Told:
    found = _refused_whole(seen)
    total = sum(found.values())
    seconds = seen.last.at_s - seen.first.at_s
    return wrong(
        f"messages come, and are refused as a whole: {count(total, 'message')} in "
        f"{duration(seconds)} ({shares(found, total)}), and no frame was taken",
        "nothing is corrected, measured or watched.",
        "see refusals; the detector is there, and its own log has what it is answered.",
    )


def _given_up(seen: Observation) -> str:
    """Where nothing was ever taken: perhaps because nothing could be."""
    ever = seen.change.last.by("rejected_total", "reason")
    total = sum(n for n in ever.values() if n > 0)
    if not rose(total):
        return ""
    return (
        f"{count(total, 'message')} came since the start and had to be refused "
        f"({shares(ever, total)}): has a client given up? "
    )


def _many(seen: Observation, status: Status) -> Iterator[Told]:
    here, most = len(status.streams), seen.limits.streams
    refused = sum(header_refusals(seen.change).values())
    if here >= most and rose(refused):
        yield wrong(
            f"{here} of at most {most} names of streams are taken, and "
            f"{count(refused, 'message')} without a header that is accepted came while doctor "
            "looked: of further names, as it seems",
            "what has a further name goes on uncorrected. Names are taken until the sidecar starts "
            "anew: does a client make up a new one each time?",
            "name streams after sensors; raise [server] max_streams (64 where the file does not "
            "say) if there are so many, and restart the sidecar.",
        )
    elif here >= _NEARLY_ALL * most:
        yield remark(
            f"{here} of at most {most} names of streams are taken",
            "a stream with a further name is refused, and its detections go on uncorrected. Names "
            "are taken until the sidecar starts anew: does a client make up a new one each time?",
            "name streams after sensors; raise [server] max_streams if there are so many.",
        )
    dropped = seen.change.increase("streams_dropped_total")
    if rose(dropped):
        yield wrong(
            f"{count(dropped, 'stream')} ended while doctor "
            "looked, because the client read no answers",
            "that detector goes on uncorrected until it opens a stream again.",
            "a client must read while it sends; [server] write_timeout_seconds is its patience. "
            "docs/degradation.md",
        )


def _counted(seen: Observation) -> Iterator[Told]:
    """Without the status, only whether frames were added."""
    change = seen.change
    if seen.last.samples is None or not seen.refreshed:
        return
    if not rose(change.increase("frames_total")):
        if _refused_whole(seen):
            yield _all_refused(seen)
            return
        yield wrong(
            f"no frame was counted in {duration(change.seconds)}",
            "nothing is corrected, measured or watched.",
            "is the detector running, and does it send to this address? docs/degradation.md",
        )
        return
    yield well(f"{count(change.last.value('streams'), 'stream')}, frames come")


@about(Area.CLOCK)
def clock(seen: Observation) -> Iterator[Told]:
    """Checks the clocks of the streams that send, and that of the sidecar if it was asked."""
    status = seen.last.status
    if status is None:
        return
    before = {} if seen.started_anew else seen.before
    stamps = [stamps_of(each, before.get(each.stream)) for each in seen.fresh]
    moving = [each for each in stamps if each.kind is not Kind.FROZEN]
    told = [*_useless(stamps), *_off(moving), *_other_zero(moving), *_apart(moving)]
    told += [*_ours(seen, status), *_steps(seen)]
    yield from told or _well(moving)


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
    """Names the mistake behind stamps that are of nearly the right time."""
    for ahead, scale in _SCALES:
        if abs(lag + ahead) < _SCALE_TOLERANCE:
            return f"{ahead:.0f} s ahead of UTC is {scale}"
    halves = round(lag / _HALF_HOUR)
    near_zone = abs(lag - halves * _HALF_HOUR) < _ZONE_TOLERANCE
    if halves and near_zone and abs(lag) <= _MOST_ZONE + _ZONE_TOLERANCE:
        return "whole half hours look like local time in place of UTC"
    return ""


def _well(found: Sequence[Stamps]) -> Iterator[Told]:
    if found:
        lags = [each.lag_s for each in found]
        yield well(
            f"stamps are {_ways(min(lags), max(lags))} the wall clock, which is that of here",
        )


def _ways(least: float, most: float) -> str:
    """Up to 40 ms behind; up to 3 ms ahead of and 40 ms behind."""
    if least < 0 < most:
        return f"up to {duration(least)} ahead of and {duration(most)} behind"
    if most <= 0:
        return f"up to {duration(least)} ahead of"
    return f"up to {duration(most)} behind"


def _of(found: Sequence[Stamps]) -> str:
    return f"stream{'' if len(found) == 1 else 's'} {names([each.stream for each in found])}"


def _useless(stamps: Sequence[Stamps]) -> Iterator[Told]:
    """Finds stamps that do not move, are missing, or are in another unit than nanoseconds."""
    frozen, without, stopped, other_unit = (
        [each for each in stamps if each.kind is kind]
        for kind in (Kind.FROZEN, Kind.NONE, Kind.STOPPED, Kind.UNIT)
    )
    if frozen:
        yield wrong(
            f"{_of(frozen)}: stamps do not move: frames came while doctor looked, and all of them "
            "have the stamp of before",
            "no event time passes: windows, tracks, trials and drift stand still.",
            "set Frame.stamp_ns to the capture time of each frame, in nanoseconds.",
        )
    if without:
        yield wrong(
            f"{_of(without)}: frames come without a capture stamp",
            _NO_EVENT_TIME,
            "set Frame.stamp_ns to the capture time, in nanoseconds.",
        )
    if stopped:
        longest = max(each.lag_s for each in stopped)
        yield wrong(
            f"{_of(stopped)}: frames have come without a capture stamp for {duration(longest)}; "
            "before, they had one",
            _NO_EVENT_TIME,
            "has the sensor lost its clock? Set Frame.stamp_ns to the capture time.",
        )
    for unit in dict.fromkeys(each.hint for each in other_unit):
        yield wrong(
            f"{_of([each for each in other_unit if each.hint == unit])}: stamps are not in "
            f"nanoseconds: as such they are of the year 1970, and in {unit} they would be of now",
            f"all durations are wrong by the same factor. {_WHY}",
            f"multiply what goes into Frame.stamp_ns: it is in {unit}, and must be in nanoseconds.",
        )


def _off(found: Sequence[Stamps]) -> Iterator[Told]:
    off = [each for each in found if each.kind is Kind.OFF]
    if not off:
        return
    if len(off) == len(found) and len(off) > 1 and _spread(off) <= APART_SECONDS:
        what = f"stamps of all {len(off)} streams are {off[0].way} the wall clock"
    elif len(off) == 1:
        what = f"the stamps of stream {off[0].stream} are {off[0].way} the wall clock"
    else:
        ways = [f"{each.stream} {each.way}" for each in off]
        what = f"the stamps of {len(off)} streams are not of now: {names(ways)} the wall clock"
    hints = list(dict.fromkeys(each.hint for each in off if each.hint))
    yield wrong(
        f"{what}{f' ({names(hints)})' if hints else ''}",
        f"the clock of the detector is wrong, or that of this machine. {_WHY}",
        "compare `date -u` on both machines; are they synchronised (`chronyc tracking`, "
        "`timedatectl`, for PTP `pmc -u -b 0 'GET TIME_STATUS_NP'`)? Where a recording is played, "
        f"its stamps are old, and all is as it should be. {_DOCS}",
    )


def _other_zero(found: Sequence[Stamps]) -> Iterator[Told]:
    other = [each for each in found if each.kind is Kind.OTHER_ZERO]
    if not other:
        return
    what = f"{_of(other)}: stamps count from the start of something, not from 1970"
    if len(other) < len(found) or _spread(other) > APART_SECONDS:
        yield wrong(
            f"{what}, and those of the streams do not agree with each other",
            _WHY,
            "stamp all streams by one clock: that of the wall (CLOCK_REALTIME), not the time since "
            "the machine was started (CLOCK_MONOTONIC, std::chrono::steady_clock).",
        )
        return
    yield remark(
        f"{what}, as CLOCK_MONOTONIC does, or a recording that is played",
        "the sidecar needs no more than that all streams agree, and they do; but labels by time "
        "must be of the same clock, and times in lists and alarms are no dates.",
        "stamp by the wall clock (CLOCK_REALTIME) if you can.",
    )


def _spread(found: Sequence[Stamps]) -> float:
    return max(each.lag_s for each in found) - min(each.lag_s for each in found)


def _apart(found: Sequence[Stamps]) -> Iterator[Told]:
    """Streams of the wall clock that do not agree: each alone could be right."""
    sane = sorted((each for each in found if each.kind is Kind.SANE), key=lambda each: each.lag_s)
    if len(sane) < 2 or _spread(sane) <= APART_SECONDS:
        return
    median = sane[len(sane) // 2].lag_s if len(sane) > 2 else sane[0].lag_s
    others = [each for each in sane if abs(each.lag_s - median) > APART_SECONDS]
    ways = [f"{each.stream} {each.way}" for each in others]
    yield wrong(
        f"the streams do not agree what time it is: {names(ways)} the wall clock, the others "
        f"{duration(median)}",
        "either the clock of that sensor is wrong, or its frames come late: what is fused by time "
        f"is not of one time. {_WHY}",
        f"compare its clock with that of the others; is it late by less than "
        f"{duration(BEHIND_SECONDS)} on purpose, nothing is to be done. {_DOCS}",
    )


def _ours(seen: Observation, status: Status) -> Iterator[Told]:
    """Half the way there and back is how exactly the sidecar's clock can be known."""
    apart = (status.now_ns - seen.last.clock_ns) / SECOND_NS
    if abs(apart) > APART_SECONDS + seen.last.round_trip_s / 2:
        way = "ahead of" if apart > 0 else "behind"
        yield wrong(
            f"the clock of the sidecar is {duration(apart)} {way} the one here",
            "one of the two machines has the wrong time: logs, audit records and dashboards of "
            "the fleet do not fit together.",
            "`date -u` on both; `timedatectl` or `chronyc tracking` says which is synchronised.",
        )


def _steps(seen: Observation) -> Iterator[Told]:
    change = seen.change
    now, ever = change.increase("clock_steps_total"), change.last.value("clock_steps_total")
    if rose(now):
        yield wrong(
            "the wall clock of the sidecar was set while doctor looked",
            "a new clock epoch began: watermarks begin anew, ages of labels are uncertain.",
            f"who sets it? One program alone should (chrony or ptp4l), slowly. {_DOCS}",
        )
    elif rose(ever):
        yield remark(
            f"the wall clock of the sidecar was set {count(ever, 'time')} since the start",
            "once after the start of a vehicle is usual; more often, two programs set it.",
            f"`chronyc tracking`, `timedatectl`. {_DOCS}",
        )
    jumps = change.last.value("event_time_jumps_total")
    if rose(jumps):
        yield remark(
            f"event time began anew or jumped ahead {count(jumps, 'time')} since the start: stamps "
            "are not of one clock throughout",
            "windows that were under way began anew.",
            "was a recording played again, or a sensor's clock set?",
        )
