"""Values that promotion shares with its owner: settings, records, standings.

Settings say when to fit, what to prove and what acts by itself. Records are audited, told to those
who watch, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from monitor.frames.marks import Count, CountFrom1, MaybeNan, Nanoseconds, Positive
from monitor.frames.slices import CLASS_PROBABILITIES, Chain, is_bare_chain
from monitor.frames.words import Objective
from monitor.recalibration.methods import IDENTITY, IDENTITY_OF_CLASSES


class Verdict(StrEnum):
    """Result of a trial so far."""

    RUNNING = "running"  # nothing is proven yet
    BETTER = "better"
    WORSE = "worse"
    OVER = "over"  # nothing is proven, and its time is over
    UNSOUND = "unsound"  # it has failed, or made what cannot be forwarded


class PromotionMode(StrEnum):
    """Decides who promotes a recalibrator."""

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
        """Event time between frames that are learned from.

        A track then has no more rows than are kept, unless idle_ns is so short that frames must
        follow each other sooner.

        Frames are left out, not rows of long tracks: a tracker breaks tracks where errors are
        large, and what it breaks off must not count for more than the rest.
        """
        return max(1, min(self.longest_ns // (self.rows_per_track - 1), self.idle_ns // 3))


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Proof that a candidate must give.

    alpha            chance that any trial between two promotions promotes a candidate that is no
                     better than the active recalibrator
    clip             B: nats per dimension that one track can say for a step, at most
    tracks           after so many without a proof a trial is over
    rollback_tracks  mean number of tracks between two rollbacks of an active recalibrator that is
                     no worse, at least
    """

    alpha: float = 0.02
    clip: float = 1.0
    tracks: int = 400
    rollback_tracks: float = 100_000.0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Limits to what is promoted without an operator.

    allow_shrinking  candidates that make covariances smaller are promoted by themselves too
    band             of factors on the variance, within which the detector is left alone
    class_band       of temperatures, likewise
    hysteresis       a step that changes no variance, nor the temperature, by more than this factor
                     is none
    """

    mode: PromotionMode = PromotionMode.ADVISE
    allow_shrinking: bool = False
    band: tuple[float, float] = (0.5, 2.0)
    hysteresis: float = 1.1
    class_band: tuple[float, float] = (0.8, 1.25)


# Tracks that an estimate of covariances takes at least: it has many more numbers than a scaling. Of
# ten it is made anew twice in the next thousand, and NEES/K of what it makes is 0.7 to 1.7.
FEWEST_OF_AN_ESTIMATE = 30


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings of the fits of candidates.

    method         of monitor.recalibration.fitting.FITTINGS
    missing_method
                   likewise, of what comes without a covariance; identity: none is fitted
    class_method   of monitor.recalibration.fitting.CLASS_FITS; class-identity: none is fitted
    objective      of a scaling; None: its own
    time_constant_s
                   of adaptive scaling; None: its own
    prior_tracks   that "nothing is wrong" counts for, where the method can be drawn towards it
    tracks         new ones before a slice is fitted again, and the fewest that a fit is made of
                   where those before are unlike them; see fewest
    correct_mean   whether the mean error is corrected first; of methods that leave the mean alone
    """

    method: str = "variance-scaling"
    objective: Objective | None = None
    time_constant_s: Positive | None = None
    prior_tracks: Positive = 3.0
    tracks: CountFrom1 = 10
    class_method: str = "temperature"
    missing_method: str = "covariance-regression"
    correct_mean: bool = False

    def leaves(self, chain: Chain) -> bool:
        """Tells whether a slice is not fitted by itself."""
        if chain == (CLASS_PROBABILITIES,):
            return self.leaves_classes
        return is_bare_chain(chain) and self.missing_method == IDENTITY

    def fewest(self, chain: Chain) -> int:
        """Returns the tracks that a fit of a slice takes: more where it estimates covariances."""
        return max(self.tracks, FEWEST_OF_AN_ESTIMATE) if is_bare_chain(chain) else self.tracks

    @property
    def leaves_classes(self) -> bool:
        """Tells whether class probabilities are not fitted."""
        return self.class_method == IDENTITY_OF_CLASSES


@dataclass(frozen=True, slots=True)
class PromotionSettings:
    """All settings of promotion."""

    tracks: TrackSettings = field(default_factory=TrackSettings)
    fits: FitSettings = field(default_factory=FitSettings)
    trials: TrialSettings = field(default_factory=TrialSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)

    def fewest(self, chain: Chain) -> int:
        """Returns the tracks that a fit of a slice waits for: no more than are kept."""
        return min(self.fits.fewest(chain), self.tracks.most_tracks)


class Happened(StrEnum):
    """Kinds of records."""

    FIT_FAILED = "fit_failed"  # the process crashed, hung or returned what cannot be used
    BEGAN = "began"  # a candidate is on trial
    PROVEN = "proven"  # the candidate is better, and waits for approval
    DISCARDED = "discarded"  # the candidate is worse, unsound, or its time is over
    PROMOTED = "promoted"  # the candidate is active
    ROLLED_BACK = "rolled_back"  # the recalibrator of before is active again
    ADAPTED = "adapted"  # the active recalibrator has followed the detector
    HELD = "held"  # something should have happened, but was forbidden
    PINNED = "pinned"  # nothing happens by itself any more
    UNPINNED = "unpinned"


# After these another recalibrator is active.
SWAPS = (Happened.PROMOTED, Happened.ROLLED_BACK, Happened.ADAPTED)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of tracks for a candidate, or for the recalibrator that a guard holds.

    tracks           number of tracks that had a say
    gain             mean of what tracks say: the log score over that of the active one, clipped,
                     of a short track its share; nats per dimension and track, of classes nats
    log10_better     wealth of the bettors that it is better
    log10_worse      wealth of the bettors that it is worse
    log10_threshold  wealth at which a bet is won
    """

    tracks: Count
    gain: MaybeNan
    log10_better: MaybeNan
    log10_worse: MaybeNan
    log10_threshold: MaybeNan


@dataclass(frozen=True, slots=True)
class Factor:
    """Ratio of the variance that a recalibrator makes to the one sent, in one dimension.

    Of class probabilities the dimension is "temperature", and the factor is that.

    lowest, highest  5 % and 95 % quantiles over detections
    typical          geometric mean
    """

    dimension: str
    lowest: MaybeNan
    typical: MaybeNan
    highest: MaybeNan


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened to recalibrators.

    sequence  counts up from 1
    time_ns   wall clock, for people
    slice     the slice it is about; '' where about all
    version   the recalibrator it is about; '' where there is none
    before, after
              active versions; equal where nothing changed
    actor     who or what did it
    reason    in words
    event_ns  event time of the latest ground truth; None where none has come
    """

    sequence: CountFrom1
    time_ns: Nanoseconds
    what: Happened
    slice: str
    version: str
    before: str
    after: str
    actor: str
    reason: str
    event_ns: Nanoseconds | None = None
    evidence: Evidence | None = None
    factors: tuple[Factor, ...] = ()


class TrialState(StrEnum):
    """Stages of a trial."""

    RUNNING = "running"  # the candidate is compared with the active recalibrator
    PROVEN = "proven"  # it is better, and waits for approval
    GUARD = "guard"  # the recalibrator of before, which comes back if it is better


@dataclass(frozen=True, slots=True)
class TrialStanding:
    """State of a candidate on trial in one slice, or of the guard there.

    version  the selection that promoting it would make active: other slices keep theirs
    """

    slice: str
    version: str
    state: TrialState
    evidence: Evidence
    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class SliceFitted:
    """Outcome of a fit in one slice.

    version             the candidate that is on trial now; '' where there is none
    reason              why there is none
    tracks, detections  numbers that it was fitted on
    """

    slice: str
    version: str
    reason: str
    tracks: int
    detections: int
    factors: tuple[Factor, ...] = ()
