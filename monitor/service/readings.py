"""Readings of a running sidecar: the values of one moment that metrics are written from.

Nothing here writes text.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.matching.pending import Dropped
from monitor.pipeline.forwarding import Recalibrated
from monitor.pipeline.promotions import Promotions, RecalibrationCounters
from monitor.pipeline.streams import Stream
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Factor, TrialStanding
from monitor.promotion.trial import factors_made

# ns after which a silent stream says nothing of clocks any more.
_RECENT_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class OperationReading:
    """The sidecar as a program.

    build     by label: its version, its revision, and versions of the libraries below it
    reloads   configurations that were read again, by outcome
    waiting   keys that only a restart makes active
    lag       by "least" and "most" of all streams, in s; empty if no stamp has come lately
    lines     of the log, by level
    left_out  lines that were too many of their kind
    """

    build: Mapping[str, str] = field(default_factory=dict)
    reloads: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    lag: Mapping[str, float] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


def stamp_lag(streams: Iterable[Stream], wall_ns: int, monotonic_ns: int) -> dict[str, float]:
    """Returns the least and the most lag of the streams of the last minute, in s; empty without.

    A lag is the wall clock at arrival minus the capture stamp: the time that a frame travels plus
    the difference of the two clocks. Both clocks are given as they are now, in ns.
    """
    lags = [
        (wall_ns - (monotonic_ns - seen.stamped_ns) - seen.stamp_ns) / 1e9
        for seen in (stream.seen for stream in streams)
        if seen.stamp_ns is not None and monotonic_ns - seen.stamped_ns < _RECENT_NS
    ]
    return {"least": min(lags), "most": max(lags)} if lags else {}


@dataclass(frozen=True, slots=True)
class DiskReading:
    """The ledger on disk.

    partitions    files of the ledger
    waiting       entries that wait for the disk
    failures      writes that failed
    replayed      entries done again at the start
    not_replayed  entries that could not be done again
    refused       files that could not be used, by what they hold
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
    """The ledger of detections and labels.

    fates      detections by fate, waiting ones included: they add up to all that came
    retracted  detections whose labels a later revision took back
    shares     of the detections of each slice, the share that labels told anything of; NaN if no
               detection came
    gated      matches that a gate decided
    near_gate  share of the gated matches that lie near the gate; NaN without any
    """

    fates: Mapping[str, int] = field(default_factory=dict)
    retracted: int = 0
    shares: Sequence[tuple[str, float]] = ()
    disk: DiskReading = DiskReading()
    gated: int = 0
    near_gate: float = float("nan")

    @property
    def match_ratio(self) -> float:
        """Share of matched detections among usable ones of known fate; NaN without any."""
        unusable = ("waiting", f"dropped_{Dropped.REFUSED}", f"dropped_{Dropped.BARE}")
        known = sum(count for fate, count in self.fates.items() if fate not in unusable)
        return _ratio(self.fates.get("matched", 0), known)


def ledger_reading(ledger: TruthLedger, disk: DiskReading) -> LedgerReading:
    """Reads fates and shares off a ledger; the reading of its disk is given."""
    counts = ledger.fates.account.counts()
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    shares = ledger.fates.shares
    labelled = [
        (entry.name, _ratio(shares.of("labelled", index), shares.of("predicted", index)))
        for index, entry in enumerate(ledger.counting.slices.slices)
    ]
    gated, near = int(shares.gated.sum()), int(shares.near_gate.sum())
    fates = counts | {"waiting": ledger.fates.pending}
    return LedgerReading(fates, retracted, labelled, disk, gated, _ratio(near, gated))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


@dataclass(frozen=True, slots=True)
class RecalibrationReading:
    """The recalibrators of a sidecar.

    factors         on the variances, one a dimension: recalibrated over raw, as last forwarded; by
                    slice
    trials          trials that run, and guards
    store_failures  how often recalibrators, trials or records were not written to disk
    left_out        tracks, and labelled frames, for which the fit had no room
    """

    counters: RecalibrationCounters = field(default_factory=RecalibrationCounters)
    factors: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    trials: tuple[TrialStanding, ...] = ()
    pinned: bool = False
    store_failures: int = 0
    left_out: int = 0


@dataclass(slots=True)
class RecalibrationReader:
    """Reads the recalibrators of a sidecar; remembers the factors of slices that fell silent."""

    promotions: Promotions
    # The version whose factors are remembered: the factors of another version are unknown.
    _version: str = ""
    _known: dict[str, tuple[Factor, ...]] = field(default_factory=dict)

    def read(self, store_failures: int) -> Generator[None, None, RecalibrationReading]:
        """Reads the state of now, in steps of one stream each."""
        promotions = self.promotions
        pipeline, version = promotions.pipeline, promotions.recalibrators.selection.version
        if version != self._version:
            self._version, self._known = version, {}
        for recalibrated in list(pipeline.latest.values()):
            # A stream that has ended was served by the version that was active then.
            if recalibrated.selection.version == version:
                self._known |= self._forwarded(recalibrated)
            yield
        return RecalibrationReading(
            counters=copy.deepcopy(promotions.counters),
            factors=dict(self._known),
            trials=promotions.trials(),
            pinned=promotions.pinned,
            store_failures=store_failures,
            left_out=promotions.learning.left_out,
        )

    def _forwarded(self, recalibrated: Recalibrated) -> dict[str, tuple[Factor, ...]]:
        """Returns the factors of one frame, by slice."""
        slices, forwarded = self.promotions.pipeline.slices.slices, recalibrated.forwarded
        found = {}
        for slice in np.unique(recalibrated.slices).tolist():
            rows = np.flatnonzero(recalibrated.slices == slice)
            names = slices[slice].space.names
            made, sent = forwarded.take(rows), recalibrated.sent.take(rows)
            found[slices[slice].name] = factors_made(made, sent, names)
        return found
