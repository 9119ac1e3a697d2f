"""What happens to recalibrators, as it is audited, told to those who watch, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Happened(StrEnum):
    """What a record is of."""

    FIT_FAILED = "fit_failed"  # the process crashed, hung or returned what cannot be used
    BEGAN = "began"  # a candidate is on trial
    PROVEN = "proven"  # it is better, and waits for approval
    DISCARDED = "discarded"  # it is worse, unsound, or its time is over
    PROMOTED = "promoted"  # it is in force
    ROLLED_BACK = "rolled_back"  # what served before is in force again
    ADAPTED = "adapted"  # the recalibrator in force has followed the detector
    HELD = "held"  # something should have happened, and something else forbids it
    PINNED = "pinned"  # nothing happens by itself any more
    UNPINNED = "unpinned"


# After these another recalibrator is in force.
SWAPS = (Happened.PROMOTED, Happened.ROLLED_BACK, Happened.ADAPTED)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What tracks say of a candidate, or of what served before the champion.

    tracks           that had a say
    gain             mean of what tracks say: the log score over the champion's, clipped, of a
                     short track its share; nats per dimension and track
    log10_better     of the wealth of who bets that it is better
    log10_worse      the same of who bets that it is worse
    log10_threshold  at which a bet is won
    """

    tracks: int
    gain: float
    log10_better: float
    log10_worse: float
    log10_threshold: float


@dataclass(frozen=True, slots=True)
class Factor:
    """What a recalibrator makes of the variance of a dimension, over what was sent.

    lowest, highest  5 % and 95 % quantiles over detections
    typical          geometric mean
    """

    dimension: str
    lowest: float
    typical: float
    highest: float


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened to recalibrators.

    sequence  counts up from 1
    time_ns   wall clock, for people
    slice     which it is about; '' where about all
    version   of the recalibrator it is about; '' where there is none
    before, after
              versions in force; equal where nothing changed
    actor     who or what did it
    reason    in words
    event_ns  event time of the latest truth; None where none has come
    """

    sequence: int
    time_ns: int
    what: Happened
    slice: str
    version: str
    before: str
    after: str
    actor: str
    reason: str
    event_ns: int | None = None
    evidence: Evidence | None = None
    factors: tuple[Factor, ...] = ()
