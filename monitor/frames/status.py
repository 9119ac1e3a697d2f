"""Status of a sidecar, as values; finding them out never lives here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Counts and times of one stream since the start; times in ns since 1970, sidecar's clock.

    frames, detections   of messages that were not refused whole
    stamp_ns             stamp of the last frame that had one; None if none had
    stamped_received_ns  when that frame came
    received_ns          when the last frame came, stamped or not; None if none did
    matched              labels that matched a detection, inline ones included
    matched_received_ns  when the last matching label came; None if none did
    """

    stream: str
    frames: int = 0
    detections: int = 0
    stamp_ns: int | None = None
    stamped_received_ns: int | None = None
    received_ns: int | None = None
    matched: int = 0
    matched_received_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TrackerStatus:
    """State of the external tracker.

    trouble  why it could not be reached, when last it could not; '': never
    """

    address: str
    up: bool
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """Version, streams and configuration of a running sidecar.

    started_ns, now_ns     ns since 1970, its wall clock
    streams                in the order of registration
    tracker                None without an external tracker
    configuration          path of the file, as it was given; '': none
    waiting_keys           such as 'statistics.bins': keys whose value in the file was changed at
                           the last reload, and becomes active with a restart
    configuration_refused  why the last reload refused the file; '': it did not
    """

    version: str
    started_ns: int
    now_ns: int
    streams: tuple[StreamStatus, ...] = ()
    tracker: TrackerStatus | None = None
    configuration: str = ""
    waiting_keys: tuple[str, ...] = ()
    configuration_refused: str = ""
