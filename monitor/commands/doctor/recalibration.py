"""Checks the forwarded covariances: tracks to judge them by, alarms of drift, recalibrators."""

from __future__ import annotations

import math
from collections.abc import Iterator

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.observation import Change, Observation, Samples, rose
from monitor.commands.doctor.words import count, duration, names, number, share, shares
from monitor.drift.alarms import (
    WRONG,
    Alarm,
    Counted,
    DriftState,
    moment,
    size_of_error,
)
from monitor.drift.bets import Severity, Stage
from monitor.frames.slices import TOTAL
from monitor.promotion.records import TrialState

# Of frames, that a tracker must not answer in time, or cannot track, before it is told.
_LATE, _UNTRACKED = 0.05, 0.05
_UNTRACKABLE = ("too_late", "repeated", "unstamped", "unmoved")
_ACKNOWLEDGE = "then `calibration-monitor alarms acknowledge`."

# NEES/K beyond these factors, over so many detections since the start, is worth a word.
_FACTOR, _FEWEST = 2.0, 1000.0

# As CalibrationFaultCompensated and CalibrationFitsFail in deploy/prometheus/alert_rules.yml.
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
FAILED_FITS = 3.0


@about(Area.TRACKER)
def tracker(seen: Observation) -> Iterator[Told]:
    """Judges by the status where it tells, else by the metrics."""
    change = seen.change
    told = list(_away(seen, change))
    yield from [*(told or _late(change)), *_untracked(change)] or _well(seen, change)


def _well(seen: Observation, change: Change) -> Iterator[Told]:
    status = seen.last.status
    if status is not None and status.tracker is not None:
        yield well(f"the tracker at {status.tracker.address} is there")
    elif any(change.last.by("tracker_frames_total", "order").values()):
        yield well("frames are tracked here")
    elif seen.last.samples is not None:
        yield well("none is asked for")


def _away(seen: Observation, change: Change) -> Iterator[Told]:
    status = seen.last.status
    elsewhere = None if status is None else status.tracker
    if change.last.value("tracker_up") != 0 if elsewhere is None else elsewhere.up:
        return
    where = "the tracker elsewhere" if elsewhere is None else f"the tracker at {elsewhere.address}"
    trouble = "" if elsewhere is None else elsewhere.trouble
    failed = change.increase("tracker_forwarded_total", outcome="failed")
    lost = ""
    if rose(failed):
        lost = f"; {count(failed, 'frame')} did not reach it in {duration(change.seconds)}"
    yield wrong(
        f"{where} {trouble or 'is away'}{lost}",
        "detections go on to the detector recalibrated, but without tracks (with those of the own "
        'tracker where [tracker] fallback = "embedded").',
        "does it run, and listen there? The sidecar goes on trying, and takes it up again by "
        "itself. Where the address is wrong: [tracker] address. docs/forwarding.md",
    )


def _late(change: Change) -> Iterator[Told]:
    ended = change.increases("tracker_forwarded_total", "outcome")
    total = sum(ended.values())
    bad = {outcome: n for outcome, n in ended.items() if outcome != "answered" and n}
    if total and sum(bad.values()) > _LATE * total:
        yield wrong(
            f"the tracker elsewhere is there, but {share(sum(bad.values()), total)} of the frames "
            f"come back without its tracks ({shares(bad, total)})",
            "frames wait for it as long as [tracker] timeout_seconds says, and go on without.",
            "late: is it slow, or timeout_seconds short? dropped, expired: it reads too slowly; "
            "failed: its answers cannot be used, the log says why. docs/forwarding.md",
        )


def _untracked(change: Change) -> Iterator[Told]:
    orders = change.last.by("tracker_frames_total", "order")
    total = sum(orders.values())
    bad = {order: orders[order] for order in _UNTRACKABLE if orders.get(order)}
    if total and sum(bad.values()) > _UNTRACKED * total:
        yield wrong(
            f"{share(sum(bad.values()), total)} of the frames cannot be tracked "
            f"({shares(bad, total)})",
            "their detections are in no track; what counts tracks learns nothing of them.",
            "unstamped: set stamp_ns; repeated, too_late: send frames in the order of their "
            "stamps, each once; unmoved: send ego_pose or ego_twist with every frame.",
        )
    slices = change.last.words("drift_reference_tracks", "slice", unit=Counted.FRAME)
    if slices:
        yield remark(
            f"no tracks are known of {names(slices)}",
            "errors of one object are alike: without its track, a frame is one observation for "
            "drift, and ten seconds of a stream are one vote for recalibrators. Both take long.",
            "send Detection.upstream_track_id, or the labeller's object_id, or turn the tracker "
            'on: [tracker] kind = "embedded". docs/promotion.md#tracks-are-the-unit',
        )


@about(Area.DRIFT)
def drift(seen: Observation) -> Iterator[Told]:
    """Judges by the standings; where these were refused, by the metrics."""
    samples = seen.last.samples
    found = []
    if seen.drift.given:
        pages_first = sorted(seen.standings, key=lambda each: each.severity is not Severity.PAGE)
        found = [_alarm(standing.alarm) for standing in pages_first if standing.alarm]
    elif samples is None:
        return
    if samples is not None:
        found += [] if seen.drift.given else _by_metrics(samples)
        found += [*([] if found else _measures(samples)), *_overflow(samples)]
    yield from found or [well(_standing(seen))]


def _alarm(alarm: Alarm) -> Told:
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
            what,
            "true detections fall out of the tracker's gates, and tracks break.",
            "widen the gates or put a recalibrator in force that fits (`calibration-monitor "
            "recalibrators fit`, `rollback`); look for what changed: model, mounting, dirt, clock; "
            f"{_ACKNOWLEDGE} docs/runbook.md#calibrationdriftpage",
        )
    return wrong(
        what,
        "gates are wide and take in clutter; nothing is lost by waiting a day."
        if forwarded
        else "the detector is wrong, and a recalibrator hides it from everyone behind.",
        "`calibration-monitor alarms list` has the evidence; fit a recalibrator, or repair the "
        f"detector; {_ACKNOWLEDGE} docs/runbook.md#calibrationdriftticket",
    )


def _by_metrics(samples: Samples) -> Iterator[Told]:
    """Applies the rules of deploy/prometheus/drift_alert_rules.yml."""
    for severity in ("page", "ticket"):
        slices = sorted(
            labels.get("slice", "")
            for labels, value in samples.rows("drift_state")
            if labels.get("severity") == severity and value == DriftState.ALARM
        )
        if slices:
            yield wrong(
                f"alarm of drift ({severity}): {names(slices)}",
                "covariances are not what they claim to be.",
                "`calibration-monitor alarms list` says by how much, with a token that may ask. "
                f"docs/runbook.md#calibrationdrift{severity}",
            )


def _measures(samples: Samples) -> Iterator[Told]:
    """Finds that nobody watches, or NEES/K far from 1 without an alarm.

    It may be so over longer times than drift is found in, or on few labels.
    """
    matched = samples.value("ground_truth_total", outcome="matched")
    if rose(matched) and not samples.rows("drift_driving_seconds_total"):
        yield remark(
            "truth comes, but nothing watches for drift",
            "no alarm will ever come.",
            "[drift] watch = false says so; is it meant? docs/drift.md",
        )
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
            f"NEES/K of what is forwarded is far from 1 since the start: {names(ways)}",
            "above 1 covariances are too small, below it too large; there is no alarm, so it may "
            "be over, or be within what is tolerated.",
            "look at window_nees_ratio for how it is now; `calibration-monitor recalibrators fit` "
            "if it stays. docs/measures.md",
        )


def _overflow(samples: Samples) -> Iterator[Told]:
    matched = samples.value("overflow_detections_total")
    classified = samples.value("overflow_classified_total")
    if rose(matched) or rose(classified):
        yield remark(
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


@about(Area.RECALIBRATION)
def recalibration(seen: Observation) -> Iterator[Told]:
    """Judges by the metrics; versions that wait by the listing, where that may be asked for."""
    change = seen.change
    told = [*_compensated(change), *_fits(change), *_set_by_people(seen, change)]
    if told or seen.last.samples is not None:
        yield from told or [well(_active(change))]


def _active(change: Change) -> str:
    found = [
        f"{labels.get('method', '?')} ({labels.get('version', '?')})"
        for labels, value in change.last.rows("recalibrator_info")
        if value
    ]
    return f"in force: {names(sorted(found))}"


def _compensated(change: Change) -> Iterator[Told]:
    factors = {
        (labels.get("slice", ""), labels.get("dimension", "")): value
        for labels, value in change.last.rows("recalibration_factor")
        if value > 0 and not LEAST_FACTOR <= value <= MOST_FACTOR
    }
    if not factors:
        return
    worst = sorted(factors, key=lambda key: (-abs(math.log(factors[key])), key))
    texts = [f"{key[1]} of {key[0]} by {number(factors[key])}" for key in worst]
    yield wrong(
        f"a fault of the detector is being compensated: variances are multiplied, {names(texts)}",
        "recalibrated measures look healthy, the detector is not.",
        "find what changed: model or firmware, mounting, dirt on the sensor, the clock. "
        "`calibration-monitor recalibrators history` says since when. "
        "docs/runbook.md#calibrationfaultcompensated",
    )


def _fits(change: Change) -> Iterator[Told]:
    now = change.increase("recalibrator_fits_total", outcome="failed")
    ever = change.last.value("recalibrator_fits_total", outcome="failed")
    if ever >= FAILED_FITS:
        say = wrong if rose(now) else remark
        yield say(
            f"{count(ever, 'fit')} of slices failed since the start",
            "what is in force stays, but no longer follows the detector.",
            "`calibration-monitor recalibrators history` says why: killed (memory?), hung "
            "([promotion] fit_timeout_seconds), or of no use (the log). "
            "docs/runbook.md#calibrationfitsfail",
        )


def _set_by_people(seen: Observation, change: Change) -> Iterator[Told]:
    """Finds what waits for a person, or was left so by one."""
    proven = [trial for trial in seen.trials if trial.state is TrialState.PROVEN]
    slices = sorted(trial.slice for trial in proven)
    version = f" ({proven[0].version})" if len(proven) == 1 else ""
    if not seen.recalibrators.given and seen.last.samples is not None:
        slices = change.last.words(
            "trial_log10_evidence", "slice", state=TrialState.PROVEN, direction="better"
        )
    if slices:
        yield remark(
            f"a recalibrator of {names(slices)} is proven better and waits for approval{version}",
            "until somebody promotes it, what it would correct goes out as it is.",
            "`calibration-monitor recalibrators list`, then `recalibrators promote VERSION`, "
            "unless the fault is better repaired. docs/runbook.md#calibrationcandidatewaits",
        )
    on = change.last.value("recalibrator_pinned") == 1
    if on if seen.pinned is None else seen.pinned:
        yield remark(
            "recalibrators are pinned",
            "nothing is promoted, adapted or rolled back by itself, whatever is proven.",
            "is that still meant? `calibration-monitor recalibrators history` says who did it, "
            "`unpin` ends it.",
        )
    if "observe" in change.last.words("recalibrator_info", "mode"):
        versions = change.last.words("recalibrator_info", "version")
        yield remark(
            f"mode is observe: detections go out as they came, what {names(versions)} "
            f"{'makes' if len(versions) == 1 else 'make'} of them beside",
            "nothing is corrected.",
            'is that still meant? [recalibration] mode = "apply" corrects.',
        )
