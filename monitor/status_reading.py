"""What the sidecar tells of itself when asked, made of its live state. Clocks are arguments."""

from __future__ import annotations

from collections.abc import Iterable

from monitor import __version__
from monitor.external_tracker import ExternalTracker
from monitor.reloading import Reloads
from monitor.status import Status, StreamStatus, TrackerStatus
from monitor.streams import Seen, Stream


def status(
    streams: Iterable[Stream],
    tracker: ExternalTracker | None,
    reloads: Reloads,
    started_ns: int,
    wall_ns: int,
    monotonic_ns: int,
) -> Status:
    """As of now, which is wall_ns by the one clock and monotonic_ns by the other."""
    return Status(
        version=__version__,
        started_ns=started_ns,
        now_ns=wall_ns,
        streams=tuple(
            _of_stream(stream.header.stream, stream.seen, wall_ns - monotonic_ns)
            for stream in streams
        ),
        tracker=None
        if tracker is None
        else TrackerStatus(tracker.config.address, tracker.up, tracker.trouble),
        configuration=reloads.path,
        waiting_keys=reloads.waiting,
        configuration_refused=reloads.refused,
    )


def _of_stream(name: str, seen: Seen, offset_ns: int) -> StreamStatus:
    """offset_ns: what the wall clock is ahead of the one that never moves back."""

    def wall(monotonic_ns: int | None) -> int | None:
        return None if monotonic_ns is None else monotonic_ns + offset_ns

    return StreamStatus(
        stream=name,
        frames=seen.frames,
        detections=seen.detections,
        stamp_ns=seen.stamp_ns,
        stamped_received_ns=None if seen.stamp_ns is None else wall(seen.stamped_ns),
        received_ns=wall(seen.received_ns),
        matched=seen.matched,
        matched_received_ns=wall(seen.matched_ns),
    )
