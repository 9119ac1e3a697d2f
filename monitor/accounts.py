"""What became of every detection: each is in exactly one count, from the moment it is answered.

predicted = matched + ignored + unmatched + unlabelled + dropped (by reason) + waiting
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from monitor.calibration.space import IntArray
from monitor.ledger import Outcome


class Dropped(StrEnum):
    """Why a detection left without a fate. A closed set: also a label of metrics."""

    REFUSED = "refused"  # no usable estimate
    BARE = "missing_covariance"  # nothing to compare
    NO_FRAME_ID = "no_frame_id"  # no label can name it
    MEMORY = "memory"  # [pending] max_bytes, and not on disk
    SAMPLED = "sampled"  # not one of keep_one_frame_in, and out of memory
    DISK_BUSY = "disk_busy"  # the disk did not keep up, and out of memory
    BUDGET = "budget"  # [pending] disk_bytes
    CORRUPT = "corrupt"  # the file that held it cannot be read
    RESTART = "restart"  # in memory alone, or not yet on disk, when the process ended
    REPLACED = "replaced"  # the frame's number came again at another time
    OVERLOAD = "overload"  # work was shed
    STALE = "stale"  # the frame waited too long on its way
    FAILED = "failed"  # a fault of ours


@dataclass(slots=True)
class DetectionAccount:
    """Of all detections since the beginning of the ledger. Those that wait are counted by whoever
    keeps them.

    unlabelled  no label came before their partition was too old
    retracted   detections whose fate was taken back by a later revision; then they wait, or have
                another one
    """

    predicted: int = 0
    matched: int = 0
    ignored: int = 0
    unmatched: int = 0
    unlabelled: int = 0
    retracted: int = 0
    dropped: dict[Dropped, int] = field(default_factory=lambda: dict.fromkeys(Dropped, 0))

    def settle(self, outcome: IntArray, times: int = 1) -> None:
        """Count outcomes (u,) of Outcome; or take them back."""
        counts = np.bincount(outcome, minlength=len(Outcome))
        self.matched += times * int(counts[Outcome.MATCHED])
        self.ignored += times * int(counts[Outcome.IGNORED])
        self.unmatched += times * int(counts[Outcome.UNMATCHED])

    def retract(self, outcome: IntArray) -> None:
        """Take outcomes (u,) back. Those of an account that was lost come into this one first."""
        self.settle(outcome, -1)
        self.retracted += outcome.size
        for name in ("matched", "ignored", "unmatched"):
            absent = max(0, -getattr(self, name))
            setattr(self, name, getattr(self, name) + absent)
            self.predicted += absent

    def drop(self, why: Dropped, count: int) -> None:
        """Detections are gone."""
        self.dropped[why] += count

    @property
    def settled(self) -> int:
        """All that no longer wait."""
        fates = self.matched + self.ignored + self.unmatched + self.unlabelled
        return fates + sum(self.dropped.values())

    @property
    def waiting(self) -> int:
        """All that do, by the identity."""
        return self.predicted - self.settled

    def counts(self) -> dict[str, int]:
        """By name, as they are kept and exported."""
        own = {
            "predicted": self.predicted,
            "matched": self.matched,
            "ignored": self.ignored,
            "unmatched": self.unmatched,
            "unlabelled": self.unlabelled,
            "retracted": self.retracted,
        }
        return own | {f"dropped_{why}": count for why, count in self.dropped.items()}


def account_of(counts: Mapping[str, int]) -> DetectionAccount:
    """From what counts() gave; names that are not known are left out."""
    account = DetectionAccount()
    for name in ("predicted", "matched", "ignored", "unmatched", "unlabelled", "retracted"):
        setattr(account, name, counts.get(name, 0))
    account.dropped = {why: counts.get(f"dropped_{why}", 0) for why in Dropped}
    return account


@dataclass(slots=True)
class SliceShares:
    """By slice index: how many detections came, how many of them labels told of, and how many
    matches a gate decided, and lay near it. Labels are not missing at random.
    """

    predicted: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    labelled: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    gated: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    near_gate: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, name: str, slices: IntArray, times: int = 1) -> None:
        """Count detections by slice (n,), or take them back."""
        if slices.size == 0:
            return
        counts = np.bincount(slices)
        known: IntArray = getattr(self, name)
        if counts.size > known.size:
            known = np.concatenate([known, np.zeros(counts.size - known.size, np.int64)])
            setattr(self, name, known)
        known[: counts.size] += times * counts

    def put(self, name: str, index: int, count: int) -> None:
        """As it was kept."""
        self.add(name, np.full(1, index), count - self.of(name, index))

    def of(self, name: str, index: int) -> int:
        """Of one slice."""
        known: IntArray = getattr(self, name)
        return int(known[index]) if index < known.size else 0
