"""All that is to be said of a sidecar, the worst first; and what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from monitor.diagnosis.clock import clock
from monitor.diagnosis.configuration import configuration
from monitor.diagnosis.disk import disk
from monitor.diagnosis.drift import drift
from monitor.diagnosis.finding import AREAS, Area, Finding, Severity
from monitor.diagnosis.labels import labels
from monitor.diagnosis.load import load
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.reach import reach
from monitor.diagnosis.recalibration import recalibration
from monitor.diagnosis.refusals import refusals
from monitor.diagnosis.streams import streams
from monitor.diagnosis.tracker import tracker
from monitor.diagnosis.versions import versions
from monitor.diagnosis.words import be, count

_LOOKED_AT: tuple[Callable[[Observation], Iterator[Finding]], ...] = (
    *(reach, streams, clock, drift, tracker, labels, refusals, load, disk),
    *(recalibration, configuration, versions),
)


def diagnose(seen: Observation) -> tuple[Finding, ...]:
    """Findings: wrong ones, remarks, then what is well; each in the order of Area."""
    return tuple(sorted((finding for look in _LOOKED_AT for finding in look(seen)), key=rank))


def rank(finding: Finding) -> tuple[int, float]:
    """By which they are sorted. Remarks on streams, such as one that is long gone, explain nothing
    of the clock, and come after it.
    """
    late = finding.severity is Severity.REMARK and finding.area is Area.STREAMS
    return finding.severity, AREAS.index(Area.CLOCK) + 0.5 if late else AREAS.index(finding.area)


def verdict(found: Sequence[Finding]) -> str:
    """Nothing is wrong, 2 remarks; 3 things are wrong."""
    wrong = sum(each.severity is Severity.WRONG for each in found)
    remarks = sum(each.severity is Severity.REMARK for each in found)
    text = f"{count(wrong, 'thing')} {be(wrong)} wrong" if wrong else "nothing is wrong"
    return f"{text}, {count(remarks, 'remark')}" if remarks else text
