"""What is told of the ledger: fates of detections, how many of each slice are labelled, how many
matches lie near the gate, and how the disk does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.accounts import Dropped
from monitor.truth_ledger import TruthLedger


@dataclass(frozen=True, slots=True)
class ShareReading:
    """Of one slice.

    labelled  share of the detections that came of which labels told anything; NaN without any
    """

    slice: str
    predicted: int
    labelled: float


@dataclass(frozen=True, slots=True)
class DiskReading:
    """How what is kept does on the disk.

    refused  files that could not be used, by what they hold
    """

    bytes: int = 0
    partitions: int = 0
    waiting: int = 0
    failures: int = 0
    replayed: int = 0
    not_replayed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerReading:
    """As of one moment; fates by name, those that wait among them: they add up to all that came.

    gated, near_gate  matches that a gate decided, and the share of them that lie near it
    """

    fates: Mapping[str, int] = field(default_factory=dict)
    retracted: int = 0
    shares: tuple[ShareReading, ...] = ()
    disk: DiskReading = DiskReading()
    gated: int = 0
    near_gate: float = float("nan")

    @property
    def match_ratio(self) -> float:
        """Matched ones among the usable detections whose fate is known; NaN without any."""
        unusable = ("waiting", f"dropped_{Dropped.REFUSED}", f"dropped_{Dropped.BARE}")
        known = sum(count for fate, count in self.fates.items() if fate not in unusable)
        return _ratio(self.fates.get("matched", 0), known)


def ledger_reading(ledger: TruthLedger, disk: DiskReading) -> LedgerReading:
    """Of a ledger."""
    counts = ledger.account.counts()
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    shares = ledger.shares
    found = []
    for index, entry in enumerate(ledger.slices.slices):
        predicted, labelled = shares.of("predicted", index), shares.of("labelled", index)
        found.append(ShareReading(entry.name, predicted, _ratio(labelled, predicted)))
    gated, near = int(shares.gated.sum()), int(shares.near_gate.sum())
    fates = counts | {"waiting": ledger.pending}
    return LedgerReading(fates, retracted, tuple(found), disk, gated, _ratio(near, gated))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
