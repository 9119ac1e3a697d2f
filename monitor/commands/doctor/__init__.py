"""calibration-monitor doctor: what is wrong with a running sidecar, why, and what to do.

The checks of all areas are called here; none is written here.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from monitor import __version__
from monitor.commands.doctor import calibration_rules, sidecar_rules, stream_rules
from monitor.commands.doctor.look import Observation, watch
from monitor.commands.doctor.rules import AREAS, Area, Finding, Severity, be, count, duration
from monitor.commands.output import plain, shown, tell
from monitor.commands.sidecar_client import access_of
from monitor.wire.access import split_address

RULES = sidecar_rules.RULES | stream_rules.RULES | calibration_rules.RULES
_GOOD = sidecar_rules.GOOD | stream_rules.GOOD | calibration_rules.GOOD

# Beside this file in a wheel, else in docs/.
_RUNBOOK, _OTHERS = "runbook.md", "doctor.md"
_PARTS = re.compile(
    r"^\*\*What (?:it means|to do)\.\*\* (.+?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")

_WIDTH = 100
_LABELS = ("WRONG", "remark", "well")
_COLOURS, _PLAIN = ("\x1b[1;31m", "\x1b[33m", "\x1b[32m"), "\x1b[0m"
wall_clock_ns = time.time_ns


def run(options: argparse.Namespace) -> int:
    """0 where nothing is wrong; 1: something is, or the sidecar cannot be reached.

    Raises InvalidAccess, and ValueError for an address that is none.
    """
    split_address(options.address, "--address")
    split_address(options.http_address, "--http-address")
    # Doctor must reach the sidecar itself, as it does by HTTP.
    access = replace(access_of(options), direct=True)
    seen = Observation(options.address, options.http_address, __version__)
    seen.truth_within_s = options.truth_within
    asyncio.run(watch(seen, access, wall_clock_ns, options.seconds))
    found = diagnose(seen)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    tell(options, as_object(seen, found), "\n".join(lines(seen, found, colour=colour)))
    return int(_number(found, Severity.WRONG) > 0)


def diagnose(seen: Observation) -> tuple[Finding, ...]:
    """Findings: wrong ones, remarks, then what is well; each in the order of Area."""
    return tuple(sorted((each for area in AREAS for each in findings(seen, area)), key=rank))


def findings(seen: Observation, area: Area) -> Iterator[Finding]:
    """Yields what the rules of an area find, or that all is well there."""
    rules = [rule for rule in RULES[area] if rule.applies(seen)]
    found = [(rule.anchor, *each) for rule in rules for each in rule.check(seen)]
    for anchor, severity, what in found:
        yield Finding(severity, area, what.rstrip("."), *advice()[anchor])
    if rules and not found and (well := _GOOD[area](seen)):
        yield Finding(Severity.WELL, area, well)


@functools.cache
def advice() -> Mapping[str, tuple[str, str]]:
    """Reads why something matters, and what to do, from the documents, by anchor."""
    found = {}
    for name in (_RUNBOOK, _OTHERS):
        beside = Path(__file__).with_name(name)
        path = beside if beside.is_file() else Path(__file__).parents[3] / "docs" / name
        _, *split = re.split(r"^## (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
        for heading, body in zip(split[::2], split[1::2], strict=True):
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            parts = (_LINK.sub(r"\1", " ".join(part.split())) for part in _PARTS.findall(body))
            why, remedy = parts
            # The runbook has more: what to look at, when it ends.
            found[anchor] = why, f"{remedy} docs/{name}#{anchor}" if name == _RUNBOOK else remedy
    return found


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


def lines(seen: Observation, found: Sequence[Finding], *, colour: bool = False) -> Iterator[str]:
    """The verdict, then the findings; words of others leave the terminal alone."""
    looked = f", watched for {duration(seen.seconds)}" if seen.seconds else ""
    yield f"sidecar at {shown(seen.address)}{looked}: {verdict(found)}"
    previous = None
    for each in found:
        well = each.severity is Severity.WELL
        if not well or previous is not Severity.WELL:
            yield ""
        previous = each.severity
        label = f"{_LABELS[each.severity]:<7}"
        text = _paragraph(f"{label} {each.area}: ", each.what if well else f"{each.what}.", 8)
        if colour:
            text = f"{_COLOURS[each.severity]}{label}{_PLAIN}{text.removeprefix(label)}"
        yield text
        if not well:
            yield _paragraph("        why: ", each.why)
            yield _paragraph("        do:  ", each.remedy)


def _paragraph(head: str, text: str, indent: int = 13) -> str:
    return textwrap.fill(
        f"{head}{shown(text)}",
        _WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
