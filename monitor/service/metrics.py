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
from monitor.pipeline.restart import Resumption
from monitor.pipeline.stream_tracker import TrackReading
from monitor.pipeline.truth import TruthLedger
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
from monitor.service.readings import RecalibrationReading
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
    yield gauge(
        "build_info",
        "Which build this is; always 1.",
        tuple(build),
        [(tuple(build.values()), 1.0)] if build else [],
    )
    yield counter_by(
        "configuration_reloads",
        "Configurations that were read again (SIGHUP), by outcome.",
        "outcome",
        reloads.outcomes.items(),
    )
    yield one_gauge(
        "configuration_waiting_keys",
        "Keys of the configuration, as last read again, that only a restart brings in force.",
        len(reloads.waiting),
    )
    yield gauge_by(
        "stamp_lag_seconds",
        "Wall clock at arrival minus capture stamp of the streams of the last minute.",
        "of",
        snapshot.lag.items(),
    )
    yield counter_by("log_lines", "Lines of the log, by level.", "level", logs.lines.items())
    yield one_counter(
        "log_lines_left_out",
        "Lines that were left out of the log, being too many of their kind.",
        logs.left_out,
    )


def forwarding(tracker: ExternalTracker) -> Iterator[str]:
    """Yields the families of frames forwarded to a tracker elsewhere."""
    yield one_gauge(
        "tracker_up",
        "Whether the tracker elsewhere is there and says that it serves.",
        tracker.up,
    )
    yield one_counter(
        "tracker_sent",
        "Frames that were written to the tracker elsewhere, whatever became of them then.",
        tracker.line.sent,
    )
    yield counter_by(
        "tracker_forwarded",
        "Frames for the tracker elsewhere by how it ended with them, each in one of these.",
        "outcome",
        tracker.line.ended.items(),
    )
    yield one_counter(
        "tracker_unusable_answers",
        "Answers of the tracker elsewhere that were none; the log says what was wrong.",
        tracker.unusable,
    )
    yield histogram(
        "tracker_seconds",
        "Time from a frame to the tracker's answer, of those answered in time.",
        tracker.seconds,
    )


def _ledger(ledger: TruthLedger, delay: Histogram) -> Iterator[str]:
    """Yields the families of what became of detections and labels; delay is of the labels."""
    counts, shares = dict(ledger.fates.account), ledger.fates.shares
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    counts["waiting"] = ledger.fates.pending
    yield gauge_by(
        "detection_fates",
        "Detections that came since the ledger began, by what became of them: they add up to all. "
        "A later revision of a label may change one.",
        "fate",
        counts.items(),
    )
    unusable = ("waiting", f"dropped_{Dropped.REFUSED}", f"dropped_{Dropped.BARE}")
    known = sum(count for fate, count in counts.items() if fate not in unusable)
    yield one_gauge(
        "match_ratio",
        "Matched detections among the usable ones whose fate is known.",
        _ratio(counts.get("matched", 0), known),
    )
    yield one_counter(
        "retracted_detections",
        "Detections whose labels a later revision took back.",
        retracted,
    )
    yield gauge_by(
        "labelled_ratio",
        "Share of a slice's detections of which labels told anything.",
        "slice",
        (
            (entry.name, _ratio(shares.of("labelled", index), shares.of("predicted", index)))
            for index, entry in enumerate(ledger.counting.slices.slices)
        ),
    )
    gated, near = (int(shares.counts[name].sum()) for name in ("gated", "near_gate"))
    yield one_gauge("gated_matches", "Matches that the gate of [matching] decided.", gated)
    yield one_gauge(
        "near_gate_ratio",
        "Share of them near the gate: it cuts the tail of the errors off.",
        _ratio(near, gated),
    )
    yield histogram(
        "ground_truth_delay_seconds",
        "Event time from a frame to its labels, by message.",
        delay,
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _disk(snapshot: Snapshot) -> Iterator[str]:
    journal, resumed = snapshot.journal, snapshot.resumed
    for name, text, value in (
        ("ledger_bytes", "Bytes of frames and labels on disk.", journal.bytes),
        ("ledger_partitions", "Partitions of event time they are in.", journal.partitions),
        ("ledger_waiting", "Entries that wait for the disk.", journal.waiting),
        (
            "ledger_replayed_entries",
            "Entries that were done again at the start.",
            resumed.entries,
        ),
        (
            "ledger_lost_entries",
            "Entries that could not be done again at the start.",
            resumed.failed,
        ),
    ):
        yield one_gauge(name, text, value)
    yield one_counter(
        "ledger_failures",
        "Writes to the disk that came to nothing; the log says why.",
        journal.failures,
    )
    yield counter_by(
        "files_refused",
        "Files that could not be used, by what they hold; the log says why.",
        "of",
        snapshot.refused.items(),
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The exported state of a sidecar: its live parts, and readings that took several steps.

    pipeline, journal, resumed, reloads, logs, tracker  are live, and read family by family
    counters             of the pipeline, as of one moment
    readings             measures of every slice since epoch
    bins                 export bins of every slice that has statistics, `total` left out: PromQL
                         adds up
    edges                of the export bins; known without any slice, so that labels are complete
    windows              measures of every slice over every window
    classes              measures of class probabilities, of the slices that have some
    checkpoint_age       seconds since the statistics were last written to disk; NaN: never
    checkpoint_failures  how often the write failed
    recalibration        swaps, fits and trials of recalibrators
    drift                None: nothing is watched, and drift has no families
    tracker              None: there is no tracker elsewhere, and forwarding has no families
    refused              files that could not be used, by what they hold
    build                versions of the sidecar and of the libraries below it, by label
    lag                  by "least" and "most" of all streams, in s; empty if no stamp came lately
    """

    pipeline: Pipeline
    counters: Counters
    journal: Journal
    resumed: Resumption
    reloads: Reloads
    logs: LogCounts
    readings: tuple[SliceReading, ...] = ()
    bins: tuple[SliceBins, ...] = ()
    edges: ExportEdges | None = None
    windows: tuple[WindowReading, ...] = ()
    classes: tuple[ClassReading, ...] = ()
    checkpoint_age: float = float("nan")
    checkpoint_failures: int = 0
    recalibration: RecalibrationReading = field(default_factory=RecalibrationReading)
    drift: DriftReading | None = None
    tracker: ExternalTracker | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)
    lag: Mapping[str, float] = field(default_factory=dict)


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
    yield one_counter("frames", "Frames answered.", counters.frames)
    made = ("recalibrated", "passed_through", "refused")
    yield counter_by(
        "detections",
        "Detections by what became of them; each time their frame comes.",
        "outcome",
        ((outcome, getattr(counters, outcome)) for outcome in made),
    )
    yield counter_by(
        "passed_through",
        "Valid detections returned as they came.",
        "reason",
        ((reason.label, counters.by_reason[reason]) for reason in sorted(PASSED_THROUGH)),
    )
    yield counter_by(
        "rejected",
        "Detections, messages and further fields that were refused.",
        "reason",
        ((reason.label, _refused(counters, reason)) for reason in _REFUSING),
    )
    yield counter_by(
        "calls_refused",
        "Calls that showed no token that is known, or one of another right.",
        "why",
        counters.calls_refused.items(),
    )
    yield histogram(
        "frame_seconds",
        "Time from a frame's bytes to its answer's bytes.",
        counters.frame_seconds,
    )
    handled = counters.fast_frames + counters.slow_frames
    for name, text, value in (
        (
            "fast_decode_ratio",
            "Share of frames whose detections all have one layout.",
            counters.fast_frames / handled if handled else 1.0,
        ),
        (
            "loop_lag_seconds",
            "Longest delay of the event loop since the last refresh.",
            counters.loop_lag_seconds,
        ),
        (
            "overload",
            "1 while frames are answered and forwarded, but not monitored.",
            counters.shedding,
        ),
        (
            "clock_epoch",
            "Of the wall clock; goes up by one when it is set.",
            counters.clock_epoch,
        ),
        ("pending_bytes", "Bytes of frames that wait for their truth.", pending.store.bytes),
        ("pending_detections", "Detections that wait for their truth.", pending.pending),
        ("streams", "Streams registered.", len(pipeline.streams)),
        (
            "checkpoint_age_seconds",
            "Since the last checkpoint; NaN: not yet, or never.",
            snapshot.checkpoint_age,
        ),
    ):
        yield one_gauge(name, text, value)
    yield one_counter(
        "checkpoint_failures",
        "Checkpoints that could not be written to disk; the log says why.",
        snapshot.checkpoint_failures,
    )
    yield one_counter(
        "event_time_jumps",
        "How often event time began anew or jumped ahead.",
        pipeline.live.clock.jumps,
    )
    for name, text in (
        ("late_frames", "Frames that came behind their stream's watermark."),
        ("overloads", "How often monitoring gave way to forwarding."),
        ("clock_steps", "How often the wall clock was set."),
        ("internal_errors", "Faults of the sidecar itself; its log says which."),
        ("overflow_detections", "Matched detections in overflow slices."),
        (
            "overflow_classified",
            "Matched class probabilities in overflow slices, or for which there was none.",
        ),
        ("streams_dropped", "Streams ended because the client read no answers."),
    ):
        yield one_counter(name, text, getattr(counters, name))


def _recalibration(snapshot: Snapshot) -> Iterator[str]:
    counters = snapshot.counters
    yield counter_by(
        "uncertain_detections",
        "Detections flagged as too uncertain, by what shows it; each time their frame comes.",
        "by",
        (
            (by.name.lower(), counters.uncertain[by - 1])
            for by in UncertainBy
            if by is not UncertainBy.NEITHER
        ),
    )
    yield counter_by(
        "class_recalibrations",
        "Detections by what the recalibrator of class probabilities in force made of theirs; "
        "each time their frame comes.",
        "outcome",
        outcomes(counters.class_recalibrations),
    )
    pipeline = snapshot.pipeline
    mode, active = pipeline.config.recalibration.mode, pipeline.recalibrators.active()
    yield from recalibrators(active, mode, snapshot.recalibration)


def _refused(counters: Counters, reason: Reason) -> int:
    found = int(counters.by_reason[reason]) + counters.frames_refused.get(reason, 0)
    return found + counters.notices.get(reason, 0)


def _labels(counters: Counters) -> Iterator[str]:
    labels = outcomes(counters.truth)
    yield counter_by("ground_truth", "Labels by what became of them.", "outcome", labels)
    yield one_counter(
        "unmatched_detections",
        "Detections of completely labelled frames without a label.",
        counters.unmatched,
    )
    yield one_counter(
        "dropped_detections",
        "Detections that left the store before their truth came.",
        counters.dropped,
    )


def _tracks(reading: TrackReading) -> Iterator[str]:
    yield counter_by(
        "tracker_frames",
        "Frames by how they came to the tracker.",
        "order",
        ((order, reading.orders[order]) for order in Order),
    )
    yield gauge(
        "tracks",
        "Tracks as of the last frame of each stream.",
        ("slice", "status"),
        (
            ((name, status.name.lower()), count)
            for name, counts in zip(reading.names, reading.counts.T.tolist(), strict=True)
            for status, count in zip(TrackStatus, counts, strict=True)
        ),
    )
    for name, text, measure in (
        (
            "track_nis_ratio",
            "Mean normalised innovation squared per dimension that is no angle; far above 1: "
            "overconfident.",
            "nis_ratio",
        ),
        (
            "track_innovation_correlation",
            "Correlation of the whitened innovation with the one of the frame before.",
            "correlation",
        ),
        (
            "gate_reject_ratio",
            "Of confirmed tracks with a detection near, the share whose gate let none in.",
            "reject_ratio",
        ),
    ):
        values = zip(reading.names, getattr(reading, measure).tolist(), strict=True)
        yield gauge_by(name, text, "slice", values)
