"""How recalibrators fare, as it is counted and exported. Plain numbers; edges read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.promotion.records import Factor
from monitor.promotion.standing import TrialStanding


@dataclass(slots=True)
class SwapAccount:
    """How often another recalibrator came in force, of either kind, by why."""

    promoted: int = 0
    rolled_back: int = 0
    adapted: int = 0


@dataclass(slots=True)
class FitAccount:
    """Slices by what came of their fit: a candidate for a trial; nothing worth a change; a refusal
    of the method; a process that failed.

    superseded  something else has come in force in the slice, or on trial, while it was fitted
    """

    candidate: int = 0
    nothing: int = 0
    refused: int = 0
    failed: int = 0
    superseded: int = 0


@dataclass(slots=True)
class TrialAccount:
    """Candidates by what became of them; each began, and may be in some of the others.

    superseded  by a newer candidate, or by another recalibrator in force
    """

    began: int = 0
    proven: int = 0
    promoted: int = 0
    discarded_worse: int = 0
    discarded_unsound: int = 0
    discarded_over: int = 0
    superseded: int = 0


@dataclass(slots=True)
class RecalibrationCounters:
    """Counts since the start."""

    swaps: SwapAccount = field(default_factory=SwapAccount)
    fits: FitAccount = field(default_factory=FitAccount)
    trials: TrialAccount = field(default_factory=TrialAccount)


@dataclass(frozen=True, slots=True)
class SliceFactors:
    """What is made of the variances of a slice, over what was sent.

    factors  of each dimension, as last forwarded
    """

    slice: str
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class RecalibrationReading:
    """All of it, as of one moment.

    factors         of the slices in which anything was forwarded
    trials          all that run
    store_failures  how often recalibrators, trials or records were not written to disk
    left_out        tracks, and frames with truth, for which there was no room to learn from them
    """

    counters: RecalibrationCounters = field(default_factory=RecalibrationCounters)
    factors: tuple[SliceFactors, ...] = ()
    trials: tuple[TrialStanding, ...] = ()
    pinned: bool = False
    store_failures: int = 0
    left_out: int = 0
