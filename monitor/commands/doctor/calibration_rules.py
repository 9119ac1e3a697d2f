"""Rules on what is measured and corrected: labels, tracks, drift, recalibrators."""

from __future__ import annotations

import math

from monitor.commands.doctor.look import SECOND_NS, Observation
from monitor.commands.doctor.rules import (
    REMARK,
    WRONG,
    Area,
    Check,
    Found,
    Rule,
    count,
    counted,
    duration,
    names,
    number,
    part_of,
    share,
    shares,
)
from monitor.drift.alarms import (
    Counted,
    DriftState,
    alarm_sentence,
    hours,
    left_out_sentence,
    size_of_error,
)
from monitor.drift.charts import Scale
from monitor.drift.charts import Severity as Urgency
from monitor.frames.slices import is_bare, is_total
from monitor.promotion.records import TrialState

# As in deploy/prometheus/*alert_rules.yml; tests/commands/doctor/test_advice.py compares them.
MATCH_RATIO = 0.5  # CalibrationMatchRatioLow, of the labels with one of these outcomes
COUNTED = ("matched", "unusable", "orphan", "too_late", "refused")
LABELLED_SHARE = 0.01  # CalibrationLabelledShareLow
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0  # CalibrationFaultCompensated
FAILED_FITS = 3.0  # CalibrationFitsFail

# Fewer labels than these say little of how labels match, fewer detections of how many have any.
_FEWEST_LABELS, _FEWEST_DETECTIONS = 10.0, 10_000.0

# Of docs/ground_truth.md: from here on the measures are of the gate as much as of the detector.
_NEAR_GATE, _FEWEST_GATED = 0.05, 200.0

# Of what the store may hold.
_NEARLY_FULL = 0.9

# Of frames, that a tracker must not answer in time, or cannot track, before it is told.
_LATE, _UNTRACKED = 0.05, 0.05
_UNTRACKABLE = ("too_late", "repeated", "unstamped", "unmoved")

# Why drift leaves out labels for another reason than their time.
_NOT_BY_TIME = ("superseded", "overload", "failed", "late_seconds", "tracks")

# NEES/K beyond these factors, over so many detections since the start, is worth a word; or over so
# many independent ones, as drift counts them.
_FACTOR, _FEWEST, _FEWEST_INDEPENDENT = 2.0, 1000.0, 25.0

# ---- labels


def silence_s(seen: Observation) -> float:
    """Since the last label that matched; infinite where none has, NaN where it is not known."""
    status = seen.last.status
    if status is None:
        return math.nan
    came = [each.matched_received_ns for each in status.streams if each.matched_received_ns]
    return (status.now_ns - max(came)) / SECOND_NS if came else math.inf


def truth_not_yet(seen: Observation) -> Found:
    """Finds that no label of any kind has come, as long as none is due."""
    ever = seen.now.by("ground_truth_total", "outcome")
    never = math.isinf(silence_s(seen)) and not any(ever.values())
    if seen.frames_come and never and seen.up_s < seen.truth_within_s:
        up = duration(seen.up_s)
        yield REMARK, f"frames come, but no truth has come yet, since the start {up} ago"


def truth_missing(seen: Observation) -> Found:
    """Finds that frames come, and no truth that matches."""
    silence = silence_s(seen)
    since = f"for {duration(silence)}"
    if math.isinf(silence):
        silence, since = seen.up_s, f"since the start {duration(seen.up_s)} ago"
    now = seen.increases("ground_truth_total", "outcome")
    # Where labels come and match nothing, `unmatched` says which.
    if seen.frames_come and silence >= seen.truth_within_s and not any(map(now.get, COUNTED)):
        yield WRONG, f"frames come, but no truth comes: none has matched a detection {since}"


def _shed(seen: Observation) -> float:
    """Detections that were left out for overload, if they explain most labels without one; or 0."""
    shed = seen.now.by("detection_fates", "fate").get("dropped_overload", 0.0)
    return shed if shed >= 0.5 * seen.now.value("ground_truth_total", outcome="orphan") else 0.0


def unmatched(seen: Observation) -> Found:
    """Finds labels of which most find no detection."""
    if not _shed(seen):
        yield from _unmatched(seen)


def unmatched_for_overload(seen: Observation) -> Found:
    """Finds such labels where their detections were left out: the labels are not to blame."""
    if shed := _shed(seen):
        left = f"{count(shed, 'detection')} were left out for overload"
        yield from ((severity, f"{what}; {left}") for severity, what in _unmatched(seen))


def _unmatched(seen: Observation) -> Found:
    found, when = seen.increases("ground_truth_total", "outcome"), "while doctor looked"
    came = sum(found.get(name, 0.0) for name in COUNTED)
    # Where truth is overdue, the few that come now say why: the share since the start is of better
    # days.
    if not (came >= _FEWEST_LABELS or (came > 0 and silence_s(seen) >= seen.truth_within_s)):
        found, when = seen.now.by("ground_truth_total", "outcome"), "since the start"
    counts = {name: found.get(name, 0.0) for name in COUNTED}
    total, matched = sum(counts.values()), counts.pop("matched")
    if total > 0 and matched / total < MATCH_RATIO:  # False where that is no number
        some = f"only {share(matched, total)} of them match" if matched else "none of them matches"
        of = f"{count(total, 'label')} {when}: {shares(counts, total)}"
        here = names([each.stream for each in seen.streams])
        yield WRONG, f"labels come, but {some} a detection ({of}); streams here are {here}"


def _labelled(seen: Observation) -> tuple[float, float]:
    """Detections since the start that were not refused, and labels that matched one."""
    found = seen.now.by("detections_total", "outcome")
    detections = sum(n for outcome, n in found.items() if outcome != "refused")
    return detections, seen.now.value("ground_truth_total", outcome="matched")


def few(seen: Observation) -> Found:
    """Finds that labels are rare, of all detections or of those of a slice."""
    detections, matched = _labelled(seen)
    by_slice = seen.now.by("labelled_ratio", "slice")
    poor = sorted(slice for slice, ratio in by_slice.items() if ratio < LABELLED_SHARE)
    if not (matched > 0 and detections >= _FEWEST_DETECTIONS):
        return
    if matched / detections < LABELLED_SHARE:
        of = f"{number(matched)} of {number(detections)} since the start"
        yield WRONG, f"{share(matched, detections)} of the detections have truth ({of})"
    elif poor:
        what = f"less than {share(LABELLED_SHARE)} of the detections"
        yield REMARK, f"{what} of {names(poor)} have truth"


def bare_streams(seen: Observation) -> Found:
    """Finds streams without truth beside others that have some."""
    bare = [each.stream for each in seen.fresh if not each.matched]
    if 0 < len(bare) < len(seen.fresh):
        yield REMARK, f"no truth has matched a detection of {names(bare)}, while others have some"


def near_gate(seen: Observation) -> Found:
    """Finds matches that lie near the gate."""
    near = seen.now.value("near_gate_ratio")
    if near > _NEAR_GATE and seen.now.value("gated_matches") >= _FEWEST_GATED:
        yield REMARK, f"{share(near)} of the matches lie near the gate of [matching]"


def too_late(seen: Observation) -> Found:
    """Finds labels whose detections had left the store; that those without any leave it is no
    fault.
    """
    late = seen.increase("ground_truth_total", outcome="too_late")
    if late > 0 and seen.increase("dropped_detections_total") > 0:
        what = f"{count(late, 'label')} came too late while doctor looked"
        yield WRONG, f"{what}: their detections had left the store"


def nameless(seen: Observation) -> Found:
    """Finds frames that no label can name."""
    fates = seen.now.by("detection_fates", "fate")
    found, whole = fates.get("dropped_no_frame_id", 0.0), sum(fates.values())
    if found > MATCH_RATIO * whole:
        yield REMARK, f"{share(found, whole)} of the detections came in frames without a frame_id"


def store_full(seen: Observation) -> Found:
    """Finds that frames will leave the store for want of room."""
    held, most = seen.now.value("ledger_bytes"), seen.limits.disk
    # In memory, frames only make way for others where they are on disk as well.
    if not most:
        held, most = seen.now.value("pending_bytes"), seen.limits.memory
    if held >= _NEARLY_FULL * most:
        yield REMARK, f"the store of frames that wait for truth is {share(held, most)} full"


def labels_match(seen: Observation) -> str:
    """Says how many labels match."""
    found = seen.now.by("ground_truth_total", "outcome")
    counted = sum(found.get(name, 0.0) for name in COUNTED)
    detections, matched = _labelled(seen)
    if not counted:
        return "no truth has come since the start"
    ago = "" if math.isnan(last := silence_s(seen)) else f", the last came {duration(last)} ago"
    have = f"{share(matched, detections)} of the detections have one"
    return f"{share(matched, counted)} of the labels match, {have}{ago}"


# ---- the tracker


def away(seen: Observation) -> Found:
    """Finds a tracker elsewhere that is away, by the metrics where the status was refused."""
    status = seen.last.status
    elsewhere = None if status is None else status.tracker
    if seen.now.value("tracker_up") != 0 if elsewhere is None else elsewhere.up:
        return
    what = "the tracker elsewhere is away"
    if elsewhere is not None:
        what = f"the tracker at {elsewhere.address} {elsewhere.trouble or 'is away'}"
    if (failed := seen.increase("tracker_forwarded_total", outcome="failed")) > 0:
        what += f"; {count(failed, 'frame')} did not reach it while doctor looked"
    yield WRONG, what


def late_tracks(seen: Observation) -> Found:
    """Finds a tracker elsewhere that is there, and answers too little."""
    name = "tracker_forwarded_total"
    late, total, frames, _ = part_of(seen, name, "outcome", name, ["answered"])
    if total > _LATE * frames and seen.increase(name) > 0 and not any(away(seen)):
        what = f"{share(total, frames)} of the frames come back without its tracks"
        yield WRONG, f"the tracker elsewhere is slow: {what} ({shares(late, frames)})"


def untracked(seen: Observation) -> Found:
    """Finds frames that cannot be tracked."""
    orders = seen.now.by("tracker_frames_total", "order")
    bad = {order: orders.get(order, 0.0) for order in _UNTRACKABLE}
    total, whole = sum(bad.values()), sum(orders.values())
    if total > _UNTRACKED * whole:
        what = f"{share(total, whole)} of the frames cannot be tracked"
        yield WRONG, f"{what} ({shares(bad, whole)})"


def no_tracks(seen: Observation) -> Found:
    """Finds slices of which no tracks are known."""
    if slices := seen.now.words("drift_reference_tracks", "slice", unit=Counted.FRAME):
        yield REMARK, f"no tracks are known of {names(slices)}"


def tracker_there(seen: Observation) -> str:
    """Says which tracker there is; '' where that is not known."""
    status = seen.last.status
    if status is not None and status.tracker is not None:
        return f"the tracker at {status.tracker.address} is there"
    if seen.now.value("tracker_frames_total") > 0:
        return "frames are tracked here"
    return "none is asked for" if seen.last.samples is not None else ""


# ---- drift


def alarms(urgency: Urgency) -> Check:
    """Makes a check that finds alarms of one severity, by the metrics where they were refused."""

    def check(seen: Observation) -> Found:
        for standing in seen.standings:
            if standing.alarm is not None and standing.alarm.severity is urgency:
                yield WRONG, f"drift alarm, {alarm_sentence(standing.alarm)}"
        rows = [] if seen.drift.given else seen.now.rows("drift_state", severity=urgency)
        slices = [labels.get("slice", "") for labels, value in rows if value == DriftState.ALARM]
        if slices:
            yield WRONG, f"drift alarm, {urgency}: {names(sorted(slices))}"

    return check


def unwatched(seen: Observation) -> Found:
    """Finds that drift is not watched."""
    _, matched = _labelled(seen)
    if matched > 0 and not seen.now.rows("drift_driving_seconds_total"):
        yield REMARK, "truth comes, but nothing watches for drift"


def left_behind(seen: Observation) -> Found:
    """Finds labels that are left out of drift: late ones, and those of no known time."""
    found, total, labels, when = part_of(
        seen, "drift_left_out_total", "reason", "ground_truth_total", _NOT_BY_TIME
    )
    if total > 0:
        severity = WRONG if total > 0.5 * labels else REMARK
        yield severity, f"{left_out_sentence({why: round(n) for why, n in found.items()})}, {when}"


def far_from_one(seen: Observation) -> Found:
    """Finds NEES/K far from 1 without an alarm: over longer times than drift is found in, or on
    labels that prove nothing yet.
    """
    if any(each.alarm for each in seen.standings) or not seen.drift.given:
        return
    labelled = seen.now.by("matched_detections", "slice")
    worth = seen.now.by("drift_effective_sample_ratio", "slice")
    ratios = seen.now.by("nees_ratio", "slice", stage="recalibrated", dimension="joint")
    off = []
    for slice, ratio in sorted(ratios.items()):
        came = labelled.get(slice, 0.0)
        enough = came >= _FEWEST or came * worth.get(slice, 0.0) >= _FEWEST_INDEPENDENT
        far = 0 < ratio < 1 / _FACTOR or _FACTOR < ratio < math.inf
        # What was assumed until a covariance was estimated says nothing of the detector.
        if enough and far and not (is_total(slice) or is_bare(slice)):
            size = size_of_error(Scale(math.sqrt(ratio), math.nan, math.nan))
            how = f"{number(ratio)} over {count(came, 'detection')}: σ is {size}"
            off.append(f"{slice} {how}{_unproven(seen, slice, ratio)}")
    if off:
        yield REMARK, f"NEES/K of what is forwarded is far from 1 since the start: {names(off)}"


def _unproven(seen: Observation, slice: str, ratio: float) -> str:
    """Says how far the evidence of a slice is from an alarm; '' where nobody watches it."""
    urgency = Urgency.PAGE if ratio > 1 else Urgency.TICKET
    for each in seen.standings:
        if (each.slice, each.severity) == (slice, urgency):
            return f", not proven yet (evidence {hours(each.evidence)} of {hours(each.threshold)})"
    return ""


def overflow(seen: Observation) -> Found:
    """Finds more slices than there is room for."""
    last = seen.now
    found = (last.value("overflow_detections_total"), last.value("overflow_classified_total"))
    if most := max(0.0, *found):  # 0 where these are no numbers
        what = f"{count(most, 'detection')} with truth are in the overflow slice"
        yield REMARK, f"{what}: there are more slices than [statistics] max_slices"


def no_alarm(seen: Observation) -> str:
    """Says how many slices are watched; '' where neither alarms nor metrics were seen."""
    states = {
        (labels.get("slice"), labels.get("severity")): state
        for labels, state in seen.now.rows("drift_state")
        if not is_total(labels.get("slice", ""))
    }
    if seen.last.samples is None:
        return "no alarm" if seen.drift.given else ""
    if all(state == DriftState.TOO_FEW for state in states.values()):
        return "no alarm: too little truth so far to tell"
    warned = sum(state == DriftState.WARNING for state in states.values())
    text = f"no alarm, {count(len({slice for slice, _ in states}), 'slice')} watched"
    return f"{text}; {warned} at a tenth of one" if warned else text


# ---- recalibrators


def compensated(seen: Observation) -> Found:
    """Finds faults of the detector that a recalibrator hides."""
    factors = {
        f"{labels.get('dimension', '')} of {labels.get('slice', '')} by {number(value)}": value
        for labels, value in seen.now.rows("recalibration_factor")
        if 0 < value < LEAST_FACTOR or value > MOST_FACTOR
    }
    worst = sorted(factors, key=lambda text: (-abs(math.log(factors[text])), text))
    if worst:
        what = "a fault of the detector is being compensated"
        yield WRONG, f"{what}: variances are multiplied, {names(worst)}"


def failed_fits(seen: Observation) -> Found:
    """Finds fits that fail."""
    if seen.now.value("recalibrator_fits_total", outcome="failed") >= FAILED_FITS:
        text = "{} of slices failed"
        yield from counted(seen, "recalibrator_fits_total", text, "fit", outcome="failed")


def waits(seen: Observation) -> Found:
    """Finds candidates that wait for approval."""
    better = {"state": TrialState.PROVEN, "direction": "better"}
    if slices := seen.now.words("trial_log10_evidence", "slice", **better):
        yield REMARK, f"a recalibrator of {names(slices)} is proven better and waits for approval"


def pinned(seen: Observation) -> Found:
    """Finds that nothing happens by itself."""
    if seen.now.value("recalibrator_pinned") == 1:
        yield REMARK, "recalibrators are pinned"


def observes(seen: Observation) -> Found:
    """Finds that nothing is corrected, as somebody wanted it."""
    if "observe" in seen.now.words("recalibrator_info", "mode"):
        yield REMARK, "mode is observe: detections go out as they came"


def active(seen: Observation) -> str:
    """Says what is active; '' without the metrics."""
    found = [
        f"{labels.get('method', '?')} ({labels.get('version', '?')})"
        for labels, value in seen.now.rows("recalibrator_info")
        if value
    ]
    return f"active: {names(sorted(found))}" if seen.last.samples is not None else ""


GOOD = {
    Area.DRIFT: no_alarm,
    Area.TRACKER: tracker_there,
    Area.LABELS: labels_match,
    Area.RECALIBRATION: active,
}

# ---- the table

RULES = {
    Area.DRIFT: (
        Rule("calibrationdriftpage", alarms(Urgency.PAGE), ""),
        Rule("calibrationdriftticket", alarms(Urgency.TICKET), ""),
        Rule("nobody-watches-for-drift", unwatched),
        Rule("labels-that-drift-leaves-out", left_behind),
        Rule("measures-far-from-one", far_from_one),
        Rule("too-many-slices", overflow),
    ),
    Area.TRACKER: (
        Rule("a-tracker-that-is-away", away, ""),
        Rule("a-tracker-that-answers-late", late_tracks),
        Rule("frames-that-cannot-be-tracked", untracked),
        Rule("no-tracks", no_tracks),
    ),
    Area.LABELS: (
        Rule("no-truth-yet", truth_not_yet),
        Rule("calibrationnolabels", truth_missing),
        Rule("calibrationmatchratiolow", unmatched),
        Rule("calibrationoverload", unmatched_for_overload),
        Rule("labels-that-come-too-late", too_late),
        Rule("frames-without-an-id", nameless),
        Rule("a-store-that-is-nearly-full", store_full),
        Rule("calibrationlabelledsharelow", few),
        Rule("a-stream-without-truth", bare_streams),
        Rule("matches-near-the-gate", near_gate),
    ),
    Area.RECALIBRATION: (
        Rule("calibrationfaultcompensated", compensated),
        Rule("calibrationfitsfail", failed_fits),
        Rule("calibrationcandidatewaits", waits),
        Rule("recalibrators-are-pinned", pinned),
        Rule("nothing-is-corrected", observes),
    ),
}
