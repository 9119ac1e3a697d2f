"""What a register decides: to be carried out, recorded and told by whoever owns it."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.promotion.records import Evidence, Factor, Happened
from monitor.promotion.trial import Verdict
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Chain


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
