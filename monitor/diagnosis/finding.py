"""What was found: how bad it is, where, what exactly, why that matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """The worst first."""

    WRONG = 0  # somebody should act
    REMARK = 1  # good to know; it may be meant
    WELL = 2


class Area(StrEnum):
    """What is looked at, in the order in which one thing explains the next."""

    REACH = "reach"
    STREAMS = "streams"
    CLOCK = "clock"
    DRIFT = "drift"
    TRACKER = "tracker"
    LABELS = "labels"
    REFUSALS = "refusals"
    LOAD = "load"
    DISK = "disk"
    RECALIBRATION = "recalibration"
    CONFIGURATION = "configuration"
    VERSIONS = "versions"


AREAS = tuple(Area)


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them, in sentences.

    what    is so, with numbers; without a full stop, also where words of others end it
    why     it matters; '' where all is well
    remedy  a command, a setting, or where to read on; '' where all is well
    """

    severity: Severity
    area: Area
    what: str
    why: str = ""
    remedy: str = ""


def wrong(area: Area, what: str, why: str, remedy: str) -> Finding:
    """Somebody should act."""
    return Finding(Severity.WRONG, area, what.rstrip("."), why, remedy)


def remark(area: Area, what: str, why: str, remedy: str) -> Finding:
    """Good to know."""
    return Finding(Severity.REMARK, area, what.rstrip("."), why, remedy)


def well(area: Area, what: str) -> Finding:
    """Nothing to do."""
    return Finding(Severity.WELL, area, what)
