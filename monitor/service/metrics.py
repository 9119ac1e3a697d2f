"""Writes the text of /metrics from one snapshot, family by family, so that frames pass in between.

Families with a series for each slice are written by slice_metrics. Nothing here changes live state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from monitor.drift.alarms import DriftReading
from monitor.frames.counters import Counters, Histogram
from monitor.frames.detections import PASSED_THROUGH, Reason
from monitor.frames.frame import TrackStatus, UncertainBy
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.restart import Resumption
from monitor.pipeline.stream_tracker import TrackReading
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Factor
from monitor.service.exposition import (
    bins,
    counter_by,
    gauge,
    gauge_by,
    histogram,
    one_counter,
    one_gauge,
    outcomes,
)
from monitor.service.log import LogCounts
from monitor.service.reload import Reloads
from monitor.service.slice_metrics import classes, drift, measures, recalibrators, windows
from monitor.statistics.bins import ExportEdges, SliceBins
from monitor.statistics.reading import ClassReading, SliceReading, WindowReading
from monitor.store.journal import Journal
from monitor.tracking.rewind import Order

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Reasons to refuse a detection, a message or a label; the others let a detection pass.
_REFUSING = tuple(
    reason for reason in Reason if reason not in PASSED_THROUGH and reason is not Reason.NONE
)


def operation(snapshot: Snapshot) -> Iterator[str]:
    """Yields the families of the sidecar as a program: build, configuration, log and clock."""
    build, reloads, logs = snapshot.build, snapshot.reloads, snapshot.logs
    rows = [(tuple(build.values()), 1.0)] if build else []
    yield gauge("build_info", tuple(build), rows)
    yield counter_by("configuration_reloads", "outcome", reloads.outcomes.items())
    yield one_gauge("configuration_waiting_keys", len(reloads.waiting))
    yield gauge_by("stamp_lag_seconds", "of", snapshot.lag.items())
    yield counter_by("log_lines", "level", logs.lines.items())
    yield one_counter("log_lines_left_out", logs.left_out)


def forwarding(tracker: ExternalTracker) -> Iterator[str]:
    """Yields the families of frames forwarded to a tracker elsewhere."""
    yield one_gauge("tracker_up", tracker.up)
    yield one_counter("tracker_sent", tracker.line.sent)
    yield counter_by("tracker_forwarded", "outcome", tracker.line.ended.items())
    yield one_counter("tracker_unusable_answers", tracker.unusable)
    yield histogram("tracker_seconds", tracker.seconds)


def _ledger(ledger: TruthLedger, delay: Histogram) -> Iterator[str]:
    """Yields the families of what became of detections and labels; delay is of the labels."""
    counts, shares = dict(ledger.fates.account), ledger.fates.shares
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    counts["waiting"] = ledger.fates.pending
    yield gauge_by("detection_fates", "fate", counts.items())
    unusable = ("waiting", f"dropped_{Dropped.REFUSED}", f"dropped_{Dropped.BARE}")
    known = sum(count for fate, count in counts.items() if fate not in unusable)
    yield one_gauge("match_ratio", _ratio(counts.get("matched", 0), known))
    yield one_counter("retracted_detections", retracted)
    yield gauge_by(
        "labelled_ratio",
        "slice",
        (
            (entry.name, _ratio(shares.of("labelled", index), shares.of("predicted", index)))
            for index, entry in enumerate(ledger.counting.slices.slices)
        ),
    )
    gated, near = (int(shares.counts[name].sum()) for name in ("gated", "near_gate"))
    yield one_gauge("gated_matches", gated)
    yield one_gauge("near_gate_ratio", _ratio(near, gated))
    yield histogram("ground_truth_delay_seconds", delay)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _disk(snapshot: Snapshot) -> Iterator[str]:
    journal, resumed = snapshot.journal, snapshot.resumed
    yield one_gauge("ledger_bytes", journal.bytes)
    yield one_gauge("ledger_partitions", journal.partitions)
    yield one_gauge("ledger_waiting", journal.waiting)
    yield one_gauge("ledger_replayed_entries", resumed.entries)
    yield one_gauge("ledger_lost_entries", resumed.failed)
    yield one_counter("ledger_failures", journal.failures)
    yield counter_by("files_refused", "of", snapshot.refused.items())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The exported state of a sidecar: its live parts, and readings that took several steps.

    promotions, journal, resumed, reloads, logs, tracker  are live, and read family by family
    counters             of the pipeline, as of one moment
    edges                of the export bins; known without any slice, so that labels are complete
    readings             measures of every slice since epoch
    bins                 export bins of every slice that has statistics, `total` left out: PromQL
                         adds up
    windows              measures of every slice over every window
    classes              measures of class probabilities, of the slices that have some
    checkpoint_age       seconds since the statistics were last written to disk; NaN: never
    checkpoint_failures  how often the write failed
    factors              of recalibration on the variances, one a dimension: recalibrated over raw,
                         as last forwarded; by slice
    drift                None: nothing is watched, and drift has no families
    tracker              None: there is no tracker elsewhere, and forwarding has no families
    refused              files that could not be used, by what they hold
    build                versions of the sidecar and of the libraries below it, by label
    lag                  by "least" and "most" of all streams, in s; empty if no stamp came lately
    """

    promotions: Promotions
    counters: Counters
    edges: ExportEdges
    journal: Journal
    resumed: Resumption
    reloads: Reloads
    logs: LogCounts
    tracker: ExternalTracker | None = None
    build: Mapping[str, str] = field(default_factory=dict)
    readings: tuple[SliceReading, ...] = ()
    bins: tuple[SliceBins, ...] = ()
    windows: tuple[WindowReading, ...] = ()
    classes: tuple[ClassReading, ...] = ()
    checkpoint_age: float = float("nan")
    checkpoint_failures: int = 0
    factors: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    drift: DriftReading | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    lag: Mapping[str, float] = field(default_factory=dict)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, which is live too."""
        return self.promotions.pipeline


def render(snapshot: Snapshot) -> Generator[None, None, bytes]:
    """Writes the text in steps of one family, or of one slice of export bins; returns it whole."""
    pieces = []
    for piece in chain(
        measures(snapshot.readings),
        windows(snapshot.windows),
        classes(snapshot.classes),
        bins(snapshot.bins, snapshot.edges),
        _service(snapshot),
        _recalibration(snapshot),
        drift(snapshot.drift) if snapshot.drift is not None else (),
        _labels(snapshot.counters),
        _ledger(snapshot.pipeline.ledger, snapshot.counters.truth_delay),
        _disk(snapshot),
        _tracks(snapshot.pipeline.tracks()),
        forwarding(snapshot.tracker) if snapshot.tracker is not None else (),
        operation(snapshot),
    ):
        pieces.append(piece.encode())
        yield
    return b"".join(pieces)


def _service(snapshot: Snapshot) -> Iterator[str]:
    counters, pipeline = snapshot.counters, snapshot.pipeline
    pending = pipeline.ledger.fates
    yield one_counter("frames", counters.frames)
    made = ("recalibrated", "passed_through", "refused")
    yield counter_by(
        "detections", "outcome", ((outcome, getattr(counters, outcome)) for outcome in made)
    )
    yield counter_by(
        "passed_through",
        "reason",
        ((reason.label, counters.by_reason[reason]) for reason in sorted(PASSED_THROUGH)),
    )
    yield counter_by(
        "rejected",
        "reason",
        ((reason.label, _refused(counters, reason)) for reason in _REFUSING),
    )
    yield counter_by("calls_refused", "why", counters.calls_refused.items())
    yield histogram("frame_seconds", counters.frame_seconds)
    handled = counters.fast_frames + counters.slow_frames
    yield one_gauge("fast_decode_ratio", counters.fast_frames / handled if handled else 1.0)
    yield one_gauge("loop_lag_seconds", counters.loop_lag_seconds)
    yield one_gauge("overload", counters.shedding)
    yield one_gauge("clock_epoch", counters.clock_epoch)
    yield one_gauge("pending_bytes", pending.store.bytes)
    yield one_gauge("pending_detections", pending.pending)
    yield one_gauge("streams", len(pipeline.streams))
    yield one_gauge("checkpoint_age_seconds", snapshot.checkpoint_age)
    yield one_counter("checkpoint_failures", snapshot.checkpoint_failures)
    yield one_counter("event_time_jumps", pipeline.live.clock.jumps)
    for name in (
        "late_frames",
        "overloads",
        "clock_steps",
        "internal_errors",
        "overflow_detections",
        "overflow_classified",
        "streams_dropped",
    ):
        yield one_counter(name, getattr(counters, name))


def _recalibration(snapshot: Snapshot) -> Iterator[str]:
    counters = snapshot.counters
    yield counter_by(
        "uncertain_detections",
        "by",
        (
            (by.name.lower(), counters.uncertain[by - 1])
            for by in UncertainBy
            if by is not UncertainBy.NEITHER
        ),
    )
    yield counter_by("class_recalibrations", "outcome", outcomes(counters.class_recalibrations))
    pipeline = snapshot.pipeline
    mode, active = pipeline.config.recalibration.mode, pipeline.recalibrators.active()
    yield from recalibrators(active, mode, snapshot.promotions, snapshot.factors)


def _refused(counters: Counters, reason: Reason) -> int:
    found = int(counters.by_reason[reason]) + counters.frames_refused.get(reason, 0)
    return found + counters.notices.get(reason, 0)


def _labels(counters: Counters) -> Iterator[str]:
    yield counter_by("ground_truth", "outcome", outcomes(counters.truth))
    yield one_counter("unmatched_detections", counters.unmatched)
    yield one_counter("dropped_detections", counters.dropped)


def _tracks(reading: TrackReading) -> Iterator[str]:
    yield counter_by("tracker_frames", "order", ((order, reading.orders[order]) for order in Order))
    yield gauge(
        "tracks",
        ("slice", "status"),
        (
            ((name, status.name.lower()), count)
            for name, counts in zip(reading.names, reading.counts.T.tolist(), strict=True)
            for status, count in zip(TrackStatus, counts, strict=True)
        ),
    )
    for name, measure in (
        ("track_nis_ratio", "nis_ratio"),
        ("track_innovation_correlation", "correlation"),
        ("gate_reject_ratio", "reject_ratio"),
    ):
        values = zip(reading.names, getattr(reading, measure).tolist(), strict=True)
        yield gauge_by(name, "slice", values)
