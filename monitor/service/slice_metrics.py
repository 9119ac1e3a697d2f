"""Metric families that have a series for each slice.

Measures, windows, class probabilities, drift and recalibrators are written from readings; nothing
here touches live state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from monitor.drift.alarms import AlarmCount, DriftReading, SliceStanding, StageStanding
from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES, Stage
from monitor.pipeline.recalibrators import ActiveRecalibrator
from monitor.promotion.records import TrialStanding, TrialState
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
from monitor.service.readings import RecalibrationReading
from monitor.statistics.reading import ClassReading, SliceReading, WindowReading

_BY_DIMENSION = ("slice", "stage", "dimension")

# h of evidence, shown instead of less: log10 of 0 would be -Inf, which no graph shows.
LEAST_EVIDENCE = 1e-9
_BY_SEVERITY = ("slice", "severity")


def measures(readings: tuple[SliceReading, ...]) -> Iterator[str]:
    """Yields the families of measures since epoch."""
    # A gauge, not a counter: after a restart it may be a little less than it was.
    yield gauge_by(
        "matched_detections",
        "Detections with ground truth behind the measures; slice total is the sum of the others.",
        "slice",
        ((reading.name, reading.raw.rows) for reading in readings),
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
    for name, text, measured in (
        ("ence", "Expected normalised calibration error; 0 is calibrated.", dimensions),
        (
            "ence_noise_floor",
            "ENCE of a calibrated detector whose errors are as correlated and heavy-tailed as "
            "these.",
            dimensions,
        ),
        ("uce", "Uncertainty calibration error, in the dimension's unit squared.", dimensions),
        ("qce", "Quantile calibration error, mean over tau.", everywhere),
    ):
        rows = ((at, getattr(found, name)) for at, found in measured)
        yield gauge(name, text, _BY_DIMENSION, rows)
    yield gauge(
        "nees_ratio",
        "Mean normalised squared error per dimension; 1 is calibrated, above it overconfident.",
        _BY_DIMENSION,
        [
            *((at, found.nees_mean) for at, found in dimensions),
            *((at, found.nees_over_k) for at, found in joint),
        ],
    )
    yield gauge(
        "nees_median_ratio",
        "Median NEES over the median of chi-square; 1 is calibrated.",
        ("slice", "stage"),
        ((at, found.joint.nees_median_ratio) for at, found in stages),
    )
    yield gauge(
        "effective_detections",
        "Independent detections that those with ground truth are worth, by their joint NEES.",
        ("slice", "stage"),
        ((at, found.joint.n_eff) for at, found in stages),
    )
    yield gauge(
        "coverage",
        "Share of errors within the chi-square region of level tau.",
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
        "Detections with ground truth in the window.",
        ("slice", "window"),
        (((each.reading.name, each.window), each.reading.raw.rows) for each in readings),
    )
    stages = [
        ((each.reading.name, stage, each.window), found.joint)
        for each in readings
        for stage, found in each.reading.stages
    ]
    yield gauge(
        "window_nees_ratio",
        "Mean NEES over the number of dimensions, in the window; 1 is calibrated.",
        ("slice", "stage", "window"),
        ((at, joint.nees_over_k) for at, joint in stages),
    )
    yield gauge(
        "window_qce",
        "Quantile calibration error of the joint block, mean over tau, in the window.",
        ("slice", "stage", "window"),
        ((at, joint.qce) for at, joint in stages),
    )


def classes(readings: tuple[ClassReading, ...]) -> Iterator[str]:
    """Yields the families of class probabilities."""
    yield gauge_by(
        "classified_detections",
        "Detections with class probabilities and a true class.",
        "slice",
        ((each.name, each.evaluation.n) for each in readings),
    )
    for field, text in (
        ("accuracy", "Share of detections whose likeliest class is the true one."),
        ("ece", "Expected calibration error of the likeliest class."),
        ("uce_entropy", "Entropy calibration error; not 0 if calibrated: watch its change."),
        ("brier", "Brier score."),
        ("nll", "Mean negative log-likelihood of the true class, nats."),
        ("ause", "Area under the sparsification error: how badly uncertainty ranks errors."),
        ("overconfidence", "Mean confidence of what is wrong."),
        ("underconfidence", "Mean lack of confidence of what is right."),
    ):
        values = ((each.name, getattr(each.evaluation, field)) for each in readings)
        yield gauge_by(f"class_{field}", text, "slice", values)


def drift(reading: DriftReading) -> Iterator[str]:
    """Yields the families of drift; at most nine series for each slice that has labels."""
    yield from _standings(reading)
    yield counter(
        "drift_alarms",
        "Alarms that were raised, by what was found and the detector with most of the evidence.",
        ("stage", "detector", "direction"),
        _alarms(reading.counts),
    )
    yield _scales(reading.standings, reading.stages)
    yield from _stages(reading.stages)
    yield one_counter(
        "drift_epochs",
        "How often a recalibrator of a slice was followed by another, with a reference of its own; "
        "over all slices.",
        sum(epoch for _, epoch in reading.epochs),
    )
    driven = 3600 * reading.driven
    yield one_counter("drift_driving_seconds", "Driving that was watched.", driven)
    yield counter_by(
        "drift_left_out",
        "Detections with truth that were not watched, or not by all bets, by why.",
        "reason",
        reading.left_out,
    )


def _standings(reading: DriftReading) -> Iterator[str]:
    standings = reading.standings
    # The peak: evidence that rises and falls between two scrapes is seen nevertheless.
    yield gauge(
        "drift_log10_evidence",
        "log10 of the most evidence of drift, in hours, since the last acknowledgement, epoch or "
        "calm; of total: of any slice.",
        _BY_SEVERITY,
        (((each.slice, each.severity), _log10(each.peak)) for each in standings),
    )
    thresholds = {each.severity: _log10(each.threshold) for each in standings}
    yield gauge_by(
        "drift_log10_threshold",
        "Evidence at which there is an alarm: log10 of the stated hours between two false ones.",
        "severity",
        thresholds.items(),
    )
    yield gauge(
        "drift_state",
        "0: nothing found; 1: a tenth of what an alarm needs; 2: alarm, until it is acknowledged, "
        "a new epoch, or calm; 3: fewer than 100 labelled detections.",
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
    return gauge(
        "drift_scale_estimate",
        "By how much standard deviations are too small: root of the mean NEES/K; of the alarm that "
        "stays, else since the evidence against them began to rise; NaN: unknown.",
        ("slice", "stage"),
        found.items(),
    )


def _stages(stages: Sequence[StageStanding]) -> Iterator[str]:
    forwarded = [each for each in stages if each.stage is Stage.RECALIBRATED]
    yield gauge_by(
        "drift_effective_sample_ratio",
        "How many independent detections one of the slice is worth, as forwarded; at most 1.",
        "slice",
        ((each.slice, each.effective_ratio) for each in forwarded),
    )
    yield gauge(
        "drift_reference_tracks",
        "Tracks that what is usual as forwarded is known from; where that comes from, and what "
        "counts as one observation.",
        ("slice", "origin", "unit"),
        (((each.slice, each.reference, each.unit), each.reference_tracks) for each in forwarded),
    )


def recalibrators(
    active: Iterable[ActiveRecalibrator], mode: str, reading: RecalibrationReading
) -> Iterator[str]:
    """Yields the families of recalibrators; `mode` is that of [recalibration]."""
    yield gauge(
        "recalibrator_info",
        "The recalibrators in force; what each makes of a detection is its output.",
        ("version", "method", "mode", "output"),
        (((entry.version, entry.method, mode, entry.output), 1) for entry in active),
    )
    counters = reading.counters
    for name, text, counts in (
        ("swaps", "Changes of the recalibrator, by why another one came in force.", counters.swaps),
        ("fits", "Slices by what came of their fit beside the stream.", counters.fits),
        (
            "trials",
            "Candidates by what became of them; one that began and was proven is in both.",
            counters.trials,
        ),
    ):
        yield counter_by(f"recalibrator_{name}", text, "outcome", counts.items())
    yield gauge(
        "recalibration_factor",
        "Typical factor on the variance that was sent, as last forwarded; 1 leaves it alone.",
        ("slice", "dimension"),
        (
            ((slice, factor.dimension), factor.typical)
            for slice, factors in reading.factors.items()
            for factor in factors
        ),
    )
    yield from _trials(reading.trials)
    yield one_gauge(
        "recalibrator_pinned",
        "1 while nothing is promoted, adapted or rolled back by itself.",
        reading.pinned,
    )
    yield one_counter(
        "learning_left_out",
        "Tracks, and frames with truth, for which there was no room to learn from them.",
        reading.left_out,
    )


def _trials(trials: Sequence[TrialStanding]) -> Iterator[str]:
    """Yields the families of trials; a slice has at most one trial of each state."""
    yield gauge(
        "trial_log10_evidence",
        "log10 of the wealth of who bets that what is on trial is better than what is in force, "
        "or worse.",
        ("slice", "state", "direction"),
        (
            ((trial.slice, str(trial.state), direction), value)
            for trial in trials
            for direction, value in _bets(trial)
        ),
    )
    for measure, text in (
        ("log10_threshold", "Evidence at which a trial is decided."),
        ("tracks", "Tracks that had a say in a trial so far."),
    ):
        rows = (
            ((trial.slice, str(trial.state)), getattr(trial.evidence, measure)) for trial in trials
        )
        yield gauge(f"trial_{measure}", text, ("slice", "state"), rows)


def _bets(trial: TrialStanding) -> Iterator[tuple[str, float]]:
    yield "better", trial.evidence.log10_better
    # A guard does not bet on "worse": nothing would follow from it.
    if trial.state is not TrialState.GUARD:
        yield "worse", trial.evidence.log10_worse
