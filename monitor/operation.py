"""What is told of the sidecar as a program: which build it is, how its configuration and its log
do, and how far the capture stamps are from its clock. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monitor.streams import Stream

# A stream that sent nothing for so long says nothing of clocks, ns.
_RECENT_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class StampLag:
    """Wall clock at arrival minus capture stamp, seconds: the least and the most of all streams.

    What a frame needs to get here, and what the two clocks are apart.
    """

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class OperationReading:
    """As of one moment.

    build    what was built, by label: version, revision, and those of what it is built on
    reloads  configurations that were read again, by outcome
    waiting  keys that only a restart brings in force
    lag      None where no stamp has come lately
    lines    of the log, by level
    left_out lines that were too many of their kind
    """

    build: Mapping[str, str] = field(default_factory=dict)
    reloads: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    lag: StampLag | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


def stamp_lag(streams: Iterable[Stream], wall_ns: int, monotonic_ns: int) -> StampLag | None:
    """Of the streams of the last minute; both clocks as they are now, ns."""
    lags = [
        (wall_ns - (monotonic_ns - seen.stamped_ns) - seen.stamp_ns) / 1e9
        for seen in (stream.seen for stream in streams)
        if seen.stamp_ns is not None and monotonic_ns - seen.stamped_ns < _RECENT_NS
    ]
    return StampLag(min(lags), max(lags)) if lags else None
