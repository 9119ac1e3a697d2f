"""Rules on what is measured and corrected: labels, tracks, drift, recalibrators."""

from __future__ import annotations

import math

from monitor.commands.doctor.look import SECOND_NS, Observation
from monitor.commands.doctor.rules import (
    COUNTED,
    FAILED_FITS,
    LABELLED_SHARE,
    LEAST_FACTOR,
    MATCH_RATIO,
    MOST_FACTOR,
    REMARK,
    WRONG,
    Area,
    Check,
    Found,
    Rule,
    count,
    duration,
    names,
    number,
    part_of,
    share,
    shares,
    size,
    while_,
)
from monitor.drift.alarms import Counted, DriftState, alarm_sentence
from monitor.drift.bets import Severity as Urgency
from monitor.frames.slices import TOTAL
from monitor.promotion.records import TrialState

# Fewer labels than these say little of how labels match, fewer detections of how many have any.
_FEWEST_LABELS, _FEWEST_DETECTIONS = 10.0, 10_000.0

# Of docs/ground_truth.md: from here on the measures are of the gate as much as of the detector.
_NEAR_GATE, _FEWEST_GATED = 0.05, 200.0

# Of what the store may hold.
_NEARLY_FULL = 0.9

# Of frames, that a tracker must not answer in time, or cannot track, before it is told.
_LATE, _UNTRACKED = 0.05, 0.05
_UNTRACKABLE = ("too_late", "repeated", "unstamped", "unmoved")

# NEES/K beyond these factors, over so many detections since the start, is worth a word.
_FACTOR, _FEWEST = 2.0, 1000.0

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
        what = "frames come, but no truth has come yet"
        yield REMARK, f"{what}, since the start {duration(seen.up_s)} ago"


def truth_missing(seen: Observation) -> Found:
    """Finds that frames come, and no truth that matches."""
    silence = silence_s(seen)
    never = math.isinf(silence)
    now = seen.increases("ground_truth_total", "outcome")
    due = (seen.up_s if never else silence) >= seen.truth_within_s
    # Where labels come and match nothing, `unmatched` says which.
    if not (seen.frames_come and due) or any(now.get(name) for name in COUNTED):
        return
    ever = seen.now.by("ground_truth_total", "outcome")
    other = {name: n for name, n in ever.items() if n and name != "matched"}
    since = f"since the start {duration(seen.up_s)} ago" if never else f"for {duration(silence)}"
    earlier = f" (other labels, ever: {shares(other, sum(other.values()))})" if other else ""
    what = "frames come, but no truth comes: none has matched a detection"
    yield WRONG, f"{what} {since}{earlier}"


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
        left = f"; {count(shed, 'detection')} were left out for overload"
        yield from ((severity, f"{what}{left}") for severity, what in _unmatched(seen))


def _unmatched(seen: Observation) -> Found:
    now = seen.increases("ground_truth_total", "outcome")
    came = sum(now.get(name, 0.0) for name in COUNTED)
    # Where truth is overdue, the few that come now say why: the share since the start is of better
    # days.
    recent = came >= _FEWEST_LABELS or (came > 0 and silence_s(seen) >= seen.truth_within_s)
    found = now if recent else seen.now.by("ground_truth_total", "outcome")
    counts = {name: found.get(name, 0.0) for name in COUNTED}
    total, matched = sum(counts.values()), counts.pop("matched")
    if not (total > 0 and matched / total < MATCH_RATIO):  # nor where it is no number
        return
    some = f"only {share(matched, total)} of them match" if matched else "none of them matches"
    when = "while doctor looked" if recent else "since the start"
    known = names([each.stream for each in seen.streams])
    here = f"; streams here are {known}" if seen.streams else ""
    what = f"labels come, but {some} a detection ({count(total, 'label')} {when}"
    yield WRONG, f"{what}: {shares(counts, total)}){here}"


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
        what = f"{share(matched, detections)} of the detections have truth"
        yield WRONG, f"{what} ({number(matched)} of {number(detections)} since the start)"
    elif poor:
        least = share(LABELLED_SHARE)
        yield REMARK, f"hardly any detection of {names(poor)} has truth: less than {least}"


def bare_streams(seen: Observation) -> Found:
    """Finds streams without truth beside others that have some."""
    bare = [each.stream for each in seen.fresh if not each.matched]
    if bare and len(bare) < len(seen.fresh):
        what = f"no truth has matched a detection of {names(bare)}"
        yield REMARK, f"{what}, while other streams have some"


def near_gate(seen: Observation) -> Found:
    """Finds matches that lie near the gate."""
    last = seen.now
    near = last.value("near_gate_ratio")
    if near > _NEAR_GATE and last.value("gated_matches") >= _FEWEST_GATED:
        yield REMARK, f"{share(near)} of the matches lie near the gate of [matching]"


def too_late(seen: Observation) -> Found:
    """Finds labels whose detections had left the store; that those without any leave it is no
    fault.
    """
    late = seen.increase("ground_truth_total", outcome="too_late")
    dropped = seen.increase("dropped_detections_total")
    if late > 0 and dropped > 0:
        what = f"{count(late, 'label')} came too late while doctor looked: their detections had"
        yield WRONG, f"{what} left the store, and {number(dropped)} more have left it since"


def nameless(seen: Observation) -> Found:
    """Finds frames that no label can name."""
    fates = seen.now.by("detection_fates", "fate")
    found, all_of_them = fates.get("dropped_no_frame_id", 0.0), sum(fates.values())
    if found > MATCH_RATIO * all_of_them:
        what = f"{share(found, all_of_them)} of the detections"
        yield REMARK, f"{what} came in frames without a frame_id"


def store_full(seen: Observation) -> Found:
    """Finds that frames will leave the store for want of room."""
    limits, last = seen.limits, seen.now
    held = [(last.value("ledger_bytes"), limits.disk_bytes)]
    # In memory, frames only make way for others where they are on disk as well.
    if not limits.on_disk:
        held.insert(0, (last.value("pending_bytes"), limits.pending_bytes))
    for bytes, most in held:
        if bytes >= _NEARLY_FULL * most:
            what = "the store of frames that wait for truth is nearly full"
            yield REMARK, f"{what}: {size(bytes)} of {size(most)}"


def labels_match(seen: Observation) -> str:
    """Says how many labels match."""
    found = seen.now.by("ground_truth_total", "outcome")
    counted = sum(found.get(name, 0.0) for name in COUNTED)
    detections, matched = _labelled(seen)
    if not counted:
        none = "no truth, and no frames that could have any"
        return "no truth has come since the start" if detections else none
    text = f"{share(matched, counted)} of the labels match"
    if detections:
        text += f", {share(matched, detections)} of the detections have one"
    last = silence_s(seen)
    return f"{text}, the last came {duration(last)} ago" if math.isfinite(last) else text


# ---- the tracker


def away(seen: Observation) -> Found:
    """Finds a tracker elsewhere that is away, by the metrics where the status was refused."""
    status = seen.last.status
    elsewhere = None if status is None else status.tracker
    if seen.now.value("tracker_up") != 0 if elsewhere is None else elsewhere.up:
        return
    where = "the tracker elsewhere" if elsewhere is None else f"the tracker at {elsewhere.address}"
    trouble = "" if elsewhere is None else elsewhere.trouble
    failed = seen.increase("tracker_forwarded_total", outcome="failed")
    lost = f"; {count(failed, 'frame')} did not reach it while doctor looked" if failed > 0 else ""
    yield WRONG, f"{where} {trouble or 'is away'}{lost}"


def late_tracks(seen: Observation) -> Found:
    """Finds a tracker elsewhere that is there, and answers too little."""
    late, total, frames, _ = part_of(
        seen, "tracker_forwarded_total", "outcome", "tracker_forwarded_total", ["answered"]
    )
    recent = seen.increase("tracker_forwarded_total") > 0
    if total > _LATE * frames and recent and not any(away(seen)):
        what = f"the tracker elsewhere is there, but {share(total, frames)} of the frames come back"
        yield WRONG, f"{what} without its tracks ({shares(late, frames)})"


def untracked(seen: Observation) -> Found:
    """Finds frames that cannot be tracked."""
    orders = seen.now.by("tracker_frames_total", "order")
    bad = {order: orders[order] for order in _UNTRACKABLE if orders.get(order)}
    total = sum(orders.values())
    if sum(bad.values()) > _UNTRACKED * total:
        what = f"{share(sum(bad.values()), total)} of the frames cannot be tracked"
        yield WRONG, f"{what} ({shares(bad, total)})"


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
    """Finds that nobody watches."""
    _, matched = _labelled(seen)
    if matched > 0 and not seen.now.rows("drift_driving_seconds_total"):
        yield REMARK, "truth comes, but nothing watches for drift"


def far_from_one(seen: Observation) -> Found:
    """Finds NEES/K far from 1 without an alarm: over longer times than drift is found in, or on
    few labels.
    """
    if any(each.alarm for each in seen.standings) or not seen.drift.given:
        return
    labelled = seen.now.by("matched_detections", "slice")
    rows = seen.now.rows("nees_ratio", stage="recalibrated", dimension="joint")
    off = {
        slice: value
        for slice, value in sorted((labels.get("slice", ""), value) for labels, value in rows)
        if slice != TOTAL
        and labelled.get(slice, 0.0) >= _FEWEST
        and value > 0
        and not 1 / _FACTOR <= value <= _FACTOR
    }
    if off:
        ways = names([f"{slice} {number(value)}" for slice, value in off.items()])
        yield REMARK, f"NEES/K of what is forwarded is far from 1 since the start: {ways}"


def overflow(seen: Observation) -> Found:
    """Finds more slices than there is room for."""
    last = seen.now
    found = (last.value("overflow_detections_total"), last.value("overflow_classified_total"))
    if most := max(n for n in (0.0, *found) if n >= 0):
        what = f"{count(most, 'detection')} with truth are in the overflow slice"
        yield REMARK, f"{what}: there are more slices than [statistics] max_slices"


def no_alarm(seen: Observation) -> str:
    """Says how many slices are watched; '' where neither alarms nor metrics were seen."""
    if not seen.drift.given and seen.last.samples is None:
        return ""
    slices = {each.slice for each in seen.standings if each.slice != TOTAL}
    states = [float(each.state) for each in seen.standings if each.slice != TOTAL]
    if not states:
        rows = seen.now.rows("drift_state")
        states = [value for labels, value in rows if labels.get("slice") != TOTAL]
    if not states:
        return "no alarm: no truth has come that anything could be told from"
    if all(state == DriftState.TOO_FEW for state in states):
        return "no alarm: too little truth so far to tell"
    text = f"no alarm, {count(len(slices), 'slice')} watched" if slices else "no alarm"
    warned = states.count(DriftState.WARNING)
    return f"{text}; {warned} at a tenth of one" if warned else text


# ---- recalibrators


def compensated(seen: Observation) -> Found:
    """Finds faults of the detector that a recalibrator hides."""
    factors = {
        f"{labels.get('dimension', '')} of {labels.get('slice', '')}": value
        for labels, value in seen.now.rows("recalibration_factor")
        if value > 0 and not LEAST_FACTOR <= value <= MOST_FACTOR
    }
    worst = sorted(factors, key=lambda key: (-abs(math.log(factors[key])), key))
    if texts := [f"{key} by {number(factors[key])}" for key in worst]:
        what = "a fault of the detector is being compensated"
        yield WRONG, f"{what}: variances are multiplied, {names(texts)}"


def failed_fits(seen: Observation) -> Found:
    """Finds fits that fail."""
    failed = seen.now.value("recalibrator_fits_total", outcome="failed")
    rises = seen.increase("recalibrator_fits_total", outcome="failed") > 0
    if failed >= FAILED_FITS:
        what = f"{count(failed, 'fit')} of slices failed since the start"
        yield WRONG if rises else REMARK, f"{what}{while_(rises)}"


def waits(seen: Observation) -> Found:
    """Finds candidates that wait for approval, by the metrics where the listing was refused."""
    proven = [trial for trial in seen.trials if trial.state is TrialState.PROVEN]
    slices = sorted(trial.slice for trial in proven)
    version = f" ({proven[0].version})" if len(proven) == 1 else ""
    if not seen.recalibrators.given and seen.last.samples is not None:
        labels = {"state": TrialState.PROVEN, "direction": "better"}
        slices = seen.now.words("trial_log10_evidence", "slice", **labels)
    if slices:
        what = f"a recalibrator of {names(slices)} is proven better"
        yield REMARK, f"{what} and waits for approval{version}"


def pinned(seen: Observation) -> Found:
    """Finds that nothing happens by itself."""
    on = seen.now.value("recalibrator_pinned") == 1
    if on if seen.pinned is None else seen.pinned:
        yield REMARK, "recalibrators are pinned"


def observes(seen: Observation) -> Found:
    """Finds that nothing is corrected, as somebody wanted it."""
    if "observe" in seen.now.words("recalibrator_info", "mode"):
        versions = seen.now.words("recalibrator_info", "version")
        makes = "makes" if len(versions) == 1 else "make"
        what = "mode is observe: detections go out as they came"
        yield REMARK, f"{what}, what {names(versions)} {makes} of them beside"


def active(seen: Observation) -> str:
    """Says what is active; '' without the metrics."""
    found = [
        f"{labels.get('method', '?')} ({labels.get('version', '?')})"
        for labels, value in seen.now.rows("recalibrator_info")
        if value
    ]
    return f"in force: {names(sorted(found))}" if seen.last.samples is not None else ""


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
        Rule("calibrationcandidatewaits", waits, ""),
        Rule("recalibrators-are-pinned", pinned, ""),
        Rule("nothing-is-corrected", observes),
    ),
}
