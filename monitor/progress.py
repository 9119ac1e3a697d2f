"""How far a sidecar had come when it wrote its statistics: what is not in their sums, but takes
part in what is counted next. With it, and the entries of the ledger after it, the next process
goes on as if it were the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.calibration.clusters import ClusterState
from monitor.calibration.space import Space
from monitor.frames import Header
from monitor.stored_frame import SliceKey


@dataclass(frozen=True, eq=False, slots=True)
class KeptClusters:
    """The tracks of one space that may go on."""

    space: Space
    state: ClusterState


@dataclass(frozen=True, slots=True)
class KeptStream:
    """A stream that was known.

    header                   without what its connection asks for; angles_in_joint of its space
                             is a setting, and False here whatever it was
    number                   tells its tracks from those of others
    watermark_ns, latest_ns  as of EventTime
    """

    header: Header
    number: int
    watermark_ns: int | None = None
    latest_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Detections of one slice by what became of them: as many as came, those that labels told of,
    and the matches that a gate decided, and that lay near it.
    """

    space: Space
    key: SliceKey
    predicted: int = 0
    labelled: int = 0
    gated: int = 0
    near_gate: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """All of it.

    sequence            of the last entry of the ledger that is in the statistics; 0: of none
    now_ns, votes, other_ns, jumps
                        of the EventClock
    generation          how often event time had begun anew
    clusters            by space, each once
    streams             each once
    numbered            streams numbered so far
    detections, labels  counts by name
    shares              by space and slice, each once
    epoch               of the wall clock
    waiting             detections that waited for their fate
    """

    sequence: int = 0
    now_ns: int | None = None
    votes: int = 0
    other_ns: int = 0
    jumps: int = 0
    generation: int = 0
    clusters: tuple[KeptClusters, ...] = ()
    streams: tuple[KeptStream, ...] = ()
    numbered: int = 0
    detections: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    epoch: int = 0
    waiting: int = 0
