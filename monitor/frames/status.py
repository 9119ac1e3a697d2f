"""What a sidecar tells of itself when it is asked how it is: values, and no way of finding them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """What came of one stream since the start; times are ns since 1970 of the sidecar's clock.

    frames, detections   that were taken, and not refused as a whole
    stamp_ns             capture stamp of the last frame that had one; None: none had
    stamped_received_ns  when that frame came
    received_ns          when the last frame came, with a stamp or without; None: none did
    matched              labels that matched a detection, inline ones included
    matched_received_ns  when the last of them came; None: none did
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
    """The tracker elsewhere.

    trouble  what it said, or what there was of it, when it was last found away; '': never
    """

    address: str
    up: bool
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """What the sidecar is, and what it has seen since it started.

    started_ns, now_ns     ns since 1970 of its wall clock
    streams                those that are registered, in the order of registration
    tracker                None: there is none elsewhere
    configuration          path of its file, as it was given; '': none
    waiting_keys           such as 'statistics.bins': of which the file had other values when it was
                           last read again, which only a restart brings in force
    configuration_refused  why the file could not be used when it was last read again; '': it could
    """

    version: str
    started_ns: int
    now_ns: int
    streams: tuple[StreamStatus, ...] = ()
    tracker: TrackerStatus | None = None
    configuration: str = ""
    waiting_keys: tuple[str, ...] = ()
    configuration_refused: str = ""
