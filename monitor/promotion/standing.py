"""How trials stand, and what came of a fit: for whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.promotion.records import Evidence, Factor


class TrialState(StrEnum):
    """Where a trial stands."""

    RUNNING = "running"  # a candidate beside the champion
    PROVEN = "proven"  # it is better, and waits for approval
    GUARD = "guard"  # what served before the champion, which comes back if it is better


@dataclass(frozen=True, slots=True)
class TrialStanding:
    """A candidate on trial in one slice, or what served there before.

    version  what promoting it would put in force: the champion, but for this slice
    """

    slice: str
    version: str
    state: TrialState
    evidence: Evidence
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class SliceFitted:
    """What came of a fit in one slice.

    version             the candidate that is on trial now; '' where there is none
    reason              why there is none
    tracks, detections  it was fitted on
    """

    slice: str
    version: str
    reason: str
    tracks: int
    detections: int
    factors: tuple[Factor, ...] = ()
