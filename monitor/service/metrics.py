"""Writes the text of /metrics from one snapshot, family by family, so that frames pass in between.

Families with a series for each slice are written by slice_metrics. Nothing here changes live state.

Measures, windows, class probabilities and drift are written from readings, recalibrators from the
live decisions about them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from monitor.drift.alarms import AlarmCount, DriftReading, SliceStanding, StageStanding
from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES, Stage
from monitor.frames.detections import PASSED_THROUGH, Reason
from monitor.frames.frame import TrackStatus, UncertainBy
from monitor.frames.status import Counters, Histogram
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.pipeline.restart import Resumption
from monitor.pipeline.streams import TrackReading
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Factor, TrialStanding, TrialState
from monitor.service.exposition import (
    JOINT,
    Row,
    bins,
    counter,
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
from monitor.statistics.bins import ExportEdges, SliceBins
from monitor.statistics.reading import ClassReading, SliceReading, WindowReading
from monitor.store.journal import Journal
from monitor.tracking.tracker import Order

_BY_DIMENSION = ("slice", "stage", "dimension")

# h of evidence, shown instead of less: log10 of 0 would be -Inf, which no graph shows.
LEAST_EVIDENCE = 1e-9
_BY_SEVERITY = ("slice", "severity")


def measures(readings: tuple[SliceReading, ...]) -> Iterator[str]:
    """Yields the families of measures since epoch."""
    # A gauge, not a counter: after a restart it may be a little less than it was.
    yield gauge_by(
        "matched_detections", "slice", ((reading.name, reading.raw.rows) for reading in readings)
    )
    stages = [
        ((reading.name, stage), found) for reading in readings for stage, found in reading.stages
    ]
    dimensions = [
        ((*at, name), dimension)
        for at, found in stages
        for name, dimension in found.dimensions.items()
    ]
    joint = [((*at, JOINT), found.joint) for at, found in stages]
    everywhere: list[tuple[tuple[str, str, str], object]] = [*dimensions, *joint]
    for name, measured in (
        ("ence", dimensions),
        ("ence_noise_floor", dimensions),
        ("uce", dimensions),
        ("qce", everywhere),
    ):
        yield gauge(name, _BY_DIMENSION, ((at, getattr(found, name)) for at, found in measured))
    yield gauge(
        "nees_ratio",
        _BY_DIMENSION,
        [
            *((at, found.nees_mean) for at, found in dimensions),
            *((at, found.nees_over_k) for at, found in joint),
        ],
    )
    yield gauge(
        "nees_median_ratio",
        ("slice", "stage"),
        ((at, found.joint.nees_median_ratio) for at, found in stages),
    )
    yield gauge(
        "effective_detections",
        ("slice", "stage"),
        ((at, found.joint.n_eff) for at, found in stages),
    )
    yield gauge(
        "coverage",
        ("slice", "stage", "tau"),
        (
            ((*at, repr(level)), share)
            for at, found in stages
            for level, share in zip(
                found.joint.tau.tolist(), found.joint.coverage_by_tau.tolist(), strict=True
            )
        ),
    )


def windows(readings: tuple[WindowReading, ...]) -> Iterator[str]:
    """Yields the families of the joint block over windows."""
    yield gauge(
        "window_detections",
        ("slice", "window"),
        (((each.reading.name, each.window), each.reading.raw.rows) for each in readings),
    )
    stages = [
        ((each.reading.name, stage, each.window), found.joint)
        for each in readings
        for stage, found in each.reading.stages
    ]
    labels = ("slice", "stage", "window")
    yield gauge("window_nees_ratio", labels, ((at, joint.nees_over_k) for at, joint in stages))
    yield gauge("window_qce", labels, ((at, joint.qce) for at, joint in stages))


def classes(readings: tuple[ClassReading, ...]) -> Iterator[str]:
    """Yields the families of class probabilities."""
    yield gauge_by(
        "classified_detections", "slice", ((each.name, each.evaluation.n) for each in readings)
    )
    for measure in (
        "accuracy",
        "ece",
        "uce_entropy",
        "brier",
        "nll",
        "ause",
        "overconfidence",
        "underconfidence",
    ):
        values = ((each.name, getattr(each.evaluation, measure)) for each in readings)
        yield gauge_by(f"class_{measure}", "slice", values)


def drift(reading: DriftReading) -> Iterator[str]:
    """Yields the families of drift; at most nine series for each slice that has labels."""
    yield from _standings(reading)
    yield counter("drift_alarms", ("stage", "detector", "direction"), _alarms(reading.counts))
    yield _scales(reading.standings, reading.stages)
    yield from _stages(reading.stages)
    yield one_counter("drift_epochs", sum(epoch for _, epoch in reading.epochs))
    yield one_counter("drift_driving_seconds", 3600 * reading.driven)
    yield counter_by("drift_left_out", "reason", reading.left_out)


def _standings(reading: DriftReading) -> Iterator[str]:
    standings = reading.standings
    # The peak: evidence that rises and falls between two scrapes is seen nevertheless.
    yield gauge(
        "drift_log10_evidence",
        _BY_SEVERITY,
        (((each.slice, each.severity), _log10(each.peak)) for each in standings),
    )
    thresholds = {each.severity: _log10(each.threshold) for each in standings}
    yield gauge_by("drift_log10_threshold", "severity", thresholds.items())
    yield gauge(
        "drift_state",
        _BY_SEVERITY,
        (((each.slice, each.severity), each.state) for each in standings),
    )


def _log10(hours: float) -> float:
    # In this order NaN stays NaN.
    return math.log10(max(hours, LEAST_EVIDENCE))


def _alarms(counts: Sequence[AlarmCount]) -> Iterator[Row]:
    """Yields a count for every kind of alarm, from 0 on, so that the first alarm is an increase."""
    raised = {(one.stage, one.detector, one.direction): one.alarms for one in counts}
    for chart in CHARTS:
        for detector in DETECTORS:
            labels = chart.stage.label, detector, chart.direction
            yield labels, raised.get((chart.stage, detector, chart.direction), 0)


def _scales(standings: Sequence[SliceStanding], stages: Sequence[StageStanding]) -> str:
    found = {(each.slice, each.stage.label): each.scale.estimate for each in stages}
    # An alarm begins the evidence anew, so its scale is unknown: the alarm's own scale is shown
    # as long as the alarm stays. If a ticket stays beside a page, the page's scale is shown.
    alarms = [each.alarm for each in standings if each.alarm is not None]
    for alarm in sorted(alarms, key=lambda alarm: SEVERITIES.index(alarm.severity), reverse=True):
        found[alarm.slice, alarm.stage.label] = alarm.scale.estimate
    return gauge("drift_scale_estimate", ("slice", "stage"), found.items())


def _stages(stages: Sequence[StageStanding]) -> Iterator[str]:
    forwarded = [each for each in stages if each.stage is Stage.RECALIBRATED]
    yield gauge_by(
        "drift_effective_sample_ratio",
        "slice",
        ((each.slice, each.effective_ratio) for each in forwarded),
    )
    yield gauge(
        "drift_reference_tracks",
        ("slice", "origin", "unit"),
        (((each.slice, each.reference, each.unit), each.reference_tracks) for each in forwarded),
    )


def recalibrators(
    active: Iterable[ActiveRecalibrator],
    mode: str,
    promotions: Promotions,
    factors: Mapping[str, tuple[Factor, ...]],
) -> Iterator[str]:
    """Yields the families of recalibrators; `mode` is that of [recalibration].

    factors  on the variances, one a dimension: recalibrated over raw, as last forwarded; by slice
    """
    yield gauge(
        "recalibrator_info",
        ("version", "method", "mode", "output"),
        (((entry.version, entry.method, mode, entry.output), 1) for entry in active),
    )
    counters = promotions.counters
    yield counter_by("recalibrator_swaps", "outcome", counters.swaps.items())
    yield counter_by("recalibrator_fits", "outcome", counters.fits.items())
    yield counter_by("recalibrator_trials", "outcome", counters.trials.items())
    yield gauge(
        "recalibration_factor",
        ("slice", "dimension"),
        (
            ((slice, factor.dimension), factor.typical)
            for slice, of_slice in factors.items()
            for factor in of_slice
        ),
    )
    yield from _trials(promotions.trials())
    yield one_gauge("recalibrator_pinned", promotions.pinned)
    yield one_counter("learning_left_out", promotions.learning.left_out)


def _trials(trials: Sequence[TrialStanding]) -> Iterator[str]:
    """Yields the families of trials; a slice has at most one trial of each state."""
    yield gauge(
        "trial_log10_evidence",
        ("slice", "state", "direction"),
        (
            ((trial.slice, str(trial.state), direction), value)
            for trial in trials
            for direction, value in _bets(trial)
        ),
    )
    for measure in ("log10_threshold", "tracks"):
        rows = (
            ((trial.slice, str(trial.state)), getattr(trial.evidence, measure)) for trial in trials
        )
        yield gauge(f"trial_{measure}", ("slice", "state"), rows)


def _bets(trial: TrialStanding) -> Iterator[tuple[str, float]]:
    yield "better", trial.evidence.log10_better
    # A guard does not bet on "worse": nothing would follow from it.
    if trial.state is not TrialState.GUARD:
        yield "worse", trial.evidence.log10_worse


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
    found = int(counters.by_reason[reason]) + counters.frames_refused[reason]
    return found + counters.notices[reason]


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
