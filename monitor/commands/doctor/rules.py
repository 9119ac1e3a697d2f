"""Rules of doctor: what a finding is, the thresholds, the shapes that most rules have, and how
numbers are written.

A rule yields a severity and a sentence; why that matters and what to do is in the paragraph of
docs/runbook.md or docs/doctor.md that its anchor names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal, TypeAlias

from monitor.commands.doctor.look import Observation


class Severity(IntEnum):
    """The worst first."""

    WRONG = 0  # somebody should act
    REMARK = 1  # good to know; it may be meant
    WELL = 2


WRONG, REMARK = Severity.WRONG, Severity.REMARK


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
    remedy  what to do, and where that is written; '' where all is well
    """

    severity: Severity
    area: Area
    what: str
    why: str = ""
    remedy: str = ""


Found: TypeAlias = Iterator[tuple[Severity, str]]
Check: TypeAlias = Callable[[Observation], Found]


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that may be wrong.

    anchor  of the paragraph that says why it matters, and what to do
    check   yields what is so, once for each case; nothing where all is well
    needs   without it nothing can be told, and the check is not called
    """

    anchor: str
    check: Check
    needs: Literal["metrics", "status", ""] = "metrics"

    def applies(self, seen: Observation) -> bool:
        """Tells if what it needs was seen."""
        needed = {"metrics": seen.last.samples, "status": seen.last.status, "": seen}
        return needed[self.needs] is not None


def counted(
    seen: Observation,
    name: str,
    text: str,
    of: str,
    now: Severity = WRONG,
    ever: Severity | None = REMARK,
    **labels: str,
) -> Found:
    """Finds a counter that has counted anything; it is told apart while it rises.

    text  with {} for the number
    now   the severity while it rises
    ever  the severity when it stands; None: nothing is told then
    """
    total, rises = seen.now.value(name, **labels), seen.increase(name, **labels) > 0
    severity = now if rises else ever
    if total > 0 and severity is not None:
        some = ", and some while doctor looked" if rises else ""
        yield severity, f"{text.format(count(total, of))} since the start{some}"


def lately(
    seen: Observation, name: str, label: str, words: Sequence[str] = ()
) -> tuple[Severity, dict[str, float], str]:
    """Reads a counter by label: what was added while doctor looked, else all since the start.

    words    the values of the label that are read; all where there are none
    returns  WRONG if it rose, else REMARK; the numbers above 0; when that was
    """

    def above_0(numbers: Mapping[str, float]) -> dict[str, float]:
        return {word: n for word, n in numbers.items() if n > 0 and word in (words or numbers)}

    if found := above_0(seen.increases(name, label)):
        return WRONG, found, "while doctor looked"
    return REMARK, above_0(seen.now.by(name, label)), "since the start"


def part_of(
    seen: Observation, name: str, label: str, whole: str, but: Sequence[str] = ()
) -> tuple[dict[str, float], float, float, str]:
    """Reads a counter by label, its sum, that of the whole, and when that was.

    whole  the counter that it is a part of: while doctor looked, else since the start
    but    values of the label that are not counted
    """
    now = seen.increase(whole)
    when, all_of_it, found = "while doctor looked", now, seen.increases(name, label)
    if not now > 0:
        when, all_of_it, found = "since the start", seen.now.value(whole), seen.now.by(name, label)
    found = {word: n for word, n in found.items() if n > 0 and word not in but}
    return found, sum(found.values()), all_of_it, when


# ---- numbers, times and shares as people say them

# Names beyond these are only counted.
_MOST_NAMES = 5
_TIMES = (
    (2 * 31_557_600, 31_557_600, "years"),
    (2 * 86_400, 86_400, "days"),
    (90 * 60, 3600, "h"),
    (120, 60, "min"),
    (0.9995, 1, "s"),
    (0, 0.001, "ms"),
)


def duration(seconds: float) -> str:
    """35 ms, 1.5 s, 42 min, 3.2 h, 12 days, 57 years; without a sign."""
    seconds = abs(seconds)
    for least, unit, name in _TIMES:
        if math.isfinite(seconds) and seconds >= least:
            value = seconds / unit
            return f"{value:.2g} {name}" if value < 9.95 else f"{value:.0f} {name}"
    return "an unknown time"


def count(number: float, of: str) -> str:
    """1 frame, 2,040 frames."""
    if not math.isfinite(number):
        return f"an unknown number of {of}s"
    text = f"{number:,.0f}"
    return f"{text} {of}{'' if text == '1' else 's'}"


def share(part: float, whole: float = 1.0) -> str:
    """As a percentage; 0 % is none at all, 100 % all of them."""
    percent = 100 * part / whole if whole else 0.0
    if not math.isfinite(percent):
        return "an unknown share"
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    if percent < 10:
        return f"{percent:.2g} %"
    return "99.9 %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def names(given: Sequence[str]) -> str:
    """a, b and c; a, b, c, d, e and 3 more."""
    if not given:
        return "none"
    if len(given) > _MOST_NAMES:
        return f"{', '.join(given[:_MOST_NAMES])} and {len(given) - _MOST_NAMES} more"
    return given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}"


def shares(counts: Mapping[str, float], whole: float) -> str:
    """orphan 80 %, too_late 12 %: the largest first, none that are 0."""
    found = sorted(((n, name) for name, n in counts.items() if n > 0), reverse=True)
    return names([f"{name} {share(n, whole)}" for n, name in found])


def be(of: float) -> str:
    """One is, several are."""
    return "is" if of == 1 else "are"
