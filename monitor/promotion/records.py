"""What the way of a recalibrator may be told: when to fit, what to prove, what acts by itself.

What happens to recalibrators, as it is audited, told to those who watch, and counted.

How trials stand, and what came of a fit: for whoever asks.

What a register decides: to be carried out, recorded and told by whoever owns it.

A step: one slice gets another recalibrator, all others keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from monitor.frames.slices import RangeBuckets
from monitor.recalibration.classes.class_selection import AnySelection
from monitor.recalibration.documents import Document
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.scaling import Objective
from monitor.recalibration.selection import IDENTITY, Chain, Selection


class Verdict(StrEnum):
    """What can be said of a candidate."""

    RUNNING = "running"  # nothing yet
    BETTER = "better"
    WORSE = "worse"
    OVER = "over"  # nothing, and its time is over
    UNSOUND = "unsound"  # it has failed, or made what cannot be forwarded


@dataclass(frozen=True, slots=True)
class Known:
    """A recalibrator the sidecar knows, and whether it is in force."""

    selection: AnySelection
    promoted: bool


class PromotionMode(StrEnum):
    """Who puts a recalibrator in force."""

    MANUAL = "manual"  # people alone; candidates are fitted when asked for
    ADVISE = "advise"  # people, told by an event that a candidate is proven better
    AUTOMATIC = "automatic"  # the proof, as far as policy lets it


@dataclass(frozen=True, slots=True)
class TrackSettings:
    """When a track is whole, and how many are kept.

    idle_ns          a track that was not seen for so long is over
    longest_ns       a track counts once, with what came this soon after its first detection
    rows_per_track   kept of each, evenly; two or more
    most_tracks      kept of each slice, the newest
    most_open        tracks that may be open at a time; rows of further ones are left out
    """

    idle_ns: int = 1_000_000_000
    longest_ns: int = 10_000_000_000
    rows_per_track: int = 32
    most_tracks: int = 500
    most_open: int = 4096

    @property
    def sample_ns(self) -> int:
        """Event time between frames that are learned from: a track has no more rows than are kept,
        unless it is idle for so short a time that frames must follow each other sooner.

        Frames are left out, not rows of long tracks: a tracker breaks tracks where errors are
        large, and what it breaks off must not count for more than the rest.
        """
        return max(1, min(self.longest_ns // (self.rows_per_track - 1), self.idle_ns // 3))


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What a candidate must prove.

    alpha            chance of a promotion, of all trials between two promotions, of what is no
                     better than the champion
    clip             B: nats per dimension that one track can say for a step, at most
    tracks           after so many without a proof a trial is over
    rollback_tracks  mean number of tracks between two rollbacks of what is no worse, at least
    """

    alpha: float = 0.02
    clip: float = 1.0
    tracks: int = 400
    rollback_tracks: float = 100_000.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What acts, and who decides.

    allow_shrinking  whether what makes covariances smaller acts by itself too
    band             of factors on the variance, within which the detector is left alone
    hysteresis       a step that changes no variance by more than this factor is none
    """

    mode: PromotionMode = PromotionMode.ADVISE
    allow_shrinking: bool = False
    band: tuple[float, float] = (0.5, 2.0)
    hysteresis: float = 1.1


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How candidates are fitted.

    method         of monitor.recalibration.fitting.FITTINGS
    objective      of a scaling; None: its own
    time_constant_s
                   of adaptive scaling; None: its own
    prior_tracks   that "nothing is wrong" counts for, where the method can be drawn towards it
    tracks         new ones before a slice is fitted again, and the fewest that a fit is made of
                   where those before are unlike them
    """

    method: str = "variance-scaling"
    objective: Objective | None = None
    time_constant_s: float | None = None
    prior_tracks: float = 3.0
    tracks: int = 10


@dataclass(frozen=True, slots=True)
class PromotionSettings:
    """All of it."""

    tracks: TrackSettings = field(default_factory=TrackSettings)
    fits: FitSettings = field(default_factory=FitSettings)
    trials: TrialSettings = field(default_factory=TrialSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)


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


@dataclass(frozen=True, slots=True)
class Decision:
    """Of one slice.

    recalibrator  the one it is about; where `what` is one of SWAPS, to be put in force
    reason        in words
    verdict       on a candidate that is discarded
    waited        whether a candidate was proven before, and waited for approval
    keep          where what served before comes back: how many of the newest tracks are of the time
                  since which it is better
    """

    what: Happened
    chain: Chain
    dimensions: tuple[str, ...]
    recalibrator: Recalibrator
    reason: str
    evidence: Evidence | None = None
    factors: tuple[Factor, ...] = ()
    verdict: Verdict | None = None
    waited: bool = False
    keep: int | None = None

    @property
    def slice(self) -> str:
        """Its name."""
        return self.chain[0]


def stepped(
    selection: Selection,
    dimensions: tuple[str, ...],
    chain: Chain,
    recalibrator: Recalibrator,
    ranges: RangeBuckets | None = None,
    notes: Document | None = None,
) -> Selection:
    """The selection with another recalibrator for the finest name of a chain.

    Where the identity is what a slice would get without one of its own, it has none: so that who
    goes home comes home, to the very version that it left.

    dimensions  of the slice, for a selection that has none
    ranges      the buckets that slices are named after, where they are
    notes       for people
    """
    by_slice = {name: one for name, one in selection.by_slice.items() if name != chain[0]}
    bases = {name: one for name, one in selection.bases.items() if name != chain[0]}
    bare = replace(selection, by_slice=by_slice, bases=bases)
    at_home = isinstance(recalibrator, Identity)
    if not (at_home and isinstance(bare.of(chain), Identity)):
        by_slice = {**by_slice, chain[0]: recalibrator}
    untouched = not by_slice and selection.rejection is None
    if untouched and isinstance(selection.fallback, Identity):
        return IDENTITY
    return replace(
        bare,
        by_slice=by_slice,
        dimensions=selection.dimensions or dimensions,
        ranges=selection.ranges or ranges,
        fitted_on=notes if notes is not None else selection.fitted_on,
    )
