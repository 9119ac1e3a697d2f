"""calibration-monitor doctor: what is wrong with a running sidecar, why, and what to do."""

from __future__ import annotations

import argparse
import asyncio
import json
import textwrap
import time
from collections.abc import Iterator, Sequence

from monitor.config import split_address
from monitor.diagnosis.diagnose import diagnose, verdict
from monitor.diagnosis.finding import Finding, Severity
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.words import duration
from monitor.edges.status_client import direct
from monitor.verbs.access import access_of, add_sidecar
from monitor.verbs.doctor_look import Place, look
from monitor.verbs.option_values import seconds_above_zero
from monitor.verbs.printed import plain, shown

EXAMPLE = """examples:
  calibration-monitor doctor
  calibration-monitor doctor --address 10.0.0.7:50051 --http-address 10.0.0.7:9464 --json
  docker exec NAME calibration-monitor doctor
  kubectl exec POD -c CONTAINER -- calibration-monitor doctor"""

_WIDTH = 100
_LABELS = ("WRONG", "remark", "well")
_MOST_SECONDS = 600.0

wall_clock_ns = time.time_ns


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    add_sidecar(parser)
    parser.add_argument(
        "--http-address",
        metavar="H:P",
        default="127.0.0.1:9464",
        help="of its /metrics (default 127.0.0.1:9464)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=_seconds,
        default=5.0,
        help="to watch, between two looks; more than [metrics] refresh_seconds (default 5)",
    )
    parser.add_argument(
        "--truth-within",
        metavar="S",
        type=seconds_above_zero,
        default=1800.0,
        help="seconds within which truth is due; more, where labels come in batches (default 1800)",
    )
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
    access = direct(access_of(options))
    place = Place(options.address, options.http_address, access, wall_clock_ns)
    seen = asyncio.run(look(place, options.seconds, options.truth_within))
    found = diagnose(seen)
    if options.json:
        print(json.dumps(as_object(seen, found)))
    else:
        print("\n".join(lines(seen, found)))
    return int(any(each.severity is Severity.WRONG for each in found))


def as_object(seen: Observation, found: Sequence[Finding]) -> dict[str, object]:
    """What --json prints; a finding has severity, area, what, why and remedy."""
    return {
        "address": seen.address,
        "http_address": seen.http_address,
        "verdict": verdict(found),
        "wrong": sum(each.severity is Severity.WRONG for each in found),
        "remarks": sum(each.severity is Severity.REMARK for each in found),
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
        yield _paragraph("why", each.why)
        yield _paragraph("do", each.remedy)


def _entry(finding: Finding, text: str) -> str:
    label = _LABELS[finding.severity]
    head = f"{label:<7} {finding.area}: "
    return textwrap.fill(
        f"{head}{shown(text)}",
        _WIDTH,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _paragraph(head: str, text: str) -> str:
    return textwrap.fill(
        shown(text),
        _WIDTH,
        initial_indent=f"        {head + ':':<5}",
        subsequent_indent=" " * 13,
        break_long_words=False,
        break_on_hyphens=False,
    )
