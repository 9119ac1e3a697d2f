"""Every panel of every dashboard while the demo's fault is on, as numbers; and how many panels,
expressions, empty answers and names that do not exist there are.

A real Prometheus beside a real sidecar that sees the demo's drive. The moment is that before the
sidecar promotes what it has fitted; of an optional row ("With …") no number is printed, for it is
asked of another sidecar, which has what it needs.

    python -m benchmarks.panels [--duration 40]
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.machine import machine
from monitor.commands.demo.story import Plan
from tests.deploy.panel_answers import Answer, Series
from tests.deploy.panel_session import (
    Session,
    at_moment,
    fieldless,
    nameless,
    session,
    told,
)
from tests.deploy.panel_traffic import both

COLUMNS, TITLE = 120, 36
SHOWN = 4  # series of an expression
NOT_TOLD = {"__name__", "instance", "job", "where"}  # labels: the same of all series, or of others
BEFORE = 0.5  # s before the promotion: a scrape


def legend(answer: Answer, labels: dict[str, str]) -> str:
    """Of one series; of several with the same legend, what tells them apart."""
    told_apart = {key: value for key, value in labels.items() if key not in NOT_TOLD}
    text = answer.question.legend
    if "{{" not in text and (len(answer.series) > 1 or not text):
        return " ".join(told_apart.values())
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda each: told_apart.get(each[1], ""), text)
    return " ".join(text.split())


def values(answer: Answer, faulty: str) -> str:
    """Of its series, that of the faulty sensor first; of a histogram only how many buckets."""
    found = [each for each in answer.series if each[1]]
    if not found:
        return "no data at this moment"
    if all("le" in labels for labels, _ in found):
        return f"{len(found)} buckets"

    def order(each: Series) -> tuple[bool, bool]:
        return each[0].get("slice") != faulty, each[1][-1][1] == 0

    zeros = sum(samples[-1][1] == 0 for _, samples in found)
    shown = len(found) if len(found) <= SHOWN else min(SHOWN, max(len(found) - zeros, 1))
    parts = [
        f"{legend(answer, labels)} {samples[-1][1]:.4g}".strip()
        for labels, samples in sorted(found, key=order)[:shown]
    ]
    if len(found) > shown:
        parts.append(f"{len(found) - shown} more{' of 0' if zeros >= len(found) - shown else ''}")
    same = answer.question.legend if "{{" not in answer.question.legend and len(found) > 1 else ""
    return f"{same}: {', '.join(parts)}".removeprefix(": ")


def rows(answers: Sequence[Answer], faulty: str) -> Iterator[str]:
    """A paragraph for each panel."""
    dashboard, place = "", ""
    parts: list[str] = []

    def paragraph() -> Iterator[str]:
        lines = textwrap.wrap("; ".join(parts), COLUMNS - TITLE - 2) or [""]
        title = place if len(place) <= TITLE else place[: TITLE - 1] + "…"
        yield f"{title:<{TITLE}}  {lines[0]}"
        yield from (" " * (TITLE + 2) + line for line in lines[1:])

    for answer in answers:
        question = answer.question
        if (question.dashboard, question.place) != (dashboard, place):
            if place:
                yield from paragraph()
            if question.dashboard != dashboard:
                yield f"\n{question.dashboard}\n{'-' * len(question.dashboard)}"
            dashboard, place, parts = question.dashboard, question.place, []
        parts.append(values(answer, faulty))
    if place:
        yield from paragraph()


def report(found: Session, faulty: str) -> None:
    """On the terminal."""
    began = found.demo.moment("fault: ")
    promoted = found.demo.moment("promoted")
    print(f"{promoted - began:.1f} s after the fault began, before the promotion")
    for line in rows(at_moment(found, promoted - BEFORE, faulty), faulty):
        print(line)
    print()
    for name, count in found.counts().items():
        print(f"{count:5d} {name}")
    wrong = (*told(found.panels), *found.mistakes(), *nameless(found.panels))
    for line in (*wrong, *fieldless(found.boards, found.panels)):
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=40.0, help="s of the drive, at least")
    options = parser.parse_args()
    plan = Plan(duration_s=options.duration)
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name, both(Path(name), plan) as (demo, with_options):
        for at, line in demo.lines:
            print(f"{at - demo.began:6.1f} s of the clock, {line.strip()}")
        report(session(demo, with_options, plan.faulty), plan.faulty)


if __name__ == "__main__":
    main()
