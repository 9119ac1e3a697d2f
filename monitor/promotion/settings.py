"""What the way of a recalibrator may be told: when to fit, what to prove, what acts by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from monitor.recalibration.scale import Objective


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
