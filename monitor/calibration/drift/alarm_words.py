"""Alarms of drift in a sentence, for logs, terminals and reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monitor.calibration.drift.alarm import Alarm, AlarmChange, Scale, Why
from monitor.calibration.drift.charts import Direction
from monitor.calibration.slices import TOTAL

# Hours beyond these are told by their power of ten alone.
FEWEST_HOURS, MOST_HOURS = 1e-3, 1e6
# A clock that shows less is counted from the start of something: a drive, or a machine. ns.
WALL_CLOCK = 10**17

WRONG = {Direction.OVER: "overconfident", Direction.UNDER: "underconfident"}


def change_sentence(change: AlarmChange) -> str:
    """What became of an alarm, by whom, and the alarm itself."""
    what = alarm_sentence(change.alarm)
    match change.why:
        case Why.RAISED:
            concerned = f"; slices that may be meant as well: {', '.join(change.concerned)}"
            return f"raised: {what}{concerned if change.concerned else ''}"
        case Why.ACKNOWLEDGED:
            return f"over, acknowledged by {change.actor}: {what}"
        case Why.NEW_EPOCH:
            return f"over, another recalibrator serves the slice: {what}"
        case Why.CALM:
            return f"over, nothing came of it: {what}"


def alarm_sentence(alarm: Alarm) -> str:
    """What is wrong, since when, and how sure that is.

    page: Car, recalibrated overconfident: standard deviations 2.2 times too small (1.9 to 2.6)
    since 12.3 s, 7 tracks, 214 detections; evidence 1,030 h of 1,000 h, by track
    """
    slice = "all slices together" if alarm.slice == TOTAL else alarm.slice
    seen = [_count(alarm.tracks, "track")] if alarm.tracks else []
    seen.append(_count(alarm.detections, "detection"))
    return (
        f"{alarm.severity}: {slice}, {alarm.stage.label} {WRONG[alarm.direction]}: "
        f"standard deviations {_size(alarm.scale)} since {moment(alarm.since_ns)}, "
        f"{', '.join(seen)}; evidence {hours(alarm.evidence)} of {hours(alarm.threshold)}, "
        f"by {alarm.detector}"
    )


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}{'' if number == 1 else 's'}"


def _size(scale: Scale) -> str:
    """2.2 times too small (1.9 to 2.6)."""
    error = size_of_error(scale)
    if error is None:
        return "off by an unknown factor"
    text = f"{error.factor} times {error.way}"
    return f"{text} ({' to '.join(error.interval)})" if error.interval else text


@dataclass(frozen=True, slots=True)
class SizeOfError:
    """How standard deviations are wrong, in words and digits.

    way       too small or too large
    factor    by which they are, at least 1: a scale of 0.5 is too large by 2
    interval  its ends; empty where they are unknown
    """

    way: str
    factor: str
    interval: tuple[str, ...]


def size_of_error(scale: Scale) -> SizeOfError | None:
    """None where it is unknown."""
    if not _known(scale.estimate):
        return None
    ends = (scale.lower, scale.upper) if _known(scale.lower) and _known(scale.upper) else ()
    if scale.estimate >= 1:
        return SizeOfError("too small", _factor(scale.estimate), tuple(map(_factor, ends)))
    interval = tuple(_factor(1 / end) for end in reversed(ends))
    return SizeOfError("too large", _factor(1 / scale.estimate), interval)


def _known(value: float) -> bool:
    return 0 < value < math.inf


def _factor(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def hours(value: float) -> str:
    """1,030 h; 10^12.3 h where the number would be a row of digits."""
    if value == 0:
        return "0 h"
    if not FEWEST_HOURS <= value < MOST_HOURS:
        return f"10^{power_of_ten(value)} h"
    return f"{value:,.0f} h" if value >= 100 else f"{value:.3g} h"


def power_of_ten(value: float) -> str:
    """log10, with one decimal; -∞ of nothing."""
    return f"{math.log10(value):.1f}" if value else "-∞"


def moment(time_ns: int) -> str:
    """An event time: date and time of a wall clock (UTC), else the seconds that it shows."""
    if abs(time_ns) < WALL_CLOCK:
        return f"{time_ns / 1e9:,.1f} s"
    return str(np.datetime64(time_ns // 10**8 * 100, "ms")).replace("T", " ")[:-2]
