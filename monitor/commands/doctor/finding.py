"""A finding of doctor: its severity, its area, the fact, why that matters, what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias

from monitor.commands.doctor.observation import Observation


class Severity(IntEnum):
    """The worst first."""

    WRONG = 0  # somebody should act
    REMARK = 1  # good to know; it may be meant
    WELL = 2


class Area(StrEnum):
    """Areas that are looked at, in the order in which one thing explains the next."""

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


# A finding without its area: severity, what, why, remedy.
Told: TypeAlias = tuple[Severity, str, str, str]


def wrong(what: str, why: str, remedy: str) -> Told:
    """Tells what somebody should act on."""
    return Severity.WRONG, what.rstrip("."), why, remedy


def remark(what: str, why: str, remedy: str) -> Told:
    """Tells what is good to know."""
    return Severity.REMARK, what.rstrip("."), why, remedy


def well(what: str) -> Told:
    """Tells what needs no action."""
    return Severity.WELL, what, "", ""


Check: TypeAlias = Callable[[Observation], Iterator[Finding]]


def about(
    area: Area, *, by_metrics: bool = False
) -> Callable[[Callable[[Observation], Iterator[Told]]], Check]:
    """Decorates a check: all that it tells becomes a finding of this area.

    by_metrics  it judges by the metrics alone, and is left out where none were seen
    """

    def decorate(check: Callable[[Observation], Iterator[Told]]) -> Check:
        def found(seen: Observation) -> Iterator[Finding]:
            if by_metrics and seen.last.samples is None:
                return
            for told in check(seen):
                yield Finding(told[0], area, *told[1:])

        return functools.update_wrapper(found, check)

    return decorate
