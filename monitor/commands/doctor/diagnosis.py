"""calibration-monitor doctor: what is wrong with a running sidecar, why, and what to do.

The checks of all areas are called here; none is written here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from monitor import __version__
from monitor.commands.doctor.finding import AREAS, Area, Finding, Severity
from monitor.commands.doctor.labels import labels
from monitor.commands.doctor.load import load, refusals
from monitor.commands.doctor.look import look
from monitor.commands.doctor.machine import configuration, disk, versions
from monitor.commands.doctor.observation import Observation
from monitor.commands.doctor.reach import reach
from monitor.commands.doctor.recalibration import drift, recalibration, tracker
from monitor.commands.doctor.streams import clock, streams
from monitor.commands.doctor.words import be, count, duration
from monitor.commands.options import add_value, plain, seconds_above_zero, shown
from monitor.commands.sidecar_client import access_of, add_sidecar
from monitor.config import split_address

EXAMPLE = """examples:
  calibration-monitor doctor
  calibration-monitor doctor --address 10.0.0.7:50051 --http-address 10.0.0.7:9464 --json
  docker exec NAME calibration-monitor doctor
  kubectl exec POD -c CONTAINER -- calibration-monitor doctor"""

_LOOKED_AT: tuple[Callable[[Observation], Iterator[Finding]], ...] = (
    *(reach, streams, clock, drift, tracker, labels, refusals, load, disk),
    *(recalibration, configuration, versions),
)

_WIDTH = 100
_LABELS = ("WRONG", "remark", "well")
_MOST_SECONDS = 600.0
wall_clock_ns = time.time_ns


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_sidecar(parser)
    text = "of its /metrics (default 127.0.0.1:9464)"
    add_value(parser, "--http-address", "H:P", text, default="127.0.0.1:9464")
    text = "to watch, between two looks; more than [metrics] refresh_seconds (default 5)"
    add_value(parser, "--seconds", "S", text, _seconds, default=5.0)
    text = "seconds within which truth is due; more, where labels come in batches (default 1800)"
    add_value(parser, "--truth-within", "S", text, seconds_above_zero, default=1800.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _seconds(text: str) -> float:
    value = seconds_above_zero(text)
    if value > _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text}': at most {_MOST_SECONDS:g} seconds")
    return value


def run(options: argparse.Namespace) -> int:
    """0 where nothing is wrong; 1: something is, or the sidecar cannot be reached.

    Raises InvalidAccess, and ValueError for an address that is none.
    """
    split_address(options.address, "--address")
    split_address(options.http_address, "--http-address")
    # Doctor must reach the sidecar itself, as it does by HTTP.
    access = replace(access_of(options), direct=True)
    seen = Observation(
        options.address,
        options.http_address,
        __version__,
        bool(access.certificate_authority),
        truth_within_s=options.truth_within,
    )
    seen = asyncio.run(look(seen, access, wall_clock_ns, options.seconds))
    found = diagnose(seen)
    if options.json:
        print(json.dumps(as_object(seen, found)))
    else:
        print("\n".join(lines(seen, found)))
    return int(_number(found, Severity.WRONG) > 0)


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
    wrong, remarks = _number(found, Severity.WRONG), _number(found, Severity.REMARK)
    text = f"{count(wrong, 'thing')} {be(wrong)} wrong" if wrong else "nothing is wrong"
    return f"{text}, {count(remarks, 'remark')}" if remarks else text


def _number(found: Sequence[Finding], severity: Severity) -> int:
    return sum(each.severity is severity for each in found)


def as_object(seen: Observation, found: Sequence[Finding]) -> dict[str, object]:
    """The object that --json prints; a finding has severity, area, what, why and remedy."""
    return {
        "address": seen.address,
        "http_address": seen.http_address,
        "verdict": verdict(found),
        "wrong": _number(found, Severity.WRONG),
        "remarks": _number(found, Severity.REMARK),
        "findings": [plain(each) for each in found],
    }


def lines(seen: Observation, found: Sequence[Finding]) -> Iterator[str]:
    """The verdict, then the findings; words of others leave the terminal alone."""
    watched = seen.last.at_s - seen.first.at_s
    looked = f", watched for {duration(watched)}" if seen.first.at_s else ""
    yield f"sidecar at {shown(seen.address)}{looked}: {verdict(found)}"
    previous = None
    for each in found:
        if each.severity is not Severity.WELL or previous is not Severity.WELL:
            yield ""
        previous = each.severity
        if each.severity is Severity.WELL:
            yield _entry(each, each.what)
            continue
        yield _entry(each, f"{each.what}.")
        yield _paragraph("        why: ", each.why)
        yield _paragraph("        do:  ", each.remedy)


def _entry(finding: Finding, text: str) -> str:
    return _paragraph(f"{_LABELS[finding.severity]:<7} {finding.area}: ", text, 8)


def _paragraph(head: str, text: str, indent: int = 13) -> str:
    return textwrap.fill(
        f"{head}{shown(text)}",
        _WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
