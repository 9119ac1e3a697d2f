"""Families of what is forwarded to a tracker elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from monitor.edges.exposition import counter, gauge, histogram
from monitor.external_tracker import ForwardingReading


def forwarding(reading: ForwardingReading) -> Iterator[str]:
    """One text a family."""
    yield gauge(
        "tracker_up",
        "Whether the tracker elsewhere is there and says that it serves.",
        (),
        [((), float(reading.up))],
    )
    yield counter(
        "tracker_sent",
        "Frames that were written to the tracker elsewhere, whatever became of them then.",
        (),
        [((), float(reading.sent))],
    )
    ended = [((str(outcome),), float(count)) for outcome, count in reading.ended.items()]
    yield counter(
        "tracker_forwarded",
        "Frames for the tracker elsewhere by how it ended with them, each in one of these.",
        ("outcome",),
        ended,
    )
    yield counter(
        "tracker_unusable_answers",
        "Answers of the tracker elsewhere that were none; the log says what was wrong.",
        (),
        [((), float(reading.unusable))],
    )
    found = reading.seconds
    bounds = [f"{bound:g}" for bound in found.bounds] + ["+Inf"]
    yield histogram(
        "tracker_seconds",
        "Time from a frame to the tracker's answer, of those answered in time.",
        zip(bounds, accumulate(found.counts), strict=True),
        found.sum,
    )
