"""What is told of the sidecar as a program: which build it is, how its configuration and its log
do, and how far the capture stamps are from its clock. Values in, values out.

What is told of the ledger: fates of detections, how many of each slice are labelled, how many
matches lie near the gate, and how the disk does.

How recalibrators fare, as it is counted and exported. Plain numbers; edges read them.

How recalibrators fare, read off a running sidecar.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.matching.pending import Dropped
from monitor.pipeline.forwarding import Recalibrated
from monitor.pipeline.promotions import Promotions, RecalibrationCounters
from monitor.pipeline.streams import Stream
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Factor, TrialStanding
from monitor.promotion.trial import factors_made

# A stream that sent nothing for so long says nothing of clocks, ns.
_RECENT_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class StampLag:
    """Wall clock at arrival minus capture stamp, seconds: the least and the most of all streams.

    What a frame needs to get here, and what the two clocks are apart.
    """

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class OperationReading:
    """As of one moment.

    build    what was built, by label: version, revision, and those of what it is built on
    reloads  configurations that were read again, by outcome
    waiting  keys that only a restart brings in force
    lag      None where no stamp has come lately
    lines    of the log, by level
    left_out lines that were too many of their kind
    """

    build: Mapping[str, str] = field(default_factory=dict)
    reloads: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    lag: StampLag | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


def stamp_lag(streams: Iterable[Stream], wall_ns: int, monotonic_ns: int) -> StampLag | None:
    """Of the streams of the last minute; both clocks as they are now, ns."""
    lags = [
        (wall_ns - (monotonic_ns - seen.stamped_ns) - seen.stamp_ns) / 1e9
        for seen in (stream.seen for stream in streams)
        if seen.stamp_ns is not None and monotonic_ns - seen.stamped_ns < _RECENT_NS
    ]
    return StampLag(min(lags), max(lags)) if lags else None


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
    counts = ledger.fates.account.counts()
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    shares = ledger.fates.shares
    found = []
    for index, entry in enumerate(ledger.counting.slices.slices):
        predicted, labelled = shares.of("predicted", index), shares.of("labelled", index)
        found.append(ShareReading(entry.name, predicted, _ratio(labelled, predicted)))
    gated, near = int(shares.gated.sum()), int(shares.near_gate.sum())
    fates = counts | {"waiting": ledger.fates.pending}
    return LedgerReading(fates, retracted, tuple(found), disk, gated, _ratio(near, gated))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


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


@dataclass(slots=True)
class RecalibrationReadings:
    """Of one sidecar; it remembers what was forwarded in slices of which nothing came since."""

    promotions: Promotions
    # What is remembered is of this version: of another, nobody knows what it would make.
    _version: str = ""
    _known: dict[str, SliceFactors] = field(default_factory=dict)

    def read(self, store_failures: int) -> Generator[None, None, RecalibrationReading]:
        """As of now, in steps of one stream each."""
        promotions = self.promotions
        pipeline, version = promotions.pipeline, promotions.recalibrators.selection.version
        if version != self._version:
            self._version, self._known = version, {}
        for recalibrated in list(pipeline.latest.values()):
            # A stream that has ended was served by whatever was in force then.
            if recalibrated.selection.version == version:
                self._known |= {entry.slice: entry for entry in self._forwarded(recalibrated)}
            yield
        return RecalibrationReading(
            counters=copy.deepcopy(promotions.counters),
            factors=tuple(self._known.values()),
            trials=promotions.trials(),
            pinned=promotions.pinned,
            store_failures=store_failures,
            left_out=promotions.learning.left_out,
        )

    def _forwarded(self, recalibrated: Recalibrated) -> list[SliceFactors]:
        """What went on of a frame, by slice."""
        slices, forwarded = self.promotions.pipeline.slices.slices, recalibrated.forwarded
        found = []
        for slice in np.unique(recalibrated.slices).tolist():
            rows = np.flatnonzero(recalibrated.slices == slice)
            names = slices[slice].space.names
            made, sent = forwarded.take(rows), recalibrated.sent.take(rows)
            found.append(SliceFactors(slices[slice].name, factors_made(made, sent, names)))
        return found
