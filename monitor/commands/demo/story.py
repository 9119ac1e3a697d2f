"""The changes of recalibrators during the drive, as the demo heard of them from the sidecar.

Each is kept with its event time, can be told in words, and is looked for at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.promotion.records import SWAPS, Evidence, Factor, Happened, Record
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import Selection

# Evidence is written out up to here, and as a power of ten beyond.
_WRITTEN_OUT = 6


@dataclass(frozen=True, slots=True)
class Heard:
    """One thing that happened, and the event time at which the demo heard of it, in s."""

    at_s: float
    record: Record


@dataclass(slots=True)
class Story:
    """The story of one drive, in order."""

    heard: list[Heard] = field(default_factory=list)

    @property
    def sequence(self) -> int:
        """Number of the last record; 0 before any."""
        return self.heard[-1].record.sequence if self.heard else 0

    @property
    def version(self) -> str:
        """The active version; a sidecar without a recalibrator begins with the identity."""
        swaps = self.swaps_of()
        return swaps[-1].record.after if swaps else Selection((), Identity()).version

    def swaps_of(self, slice: str | None = None) -> list[Heard]:
        """Finds the records after which another recalibrator was active, in one slice or in all."""
        return [
            one
            for one in self.heard
            if one.record.what in SWAPS and slice in (None, one.record.slice)
        ]

    def swaps(self) -> Mapping[str, Mapping[Happened, int]]:
        """Counts swaps of each kind, by slice."""
        found: dict[str, Counter[Happened]] = {}
        for one in self.swaps_of():
            found.setdefault(one.record.slice, Counter())[one.record.what] += 1
        return found

    def of(self, what: Happened, slice: str, since_s: float) -> list[Heard]:
        """Finds the records of one kind on a slice at or after an event time."""
        return [
            one
            for one in self.heard
            if one.record.what is what and one.record.slice == slice and one.at_s >= since_s
        ]


def in_words(record: Record) -> str:
    """Writes a record for people, in one line."""
    match record.what:
        case Happened.BEGAN:
            said = f"on trial, {_factors(record.factors)}"
        case Happened.PROVEN:
            said = f"proven, waits, {proof(record.evidence)}"
        case Happened.PROMOTED:
            said = f"promoted, {proof(record.evidence)}"
        case Happened.ROLLED_BACK:
            said = f"rolled back, {proof(record.evidence)}"
        case what:
            said = f"{what.replace('_', ' ')}, {record.reason}"
    return f"{record.slice or 'all sensors'}: {said}"


def proof(evidence: Evidence | None) -> str:
    """Writes the tracks that had a say, and the evidence they gave of that which is needed."""
    if evidence is None:
        return "asked for"
    better, enough = _wealth(evidence.log10_better), _wealth(evidence.log10_threshold)
    return f"{evidence.tracks} tracks, evidence {better} of {enough}"


def _wealth(log10: float) -> str:
    return f"{10**log10:,.0f}" if log10 < _WRITTEN_OUT else f"10^{log10:.1f}"


def _factors(factors: tuple[Factor, ...]) -> str:
    typical = [factor.typical for factor in factors]
    if not typical:
        return "as sent"
    low, high = (f"{value:.2g}" for value in (min(typical), max(typical)))
    return f"variances × {low}" + ("" if low == high else f" … {high}")
