"""Alarms of drift that stand, and whether drift is watched at all."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.calibration.drift.alarm import Alarm, DriftState, SliceStanding
from monitor.calibration.drift.alarm_words import WRONG, moment, size_of_error
from monitor.calibration.drift.charts import Severity, Stage
from monitor.calibration.slices import TOTAL
from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.samples import Samples, rose
from monitor.diagnosis.words import count, names, number

_ACKNOWLEDGE = "then `calibration-monitor alarms acknowledge`."
# NEES/K beyond these factors, over so many detections since the start, is worth a word.
_FACTOR, _FEWEST = 2.0, 1000.0


def drift(seen: Observation) -> Iterator[Finding]:
    """By the standings; where these were refused, by the metrics."""
    samples = seen.last.samples
    if seen.drift.given:
        found = [_alarm(standing.alarm) for standing in _by_severity(seen) if standing.alarm]
    elif samples is not None:
        found = list(_by_metrics(samples))
    else:
        return
    if samples is not None and not found:
        found += [*_unwatched(samples), *_measures(samples)]
    if samples is not None:
        found += _overflow(samples)
    yield from found or [well(Area.DRIFT, _standing(seen))]


def _by_severity(seen: Observation) -> list[SliceStanding]:
    return sorted(seen.standings, key=lambda each: each.severity is not Severity.PAGE)


def _alarm(alarm: Alarm) -> Finding:
    slice = "all slices together" if alarm.slice == TOTAL else f"slice {alarm.slice}"
    error = size_of_error(alarm.scale)
    by = "by an unknown factor" if error is None else f"{error.factor} times {error.way}"
    interval = "" if error is None or not error.interval else f" ({' to '.join(error.interval)})"
    known = count(alarm.tracks, "track") if alarm.tracks else count(alarm.detections, "detection")
    forwarded = alarm.stage is Stage.RECALIBRATED
    stage = "what is forwarded" if forwarded else "what the detector sends"
    what = (
        f"alarm of drift ({alarm.severity}), {slice}: {stage} is {WRONG[alarm.direction]}: "
        f"standard deviations {by}{interval}, since {moment(alarm.since_ns)}, by {known}"
    )
    if alarm.severity is Severity.PAGE:
        return wrong(
            Area.DRIFT,
            what,
            "true detections fall out of the tracker's gates, and tracks break.",
            "widen the gates or put a recalibrator in force that fits (`calibration-monitor "
            "recalibrators fit`, `rollback`); look for what changed: model, mounting, dirt, clock; "
            f"{_ACKNOWLEDGE} docs/runbook.md#calibrationdriftpage",
        )
    return wrong(
        Area.DRIFT,
        what,
        "gates are wide and take in clutter; nothing is lost by waiting a day."
        if forwarded
        else "the detector is wrong, and a recalibrator hides it from everyone behind.",
        "`calibration-monitor alarms list` has the evidence; fit a recalibrator, or repair the "
        f"detector; {_ACKNOWLEDGE} docs/runbook.md#calibrationdriftticket",
    )


def _by_metrics(samples: Samples) -> Iterator[Finding]:
    """The same rules as in deploy/prometheus/drift_alert_rules.yml."""
    for severity in ("page", "ticket"):
        slices = sorted(
            labels.get("slice", "")
            for labels, value in samples.rows("drift_state")
            if labels.get("severity") == severity and value == DriftState.ALARM
        )
        if slices:
            yield wrong(
                Area.DRIFT,
                f"alarm of drift ({severity}): {names(slices)}",
                "covariances are not what they claim to be.",
                "`calibration-monitor alarms list` says by how much, with a token that may ask. "
                f"docs/runbook.md#calibrationdrift{severity}",
            )


def _unwatched(samples: Samples) -> Iterator[Finding]:
    matched = samples.value("ground_truth_total", outcome="matched")
    if rose(matched) and not samples.rows("drift_driving_seconds_total"):
        yield remark(
            Area.DRIFT,
            "truth comes, but nothing watches for drift",
            "no alarm will ever come.",
            "[drift] watch = false says so; is it meant? docs/drift.md",
        )


def _measures(samples: Samples) -> Iterator[Finding]:
    """What is off and no alarm: over longer times, or too little truth for one."""
    labelled = samples.by("matched_detections", "slice")
    off = {
        labels["slice"]: value
        for labels, value in samples.rows("nees_ratio")
        if labels.get("stage") == "recalibrated"
        and labels.get("dimension") == "joint"
        and labels.get("slice") != TOTAL
        and labelled.get(labels.get("slice", ""), 0.0) >= _FEWEST
        and value > 0
        and not 1 / _FACTOR <= value <= _FACTOR
    }
    if off:
        ways = [f"{slice} {number(value)}" for slice, value in sorted(off.items())]
        yield remark(
            Area.DRIFT,
            f"NEES/K of what is forwarded is far from 1 since the start: {names(ways)}",
            "above 1 covariances are too small, below it too large; there is no alarm, so it may "
            "be over, or be within what is tolerated.",
            "look at window_nees_ratio for how it is now; `calibration-monitor recalibrators fit` "
            "if it stays. docs/measures.md",
        )


def _overflow(samples: Samples) -> Iterator[Finding]:
    matched, classified = (
        samples.value("overflow_detections_total"),
        samples.value("overflow_classified_total"),
    )
    if rose(matched) or rose(classified):
        yield remark(
            Area.DRIFT,
            f"{count(max(matched, classified), 'detection')} with truth are in the overflow slice: "
            "there are more slices than [statistics] max_slices",
            "they are measured and watched together, whatever they are of; a slice of its own goes "
            "to whoever comes first.",
            "raise max_slices, or slice by less ([statistics] slice_by). Does a client make up "
            "names of classes or streams?",
        )


def _standing(seen: Observation) -> str:
    samples = seen.last.samples
    states = [each.state for each in seen.standings if each.slice != TOTAL]
    if not states and samples is not None:
        states = [
            DriftState(int(value))
            for labels, value in samples.rows("drift_state")
            if labels.get("slice") != TOTAL and value in set(DriftState)
        ]
    if not states:
        return "no alarm: no truth has come that anything could be told from"
    slices = {each.slice for each in seen.standings if each.slice != TOTAL}
    if all(state is DriftState.TOO_FEW for state in states):
        return "no alarm: too little truth so far to tell"
    text = f"no alarm, {count(len(slices), 'slice')} watched" if slices else "no alarm"
    warned = sum(state is DriftState.WARNING for state in states)
    return f"{text}; {warned} at a tenth of one" if warned else text
