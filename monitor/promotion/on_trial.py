"""A candidate in the register, and what is known of it beside its trial; what served before a
champion, until there is a guard of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from monitor.calibration.detections import Limits
from monitor.promotion.betting import Bets
from monitor.promotion.guard import Guard
from monitor.promotion.records import Factor
from monitor.promotion.trial import Trial, clip_of
from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.recalibrator import Recalibrator


@dataclass(frozen=True, slots=True)
class OnTrial:
    """A candidate.

    proven   it is better, and waits for approval
    shrinks  whether it makes a variance smaller than the champion does
    late     of one that is adaptive: see Follower
    doubt    of one that waits: the champion as it would stand guard. A proof does not last: a fault
             may end while nobody looks, and the evidence of a long one would outweigh all after it
    """

    trial: Trial
    factors: tuple[Factor, ...]
    shrinks: bool
    proven: bool = False
    late: float = 0.0
    doubt: Guard | None = None

    def anew(self) -> OnTrial:
        """What was proven while nothing could act must be proven again before it does."""
        trial = replace(self.trial, bets=Bets(), number=self.trial.number + 1)
        return replace(self, trial=trial, proven=False, doubt=None)

    def doubted(
        self, tracks: Sequence[WholeTrack], champion: Recalibrator, limits: Limits, most: float
    ) -> OnTrial:
        """With tracks that came while it waits; most is B."""
        candidate, doubt = self.trial.recalibrator, self.doubt
        if doubt is None or doubt.recalibrator != champion:
            clip = clip_of(champion, candidate, rows_of(tracks), most)
            doubt = Guard(self.trial.slice, champion, clip)
        return replace(self, doubt=doubt.taken(tracks, candidate, limits))


@dataclass(frozen=True, slots=True)
class Before:
    """What served before, until the first track makes a guard of it.

    rows  detections of a track that has a full say, as in the trial that it lost; 0: in none
    """

    slice: str
    recalibrator: Recalibrator
    rows: float = 0.0
