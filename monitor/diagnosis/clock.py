"""Whether capture stamps, the sidecar's clock and ours agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import SECOND_NS, Observation
from monitor.diagnosis.samples import rose
from monitor.diagnosis.stamps import BEHIND_SECONDS, Kind, Stamps, stamps_of
from monitor.diagnosis.words import count, duration, names
from monitor.status import Status

# Two clocks that are farther apart are not both right.
APART_SECONDS = 1.0

_WHY = (
    "Windows, tracks and labels by time go by capture stamps, and one clock among several that is "
    "off is not believed: its frames count since the start only."
)
_DOCS = "docs/degradation.md#the-wall-clock"


def clock(seen: Observation) -> Iterator[Finding]:
    """Of the streams that send; of the sidecar's own where it was asked."""
    status = seen.last.status
    if status is None:
        return
    before = {} if seen.started_anew else seen.before
    all_of_them = [stamps_of(each, before.get(each.stream)) for each in seen.fresh]
    found = [each for each in all_of_them if each.kind is not Kind.FROZEN]
    told = [
        *_frozen([each for each in all_of_them if each.kind is Kind.FROZEN]),
        *_none(found),
        *_units(found),
        *_off(found),
        *_other_zero(found),
        *_apart(found),
        *_ours(seen, status),
        *_steps(seen),
    ]
    yield from told or _well(found)


def _well(found: Sequence[Stamps]) -> Iterator[Finding]:
    if found:
        lags = [each.lag_s for each in found]
        yield well(
            Area.CLOCK,
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


def _frozen(found: Sequence[Stamps]) -> Iterator[Finding]:
    if found:
        yield wrong(
            Area.CLOCK,
            f"{_of(found)}: stamps do not move: frames came while doctor looked, and all of them "
            "have the stamp of before",
            "no event time passes: windows, tracks, trials and drift stand still.",
            "set Frame.stamp_ns to the capture time of each frame, in nanoseconds.",
        )


def _none(found: Sequence[Stamps]) -> Iterator[Finding]:
    without = [each for each in found if each.kind is Kind.NONE]
    if without:
        yield wrong(
            Area.CLOCK,
            f"{_of(without)}: frames come without a capture stamp",
            "they are in no window, are not tracked, and teach no recalibrator.",
            "set Frame.stamp_ns to the capture time, in nanoseconds.",
        )
    stopped = [each for each in found if each.kind is Kind.STOPPED]
    if stopped:
        longest = max(each.lag_s for each in stopped)
        yield wrong(
            Area.CLOCK,
            f"{_of(stopped)}: frames have come without a capture stamp for {duration(longest)}; "
            "before, they had one",
            "they are in no window, are not tracked, and teach no recalibrator.",
            "has the sensor lost its clock? Set Frame.stamp_ns to the capture time.",
        )


def _units(found: Sequence[Stamps]) -> Iterator[Finding]:
    for unit in dict.fromkeys(each.hint for each in found if each.kind is Kind.UNIT):
        such = [each for each in found if each.kind is Kind.UNIT and each.hint == unit]
        yield wrong(
            Area.CLOCK,
            f"{_of(such)}: stamps are not in nanoseconds: as such they are of the year 1970, and "
            f"in {unit} they would be of now",
            f"all durations are wrong by the same factor. {_WHY}",
            f"multiply what goes into Frame.stamp_ns: it is in {unit}, and must be in nanoseconds.",
        )


def _off(found: Sequence[Stamps]) -> Iterator[Finding]:
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
        Area.CLOCK,
        f"{what}{f' ({names(hints)})' if hints else ''}",
        f"the clock of the detector is wrong, or that of this machine. {_WHY}",
        "compare `date -u` on both machines; are they synchronised (`chronyc tracking`, "
        "`timedatectl`, for PTP `pmc -u -b 0 'GET TIME_STATUS_NP'`)? Where a recording is played, "
        f"its stamps are old, and all is as it should be. {_DOCS}",
    )


def _other_zero(found: Sequence[Stamps]) -> Iterator[Finding]:
    other = [each for each in found if each.kind is Kind.OTHER_ZERO]
    if not other:
        return
    what = f"{_of(other)}: stamps count from the start of something, not from 1970"
    if len(other) < len(found) or _spread(other) > APART_SECONDS:
        yield wrong(
            Area.CLOCK,
            f"{what}, and those of the streams do not agree with each other",
            _WHY,
            "stamp all streams by one clock: that of the wall (CLOCK_REALTIME), not the time since "
            "the machine was started (CLOCK_MONOTONIC, std::chrono::steady_clock).",
        )
        return
    yield remark(
        Area.CLOCK,
        f"{what}, as CLOCK_MONOTONIC does, or a recording that is played",
        "the sidecar needs no more than that all streams agree, and they do; but labels by time "
        "must be of the same clock, and times in lists and alarms are no dates.",
        "stamp by the wall clock (CLOCK_REALTIME) if you can.",
    )


def _spread(found: Sequence[Stamps]) -> float:
    return max(each.lag_s for each in found) - min(each.lag_s for each in found)


def _apart(found: Sequence[Stamps]) -> Iterator[Finding]:
    """Streams of the wall clock that do not agree: each alone could be right."""
    sane = sorted((each for each in found if each.kind is Kind.SANE), key=lambda each: each.lag_s)
    if len(sane) < 2 or _spread(sane) <= APART_SECONDS:
        return
    median = sane[len(sane) // 2].lag_s if len(sane) > 2 else sane[0].lag_s
    others = [each for each in sane if abs(each.lag_s - median) > APART_SECONDS]
    ways = [f"{each.stream} {each.way}" for each in others]
    yield wrong(
        Area.CLOCK,
        f"the streams do not agree what time it is: {names(ways)} the wall clock, the others "
        f"{duration(median)}",
        "either the clock of that sensor is wrong, or its frames come late: what is fused by time "
        f"is not of one time. {_WHY}",
        f"compare its clock with that of the others; is it late by less than "
        f"{duration(BEHIND_SECONDS)} on purpose, nothing is to be done. {_DOCS}",
    )


def _ours(seen: Observation, status: Status) -> Iterator[Finding]:
    """Half the way there and back is how exactly the sidecar's clock can be known."""
    apart = (status.now_ns - seen.last.clock_ns) / SECOND_NS
    if abs(apart) > APART_SECONDS + seen.last.round_trip_s / 2:
        way = "ahead of" if apart > 0 else "behind"
        yield wrong(
            Area.CLOCK,
            f"the clock of the sidecar is {duration(apart)} {way} the one here",
            "one of the two machines has the wrong time: logs, audit records and dashboards of "
            "the fleet do not fit together.",
            "`date -u` on both; `timedatectl` or `chronyc tracking` says which is synchronised.",
        )


def _steps(seen: Observation) -> Iterator[Finding]:
    change = seen.change
    if change is None:
        return
    now, ever = change.increase("clock_steps_total"), change.last.value("clock_steps_total")
    if rose(now):
        yield wrong(
            Area.CLOCK,
            "the wall clock of the sidecar was set while doctor looked",
            "a new clock epoch began: watermarks begin anew, ages of labels are uncertain.",
            f"who sets it? One program alone should (chrony or ptp4l), slowly. {_DOCS}",
        )
    elif rose(ever):
        yield remark(
            Area.CLOCK,
            f"the wall clock of the sidecar was set {count(ever, 'time')} since the start",
            "once after the start of a vehicle is usual; more often, two programs set it.",
            f"`chronyc tracking`, `timedatectl`. {_DOCS}",
        )
    jumps = change.last.value("event_time_jumps_total")
    if rose(jumps):
        yield remark(
            Area.CLOCK,
            f"event time began anew or jumped ahead {count(jumps, 'time')} since the start: stamps "
            "are not of one clock throughout",
            "windows that were under way began anew.",
            "was a recording played again, or a sensor's clock set?",
        )
