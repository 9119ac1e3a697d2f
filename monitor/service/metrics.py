"""Writes the text of /metrics from one snapshot, family by family, so that frames pass in between.

Families with a series for each slice are written by slice_metrics. Nothing here changes live state.

Measures, windows, class probabilities and drift are written from readings, recalibrators from the
live decisions about them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain

from monitor.config import Reloads
from monitor.drift.alarms import (
    Alarm,
    AlarmCount,
    DriftReading,
    SliceStanding,
    StageStanding,
    raised_ever,
)
from monitor.drift.charts import SEVERITIES, Stage
from monitor.fleet.uploads import Uploader
from monitor.frames.detections import ACTED_ON, PASSED_THROUGH, Reason
from monitor.frames.frame import TrackStatus, UncertainBy
from monitor.frames.status import Counters
from monitor.pipeline.checkpoints import Checkpoints
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.restart import Resumption
from monitor.pipeline.shown import ShownState
from monitor.pipeline.streams import TrackReading
from monitor.pipeline.truth import TruthLedger
from monitor.promotion.records import Factor, TrialState
from monitor.service.exposition import JOINT, Row, bins, family, histogram, single
from monitor.service.log import LogCounts
from monitor.statistics.bins import ExportEdges, SliceBins
from monitor.statistics.reading import (
    ClassReading,
    PredictedReading,
    SliceReading,
    WindowReading,
)
from monitor.statistics.vehicles import BIAS, SCALE
from monitor.tracking.tracker import Order

# h of evidence, shown instead of less: log10 of 0 would be -Inf, which no graph shows.
LEAST_EVIDENCE = 1e-9
_OF_CLASSES = (
    *("accuracy", "ece", "uce_entropy", "brier", "nll", "ause"),
    *("overconfidence", "underconfidence", "entropy"),
)


def measures(readings: tuple[SliceReading, ...]) -> Iterator[str]:
    """Yields the families of measures since epoch."""
    # A gauge, not a counter: after a restart it may be a little less than it was.
    yield family("matched_detections", ((each.name, each.raw.rows) for each in readings))
    stages = [((each.name, stage), found) for each in readings for stage, found in each.stages]
    dimensions = [
        ((*at, name), dimension)
        for at, found in stages
        for name, dimension in found.dimensions.items()
    ]
    joint = [(at, found.joint) for at, found in stages]
    for name in ("ence", "ence_noise_floor", "uce", "rmse", "bias", "bias_margin"):
        yield family(name, ((*at, getattr(found, name)) for at, found in dimensions))
    for name, of_dimension, of_joint in (
        ("qce", "qce", "qce"),
        ("nees_ratio", "nees_mean", "nees_over_k"),
    ):
        rows: list[Row] = [(*at, getattr(found, of_dimension)) for at, found in dimensions]
        rows += [(*at, JOINT, getattr(found, of_joint)) for at, found in joint]
        yield family(name, rows)
    for name, measure in (("nees_median_ratio",) * 2, ("effective_detections", "n_eff")):
        yield family(name, ((*at, getattr(found, measure)) for at, found in joint))
    yield family(
        "coverage",
        (
            (*at, repr(level), share)
            for at, found in joint
            for level, share in zip(found.tau.tolist(), found.coverage_by_tau.tolist(), strict=True)
        ),
    )


def windows(readings: tuple[WindowReading, ...]) -> Iterator[str]:
    """Yields the families of the joint block over windows."""
    rows = ((each.reading.name, each.window, each.reading.raw.rows) for each in readings)
    yield family("window_detections", rows)
    joint = [
        ((each.reading.name, stage, each.window), found.joint)
        for each in readings
        for stage, found in each.reading.stages
    ]
    yield family("window_nees_ratio", ((*at, found.nees_over_k) for at, found in joint))


def classes(readings: tuple[ClassReading, ...]) -> Iterator[str]:
    """Yields the families of class probabilities; the parts of an entropy only where known."""
    yield family("classified_detections", ((each.name, each.raw.n) for each in readings))
    stages = [((each.name, stage), found) for each in readings for stage, found in each.stages]
    for measure in _OF_CLASSES:
        yield family(f"class_{measure}", ((*at, getattr(found, measure)) for at, found in stages))
    known = [(at, found) for at, found in stages if found.opinions]
    for part in ("aleatoric", "epistemic"):
        yield family(f"class_{part}", ((*at, getattr(found, part)) for at, found in known))


def predicted(readings: tuple[PredictedReading, ...]) -> Iterator[str]:
    """Yields the families of all detections, labelled or not, over the shortest window."""
    for name in ("entropy", "deviation"):
        rows = (
            (one.slice, of, getattr(one, f"{name}_{of}"))
            for one in readings
            for of in ("mean", "q95")
            if name == "deviation" or one.classified
        )
        yield family(f"predicted_{name}", rows)
    above: dict[tuple[str, str], float] = {}
    for one in readings:
        above[one.slice, "deviation"] = one.deviation_above_before
        if one.classified:
            above[one.slice, "entropy"] = one.entropy_above_before
    yield family("predicted_above_before_ratio", ((*at, share) for at, share in above.items()))


def drift(reading: DriftReading) -> Iterator[str]:
    """Yields the families of drift; at most eleven series for each slice that has labels."""
    standings = reading.standings
    # The peak: evidence that rises and falls between two scrapes is seen nevertheless.
    peaks = ((each.slice, each.severity, _log10(each.peak)) for each in standings)
    yield family("drift_log10_evidence", peaks)
    thresholds = {each.severity: _log10(each.threshold) for each in standings}
    yield family("drift_log10_threshold", thresholds.items())
    yield family("drift_state", ((each.slice, each.severity, each.state) for each in standings))
    yield family("drift_alarms_total", _alarms(reading.counts))
    sizes = (_size(each.alarm) for each in standings if each.alarm is not None)
    yield family("drift_alarm_size", sizes)
    yield _scales(standings, reading.stages)
    forwarded = [each for each in reading.stages if each.stage is Stage.RECALIBRATED]
    ratios = ((each.slice, each.effective_ratio) for each in forwarded)
    yield family("drift_effective_sample_ratio", ratios)
    tracks = ((each.slice, each.reference, each.unit, each.reference_tracks) for each in forwarded)
    yield family("drift_reference_tracks", tracks)
    yield single("drift_epochs_total", sum(epoch for _, epoch in reading.epochs))
    yield single("drift_driving_seconds_total", 3600 * reading.driven)
    yield family("drift_left_out_total", reading.left_out)


def _log10(hours: float) -> float:
    # In this order NaN stays NaN.
    return math.log10(max(hours, LEAST_EVIDENCE))


def _alarms(counts: Sequence[AlarmCount]) -> Iterator[Row]:
    """Yields a count for every kind of alarm, from 0 on, so that the first alarm is an increase."""
    raised = {(one.stage, one.detector, one.direction): one.alarms for one in counts}
    for kind in raised_ever():
        stage, detector, direction = kind
        yield stage.label, detector, direction, raised.get(kind, 0)


def _size(alarm: Alarm) -> Row:
    of = alarm.dimension or JOINT, alarm.unit
    return alarm.slice, alarm.severity, alarm.stage.label, alarm.quantity, *of, alarm.size


def _scales(standings: Sequence[SliceStanding], stages: Sequence[StageStanding]) -> str:
    found = {(each.slice, each.stage.label): each.scale.estimate for each in stages}
    # An alarm begins the evidence anew, so its scale is unknown: the alarm's own scale is shown
    # as long as the alarm stays. If a ticket stays beside a page, the page's scale is shown.
    alarms = [each.alarm for each in standings if each.alarm is not None]
    for alarm in sorted(alarms, key=lambda alarm: SEVERITIES.index(alarm.severity), reverse=True):
        found[alarm.slice, alarm.stage.label] = alarm.scale.estimate
    return family("drift_scale_estimate", ((*at, scale) for at, scale in found.items()))


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Reasons to refuse a detection, a message or a label; the others let a detection pass.
_REFUSING = tuple(reason for reason in Reason if reason not in PASSED_THROUGH | ACTED_ON)


def operation(snapshot: Snapshot) -> Iterator[str]:
    """Yields the families of the sidecar as a program: build, configuration, log and clock."""
    yield family("build_info", [(*snapshot.build.values(), 1.0)] if snapshot.build else [])
    yield family("configuration_reloads_total", snapshot.reloads.outcomes.items())
    yield single("configuration_waiting_keys", len(snapshot.reloads.waiting))
    yield family("stamp_lag_seconds", snapshot.lag.items())
    yield family("log_lines_total", snapshot.logs.lines.items())
    yield single("log_lines_left_out_total", snapshot.logs.left_out)


def forwarding(tracker: ExternalTracker) -> Iterator[str]:
    """Yields the families of frames forwarded to a tracker elsewhere."""
    yield single("tracker_up", tracker.up)
    yield single("tracker_sent_total", tracker.line.sent)
    yield family("tracker_forwarded_total", tracker.line.ended.items())
    yield single("tracker_unusable_answers_total", tracker.unusable)
    yield histogram("tracker_seconds", tracker.seconds)


def fleet(shown: ShownState) -> Iterator[str]:
    """Yields the families of a stored state that is served; names of vehicles are in reports."""
    yield single("fleet_vehicles", len(shown.state.holds.vehicles))
    yield single("fleet_uploads", len(shown.state.holds))
    compared = shown.vehicles
    places = [((one.slice, one.stage), one) for one in compared.slices]
    yield family("fleet_vehicles_compared", ((*at, one.compared) for at, one in places))
    rows = (
        (*at, quantity, compared.different(one, quantity))
        for at, one in places
        for quantity in (SCALE, BIAS)
    )
    yield family("fleet_vehicles_different", rows)


def uploading(uploads: Uploader) -> Iterator[str]:
    """Yields the families of uploads."""
    yield family("uploads_total", uploads.counts.items())
    yield single("upload_pending_bytes", uploads.pending_bytes)
    yield single("upload_age_seconds", uploads.age_seconds)
    yield single("upload_interval_seconds", uploads.every_seconds)


def _ledger(ledger: TruthLedger, counters: Counters) -> Iterator[str]:
    """Yields the families of what became of detections and labels."""
    yield family("ground_truth_total", asdict(counters.truth).items())
    yield single("unmatched_detections_total", counters.unmatched)
    yield single("dropped_detections_total", counters.dropped)
    counts, shares = dict(ledger.fates.account), ledger.fates.shares
    retracted = counts.pop("retracted")
    counts.pop("predicted")
    counts["waiting"] = ledger.fates.pending
    yield family("detection_fates", counts.items())
    unusable = ("waiting", f"dropped_{Dropped.REFUSED}", f"dropped_{Dropped.BARE}")
    known = sum(count for fate, count in counts.items() if fate not in unusable)
    yield single("match_ratio", _ratio(counts.get("matched", 0), known))
    yield single("retracted_detections_total", retracted)
    ratios = (
        (entry.name, _ratio(shares.of("labelled", index), shares.of("predicted", index)))
        for index, entry in enumerate(ledger.live.slices.slices)
    )
    yield family("labelled_ratio", ratios)
    gated, near = (int(shares.counts[name].sum()) for name in ("gated", "near_gate"))
    yield single("gated_matches", gated)
    yield single("near_gate_ratio", _ratio(near, gated))
    yield histogram("ground_truth_delay_seconds", counters.truth_delay)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _disk(snapshot: Snapshot) -> Iterator[str]:
    journal, resumed = snapshot.pipeline.journal, snapshot.resumed
    yield single("ledger_bytes", journal.bytes)
    yield single("ledger_partitions", journal.partitions)
    yield single("ledger_waiting", journal.waiting)
    yield single("ledger_replayed_entries", resumed.entries)
    yield single("ledger_lost_entries", resumed.failed)
    yield single("ledger_failures_total", journal.failures)
    refused = [("state", snapshot.checkpoints.refused), ("ledger", journal.refused)]
    if snapshot.uploads is not None:
        refused.append(("uploads", snapshot.uploads.refused))
    yield family("files_refused_total", refused)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The exported state of a sidecar: its live parts, and readings that took several steps.

    promotions, checkpoints, resumed, reloads, logs, tracker, uploads
                         are live, and read family by family
    counters             of the pipeline, as of one moment
    edges                of the export bins; known without any slice, so that labels are complete
    readings             measures of every slice since epoch
    bins                 export bins of every slice that has statistics, `total` left out: PromQL
                         adds up
    windows              measures of every slice over every window
    classes              measures of class probabilities, of the slices that have some
    predicted            how certain the detector is of all detections, over the shortest window
    factors              of recalibration on the variances, one a dimension: recalibrated over raw,
                         as last forwarded; by slice
    drift                None: nothing is watched, and drift has no families
    tracker              None: there is no tracker elsewhere, and forwarding has no families
    uploads              None: nothing is uploaded, and uploads have no families
    build                versions of the sidecar and of the libraries below it, by label
    shown                the stored state that is served; None: the sidecar counts what comes
    lag                  by "least" and "most" of all streams, in s; empty if no stamp came lately
    """

    promotions: Promotions
    checkpoints: Checkpoints
    counters: Counters
    edges: ExportEdges
    resumed: Resumption
    reloads: Reloads
    logs: LogCounts
    tracker: ExternalTracker | None = None
    uploads: Uploader | None = None
    build: Mapping[str, str] = field(default_factory=dict)
    readings: tuple[SliceReading, ...] = ()
    bins: tuple[SliceBins, ...] = ()
    windows: tuple[WindowReading, ...] = ()
    classes: tuple[ClassReading, ...] = ()
    predicted: tuple[PredictedReading, ...] = ()
    factors: Mapping[str, tuple[Factor, ...]] = field(default_factory=dict)
    drift: DriftReading | None = None
    lag: Mapping[str, float] = field(default_factory=dict)
    shown: ShownState | None = None

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
        predicted(snapshot.predicted),
        bins(snapshot.bins, snapshot.edges),
        _service(snapshot),
        _recalibration(snapshot),
        drift(snapshot.drift) if snapshot.drift is not None else (),
        _ledger(snapshot.pipeline.ledger, snapshot.counters),
        _disk(snapshot),
        _tracks(snapshot.pipeline.tracks()),
        forwarding(snapshot.tracker) if snapshot.tracker is not None else (),
        uploading(snapshot.uploads) if snapshot.uploads is not None else (),
        operation(snapshot),
        fleet(snapshot.shown) if snapshot.shown is not None else (),
    ):
        pieces.append(piece.encode())
        yield
    return b"".join(pieces)


def _service(snapshot: Snapshot) -> Iterator[str]:
    counters, pipeline = snapshot.counters, snapshot.pipeline
    fates = pipeline.ledger.fates
    yield single("frames_total", counters.frames)
    made = ("recalibrated", "estimated", "passed_through", "refused")
    yield family("detections_total", ((outcome, getattr(counters, outcome)) for outcome in made))
    passed = ((reason.label, counters.by_reason[reason]) for reason in sorted(PASSED_THROUGH))
    yield family("passed_through_total", passed)
    yield family("rejected_total", ((each.label, _refused(counters, each)) for each in _REFUSING))
    yield family("calls_refused_total", counters.calls_refused.items())
    yield histogram("frame_seconds", counters.frame_seconds)
    handled = counters.fast_frames + counters.slow_frames
    for name, value in (
        ("fast_decode_ratio", counters.fast_frames / handled if handled else 1.0),
        ("loop_lag_seconds", counters.loop_lag_seconds),
        ("overload", counters.shedding),
        ("clock_epoch", counters.clock_epoch),
        ("pending_bytes", fates.store.bytes),
        ("pending_detections", fates.pending),
        ("streams", len(pipeline.streams)),
        ("checkpoint_age_seconds", snapshot.checkpoints.age_seconds),
        ("checkpoint_failures_total", snapshot.checkpoints.failures),
        ("event_time_jumps_total", pipeline.live.clock.jumps),
        ("late_frames_total", counters.late_frames),
        ("overloads_total", counters.overloads),
        ("clock_steps_total", counters.clock_steps),
        ("internal_errors_total", counters.internal_errors),
        ("overflow_detections_total", counters.overflow_detections),
        ("overflow_classified_total", counters.overflow_classified),
        ("streams_dropped_total", counters.streams_dropped),
    ):
        yield single(name, value)


def _recalibration(snapshot: Snapshot) -> Iterator[str]:
    counters, pipeline = snapshot.counters, snapshot.pipeline
    # In the order of the numbers, from 1: NEITHER is 0.
    found = zip(list(UncertainBy)[1:], counters.uncertain, strict=True)
    yield family("uncertain_detections_total", ((by.name.lower(), count) for by, count in found))
    yield family("class_recalibrations_total", asdict(counters.class_recalibrations).items())
    mode, active = pipeline.config.recalibration.mode, pipeline.recalibrators.active()
    served = ((each.version, each.method, mode, each.output, 1) for each in active)
    yield family("recalibrator_info", served)
    promotions = snapshot.promotions
    for name in ("swaps", "fits", "trials"):
        counts = getattr(promotions.counters, name)
        yield family(f"recalibrator_{name}_total", counts.items())
    made = (
        (name, each.dimension, each.typical)
        for name, some in snapshot.factors.items()
        for each in some
    )
    yield family("recalibration_factor", made)
    # A slice has at most one trial of each state.
    trials = [((each.slice, str(each.state)), each.evidence) for each in promotions.trials()]
    bets = (
        (*at, side, getattr(evidence, f"log10_{side}"))
        for at, evidence in trials
        for side in ("better", "worse")
        # A guard does not bet on "worse": nothing would follow from it.
        if (side, at[1]) != ("worse", TrialState.GUARD)
    )
    yield family("trial_log10_evidence", bets)
    for measure in ("log10_threshold", "tracks"):
        rows = ((*at, getattr(evidence, measure)) for at, evidence in trials)
        yield family(f"trial_{measure}", rows)
    yield single("recalibrator_pinned", promotions.pinned)
    yield single("learning_left_out_total", promotions.learning.left_out)


def _refused(counters: Counters, reason: Reason) -> int:
    found = int(counters.by_reason[reason]) + counters.frames_refused[reason]
    return found + counters.notices[reason]


def _tracks(reading: TrackReading) -> Iterator[str]:
    yield family("tracker_frames_total", ((order, reading.orders[order]) for order in Order))
    counts = zip(reading.names, reading.counts.T.tolist(), strict=True)
    statuses = [status.name.lower() for status in TrackStatus]
    rows = ((name, *row) for name, some in counts for row in zip(statuses, some, strict=True))
    yield family("tracks", rows)
    for name, measure in (
        ("track_nis_ratio", "nis_ratio"),
        ("track_innovation_correlation", "correlation"),
        ("gate_reject_ratio", "reject_ratio"),
    ):
        yield family(name, zip(reading.names, getattr(reading, measure).tolist(), strict=True))
