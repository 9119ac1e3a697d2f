"""Families of drift: how the evidence of each slice stands, what it rests on, and alarms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from monitor.calibration.drift.alarm import (
    AlarmCount,
    DriftReading,
    SliceStanding,
    StageStanding,
)
from monitor.calibration.drift.charts import CHARTS, DETECTORS, SEVERITIES, Stage
from monitor.edges.exposition import Row, counter, gauge

# Evidence that is as good as none, hours: log10 of 0 would be -Inf, which no graph shows.
LEAST_EVIDENCE = 1e-9

_BY_SEVERITY = ("slice", "severity")


def drift(reading: DriftReading) -> Iterator[str]:
    """One text a family; at most nine series a slice whose truth comes."""
    yield from _standings(reading)
    yield counter(
        "drift_alarms",
        "Alarms that were raised, by what was found and the detector with most of the evidence.",
        ("stage", "detector", "direction"),
        _alarms(reading.counts),
    )
    yield _scales(reading.standings, reading.stages)
    yield from _stages(reading.stages)
    yield counter(
        "drift_epochs",
        "How often a recalibrator of a slice was followed by another, with a reference of its own; "
        "over all slices.",
        (),
        [((), sum(epoch for _, epoch in reading.epochs))],
    )
    driven = 3600 * reading.driven
    yield counter("drift_driving_seconds", "Driving that was watched.", (), [((), driven)])
    yield counter(
        "drift_left_out",
        "Detections with truth that were not watched, or not by all bets, by why.",
        ("reason",),
        (((reason,), detections) for reason, detections in reading.left_out),
    )
    yield counter(
        "drift_store_failures",
        "How often evidence, references and alarms were not written to disk, be it that another "
        "sidecar has the file; the log says why.",
        (),
        [((), reading.store_failures)],
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
    thresholds = {each.severity: each.threshold for each in standings}
    yield gauge(
        "drift_log10_threshold",
        "Evidence at which there is an alarm: log10 of the stated hours between two false ones.",
        ("severity",),
        (((severity,), _log10(hours)) for severity, hours in thresholds.items()),
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
    """At 0 from the start on, so that the first one is an increase."""
    raised = {(one.stage, one.detector, one.direction): one.alarms for one in counts}
    for chart in CHARTS:
        for detector in DETECTORS:
            labels = chart.stage.label, detector, chart.direction
            yield labels, raised.get((chart.stage, detector, chart.direction), 0)


def _scales(standings: Sequence[SliceStanding], stages: Sequence[StageStanding]) -> str:
    found = {(each.slice, each.stage.label): each.scale.estimate for each in stages}
    # An alarm begins the evidence anew, of which nothing is known then: people are told the scale
    # of the alarm as long as it stays. Where a ticket stays beside a page, that of the page.
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
    yield gauge(
        "drift_effective_sample_ratio",
        "How many independent detections one of the slice is worth, as forwarded; at most 1.",
        ("slice",),
        (((each.slice,), each.effective_ratio) for each in forwarded),
    )
    yield gauge(
        "drift_reference_tracks",
        "Tracks that what is usual as forwarded is known from; where that comes from, and what "
        "counts as one observation.",
        ("slice", "origin", "unit"),
        (((each.slice, each.reference, each.unit), each.reference_tracks) for each in forwarded),
    )
