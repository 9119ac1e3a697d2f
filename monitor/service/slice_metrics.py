"""Metric families that have a series for each slice.

Measures, windows, class probabilities and drift are written from readings, recalibrators from the
live decisions about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from monitor.drift.alarms import AlarmCount, DriftReading, SliceStanding, StageStanding
from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES, Stage
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.promotion.records import Factor, TrialStanding, TrialState
from monitor.service.exposition import (
    JOINT,
    Row,
    counter,
    counter_by,
    gauge,
    gauge_by,
    one_counter,
    one_gauge,
)
from monitor.statistics.reading import ClassReading, SliceReading, WindowReading

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
    for field in (
        "accuracy",
        "ece",
        "uce_entropy",
        "brier",
        "nll",
        "ause",
        "overconfidence",
        "underconfidence",
    ):
        values = ((each.name, getattr(each.evaluation, field)) for each in readings)
        yield gauge_by(f"class_{field}", "slice", values)


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
